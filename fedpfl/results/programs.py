"""Models as programs, which run without their Python code: TorchScript, and ONNX for onnxruntime and TensorRT.

Several inputs of a model are inputs of the program, by their names. ONNX needs the extra onnx.
"""

from __future__ import annotations

import inspect
import io
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

from ..client.device_model import is_alike
from ..core.errors import FedpflError, NoPlainModel
from ..core.inputs import Inputs
from ..core.rng import generator
from ..models.several_inputs import call_of

_jit: Any = torch.jit  # whose functions have no types
MISSING = "ONNX needs packages that are not installed: pip install 'fedpfl[onnx]'"
# Batches with which a program is made, and compared with its model; and the most samples that ONNX takes.
TRACED, TRIED = 2, (1, 5)
MAX_BATCH = 2**16
# Makes the arguments of a batch, those by place and those by name.
Call = Callable[[Tensor], Any]


def program(module: nn.Module, shape: tuple[int, ...], vocabulary: int, form: str) -> bytes:
    """Return a model as a program for batches of any size; :class:`NoPlainModel` if the form cannot hold it."""
    if isinstance(shape, Inputs):
        x, call, names = shape.example(max(TRIED)), *_several(module, shape)
    else:
        rng, size, names = generator(0, "export"), (max(TRIED), *shape), ["x"]
        x = torch.from_numpy(rng.integers(0, vocabulary, size) if vocabulary else rng.random(size, np.float32))
        call = _one
    content, why = _traced(module, x, call) if form == "torchscript" else onnx(module, x, call, names)
    if content is None:
        raise NoPlainModel(why)
    return content


def _one(x: Tensor) -> Any:
    return (x,), {}


def _several(module: nn.Module, inputs: Inputs) -> tuple[Call, list[str]]:
    """Return the call of a module that takes several inputs, and their names, in the order of its arguments."""
    arguments, parameters = (
        call_of(module, inputs, type(module).__name__),
        [*inspect.signature(module.forward).parameters],
    )
    names = [part.name if inputs.named else f"x{part.name}" for part in inputs.parts]
    if not arguments.whole:
        names = [name for name in parameters if name in names] if inputs.named else [*parameters[: len(names)]]

    def call(rows: Tensor) -> Any:
        placed, named = arguments(inputs.unpacked(rows))
        return placed, {name: named[name] for name in names} if named else {}

    return call, names


def _traced(module: nn.Module, x: Tensor, call: Call) -> tuple[bytes | None, str]:
    placed, named = call(x[:TRACED])
    buffer = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script = _jit.trace(module, placed or None, example_kwarg_inputs=named or None, check_trace=False)
            _jit.save(script, buffer)
            for size in TRIED:
                placed, named = call(x[:size])
                if not is_alike(module(*placed, **named), script(*placed, **named)):
                    return None, "its TorchScript export predicts something else"
    except (RuntimeError, TypeError, ValueError) as error:
        return None, f"TorchScript cannot hold it ({str(error).strip().partition(chr(10))[0][:200]})"
    return buffer.getvalue(), ""


def onnx(model: nn.Module, x: Tensor, call: Call = _one, names: Sequence[str] = ("x",)) -> tuple[bytes | None, str]:
    """Return a model as ONNX, whose inputs have the names and a free first dimension; or None, and why it cannot be.

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
        placed, named = call(x[:TRACED])
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
        inputs = dict(zip(names, [array.numpy() for array in tree_leaves((placed, named))], strict=True))
        if not np.allclose(expected, session.run(None, inputs)[0], rtol=1e-3, atol=1e-4):
            return None, "its ONNX export predicts something else"
    return content, ""
