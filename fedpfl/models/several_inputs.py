"""Models of the user's that take several inputs: a row of numbers is taken apart before their forward pass."""

from __future__ import annotations

import inspect
from typing import Any, Dict, Sequence, Tuple

from torch import Tensor, nn

from fedpfl.core.errors import ConfigError
from fedpfl.core.inputs import Inputs

from .registry import BaseHeadModel

# Positional arguments of a forward pass, and those by name.
Arguments = Tuple[Tuple[Any, ...], Dict[str, Any]]


class _Unpack:
    """A hook before a module's forward, which makes its arguments of a row; other calls stay as they are."""

    def __init__(self, inputs: Inputs, arguments: Call) -> None:
        self.inputs, self.arguments = inputs, arguments

    def __call__(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Arguments | None:
        if named or len(positional) != 1 or not isinstance(positional[0], Tensor):
            return None
        is_row = positional[0].dim() == 2 and positional[0].shape[1] == self.inputs[0]
        return self.arguments(self.inputs.unpacked(positional[0])) if is_row else None


class Call:
    """Makes the arguments of a forward pass: one for each input, or with ``whole`` one dict or tuple of all."""

    def __init__(self, inputs: Inputs, whole: bool) -> None:
        self.inputs, self.whole = inputs, whole

    def __call__(self, values: Sequence[Any]) -> Arguments:
        """Return the arguments by place and those by name, of a value of each input."""
        together = self.inputs.together(values)
        if self.whole:
            return (together,), {}
        return ((), together) if self.inputs.named else (together, {})


def call_of(module: nn.Module, inputs: Inputs, name: str) -> Call:
    """Return the call of a module's forward with the inputs; ``ConfigError`` if it cannot take them."""
    signature, reasons = inspect.signature(module.forward), []
    for call in (Call(inputs, False), Call(inputs, True)):
        positional, named = call(inputs.parts)
        try:
            signature.bind(*positional, **named)
        except TypeError as error:
            reasons.append(str(error))
        else:
            return call
    raise ConfigError("model", name, f"its forward{signature} does not take the inputs {inputs}: {reasons[0]}")


def take_apart(module: nn.Module, inputs: Inputs, name: str) -> None:
    """Have rows taken apart before a module's forward; ``ConfigError`` for a module that cannot have several inputs."""
    if isinstance(module, (BaseHeadModel, nn.Sequential)):
        kind = f"is a {type(module).__name__}, which passes on one input"
        raise ConfigError("model", name, f"{kind}, and the data have {inputs}: give a module with a forward of its own")
    module.register_forward_pre_hook(_Unpack(inputs, call_of(module, inputs, name)), with_kwargs=True)


def released(module: nn.Module) -> nn.Module:
    """Return a module without what :func:`take_apart` has put before its forward."""
    for key in [key for key, hook in module._forward_pre_hooks.items() if isinstance(hook, _Unpack)]:
        del module._forward_pre_hooks[key], module._forward_pre_hooks_with_kwargs[key]
    return module
