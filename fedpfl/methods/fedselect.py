"""FedSelect: the values of a client's model that change most in training become personal, more in every round.

Tamirisa, Xie, Bao, Zhou, Arel, Shamsian: FedSelect: Personalized Federated Learning with Customized Selection of
Parameters for Fine-Tuning, CVPR 2024, Section 4 and Algorithm 1.

As in the authors' program, only arrays called weight have personal values, shares are counted in each array, and values
that a client marks after a round are personal from the next round on. In the program clients mark values in every third
round by their change since the last marking, and train personal and common values alternately, an epoch each. Here they
mark in every round, by the change of this round, and train one part after the other. Running statistics are averaged.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..core.extra_arrays import SERVER, SHARED, Extra
from ..core.payload import Payload
from ..core.server_view import Client
from ..layers.memory import Memory, remembered
from ..rules.slices import MeanOfSent
from ..training.inner_gradients import forward_with
from ..training.phase import Forward, Phase
from .base import Aggregation, LocalRound, Method, everything
from .settings import FedSelectSettings

TRAINED, MASK = "trained", "mask"  # the model's children: values as the client last trained them; which are in use


class MeanOfCommon(MeanOfSent):
    """The plain mean of each value over the clients to which it is common; one that is common to none stays."""

    name = "mean-of-common"

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the values that are common to the client."""
        common = reply.arrays["personal"] == 0
        self.add_values(common, shared[common])

    def finish(self) -> None:
        """Divide."""
        super().finish()
        self.note("common", self.share_sent)


class FedSelect(Method):
    """Keep a growing share of the values, those that M_i marks; it marks none at first.

    client i:
        w_i ← M_i ⊙ v_i + (1 − M_i) ⊙ w
        train M_i ⊙ w_i, then (1 − M_i) ⊙ w_i, on f_i;  v_i ← w_i
        send (1 − M_i) ⊙ w_i, M_i
        M_i also marks the share p with the largest change of those that it does not mark
    server: w ← plain mean of each value over the clients whose M_i does not mark it
    predict: M_i ⊙ v_i + (1 − M_i) ⊙ w;  global model: w

    M_i is 1 for a value that is personal to the client, v_i what the client trained last.
    """

    name = "fedselect"
    paper = (
        "Tamirisa et al., FedSelect: Personalized Federated Learning with Customized Selection of Parameters for "
        "Fine-Tuning, CVPR 2024"
    )
    shares = "the values that change little; the others stay"
    extras = (Extra("personal", SERVER, "1 for a value that is personal", (SHARED,), exact="uint8", bounds=(0, 1)),)
    Settings = FedSelectSettings
    aggregation = Aggregation(MeanOfCommon)

    def build(self, model: nn.Module) -> nn.Module:
        """Add the client's trained values, and the mark of those that are in use."""
        arrays = dict(model.named_parameters())
        model.add_module(TRAINED, Memory(arrays))
        model.add_module(MASK, Memory({name: torch.zeros_like(array) for name, array in arrays.items()}))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share everything but these two."""
        return self.in_mean_model(name)

    def in_mean_model(self, name: str) -> bool:
        """Leave out these two."""
        return not name.startswith((f"{TRAINED}.", f"{MASK}."))

    @torch.no_grad()
    def schedule(self, local: LocalRound) -> list[Phase]:
        """Put in the client's own values; train these for E epochs, then the common ones."""
        model, params, mask = local.model, dict(local.model.named_parameters()), remembered(local.model, MASK)
        for name, array in merged(model).items():
            params[name].copy_(array)
        local.notes["before"] = {name: array.clone() for name, array in params.items()}
        marked = any(bool(array.any()) for array in mask.values())
        epochs = self.training.local_epochs
        phases = [MaskedPhase(mask, 1)] * marked + [MaskedPhase(mask, 0)]
        return [Phase(everything, epochs, project=held.project, during=held.during) for held in phases]

    @torch.no_grad()
    def conclude(self, local: LocalRound) -> Payload:
        """Keep the trained values; put the received ones in the place of personal ones; mark more."""
        params, before = dict(local.model.named_parameters()), local.notes["before"]
        trained, mask = remembered(local.model, TRAINED), remembered(local.model, MASK)
        personal = local.as_vector({name: marks for name, marks in mask.items() if name in local.start})
        for name, param in params.items():
            trained[name].copy_(param)
            if name in local.start:
                param.copy_(torch.where(mask[name] == 1, local.start[name], param))
            if name.rpartition(".")[2] == "weight":
                more = largest((param - before[name]).abs(), mask[name] == 0, self.settings.share, self.settings.most)
                mask[name].masked_fill_(more, 1)
        return Payload(arrays={"personal": personal.astype(np.uint8)})

    def personalised(self, model: nn.Module) -> Forward:
        """Return the model with the client's own values."""
        return lambda x: forward_with(model, merged(model), x)

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the model with the client's own values."""
        return {**model.state_dict(), **merged(model)}


def merged(model: nn.Module) -> dict[str, Tensor]:
    """Return M ⊙ v + (1 − M) ⊙ w by the names of the parameters."""
    trained, mask = remembered(model, TRAINED), remembered(model, MASK)
    return {name: torch.where(mask[name] == 1, trained[name], array) for name, array in model.named_parameters()}


class MaskedPhase:
    """Trains the values with one mark (``kind``, 0 or 1) in a phase, and puts the others back after each step."""

    def __init__(self, mask: Mapping[str, Tensor], kind: int) -> None:
        self._trains = {name: marks == kind for name, marks in mask.items()}
        self._values: dict[str, Tensor] = {}

    @contextmanager
    def during(self, model: nn.Module) -> Iterator[Any]:
        """Note the values with which the phase begins."""
        self._values = {name: array.detach().clone() for name, array in model.named_parameters()}
        yield

    @torch.no_grad()
    def project(self, names: Sequence[str], params: Sequence[Tensor]) -> None:
        """Put values that do not train back."""
        for name, param in zip(names, params):
            param.copy_(torch.where(self._trains[name], param, self._values[name]))


def largest(change: Tensor, free: Tensor, share: float, most: float) -> Tensor:
    """Mark the ``share`` of free values that change most, and equal ones; none if ``most`` are not free."""
    count = int(share * int(free.sum()))
    if not count or 1 - float(free.float().mean()) >= most:
        return torch.zeros_like(free)
    least = change[free].topk(count).values[-1]
    return free & (change >= least) & (change > 0)
