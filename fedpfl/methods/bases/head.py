"""Base of the methods that treat the last layers of a model differently from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from torch import nn

from ...core.settings import setting
from ...models.parts import cut
from ..base import Method


@dataclass(frozen=True)
class HeadSettings:
    """Where the head begins."""

    head_layers: int = setting(1, "Number of linear layers at the model's end that form its head.", minimum=1, of="")


class HeadMethod(Method):
    """Base of the methods for models of a base and a head; others are refused when the model is built."""

    Settings = HeadSettings

    def in_head(self, model: nn.Module) -> Callable[[str], bool]:
        """Return the function that tells by name which arrays belong to the head; refuse a model without one."""
        return cut(model, self.settings.head_layers).in_head
