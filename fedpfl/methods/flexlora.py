"""FlexLoRA: clients have adapters of unequal ranks; the server averages their products and cuts them by an SVD.

Bai, Chen, Qian, Yao, Li: Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client Resources,
NeurIPS 2024, Section 3 and Algorithm 1.

All adapters have the shape and the scale α/r of ``lora-rank``; entries beyond a client's rank are 0 and do not travel.
"""

from __future__ import annotations

from typing import Any, Iterator, Sequence

import numpy as np
from torch import nn

from ..core.errors import ConfigError
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..core.sharing import Sharing
from ..models.adapters import matrix_of
from ..rules.mean import Mean
from ..training.phase import Forward
from .base import Aggregation
from .bases.adapters import AdapterMethod
from .settings import FlexLoRASettings


class MeanOfProducts(Mean):
    """W ← Σ n_i·B_i·A_i / Σ n_i; a client gets the best B·A of its rank r for W. All else is averaged.

    W = U·Σ·Vᵀ gives B = U·Σ and A = Vᵀ, of which the first r columns and rows are the client's.
    """

    name = "mean-of-products"

    def __init__(self, federation: Federation, shared: np.ndarray, ranks: Sequence[int]) -> None:
        super().__init__(federation, shared)
        self.ranks = ranks or [max(len(a) for _, a, _ in self._adapters(shared))]
        self._sent: dict[int, np.ndarray] = {}

    def begin(self) -> None:
        """Start the sums at zero."""
        super().begin()
        self._sums: dict[str, Any] = {}

    def outgoing(self, client: Client) -> np.ndarray:
        """Return the arrays with adapters of the client's rank."""
        rank = self._rank(client)
        if rank not in self._sent:
            self._sent[rank] = self._cut(self.shared, rank)
        return self._sent[rank]

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the products of the client's adapters, and its other arrays."""
        super().add(client, shared, reply)
        for name, a, b in self._adapters(self._cut(shared, self._rank(client))):
            product = self.weight(client, reply) * (b.astype(np.float64) @ a)
            self._sums[name] = self._sums.get(name, 0.0) + product

    def finish(self) -> None:
        """Divide, and take the products apart."""
        super().finish()
        self._sent = {}
        self.shared = self.shared.copy()
        for name, a, b in self._adapters(self.shared):
            u, s, v = np.linalg.svd(self._sums[name] / self._mean.weights, full_matrices=False)
            rank = min(len(a), len(s))
            a[:], b[:] = 0, 0
            a[:rank], b[:, :rank] = v[:rank], u[:, :rank] * s[:rank]

    def _rank(self, client: Client) -> int:
        return self.ranks[client.id % len(self.ranks)]

    def _cut(self, vector: np.ndarray, rank: int) -> np.ndarray:
        vector = vector.copy()
        for _, a, b in self._adapters(vector):
            a[rank:], b[:, rank:] = 0, 0
        return vector

    def _adapters(self, vector: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield the name of each A, and views of A, shape (rank, inputs), and B, shape (outputs, rank)."""
        shapes, places = dict(self.layout.entries), self.layout.slices()
        for name in (name for name in shapes if matrix_of(name) == "A"):
            other = name.replace("lora_A", "lora_B")
            a, b = vector[places[name]], vector[places[other]]
            yield name, a.reshape(shapes[name][0], -1), b.reshape(shapes[other][0], -1)


class FlexLoRA(AdapterMethod):
    """Share all of the model; clients differ in the rank r_i of their adapters.

    each adapted weight is W + α/r·B_i·A_i (W: frozen), rank r_i
    client i:
        train B_i, A_i and the head on f_i
        send them
    server: U·S·Vᵀ ← SVD of mean(B_i·A_i);  the head ← its mean
        B_i ← first r_i columns of U·S;  A_i ← first r_i rows of Vᵀ
    predict: W + α/r·B_i·A_i
    """

    name = "flexlora"
    paper = (
        "Bai et al., Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client Resources, "
        "NeurIPS 2024"
    )
    shares = "adapters of each client's rank, and the head"
    Settings = FlexLoRASettings

    def check(self) -> None:
        """Require ranks to be whole numbers."""
        self.ranks: list[int] = []
        for word in filter(None, self.settings.ranks.split(",")):
            if not word.strip().isdecimal() or not int(word):
                message = "must be whole numbers of at least 1, separated by commas"
                raise ConfigError("flexlora-ranks", self.settings.ranks, message)
            self.ranks.append(int(word))

    def build(self, model: nn.Module) -> nn.Module:
        """Refuse ranks that are larger than the adapters'."""
        most = min(len(p) for name, p in super().build(model).named_parameters() if matrix_of(name) == "A")
        if max(self.ranks, default=1) > most:
            raise ConfigError("flexlora-ranks", self.settings.ranks, f"must be at most lora-rank = {most} each")
        return model

    def sharing(self, model: nn.Module) -> Sharing:
        """Share everything; of adapters only what is not 0 travels."""
        return Sharing(model, lambda name: self.travels(name, model), lambda name: 0.0 if matrix_of(name) else None)

    @property
    def aggregation(self) -> Aggregation:
        """The mean of the products, cut to each client's rank."""
        return Aggregation(MeanOfProducts, {"ranks": self.ranks})

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return the model where all clients have the same rank."""
        return model if len(set(self.ranks)) < 2 else None
