"""Factorized-FL β: as α, but v and the sparse µ are averaged too, with the clients whose v is similar.

Jeong, Hwang: Factorized-FL: Agnostic Personalized Federated Learning with Kernel Factorization & Similarity Matching,
2022, Section 5.1 and Algorithm 2.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..core.payload import Payload
from ..layers.factorized import is_mu, penultimate_v
from .base import LocalRound
from .factorized_fl import FactorizedFL


class FactorizedFLPlus(FactorizedFL):
    """W = u ⊗ v + µ: all three are averaged over clients with a similar v."""

    name = "factorized-fl-plus"
    shares = "u, v and the sparse µ of every layer, biases, γ and β of BatchNorm"
    equations = (
        r"W_i = u_i \otimes v_i + \mu_i"
        "\n"
        r"(u_i, v_i, \mu_i) \leftarrow \sum_j \omega_{ij} (u_j, v_j, \mu_j), \quad \omega_{ij} = "
        r"\frac{\exp(\varepsilon s_{ij})}{\sum_k \exp(\varepsilon s_{ik})}, \quad s_{ij} = \cos(v_i, v_j)"
    )
    extras = ()  # v is among the shared arrays

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share u, v, µ and what is no factor; the running statistics stay."""
        return self.is_common(name)

    def sparse_from(self, name: str) -> float | None:
        """Send the entries of µ from λ on; smaller ones count as 0."""
        return self.settings.l1 if is_mu(name) else None

    def conclude(self, local: LocalRound) -> Payload:
        """Send nothing besides: v is among the shared arrays."""
        return Payload(metrics=self.finish(local.model))

    def rule_options(self) -> dict[str, Any]:
        """Compare the clients by the shared v of the layer before the classifier."""
        return {**super().rule_options(), "compared": penultimate_v}
