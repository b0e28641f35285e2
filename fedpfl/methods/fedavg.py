"""FedAvg: everything is shared.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..settings import setting
from .base import Aggregation, Method


@dataclass(frozen=True)
class FedAvgSettings:
    """Settings of FedAvg."""

    weights: str = setting(
        "examples",
        "Weights of the mean: each client's training samples, or all alike.",
        choices=("examples", "uniform"),
    )


class FedAvg(Method):
    """One model for all: w ← Σ n_i·w_i / Σ n_i."""

    name = "fedavg"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    shares = "everything"
    Settings = FedAvgSettings

    @property
    def aggregation(self) -> Aggregation:
        """The mean of all arrays."""
        return Aggregation("mean", {"weights": self.settings.weights})
