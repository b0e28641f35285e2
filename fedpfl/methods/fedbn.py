"""FedBN: batch normalisation is personal, everything else is shared.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
Algorithm 1.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .base import Method


class FedBN(Method):
    """Share all but BatchNorm's parameters and running statistics.

    client i:
        train w_i, from w, and b_i on f_i
        send w_i
    server: w ← mean(w_i)
    predict: (w, b_i)

    b_i: BatchNorm's parameters and running statistics.
    """

    name = "fedbn"
    paper = "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021"
    shares = "everything but BatchNorm's parameters and running statistics"

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share every array that belongs to no BatchNorm layer."""
        layer, _, _ = name.rpartition(".")
        return not isinstance(model.get_submodule(layer), _BatchNorm)

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Warn where there is nothing to personalise."""
        if any(isinstance(layer, _BatchNorm) and layer.state_dict() for layer in model.modules()):
            return []
        return ["this model has no trainable BatchNorm: nothing is personal, and fedbn equals fedavg"]
