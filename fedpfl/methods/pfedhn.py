"""pFedHN: a network at the server makes each client's model from a few numbers that stand for the client.

Shamsian, Navon, Fetaya, Chechik: Personalized Federated Learning using Hypernetworks, ICML 2021, Section 3 and
Algorithm 1.

The layers, the momentum, the weight decay and the largest norm of a gradient are the authors' program's. In the program
one client trains in a round; here several train, and the server takes one step for each of them. The last layer starts
with weights 0 and the run's initial model as its bias; the program draws both. The network does not make BatchNorm's
running statistics: a client first gets the initial model's, and later its own. A new client gets the model of the mean
embedding; in the paper it trains an embedding. With `personal-head` the method is pFedHN-PC.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..core.payload import Payload
from ..core.process import computing
from ..core.server_view import Client, Federation
from ..core.sharing import is_parameter
from ..rules.per_client import PerClientRule
from .base import Aggregation, Method
from .settings import PFedHNSettings

HIDDEN, LAYERS = 100, 4  # width and number of the hypernetwork's layers before the last
# Of the server's SGD: besides momentum and weight decay the largest norm of a gradient.
MOMENTUM, WEIGHT_DECAY, LONGEST = 0.9, 1e-3, 50.0
LARGE = 2**30  # bytes


class Hypernetwork(nn.Module):
    """Maps clients' numbers to the parameters of their models, end to end."""

    def __init__(self, clients: int, size: int) -> None:
        super().__init__()
        width = embedding_width(clients)
        self.embeddings = nn.Embedding(clients, width)
        layers: list[nn.Module] = [nn.Linear(width, HIDDEN)]
        for _ in range(LAYERS - 1):
            layers += [nn.ReLU(), nn.Linear(HIDDEN, HIDDEN)]
        self.layers = nn.Sequential(*layers)
        self.last = nn.Linear(HIDDEN, size)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return parameters (clients, size) from embeddings (clients, width)."""
        return self.last(self.layers(embeddings))


class GeneratedModels(PerClientRule):
    """Models that the hypernetwork makes; it moves them to where the clients of a round have trained them."""

    name = "generated-models"
    remembers = ("hypernetwork", "velocity")

    def __init__(self, federation: Federation, shared: np.ndarray, learning_rate: float) -> None:
        super().__init__(federation, shared)
        self.learning_rate = learning_rate
        self._made = is_parameter(self.layout)
        with self.torch_draws("hypernetwork"):
            network = Hypernetwork(len(self.clients), int(self._made.sum()))
        nn.init.zeros_(network.last.weight)
        with torch.no_grad():
            network.last.bias.copy_(torch.from_numpy(shared[self._made]))
        self.hypernetwork = parameters_to_vector(network.parameters()).detach().numpy()
        self.velocity = np.zeros_like(self.hypernetwork)

    def begin(self) -> None:
        """Start without replies."""
        super().begin()
        self._changes: dict[int, np.ndarray] = {}

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep what the client's training has changed."""
        super().add(client, shared, reply)
        self._changes[client.id] = (self.received(client) - shared)[self._made]

    def finish(self) -> None:
        """Take a step of the hypernetwork for each client, and make all models anew."""
        with computing(1):  # the same bits on any number of cores
            network, optimizer = self._restored()
            for client, change in self._changes.items():
                optimizer.zero_grad()
                network(network.embeddings.weight[client : client + 1]).backward(torch.from_numpy(change)[None])
                nn.utils.clip_grad_norm_(network.parameters(), LONGEST)
                optimizer.step()
            self.for_clients = self._models(network)
        velocity = [optimizer.state[parameter]["momentum_buffer"] for parameter in network.parameters()]
        self.hypernetwork, self.velocity = (
            parameters_to_vector(arrays).detach().numpy() for arrays in (network.parameters(), velocity)
        )
        self.note("apart", self.for_clients.std(axis=0, dtype=np.float64).mean())

    def _restored(self) -> tuple[Hypernetwork, torch.optim.SGD]:
        with torch.device("meta"):
            network = Hypernetwork(len(self.clients), int(self._made.sum()))
        network.to_empty(device="cpu")
        optimizer = torch.optim.SGD(
            network.parameters(), self.learning_rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
        )
        velocity = [torch.empty_like(parameter) for parameter in network.parameters()]
        vector_to_parameters(torch.from_numpy(self.hypernetwork.copy()), network.parameters())
        vector_to_parameters(torch.from_numpy(self.velocity.copy()), velocity)
        for parameter, moving in zip(network.parameters(), velocity):
            optimizer.state[parameter]["momentum_buffer"] = moving
        return network, optimizer

    @torch.no_grad()
    def _models(self, network: Hypernetwork) -> np.ndarray:
        """Return each client's model, a row each; of clients that are held out that of the mean embedding."""
        models = self.for_clients.copy()
        for client, sent in self.arrived.items():
            models[client] = sent  # for the running statistics
        embeddings = network.embeddings.weight.clone()
        trained, new = self.trained_and_new
        if new:
            embeddings[new] = embeddings[trained].mean(0)
            models[new] = models[trained].mean(axis=0, dtype=np.float64)
        for client, embedding in enumerate(embeddings):
            models[client, self._made] = network(embedding).numpy()
        return models


class PFedHN(Method):
    """Give each client the model that a hypernetwork h makes of the client's embedding e_i.

    client i:
        train w_i, from h(e_i), on f_i
        send w_i
    server: Δ_i ← h(e_i) − w_i of all clients;  then one after the other:
        φ ← φ − α·∇⟨h(e_i), Δ_i⟩ by φ, all weights of h and all e_j
    predict: h(e_i)

    h has four hidden layers of 100 units, and e_i has 1 + N/4 numbers. The steps have momentum 0.9.
    """

    name = "pfedhn"
    paper = "Shamsian et al., Personalized Federated Learning using Hypernetworks, ICML 2021"
    shares = "everything; the server makes each client a model"
    Settings = PFedHNSettings

    @property
    def aggregation(self) -> Aggregation:
        """The hypernetwork."""
        return Aggregation(GeneratedModels, {"learning_rate": self.settings.learning_rate})

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Say how large a large hypernetwork is."""
        size = 4 * self.sharing(model).layout.size * (HIDDEN + 1)
        return [f"the hypernetwork at the server has {size / LARGE:.1f} GiB"] if size > LARGE else []


def embedding_width(clients: int) -> int:
    """Return how many numbers stand for a client, as in the authors' program."""
    return 1 + clients // 4
