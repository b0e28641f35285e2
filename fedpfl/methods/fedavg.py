"""FedAvg: everything is shared.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from torch import nn

from ..rules.mean import Mean
from .base import Aggregation, Method
from .settings import FedAvgSettings


class FedAvg(Method):
    """Share everything: one model for all.

    client i:
        train w_i, from w, on f_i
        send w_i
    server: w ← Σ n_i·w_i / Σ n_i        # mean(w_i)
    predict: w
    """

    name = "fedavg"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    shares = "everything"
    Settings = FedAvgSettings

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share everything; leave out buffers where they are personal."""
        return bool(self.settings.share_buffers) or name not in dict(model.named_buffers())

    @property
    def aggregation(self) -> Aggregation:
        """The mean of all arrays."""
        return Aggregation(Mean, {"weights": self.settings.weights})
