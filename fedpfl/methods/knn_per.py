"""kNN-Per: FedAvg's model, mixed with a vote of the client's own most similar samples.

Marfoq, Neglia, Vidal, Kameni: Personalized Federated Learning through Local Memorization, ICML 2022, Section 3 and
Algorithm 1.

The paper chooses λ for each client on held-out samples; here all clients have the same λ. In the authors' code the
kernel divides the squared distance by the number of features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import NoPlainModel
from ..models.parts import cut
from ..training.loop import predict
from ..training.phase import Forward
from .base import LocalRound, Method
from .bases.prototypes import class_by_width
from .settings import KNNPerSettings

NEIGHBOURS = 10  # k; all training samples if the client has fewer
SCALE = 1.0  # σ of distances
LEAST = 1e-12  # The least probability whose logarithm is taken.


class Mixture:
    """log(λ·h_knn + (1 − λ)·h) for one client; its samples' features are computed at the first prediction."""

    def __init__(self, model: nn.Module, weight: float, local: LocalRound) -> None:
        self.base, self.head, _ = cut(model)
        self._weight, self._local = weight, local
        self._features: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return log-probabilities, shape (samples, classes)."""
        if self._features is None:
            self._features, self._labels = predict(self.base, self._local.samples.x), self._local.samples.y
        features = self.base(x)
        # Exactly: by products of matrices the distances of near samples would lose their digits.
        distances = torch.cdist(features, self._features, compute_mode="donot_use_mm_for_euclid_dist")
        near, places = distances.topk(min(NEIGHBOURS, len(self._labels)), largest=False)
        shared = F.softmax(self.head(features), dim=1)
        votes = F.softmax(-near / SCALE, dim=1)
        neighbours = torch.zeros_like(shared).scatter_add(1, self._labels[places], votes)
        return (self._weight * neighbours + (1 - self._weight) * shared).clamp(min=LEAST).log()


class KNNPer(Method):
    """Train as FedAvg does; let the client's nearest samples vote as well.

    training: FedAvg
    client i: remembers z_s, y_s of its samples s
    predict: λ·knn(x) + (1 − λ)·softmax(w(x))
        knn(x)_c ∝ Σ exp(−‖z − z_s‖/σ) over those of the k nearest samples with y_s = c

    k = 10 and σ = 1.
    """

    name = "knn-per"
    paper = "Marfoq et al., Personalized Federated Learning through Local Memorization, ICML 2022"
    shares = "everything; features of the client's samples, which are remembered, stay"
    refuses = {"loss": "lets neighbours vote for classes"}
    Settings = KNNPerSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Refuse a model whose features have no length."""
        class_by_width(model)
        return model

    def prepare(self, local: LocalRound) -> None:
        """Provide the client's samples for predictions."""
        self._local = local

    def personalised(self, model: nn.Module) -> Forward:
        """Return the mixture."""
        return Mixture(model, self.settings.weight, self._local)

    def global_model(self, model: nn.Module) -> Forward:
        """Return h."""
        return model

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Refuse: no plain model remembers samples."""
        raise NoPlainModel("knn-per predicts with the client's samples as well as the shared model")
