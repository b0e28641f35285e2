"""Preparation of a client's samples as a module that stands before the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..data.scaling import FILL, Scaling


class Preparation:
    """A hook before a module's forward, which fills gaps and scales features.

    ``numbers`` are those of :meth:`fedpfl.data.federation.FederatedData.preparation`.
    """

    def __init__(self, numbers: Mapping[str, Any]) -> None:
        self.numbers = {key: torch.as_tensor(values, dtype=torch.float32) for key, values in numbers.items()}

    def __call__(self, module: nn.Module, positional: tuple[Any, ...]) -> Any:
        """Return the arguments as the module takes them, the first of which is a batch."""
        x, *others = positional
        numbers = {key: values.to(x.device) for key, values in self.numbers.items()}
        if FILL in numbers:
            x = torch.where(torch.isnan(x), numbers[FILL].reshape(1, -1, *[1] * (x.dim() - 2)), x)
        if Scaling._fields[0] in numbers:
            scaling: Any = Scaling(*(numbers[key] for key in Scaling._fields))  # type: ignore[arg-type]
            x = scaling.applied(x)
        return (x, *others)


def prepare(module: nn.Module, numbers: Mapping[str, Any]) -> nn.Module:
    """Have a module take samples as the data have them; without ``numbers`` it stays as it is."""
    if numbers:
        module.register_forward_pre_hook(Preparation(numbers))
    return module
