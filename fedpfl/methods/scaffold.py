"""SCAFFOLD: control variates correct each client's gradients against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
2020, Algorithm 1.

c_i is the mean gradient: the paper's option II for plain SGD, also valid with Adam. ``weight-decay`` works on
the corrected gradients. Option I, the gradient at the received model, is left out, because clients diverged with it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ..core.extra_arrays import CLIENT, SERVER, SHARED, Extra
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..rules.mean import Mean
from ..training.penalties import Correction
from ..training.phase import Phase
from .base import Aggregation, LocalRound, everything
from .bases.kept_arrays import KeepsArrays


class ControlledMean(Mean):
    """w ← mean_S(w_i), a step of η_g = 1; c ← c + 1/N·Σ_S Δc_i over the clients S that answered, of N."""

    name = "scaffold"
    no_robust_mean = ""
    remembers = ("control",)

    def __init__(self, federation: Federation, shared: np.ndarray) -> None:
        super().__init__(federation, shared, weights="uniform")
        self.control = np.zeros(self.layout.size, np.float32)

    def begin(self) -> None:
        """Start the sums at zero."""
        super().begin()
        self._change = self.averaging(self.layout.size)

    def attachments(self, client: Client, kind: str) -> Payload:
        """Send c to clients that train."""
        return Payload(arrays={"control": self.control}) if kind == "train" else Payload()

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add w_i and Δc_i."""
        super().add(client, shared, reply)
        self._change.add(reply.arrays["change"], 1.0)

    def finish(self) -> None:
        """Step, and move c."""
        super().finish()
        self.control = (self.control + self._change.total() / len(self.participants)).astype(np.float32)


class Scaffold(KeepsArrays):
    """Correct each gradient by c − c_i.

    client i:
        for each batch, from w: w_i ← w_i − η·(∇f_i(w_i) − c_i + c)
        new c_i ← mean of these ∇f_i(w_i)
        send w_i and the change of c_i
    server: w ← plain mean(w_i);  c ← c + Σ changes / N
    predict: w
    """

    name = "scaffold"
    paper = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020"
    shares = "everything, and the change of the client's c_i"
    extras = (
        Extra("control", CLIENT, "c, the mean of all clients' c_i", (SHARED,)),
        Extra("change", SERVER, "Δc_i, the change of the client's c_i", (SHARED,)),
    )
    memory = "control"
    aggregation = Aggregation(ControlledMean)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs with the correction c − c_i of what arrived."""
        common, control = local.by_name(local.received("control")), self.kept(local.model)
        arrays = {name: common[name] - control[name] for name in control if name in common}
        local.notes["gradients"] = steps = Correction(arrays)
        momentum = 0.0 if self.training.optimizer == "sgd" else None
        return [Phase(train=everything, epochs=self.training.local_epochs, penalty=steps, momentum=momentum)]

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Warn where the run has momentum, which SCAFFOLD's clients train without."""
        momentum = self.training.momentum if self.training.optimizer == "sgd" else 0.0
        said = f"scaffold: clients train without momentum, as in the paper; momentum = {momentum:g} does not count"
        return [said] if momentum else []

    @torch.no_grad()
    def conclude(self, local: LocalRound) -> Payload:
        """Renew c_i and send its change; it stays 0 for a parameter that did not arrive."""
        control, change = self.kept(local.model), {}
        for name, gradient in local.notes["gradients"].mean_gradient().items():
            change[name] = gradient - control[name]
            control[name].copy_(gradient)
        return Payload(arrays={"change": local.as_vector(change)})
