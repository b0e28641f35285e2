"""Accuracy for clients that did not train: held-out ones, tested with the arrays that a simulation stored.

Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized Optimization with Heterogeneous Data, Sections 3.2
and 5.2 (table 3).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ..client.engine import Engine
from ..client.options.after_the_end import FINE_TUNE, LOCAL_TRAIN, personalise
from ..core.errors import ConfigError
from ..core.extra_arrays import CLIENT
from ..core.payload import Payload
from ..core.server_view import Client, new_clients
from ..core.settings import Value
from ..data.federation import federated_data
from ..methods.base import LocalRound
from ..setup.assembly import make_rule
from ..setup.config import Config
from ..training.loop import EVALUATION_BATCH, Score
from .export import stored_rule
from .identity import require_same_data
from .run_folder import RunFolder

ENSEMBLE = "ensemble"


def try_new_clients(folder: RunFolder, mode: str) -> dict[str, Any]:
    """Test the clients that a run held out."""
    config, task = folder.parsed(), folder.described()
    new = new_clients(config.run.seed, config.run.new_clients, int(task["clients"]))
    if not new:
        raise ConfigError("new-clients", config.run.new_clients, "the run held out no clients, so none are new")
    require_new_clients(config)
    stored = Simulation.of(folder)
    correct = MODES[mode](stored, new)
    engine = stored.engine
    samples = {client: engine.data.sizes(client)[1] for client in new if engine.data.sizes(client)[1]}
    if not samples:
        raise ConfigError("new-clients", config.run.new_clients, "none of the new clients has test samples")
    each = {str(client): correct[client] / count for client, count in samples.items()}
    weighted = sum(correct.values()) / sum(samples.values())
    return {"mode": mode, "accuracy": statistics.fmean(each.values()), "weighted": weighted, "each": each}


def require_new_clients(config: Config) -> None:
    """Raise :class:`ConfigError` for a run that has no model for clients that were not in it, or cannot test it."""
    if not config.training.kind.classes:
        raise ConfigError("loss", config.training.loss, "new clients can only be tested on classes")
    if not config.method.aggregation.rule.one_model:
        raise ConfigError("method", config.method.name, "makes a model for each client and has none for new ones")


class Simulation:
    """A stored run after round ``last``, assembled into every client's model as its messages would."""

    def __init__(self, engine: Engine, task: Mapping[str, Any], last: int, stored: Mapping[str, np.ndarray]) -> None:
        self.engine = engine
        self.task = task
        self.last = last
        if engine.config.method.aggregation.rule.takes_slices:
            self.rule = stored_rule(engine.common, task, stored)
            return
        clients = [Client(i, *engine.data.sizes(i)) for i in range(engine.num_clients)]
        self.rule = make_rule(engine.config, clients, engine.sharing)
        self.rule.load_state(stored)

    @classmethod
    def of(cls, folder: RunFolder) -> Simulation:
        """Read what a run stored; its data must be on this machine."""
        config, task = folder.parsed(), folder.described()
        config = replace(config, run=replace(config.run, device_models="never"))  # the run is over
        last, stored = folder.checkpoint()
        clients = int(task["clients"])
        engine = Engine(config, federated_data(config.data, clients, config.run.seed), clients)
        require_same_data(task, engine.data, folder.path.name)
        return cls(engine, task, last, stored)

    @property
    def personal_round(self) -> Mapping[int, int]:
        """The round after which each client holds its personal arrays; 0 if it never trained."""
        return self.rule.personal_round

    def message(self, client: int, kind: str = "evaluate") -> Payload:
        """Return the next message to a client, of the kind ``train`` or ``evaluate``, with what the server attaches."""
        self.engine.use_model_of(client)
        sharing, rule = self.engine.sharing, self.rule
        receiver = rule.clients[client]
        extra = rule.attachments(receiver, kind)
        sharing.accept(extra.arrays)
        config: dict[str, Value] = {
            **extra.config, "round": self.last + 1, "personal-round": rule.personal_round[client],
            "state-key": self.task["state_key"],
            "layout": sharing.layout.to_text(),
        }  # fmt: skip
        shared = sharing.layout.pack(rule.outgoing(receiver), "float32")
        return Payload(config, arrays={**self.engine.extras.pack(extra.arrays, CLIENT), **shared})

    def load(self, client: int, kind: str = "evaluate") -> LocalRound:
        """Assemble a client's model as the next message to it would: shared arrays, and its own if it has any."""
        _, local = self.engine.load(client, self.message(client, kind))
        self.engine.config.method.prepare(local)
        return local

    def score(self, local: LocalRound) -> Score:
        """Test a client's model as it stands."""
        personalised = self.engine.adapted(local)
        return self.engine.score(personalised, local, self.engine.test_samples(local.client))


def _personalised(mode: str, stored: Simulation, new: Sequence[int]) -> dict[int, float]:
    replies = {client: personalise(stored.engine, client, stored.message(client, "train"), mode) for client in new}
    return {client: float(reply.metrics["personalised-correct"]) for client, reply in replies.items()}


@torch.no_grad()
def _ensemble(stored: Simulation, new: Sequence[int]) -> dict[int, float]:
    samples = {client: stored.engine.test_samples(client) for client in new}
    outputs = dict.fromkeys(new, torch.zeros(()))
    for client in (client for client, trained in stored.personal_round.items() if trained):
        model = stored.load(client).model.eval()
        forward = stored.engine.config.method.personalised(model)
        for other, (x, _) in samples.items():
            outputs[other] = outputs[other] + torch.cat([forward(part) for part in torch.split(x, EVALUATION_BATCH)])
    return {client: int((outputs[client].argmax(1) == samples[client].y).sum()) for client in new}


MODES: dict[str, Callable[[Simulation, Sequence[int]], dict[int, float]]] = {
    LOCAL_TRAIN: partial(_personalised, LOCAL_TRAIN),
    ENSEMBLE: _ensemble,
    FINE_TUNE: partial(_personalised, FINE_TUNE),
}
