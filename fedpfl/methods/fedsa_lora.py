"""FedSA-LoRA: the matrix A of each adapter B·A is shared, B stays with the client.

Guo, Zeng, Wang, Fan, Wang, Qu: Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025, Section
4 and Algorithm 1.

As in the authors' settings the head stays as well. Rank, α and layers are settings of all adapters (paper: 8, 16, query
and value projections).
"""

from __future__ import annotations

from torch import nn

from ..models.adapters import matrix_of
from .bases.adapters import AdapterMethod


class FedSALoRA(AdapterMethod):
    """Share A of each adapter B·A; B and the head stay.

    each adapted weight is W + α/r·B_i·A (W: frozen)
    client i:
        train A_i, from A, and B_i, φ_i on f_i
        send A_i
    server: A ← mean(A_i)
    predict: W + α/r·B_i·A, φ_i
    """

    name = "fedsa-lora"
    paper = "Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025"
    shares = "the matrix A of each adapter"

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share A."""
        return matrix_of(name) == "A"
