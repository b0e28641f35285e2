"""FedTGP: the server trains class prototypes and pushes them as far apart as the clients' own are.

Zhang, Liu, Hua, Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data
and Model Heterogeneity in Federated Learning, AAAI 2024, Section 4 and Algorithm 1.

The server's batches have B class means; it trains for 100 epochs with the rate 0.01. The authors' program predicts by
the nearest prototype, sends prototypes of classes that no client has had, trains at the server with the clients' rate
(for 100 epochs in its published command, 1,000 by default), and ran with λ 10 (``fedproto-pull``).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..core.server_view import Federation
from ..training.at_server import fit
from ..training.phase import PLAIN_SGD, Batch, Phase
from .base import Aggregation, everything
from .bases.prototypes import PairsRule
from .fedproto import FedProto

# Of the server's plain SGD: epochs S a round over the clients' class means, and the learning rate.
EPOCHS, LEARNING_RATE = 100, 0.01
MARGIN = 100.0  # the largest margin, τ


class TrainedPrototypes(PairsRule):
    """Prototypes that a small network makes of a vector for each class, trained on the clients' class means.

    The margin δ is the largest distance of a class's mean to that of its nearest other class, at most τ.
    """

    name = "trained-prototypes"
    no_robust_mean = "trains on class means"
    remembers = ("trained",)

    def __init__(self, federation: Federation, shared: np.ndarray, batch_size: int) -> None:
        super().__init__(federation, shared)
        self.batch_size = batch_size
        self.trained = np.zeros(0, np.float32)  # the network's parameters, end to end

    def finish(self) -> None:
        """Train the network; take its prototypes of the classes that clients have had."""
        super().finish()  # notes which classes there have been
        classes, width = self.prototypes.shape
        data, every = self.pairs(), torch.arange(classes)
        margin = self._margin(data.x, F.one_hot(data.y, classes).float())
        network = self._network(classes, width)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            distances = torch.cdist(batch.x, model(every), compute_mode="donot_use_mm_for_euclid_dist")
            return F.cross_entropy(-distances - margin * F.one_hot(batch.y, classes), batch.y)

        phase = Phase(
            train=everything, epochs=EPOCHS, batch_size=self.batch_size, loss=loss, data=data,
            learning_rate=LEARNING_RATE, **PLAIN_SGD,
        )  # fmt: skip
        self.note("server-loss", fit(network, phase, self.generator("pairs")))
        self.note("margin", margin)
        with torch.no_grad():
            self.trained = parameters_to_vector(network.parameters()).numpy()
            self.prototypes = network(every).numpy()

    def _network(self, classes: int, width: int) -> nn.Module:
        with self.torch_draws("network"):
            layers = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
            network = nn.Sequential(nn.Embedding(classes, width), *layers)
        if self.trained.size:
            vector_to_parameters(torch.from_numpy(self.trained.copy()), network.parameters())
        return network

    def _margin(self, features: Tensor, of_class: Tensor) -> float:
        counts = of_class.sum(0)
        means = ((of_class.t() @ features) / counts.clamp(min=1)[:, None])[counts > 0]
        if len(means) < 2:
            return MARGIN
        apart = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = (apart + torch.diag(torch.full((len(means),), math.inf))).min(1).values
        return min(float(nearest.max()), MARGIN)


class FedTGP(FedProto):
    """Share class prototypes P_c that the server trains on the clients' class means.

    client i: as in FedProto, with µ_c = P_c
    server: m_c ← plain mean(µ_ic);  δ ← min(max_c min_{d ≠ c} ‖m_c − m_d‖, τ)
        e_d = exp(−‖µ_ic − P_d‖), for d = c times exp(−δ);  P_c = g(E_c)
        train g, E on −log(e_c / Σ_d e_d) of all µ_ic
    predict: w_i

    g is a small network, E_c a vector of class c, and τ is 100.
    """

    name = "fedtgp"
    paper = "Zhang et al., FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced …, AAAI 2024"
    shares = "nothing of the model, but mean features of each class, and prototypes that the server trains on them"

    @property
    def aggregation(self) -> Aggregation:
        """The server's training."""
        return Aggregation(TrainedPrototypes, {"batch_size": self.training.batch_size})
