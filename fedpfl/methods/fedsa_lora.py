"""FedSA-LoRA: the matrix A of each adapter B·A is shared, B stays with the client.

Guo, Zeng, Wang, Fan, Wang, Qu: Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025,
Section 4 and Algorithm 1.

As in the authors' settings the head stays as well. The method needs ``trainable = "lora"``; rank, α and layers of the
adapters are the settings of all methods (in the paper rank 8, α 16, query and value projections).
"""

from __future__ import annotations

from torch import nn

from ..models.adapters import matrix_of
from .bases.adapted import AdapterMethod


class FedSALoRA(AdapterMethod):
    """A ← Σ n_i·A_i / Σ n_i; B_i and the head never leave the client."""

    name = "fedsa-lora"
    paper = "Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025"
    shares = "the matrix A of each adapter"
    equations = (
        r"W_i = W_0 + \frac{\alpha}{r} B_i A, \quad A \leftarrow \frac{\sum_i n_i A_i}{\sum_i n_i}, \quad B_i "
        r"\text{ stays}"
    )

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share A."""
        return matrix_of(name) == "A"
