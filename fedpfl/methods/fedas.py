"""FedAS: a client aligns the received base with its last one; the mean weighs clients by Fisher information.

Yang, Huang, Ye: FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024, Section 3 and Algorithm 1.

As in the authors' code, F_i is a sum over batches at the trained model, and a client is tested with the model that it
trained last. The alignment uses batches of B samples, in the authors' code batches of 16.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.extra_arrays import SERVER, Extra
from ..core.payload import Payload
from ..core.server_view import Client
from ..layers.memory import in_twin, twin
from ..models.parts import cut
from ..rules.mean import Mean
from ..training.loop import predict
from ..training.phase import PLAIN_SGD, Batch, Phase
from .base import Aggregation, LocalRound, excluding
from .bases.kept_models import KeepsTrained
from .bases.prototypes import class_by_width

# Learning rate of the alignment, as in the authors' code.
ALIGNMENT_RATE = 0.01
# A trace is sent as its logarithm, which stays within these bounds: a model that fits all samples has a trace of 0.
MIN_LOG, MAX_LOG = -30.0, 30.0


class FisherMean(Mean):
    """The mean of bases, weighted by the traces of the clients' Fisher information."""

    name = "fisher-mean"
    no_server_step = ""
    no_robust_mean = ""

    def weight(self, client: Client, reply: Payload | None = None) -> float:
        """Return the trace; noise may have moved it out of its bounds."""
        assert reply is not None  # clients that are absent do not count
        return math.exp(min(max(float(reply.arrays["fisher"][0]), MIN_LOG), MAX_LOG))


class FedAS(KeepsTrained):
    """Share the base, aligned with the client's last one; the head stays.

    client i:
        µ_ic ← mean features of class c by its last θ_i
        train θ_i, from θ, on Σ_c mean_{y = c} (z − µ_ic)², one epoch
        train θ_i, φ_i on f_i
        send θ_i and F_i = Σ_b ‖∇f_i on batch b‖²
    server: θ ← Σ F_i·θ_i / Σ F_i
    predict: (θ_i, φ_i) as last trained
    """

    name = "fedas"
    paper = "Yang et al., FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024"
    shares = "the base, and the trace of the Fisher information"
    refuses = {"loss": "aligns the features of each class"}
    aggregation = Aggregation(FisherMean)
    extras = (
        Extra("fisher", SERVER, "logarithm of the trace of the Fisher information", (1,), bounds=(MIN_LOG, MAX_LOG)),
    )

    def build(self, model: nn.Module) -> nn.Module:
        """Add the twin; refuse a model that does not end in a linear layer."""
        class_by_width(model)
        return super().build(model)

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the base."""
        return super().is_shared(name, model) and not cut(model).in_head(name)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Align the base, then train E epochs of everything."""
        x, y = local.samples
        features = predict(cut(twin(local.model).eval()).base, x)
        of_class = F.one_hot(y, class_by_width(local.model)[0]).to(features)
        means = (of_class.t() @ features) / of_class.sum(0).clamp(min=1)[:, None]

        def apart(model: nn.Module, batch: Batch) -> Tensor:
            squares = (cut(model).base(batch.x) - means[batch.y]).square().mean(1)
            return (squares / torch.bincount(batch.y)[batch.y]).sum()

        aligned = Phase(
            train=lambda name: name.startswith("base."), epochs=1, loss=apart,
            learning_rate=ALIGNMENT_RATE, move_statistics=False, **PLAIN_SGD,
        )  # fmt: skip
        return [aligned, Phase(train=excluding(in_twin), epochs=self.training.local_epochs)]

    def conclude(self, local: LocalRound) -> Payload:
        """Keep the trained model; send its Fisher information."""
        super().conclude(local)
        model, trace = twin(local.model).eval(), 0.0
        inputs, labels = local.samples
        for start in range(0, len(labels), self.training.batch_size):
            x, y = (part[start : start + self.training.batch_size] for part in (inputs, labels))
            grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()), allow_unused=True)
            trace += sum(float(grad.double().square().sum()) for grad in grads if grad is not None)
        logarithm = math.log(max(trace, math.exp(MIN_LOG)))
        return Payload(arrays={"fisher": np.array([min(logarithm, MAX_LOG)], np.float32)})
