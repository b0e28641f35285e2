"""Factorized-FL β: a weight is u ⊗ v + µ; clients share u, v and the large entries of µ with those whose v is similar.

Jeong, Hwang: Factorized-FL: Agnostic Personalized Federated Learning with Kernel Factorization & Similarity Matching,
2022, Section 5.1 and Algorithm 2.

The server also leaves out the entries below λ when it sends the means of µ.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ...core.payload import Payload
from ...core.sharing import Sharing
from ..base import LocalRound
from .factorized_fl import FactorizedFL, sizes
from .layers import is_mu, penultimate_v


class FactorizedFLPlus(FactorizedFL):
    """Share u, v and the sparse µ of each weight with similar clients.

    as α, but
    client i: send u_i, v_i and the entries of µ_i from λ on
    server: (u_i, v_i, µ_i) ← Σ_{j ∈ S_i} ω_ij·(u_j, v_j, µ_j)
    """

    name = "factorized-fl-plus"
    shares = "u, v and the sparse µ of every layer, biases, γ and β of BatchNorm"
    extras = ()  # v is among the shared arrays

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share u, v, µ and what is no factor; the running statistics stay."""
        return self.is_common(name)

    def sharing(self, model: nn.Module) -> Sharing:
        """Send the entries of µ from λ on; smaller ones count as 0."""
        return Sharing(model, lambda n: self.travels(n, model), lambda n: self.settings.l1 if is_mu(n) else None)

    def conclude(self, local: LocalRound) -> Payload:
        """Send nothing more: v is among the shared arrays."""
        return Payload(metrics=sizes(local.model))

    def rule_options(self) -> dict[str, Any]:
        """Compare the clients by the shared v of the layer before the classifier."""
        return {**super().rule_options(), "compared": penultimate_v}
