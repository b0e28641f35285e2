"""Local: every client trains alone, the baseline that personalisation has to beat."""

from __future__ import annotations

from torch import nn

from ..rules.mean import Mean
from .base import Aggregation, Method


class Nothing(Mean):
    """The mean of no arrays."""

    name = "nothing"
    combines = False


class Local(Method):
    """Share nothing.

    client i:
        train w_i on f_i
    predict: w_i
    """

    name = "local"
    paper = "no federation: the baseline of every personalised-FL paper"
    shares = "nothing"
    aggregation = Aggregation(Nothing)

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share nothing."""
        return False
