"""Programs (TorchScript, ONNX) of models that take several inputs: each is an input of its own, by its name."""

from __future__ import annotations

import inspect
import io
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ..client.device_model import is_alike
from ..core.errors import NoPlainModel
from ..core.inputs import Inputs
from ..models.several_inputs import call_of

_jit: Any = torch.jit  # whose functions have no types
# Batches with which a program is compared with its model.
TRACED, TRIED = 2, (1, 5)


def program(module: nn.Module, inputs: Inputs, form: str) -> bytes:
    """Return a model as TorchScript or ONNX; :class:`NoPlainModel` if neither can hold it."""
    arguments, known = call_of(module, inputs, type(module).__name__), [*inspect.signature(module.forward).parameters]
    # ONNX numbers inputs in the order of the forward's arguments, and calls them so.
    names = [part.name if inputs.named else f"x{part.name}" for part in inputs.parts]
    if not arguments.whole:
        names = [name for name in known if name in names] if inputs.named else [*known[: len(names)]]

    def call(rows: Tensor) -> Any:
        placed, named = arguments(inputs.unpacked(rows))
        return placed, {name: named[name] for name in names} if named else {}

    x = inputs.example(max(TRIED))
    if form == "torchscript":
        content, why = _traced(module, call, x)
    else:
        from .onnx import onnx

        content, why = onnx(module, x[:TRACED], call, names)
    if content is None:
        raise NoPlainModel(why)
    return content


def _traced(module: nn.Module, call: Any, x: Tensor) -> tuple[bytes | None, str]:
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
