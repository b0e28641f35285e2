"""Base of the methods that treat the last layers of a model differently from the others."""

from __future__ import annotations

from typing import Callable

from torch import nn

from ...models.parts import cut
from ..base import Method
from ..settings import HeadSettings


class HeadMethod(Method):
    """Base of the methods for models of a base and a head; others are refused when the model is built."""

    Settings = HeadSettings

    def in_head(self, model: nn.Module) -> Callable[[str], bool]:
        """Return the function that tells by name which arrays belong to the head; refuse a model without one."""
        return cut(model, self.settings.head_layers).in_head

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Warn where no client can have a head of its own."""
        in_head = self.in_head(model)
        if any(in_head(name) for name, _ in model.named_parameters()):
            return []
        return [f"{self.name}: the head is frozen by the model, so it never trains, in any client"]
