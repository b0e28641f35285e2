"""FedFomo's rule: each client keeps its own model and is sent some others' models to try."""

from __future__ import annotations

import numpy as np

from ...core.errors import LayoutError
from ...core.payload import Payload
from ...core.rng import generator
from ...core.server_view import Client, Federation
from ...rules.per_client import PerClientRule


class Candidates(PerClientRule):
    """Send client i the models of the clients that helped it most so far, and a few at random.

    Zhang et al. 2021, Section 3.2: P_i adds up the weights ω_i that client i has measured and answers with. Each of the
    ``models`` places for other clients' models goes to a random client with probability ε, else to the one of largest
    P_i that is left, equal ones in random order. ε falls by a fixed amount with each round, down to 0, as in the
    authors' code. Only clients that have answered before have a model to send.
    """

    name = "candidates"
    remembers = ("preferences",)
    epsilon, epsilon_decay = 0.3, 0.05  # ε of round 1, and by how much it falls

    def __init__(self, federation: Federation, shared: np.ndarray, models: int) -> None:
        super().__init__(federation, shared)
        self.models = models
        self.preferences = np.zeros((len(self.clients), len(self.clients)))
        # Chosen once a round: a message that is sent again is the same, even if others have answered meanwhile.
        self._chosen_in = -1
        self._chosen: dict[int, list[int]] = {}
        self._arrived: dict[int, np.ndarray] = {}

    def begin(self) -> None:
        """Forget the arrays of the round before."""
        self._arrived = {}

    def attachments(self, client: Client, kind: str) -> Payload:
        """Attach the chosen models, a row each, and the numbers of their clients."""
        if kind != "train":
            return Payload()
        if self._chosen_in != self.round:
            self._chosen_in, self._chosen = self.round, {}
        if client.id not in self._chosen:
            self._chosen[client.id] = self._choose(client)
        chosen = self._chosen[client.id]
        if not chosen:
            return Payload()
        return Payload(config={"models": ",".join(map(str, chosen))}, arrays={"models": self.for_clients[chosen]})

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Expect a weight for each model that was sent."""
        weights, count = self._weights(reply), len(self._chosen[client.id])
        if len(weights) != count:
            raise LayoutError(f"{len(weights)} weights arrived for {count} models")

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep the client's newest model, and what it found of the others'."""
        self._arrived[client.id] = shared
        self.preferences[client.id, self._chosen[client.id]] += self._weights(reply)

    def finish(self) -> None:
        """Let every client continue from its own model: nothing is combined."""
        for client, shared in self._arrived.items():
            self.for_clients[client] = shared
        self._arrived = {}  # not kept while clients are tested

    def _choose(self, client: Client) -> list[int]:
        rng = generator(self.federation.seed, "fedfomo models", client.id, self.round)
        others = [i for i in self.answered_before() if i != client.id]
        left: list[int] = [others[i] for i in rng.permutation(len(others))]
        left.sort(key=lambda i: -self.preferences[client.id, i])
        places = min(self.models, len(left))
        epsilon = self.epsilon - self.epsilon_decay * (self.round - 1)
        return [left.pop(int(rng.integers(len(left))) if rng.random() < epsilon else 0) for _ in range(places)]

    def _weights(self, reply: Payload) -> np.ndarray:
        weights = reply.arrays["weights"]
        if not self.federation.noisy:
            return weights
        proper: np.ndarray = np.maximum(weights, 0)  # the clients' noise has made some of them negative
        proper /= max(1.0, float(proper.sum()))
        return proper
