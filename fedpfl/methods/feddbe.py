"""FedDBE: a client keeps the bias of its features, so that the shared base learns unbiased ones.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: Eliminating Domain Bias for Federated Learning in Representation Space,
NeurIPS 2023, Section 4 and Algorithm 1.

Round 1 is the paper's initialisation; as in the authors' code, its models are not averaged. z̄_i is the mean over all
samples, in the authors' code a running mean of the last batches. p_i is trained by the run's optimiser, in the paper by
plain SGD.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import LayoutError, NoPlainModel
from ..core.extra_arrays import CLIENT, MEANS, SERVER, Extra
from ..core.payload import Payload
from ..core.server_view import Client
from ..models.parts import cut
from ..rules.mean import Mean
from ..rules.running_mean import RunningMean
from ..training.loop import predict
from ..training.phase import Batch, Forward, Phase
from .base import Aggregation, LocalRound, Method, everything, excluding
from .bases.prototypes import class_by_width
from .settings import FedDBESettings

OWN = "personal_mean"


class AfterConsensus(Mean):
    """The mean, from round 2 on; before it the mean of the clients' mean features, which all get from then on."""

    name = "mean-after-consensus"
    no_server_step = ""
    no_robust_mean = ""
    starts_with_all = True
    remembers = ("consensus",)
    consensus = np.zeros(0, np.float32)  # in round 1

    def begin(self) -> None:
        """Start the sums at zero."""
        super().begin()
        self._features: RunningMean | None = None

    def attachments(self, client: Client, kind: str) -> Payload:
        """Send the common mean to clients that train, once there is one."""
        return Payload(arrays={"consensus": self.consensus} if self.consensus.size and kind == "train" else {})

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Require the mean features as long as there is no common mean."""
        if not self.consensus.size and "features" not in reply.arrays:
            raise LayoutError("a reply without the array 'features' arrived")

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the client's arrays, or its mean features."""
        if self.consensus.size:
            super().add(client, shared, reply)
            return
        features = reply.arrays["features"]
        self._features = self._features or self.averaging(len(features))
        self._features.add(features, self.weight(client, reply))

    def finish(self) -> None:
        """Divide by the sum of the weights."""
        if self._features is None:
            super().finish()
        else:
            self.consensus = self._features.value()


class FedDBE(Method):
    """Share everything but a vector p_i, which a client adds to its features.

    round 1, client i: train w_i, from w, on f_i;  send z̄_i, the mean of z
             server: z̄ ← mean(z̄_i)
    client i:
        train w_i, from w, and p_i on CE(φ_i(z + p_i), y) + κ/(2K)·‖m − z̄‖²
        send w_i
    server: w ← mean(w_i)
    predict: φ(z + p_i)

    K: number of features; m: their mean in the batch, as with the paper's weight 1 of the newest batch.
    """

    name = "feddbe"
    paper = "Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space, NeurIPS 2023"
    shares = "everything but the client's mean p_i; in round 1 mean features instead"
    Settings = FedDBESettings
    aggregation = Aggregation(AfterConsensus)
    extras = (
        Extra("features", SERVER, "mean features, in round 1 alone", lambda m: class_by_width(m)[1:], required=False,
              kind=MEANS),
        Extra("consensus", CLIENT, "mean features of all clients", lambda m: class_by_width(m)[1:]),
    )  # fmt: skip

    def build(self, model: nn.Module) -> nn.Module:
        """Add the client's mean, 0 at first."""
        model.register_parameter(OWN, nn.Parameter(torch.zeros(class_by_width(model)[1])))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share all but the client's mean."""
        return name != OWN

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs of everything; in round 1 without the method."""
        epochs = self.training.local_epochs
        if not local.has_received("consensus"):
            return [Phase(train=excluding(lambda name: name == OWN), epochs=epochs)]
        consensus = torch.tensor(local.received("consensus")).to(next(local.model.parameters()))

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            base, head, _ = cut(model)
            features = base(batch.x)
            pull = self.settings.kappa / 2 * (features.mean(0) - consensus).square().mean()
            return self.training.criterion(head(features + model.get_parameter(OWN)), batch.y) + pull

        return [Phase(train=everything, epochs=epochs, loss=loss)]

    def conclude(self, local: LocalRound) -> Payload:
        """Send the mean features as long as there is no common mean."""
        if local.has_received("consensus"):
            return Payload()
        features = predict(cut(local.model.eval()).base, local.samples.x).double().mean(0)
        return Payload(arrays={"features": features.float().cpu().numpy()})

    def personalised(self, model: nn.Module) -> Forward:
        """Add the client's mean to the features."""
        return lambda x: cut(model).head(cut(model).base(x) + model.get_parameter(OWN))

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Add what the head makes of the client's mean to the head's bias."""
        head: Any = cut(model).head
        if head.bias is None:
            raise NoPlainModel("feddbe predicts with a mean in the features, which this model's head has no bias for")
        arrays = dict(model.state_dict())
        return {**arrays, "head.bias": head.bias + head.weight @ model.get_parameter(OWN)}
