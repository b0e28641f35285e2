"""Personalisation of a client that was not in a run, from the run's final shared arrays.

Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized Optimization with Heterogeneous Data, Sections 3.2
and 5.2 (table 3): LocalTrain trains its personal part alone, and FedAvg+ all of it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Mapping, Sequence

import torch
from torch import Tensor, nn

from ...core.payload import UNWRITTEN, Payload
from ...core.sharing import Sharing
from ...setup.options.after_the_end import PersonaliseSettings
from ...training.phase import Phase
from ..scores import metrics_of, require_finite, train_loss

LOCAL_TRAIN, FINE_TUNE = "local-train", "fine-tune"


def answer(engine: Any, client: int, message: Payload) -> Payload:
    """Make a client's model as the setting ``personalise`` says, in place of its training in a round."""
    return personalise(engine, client, message, engine.config.of(PersonaliseSettings).personalise)


def personalise(engine: Any, client: int, message: Payload, mode: str) -> Payload:
    """Make a model for a client that was not in the run from the shared arrays of its end; test and keep it.

    With ``local-train`` its personal part alone is trained, with ``fine-tune`` all of it, each for a round at the full
    learning rate. Neither array nor state of the run changes.
    """
    started = time.perf_counter()
    state, local = engine.load(client, message)
    method, sharing = engine.config.method, engine.sharing
    method.prepare(local)
    phases: Sequence[Phase] = engine.schedule(local, method)
    if mode == LOCAL_TRAIN:
        phases = of_personal_part(phases, sharing, engine.model)
    losses = engine.run_phases(phases, local, "batches", factor=1.0)
    if mode == LOCAL_TRAIN:
        trained = sharing.get_personal()
        sharing.set_shared(sharing.layout.unpack(message.arrays))  # running statistics have moved
        sharing.set_personal(trained)  # what is shared may hold the others' personal channels, too
    else:
        method.conclude(local)
    require_finite(local, [sharing.get_shared(), *sharing.get_personal().values()], phases)
    seconds = time.perf_counter() - started
    personalised = engine.adapted(local)
    score = engine.score(personalised, local, engine.test_samples(client))
    failures = [part.tested(state, local, personalised, score, None) for part in engine.parts]
    unwritten = "; ".join(filter(None, failures))
    trained_on = {"train-samples": len(local.samples.y), **train_loss(losses)}
    metrics = {**metrics_of("personalised", score), **trained_on, "train-seconds": seconds}
    return Payload(metrics=metrics, config={UNWRITTEN: unwritten} if unwritten else {})


class OnlyPersonal:
    """Keeps the shared elements of arrays still, which a selection of whole arrays cannot."""

    def __init__(self, where: Mapping[str, Tensor], model: nn.Module, phase: Phase) -> None:
        self._where = {name: mask for name, mask in where.items() if not mask.all()}
        params = dict(model.named_parameters())
        self._start = {name: params[name].detach().clone() for name in self._where if name in params}
        self._phase = phase

    @torch.no_grad()
    def add_gradient(self, names: Sequence[str], params: Sequence[Tensor], grads: list[Tensor]) -> None:
        """Set the gradient of shared elements to zero."""
        if self._phase.penalty is not None:
            self._phase.penalty.add_gradient(names, params, grads)
        for name, grad in zip(names, grads):
            if name in self._start:
                grad.mul_(self._where[name])

    def project(self, names: Sequence[str], params: Sequence[Tensor]) -> None:
        """Put shared elements back, which weight decay has moved."""
        if self._phase.project is not None:
            self._phase.project(names, params)
        for name, param in zip(names, params):
            if name in self._start:
                param.copy_(torch.where(self._where[name], param, self._start[name]))


def of_personal_part(phases: Sequence[Phase], sharing: Sharing, model: nn.Module) -> list[Phase]:
    """Return the phases of a round as they train the personal part alone; none if there is no personal part."""
    elements = sharing.personal_elements()
    if elements.keys() & dict(model.named_parameters()).keys():
        return [_of_personal(phase, elements, model) for phase in phases]
    # Running statistics alone, which move under parameters that stand still.
    return [_of_statistics(phase) for phase in phases] if elements else []


def _of_statistics(phase: Phase) -> Phase:
    return replace(phase, learning_rate=0.0, weight_decay=0.0, groups=(), penalty=None, project=None)


def _of_personal(phase: Phase, elements: Mapping[str, Tensor], model: nn.Module) -> Phase:
    only = OnlyPersonal(elements, model, phase)
    train = lambda name: name in elements and phase.train(name)  # noqa: E731
    return replace(phase, train=train, penalty=only, project=only.project)
