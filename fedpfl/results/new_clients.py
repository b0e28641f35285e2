"""How well a run's method serves clients that did not train: held-out ones, tested on what a simulation stored.

Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized Optimization with Heterogeneous Data, Sections 3.2
and 5.2 (table 3).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..client.engine import Engine
from ..core.errors import ConfigError, DataError
from ..core.extras import CLIENT
from ..core.federation import Client, new_clients
from ..core.payload import Payload
from ..core.rng import generator
from ..core.settings import Value
from ..data.federation import federated_data
from ..methods.base import LocalRound
from ..setup.assembly import make_rule
from ..setup.config import Config
from ..training.loop import EVALUATION_BATCH, run_phase
from ..training.phase import Penalty, Phase
from .run import RunFolder


def try_new_clients(folder: RunFolder, mode: str) -> dict[str, Any]:
    """Test the clients that a run held out."""
    config, task = Config.parse(folder.config()), folder.described()
    new = new_clients(config.run.seed, config.run.new_clients, int(task["clients"]))
    if not new:
        raise ConfigError("new-clients", config.run.new_clients, "the run held out no clients, so none are new")
    if not config.training.kind.classes:
        raise ConfigError("loss", config.training.loss, "new clients can only be tested on classes")
    stored = Simulation.of(folder)
    if not stored.rule.one_model:
        raise ConfigError("method", config.method.name, "makes a model for each client and has none for new ones")
    correct = MODES[mode](stored, new)
    engine = stored.engine
    samples = {client: engine.data.sizes(client)[1] for client in new if engine.data.sizes(client)[1]}
    if not samples:
        raise ConfigError("new-clients", config.run.new_clients, "none of the new clients has test samples")
    each = {str(client): correct[client] / count for client, count in samples.items()}
    weighted = sum(correct.values()) / sum(samples.values())
    return {"mode": mode, "accuracy": statistics.fmean(each.values()), "weighted": weighted, "each": each}


class Simulation:
    """What a run stored: enough to assemble every client's model as its messages would.

    ``stored`` is the state of rule and listeners after round ``last``, and ``state_key`` names the clients' state.
    """

    def __init__(self, engine: Engine, state_key: str, last: int, stored: Mapping[str, np.ndarray]) -> None:
        self.engine = engine
        self.state_key = state_key
        self.last = last
        clients = [Client(i, *engine.data.sizes(i)) for i in range(engine.num_clients)]
        self.rule = make_rule(engine.config, clients, engine.sharing)
        self.rule.load_state(stored)

    @classmethod
    def of(cls, folder: RunFolder) -> Simulation:
        """Read what a run stored; its data must be on this machine."""
        config, task = Config.parse(folder.config()), folder.described()
        last, stored = folder.checkpoint()
        clients = int(task["clients"])
        engine = Engine(config, federated_data(config.data, clients, config.run.seed), clients)
        if task.get("division", engine.data.checksum) != engine.data.checksum:
            raise DataError(f"{folder.path.name}: the clients had other data than this machine divides among them")
        return cls(engine, str(task["state_key"]), last, stored)

    @property
    def personal_round(self) -> Mapping[int, int]:
        """The round after which each client holds its personal arrays; 0 if it never trained."""
        return self.rule.personal_round

    def load(self, client: int, kind: str = "evaluate") -> LocalRound:
        """Assemble a client's model as the next message to it would: shared arrays, and its own if it has any.

        The kind of the message, ``train`` or ``evaluate``, decides what the server attaches.
        """
        sharing, rule = self.engine.sharing, self.rule
        known = rule.clients[client]
        extra = rule.attachments(known, kind)
        sharing.accept(extra.arrays)
        config: dict[str, Value] = {
            **extra.config, "round": self.last + 1, "personal-round": rule.personal_round[client],
            "state-key": self.state_key, "layout": sharing.layout.to_text(),
        }  # fmt: skip
        shared = sharing.layout.pack(rule.outgoing(known), "float32")
        arrays = {**self.engine.extras.pack(extra.arrays, CLIENT), **shared}
        _, local = self.engine.load(client, Payload(config, arrays=arrays))
        self.engine.config.method.prepare(local)
        return local

    def train(self, phases: Sequence[Phase], local: LocalRound, purpose: str, weight_decay: float) -> None:
        """Run phases."""
        self.engine.seed(local, purpose)
        settings = replace(self.engine.config.training, weight_decay=weight_decay)
        for place, phase in enumerate(phases):
            rng = generator(local.seed, purpose, local.client, local.round, place)
            run_phase(local.model, phase, local.samples, settings, rng)

    def correct(self, local: LocalRound) -> float:
        """Count a client's correct predictions (or what the loss counts) with its model as it stands."""
        method = self.engine.config.method
        self.train(method.adaptation(local), local, "adaptation", self.engine.config.training.weight_decay)
        local.model.eval()
        samples = self.engine.test_samples(local.client)
        return self.engine.score(method.personalised(local.model), local, samples).correct


class OnlyPersonal:
    """Keeps the shared elements of arrays still, which a selection of whole arrays cannot.

    Weight decay, which an optimiser would add later and everywhere, is added here.
    """

    def __init__(self, where: Mapping[str, Tensor], weight_decay: float, inner: Penalty | None) -> None:
        self.where = where
        self.weight_decay = weight_decay
        self.inner = inner

    @torch.no_grad()
    def add_gradient(self, names: Sequence[str], params: Sequence[Tensor], grads: list[Tensor]) -> None:
        """Set the gradient of shared elements to zero."""
        if self.inner is not None:
            self.inner.add_gradient(names, params, grads)
        for name, param, grad in zip(names, params, grads, strict=True):
            grad.add_(param, alpha=self.weight_decay).mul_(self.where[name])


def _local_train(stored: Simulation, new: Sequence[int]) -> dict[int, float]:
    correct = {}
    for client in new:
        local = stored.load(client, "train")
        own = stored.engine.sharing.personal_elements()
        decay = stored.engine.config.training.weight_decay
        phases = list(stored.engine.config.method.schedule(local))
        if own.keys() & dict(local.model.named_parameters()).keys():
            phases = [_of_personal(phase, own, decay) for phase in phases]
        elif own:  # running statistics alone, which move under parameters that do not train
            phases = [replace(phase, learning_rate=0.0, groups=(), penalty=None, project=None) for phase in phases]
        stored.train(phases, local, "batches", weight_decay=0.0)
        trained = stored.engine.sharing.get_personal()
        stored.engine.sharing.set_shared(stored.rule.shared)  # running statistics have moved
        stored.engine.sharing.set_personal(trained)  # what is shared may hold the others' personal channels, too
        correct[client] = stored.correct(local)
    return correct


def _of_personal(phase: Phase, own: Mapping[str, Tensor], weight_decay: float) -> Phase:
    penalty = OnlyPersonal(own, weight_decay if phase.weight_decay is None else phase.weight_decay, phase.penalty)
    return replace(phase, train=lambda name: name in own and phase.train(name), penalty=penalty, weight_decay=None)


def _fine_tune(stored: Simulation, new: Sequence[int]) -> dict[int, float]:
    correct = {}
    for client in new:
        local = stored.load(client, "train")
        method, training = stored.engine.config.method, stored.engine.config.training
        stored.train(method.schedule(local), local, "batches", training.weight_decay)
        method.conclude(local)
        correct[client] = stored.correct(local)
    return correct


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
    "local-train": _local_train,
    "ensemble": _ensemble,
    "fine-tune": _fine_tune,
}
