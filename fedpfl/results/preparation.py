"""Preparation of a client's samples as a module that stands before the model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.inputs import FLOAT, Inputs
from ..data.scaling import FILL, Scaling
from ..models.several_inputs import call_of


class Preparation:
    """A hook before a module's forward, which fills gaps and scales features.

    ``numbers`` are those of :meth:`fedpfl.data.federation.FederatedData.preparation`. The module's arguments are a
    batch, or batches of several inputs, and stay as they are otherwise.
    """

    def __init__(self, numbers: Mapping[str, Any], inputs: Inputs | None = None, whole: bool = False) -> None:
        self.numbers = {key: torch.as_tensor(values, dtype=torch.float32) for key, values in numbers.items()}
        self.inputs, self.whole = inputs, whole

    def __call__(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the arguments as the module takes them."""
        if self.inputs is None:
            return (self._prepared(positional[0], 0), *positional[1:]), named
        together: Any = positional
        if self.whole:
            (together,) = (*positional, *named.values())
        elif self.inputs.named:
            together = {**dict(zip(inspect.signature(module.forward).parameters, positional, strict=False)), **named}
        values, begin = [], 0
        for place, part in enumerate(self.inputs.parts):
            x = together[part.name if self.inputs.named else place]
            values.append(self._prepared(x, begin) if part.kind == FLOAT else x)
            begin += (*part.shape, 1)[0] if part.kind == FLOAT else 0
        prepared = self.inputs.together(values)
        if self.whole:
            return (prepared,), {}
        return (
            ((), {**together, **prepared}) if self.inputs.named else ((*prepared, *positional[len(prepared) :]), named)
        )

    def _prepared(self, x: Tensor, begin: int) -> Tensor:
        """Return a batch, n × features × …, whose features have the numbers from a place on."""
        features = x.shape[1] if x.dim() > 1 else 1
        numbers = {key: values[begin : begin + features].to(x.device) for key, values in self.numbers.items()}
        if x.dim() == 1:  # one number of each sample
            return self._changed(x.reshape(-1, 1), numbers).reshape(-1)
        return self._changed(x, numbers)

    @staticmethod
    def _changed(x: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
        if FILL in numbers:
            x = torch.where(torch.isnan(x), numbers[FILL].reshape(1, -1, *[1] * (x.dim() - 2)), x)
        if Scaling._fields[0] in numbers:
            scaling: Any = Scaling(*(numbers[key] for key in Scaling._fields))  # type: ignore[arg-type]
            x = scaling.applied(x)
        return x


def prepare(module: nn.Module, numbers: Mapping[str, Any], inputs: Inputs | None = None) -> nn.Module:
    """Have a module take samples as the data have them; without ``numbers`` it stays as it is."""
    if numbers:
        whole = inputs is not None and call_of(module, inputs, type(module).__name__).whole
        module.register_forward_pre_hook(Preparation(numbers, inputs, whole), with_kwargs=True)
    return module
