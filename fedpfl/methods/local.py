"""Local: every client trains alone. The baseline that personalisation has to beat for every single client."""

from __future__ import annotations

from torch import nn

from .base import Method


class Local(Method):
    """Nothing is shared."""

    name = "local"
    paper = "no federation: the baseline of every personalised-FL paper"
    shares = "nothing"
    equations = r"w_i \leftarrow w_i - \eta \nabla f_i(w_i)"

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share nothing."""
        return False
