"""Factorized-FL (α): a weight is u ⊗ v + µ; clients share u with those whose v is similar.

Jeong, Hwang: Factorized-FL: Agnostic Personalized Federated Learning with Kernel Factorization & Similarity Matching,
2022, Section 4 and Algorithm 1.

Biases, γ and β of BatchNorm are averaged with u; the running statistics stay. Clients below τ are left out, except for
the ``factorized-fl-min-aggregate`` nearest ones; with the paper's score of 0 they would still weigh exp(0). The
authors' program keeps the 10 nearest, so with ten clients none is left out, and ε = 1 makes their weights nearly equal.
``configs/factorized-fl-cifar10.toml`` lists other differences.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor, nn

from ...core.extra_arrays import SERVER, Extra
from ...core.payload import Number, Payload
from ...core.sharing import RUNNING_STATISTICS, UNUSED_BUFFER
from ...models.parts import cut
from ...training.penalties import L1
from ...training.phase import Phase
from ..base import Aggregation, LocalRound, Method, everything, in_classifier
from ..settings import FactorizedFLSettings
from .layers import count_kept, factorize, is_mu, is_v, merge, penultimate_v
from .similarity import Similarity

BUFFERS = (*RUNNING_STATISTICS, UNUSED_BUFFER)
NAME = "factorized-fl"  # stands before the keys of both variants


class FactorizedFL(Method):
    """Share u of each weight with similar clients; v and µ stay.

    each weight is u ⊗ v + µ        # µ sparse
    client i:
        train u_i, v_i, µ_i on f_i + λ·‖µ_i‖₁
        send u_i, and v_i of the layer before the classifier
    server: s_ij ← cos(v_i, v_j);  S_i ← clients j with s_ij ≥ τ
        u_i ← Σ_{j ∈ S_i} ω_ij·u_j,  ω_ij = exp(ε·s_ij) / Σ_{k ∈ S_i} exp(ε·s_ik)
    predict: the client's weights
    """

    name = NAME
    paper = "Jeong and Hwang, Factorized-FL: Agnostic Personalized Federated Learning with Kernel Factorization …, 2022"
    shares = "u of every layer, biases, γ and β of BatchNorm; v of one layer is sent for comparison"
    Settings = FactorizedFLSettings
    refuses = {"trainable": "factorises whole weights"}

    def build(self, model: nn.Module) -> nn.Module:
        """Factorise every convolution and linear layer (Equations 2 and 3)."""
        cut(model)  # refuses a model without a head
        # Not from torch's stream, of which the classifier has taken as much as it has outputs: clients with different
        # numbers of classes must start from the same v, or a cosine between their v means nothing.
        settings, generator = self.settings, torch.Generator().manual_seed(torch.initial_seed())
        model = factorize(model, settings.l1, settings.mu, generator, viewed=settings.kernels == "view")
        penultimate_v(model.state_dict())  # refuses a model that has no layer to compare clients by
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share u and what is no factor; v and µ stay (Section 4.1), and so do the running statistics."""
        return self.is_common(name) and not is_v(name) and not is_mu(name)

    def is_common(self, name: str) -> bool:
        """Tell whether an array means the same to all clients."""
        own_classifier = self.settings.classifier == "personal" and in_classifier(name)
        return not own_classifier and not name.endswith(BUFFERS)

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Tell users if no client can be left out."""
        least = self.settings.min_aggregate
        if self.settings.matching != "similar" or clients > least:
            return []
        return [f"{self.name}: {NAME}-min-aggregate = {least}: all {clients} clients are averaged, however unlike"]

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train u, v and µ together on cross-entropy + λ·‖µ‖₁ (Equation 6)."""
        penalty = L1(self.settings.l1, is_mu) if self.settings.penalty == "gradient" else None
        return [Phase(train=everything, epochs=self.training.local_epochs, penalty=penalty)]

    def conclude(self, local: LocalRound) -> Payload:
        """Send v of the layer before the classifier, by which clients are compared (Section 4.2)."""
        compared = local.model.state_dict()[_compared(local.model)]
        return Payload(metrics=sizes(local.model), arrays={"compared": compared.cpu().numpy()})

    @property
    def extras(self) -> Sequence[Extra]:
        """The v that is sent."""
        about = "v of the layer before the classifier, by which the server compares clients"
        return (Extra("compared", SERVER, about, copy_of=_compared),)

    @property
    def aggregation(self) -> Aggregation:
        """u_i ← Σ_j ω_ij·u_j, ω_i = softmax(ε·s_i) over the clients matched with i (Equations 4 and 5)."""
        return Aggregation(Similarity, self.rule_options())

    def rule_options(self) -> dict[str, Any]:
        """Return the options of the rule: which clients a client is matched with."""
        names = ("threshold", "scaling", "min_aggregate", "matching")
        return {name: getattr(self.settings, name) for name in names}

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Multiply out u ⊗ v + µ as it is tested, under the plain model's names."""
        return merge(model)


def sizes(model: nn.Module) -> dict[str, Number]:
    """Return the numbers of parameters that the paper counts."""
    kept, parameters = count_kept(model)
    return {"mu-nonzero": kept, "parameters": parameters}


def _compared(model: nn.Module) -> str:
    return penultimate_v(model.state_dict())
