"""Models as programs, which run without their Python code: TorchScript, and ONNX for onnxruntime and TensorRT.

ONNX needs the extra onnx.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..client.device_model import traced
from ..core.errors import FedpflError, NoPlainModel
from ..core.rng import generator

MISSING = "ONNX needs packages that are not installed: pip install 'fedpfl[onnx]'"
# Samples with which a program is made, and compared with its model; and the most samples that ONNX takes.
TRACED, SAMPLES = 2, 5
MAX_BATCH = 2**16


def program(module: nn.Module, shape: tuple[int, ...], vocabulary: int, form: str) -> bytes:
    """Return a model as a program for batches of any size; :class:`NoPlainModel` if the form cannot hold it."""
    rng, size = generator(0, "export"), (SAMPLES, *shape)
    x = torch.from_numpy(rng.integers(0, vocabulary, size) if vocabulary else rng.random(size, np.float32))
    content, why = traced(module, module, x) if form == "torchscript" else onnx(module, x)
    if content is None:
        raise NoPlainModel(why)
    return content


def onnx(model: nn.Module, x: Tensor) -> tuple[bytes | None, str]:
    """Return a model as ONNX, whose input x has a free first dimension; or None, and why it cannot be.

    ``x`` is a batch with which onnxruntime's outputs are compared.
    """
    try:
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401  torch.onnx needs it
    except ImportError as error:
        raise FedpflError(MISSING) from error

    with tempfile.TemporaryDirectory(prefix="fedpfl-") as folder, warnings.catch_warnings():
        path = Path(folder) / "model.onnx"
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        free = {0: torch.export.Dim("n", min=1, max=MAX_BATCH)}
        try:
            torch.onnx.export(
                model, (x[:TRACED],), str(path), input_names=["x"], output_names=["y"], dynamo=True,
                dynamic_shapes=(free,), external_data=False, verbose=False,
            )  # fmt: skip
        except (torch.onnx.errors.OnnxExporterError, RuntimeError, TypeError, ValueError) as error:
            return None, f"ONNX cannot hold it ({str(error).strip().partition(chr(10))[0][:200]})"
        content = path.read_bytes()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for batch in (x[:1], torch.cat([x, x[:1]])):
        with torch.no_grad():
            expected = model(batch).numpy()
        if not np.allclose(expected, session.run(None, {"x": batch.numpy()})[0], rtol=1e-3, atol=1e-4):
            return None, "its ONNX export predicts something else"
    return content, ""
