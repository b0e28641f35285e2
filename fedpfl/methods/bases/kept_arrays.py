"""Base of the methods whose clients keep an array for each parameter, to correct their training."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ...layers.memory import Memory, remembered
from ..base import Method


class KeepsArrays(Method):
    """The model has a memory (its child named ``memory``), 0 at first, that takes no part in a prediction."""

    memory: ClassVar[str]

    def build(self, model: nn.Module) -> nn.Module:
        """Add the memory."""
        model.add_module(self.memory, Memory({name: torch.zeros_like(p) for name, p in model.named_parameters()}))
        return model

    def kept(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the memory's arrays by the names of the parameters; writing to them changes the memory."""
        return remembered(model, self.memory)

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share everything but the memory."""
        return self.in_mean_model(name)

    def in_mean_model(self, name: str) -> bool:
        """Leave out the memory."""
        return not name.startswith(self.memory + ".")
