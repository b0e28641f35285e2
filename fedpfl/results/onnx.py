"""Models as ONNX, for onnxruntime and TensorRT; needs the extra onnx."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..core.errors import FedpflError

MISSING = "ONNX needs packages that are not installed: pip install 'fedpfl[onnx]'"
# Most samples of a batch.
MAX_BATCH = 2**16


def onnx(
    model: nn.Module, x: Tensor, call: Callable[[Tensor], Any] = lambda x: ((x,), {}), names: Sequence[str] = ("x",)
) -> tuple[bytes | None, str]:
    """Return a model as ONNX; or None, and why it cannot be.

    ``x`` is a batch with which onnxruntime's outputs are compared, and ``call`` makes the arguments of a batch, those
    by place and those by name. The inputs, called ``names``, have a free first dimension.
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
        placed, named = call(x)
        try:
            torch.onnx.export(
                model, placed, str(path), kwargs=named, input_names=names, output_names=["y"], dynamo=True,
                dynamic_shapes=tree_map(lambda _: free, named or placed), external_data=False, verbose=False,
            )  # fmt: skip
        except (torch.onnx.errors.OnnxExporterError, RuntimeError, TypeError, ValueError) as error:
            return None, f"ONNX cannot hold it ({str(error).strip().partition(chr(10))[0][:200]})"
        content = path.read_bytes()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for batch in (x[:1], torch.cat([x, x[:1]])):
        placed, named = call(batch)
        with torch.no_grad():
            expected = model(*placed, **named).numpy()
        given = dict(zip(names, [array.numpy() for array in tree_leaves((placed, named))], strict=True))
        if not np.allclose(expected, session.run(None, given)[0], rtol=1e-3, atol=1e-4):
            return None, "its ONNX export predicts something else"
    return content, ""
