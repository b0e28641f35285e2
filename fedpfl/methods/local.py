"""Local: every client trains alone, the baseline that personalisation has to beat."""

from __future__ import annotations

from torch import nn

from .base import Method


class Local(Method):
    """Share nothing.

    client i:
        train w_i on f_i
    predict: w_i
    """

    name = "local"
    paper = "no federation: the baseline of every personalised-FL paper"
    shares = "nothing"

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share nothing."""
        return False
