"""Bases of the methods that compare a sample's features with the mean features of its class."""

from __future__ import annotations

from typing import ClassVar, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import ConfigError
from ...core.extra_arrays import BOTH, CLIENT, COUNTS, MEANS, RECEIVED, SERVER, Extra
from ...core.frozen import has_frozen
from ...core.payload import Payload
from ...core.references import article
from ...core.samples import Samples
from ...core.server_view import Client, Federation
from ...layers.replace import computes_weight
from ...models.parts import cut
from ...models.registry import called
from ...rules import Rule
from ...training.loop import predict
from ...training.phase import Forward
from ..base import LocalRound, Method


def class_by_width(model: nn.Module) -> tuple[int, ...]:
    """Return the number of classes and that of features of a model, which an array of class means has as its shape.

    ``ConfigError`` if the model's head is no ``nn.Linear``, or has features of each token of a text.

    Examples
    --------
    >>> import fedpfl
    >>> from torch import nn
    >>> fedpfl.class_by_width(fedpfl.BaseHeadModel(nn.Flatten(), nn.Linear(64, 10)))
    (10, 64)
    """
    head = cut(model).head
    if not isinstance(head, nn.Linear):
        message = f"has {article(head)} as its head; the method needs an nn.Linear"
        raise ConfigError("model", called(model), message)
    if getattr(model, "gives_for", "") == "token":
        message = "gives numbers for each token; the method needs features of a whole sample"
        raise ConfigError("model", called(model), message)
    return tuple(head.weight.shape)


def require_settable_head(model: nn.Module) -> None:
    """Raise ``ConfigError`` unless the head is an ``nn.Linear`` whose arrays the method may set.

    Examples
    --------
    >>> import fedpfl
    >>> from torch import nn
    >>> fedpfl.require_settable_head(fedpfl.BaseHeadModel(nn.Flatten(), nn.Linear(64, 10)))
    """
    class_by_width(model)
    head = cut(model).head
    if has_frozen(head) or computes_weight(head):
        message = "has a head that is frozen or computes its weight; the method sets that weight"
        raise ConfigError("model", called(model), message)


def classes(model: nn.Module) -> tuple[int, ...]:
    """Return the shape of what is a number for each class."""
    return class_by_width(model)[:1]


class PrototypeRule(Rule):
    """c_j ← Σ_i n_ij·c_ij / Σ_i n_ij over the clients that answered; a class without samples keeps its prototype."""

    no_robust_mean = "averages class by class"
    remembers: ClassVar[tuple[str, ...]] = ("prototypes", "known")

    def __init__(self, federation: Federation, shared: np.ndarray) -> None:
        super().__init__(federation, shared)
        self.prototypes = np.zeros((0, 0), np.float32)
        self.known = np.zeros(0, np.uint8)

    def begin(self) -> None:
        """Start the sums at zero."""
        self._sums, self._counts = np.zeros((1, 1)), np.zeros(1)

    def attachments(self, client: Client, kind: str) -> Payload:
        """Send all clients the prototypes, as soon as there are any, and which classes have one."""
        return Payload(arrays={"prototypes": self.prototypes, "known": self.known} if self.known.size else {})

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add n_ij·c_ij; the noise of differential privacy makes numbers of samples negative."""
        counts = np.maximum(reply.arrays["counts"].astype(np.float64), 0) * self.damping(client)
        self._sums = self._sums + counts[:, None] * reply.arrays["prototypes"]
        self._counts = self._counts + counts

    def finish(self) -> None:
        """Divide by the numbers of samples."""
        present = self._counts > 0
        means = (self._sums / np.where(present, self._counts, 1)[:, None]).astype(np.float32)
        if not self.known.size:
            self.prototypes, self.known = np.zeros_like(means), np.zeros(len(means), np.uint8)
        self.prototypes = np.where(present[:, None], means, self.prototypes)
        self.known = np.where(present, np.uint8(1), self.known)


class PairsRule(PrototypeRule):
    """Base of the rules that train on what arrived: each client's mean features of each of its classes.

    Examples
    --------
    A rule that counts the pairs of a round:

    >>> import fedpfl
    >>> class Counted(fedpfl.PairsRule):
    ...     name = "counted"
    ...
    ...     def finish(self):
    ...         super().finish()
    ...         self.note("pairs", len(self.pairs().y))
    """

    def begin(self) -> None:
        """Start without any."""
        super().begin()
        self._pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep the mean features of the client's classes; a class of which noise leaves half a sample is there."""
        super().add(client, shared, reply)
        present = np.flatnonzero(reply.arrays["counts"] >= 0.5)
        self._pairs.append((reply.arrays["prototypes"][present], present))

    def pairs(self) -> Samples:
        """Return the mean features and their classes, in client order."""
        features, classes = (np.concatenate(parts) for parts in zip(*self._pairs))
        return Samples(torch.from_numpy(features), torch.from_numpy(classes))


class PrototypeMethod(Method):
    """Base of the methods whose clients send the mean features of each of their classes, and get everybody's.

    Examples
    --------
    Share the base, and pull features towards the means that all clients have of each class:

    >>> import fedpfl
    >>> class Pulled(fedpfl.PrototypeMethod):
    ...     name = "pulled"
    ...     aggregation = fedpfl.method_class("fedproto").aggregation
    ...
    ...     def schedule(self, local):
    ...         means, known = self.prototypes(local)  # (classes, features), (classes,)
    ...
    ...         def loss(model, batch):
    ...             base, head, _ = fedpfl.cut(model)
    ...             features = base(batch.x)
    ...             apart = (features - means[batch.y]).square().mean(1) * known[batch.y]
    ...             return self.training.criterion(head(features), batch.y) + apart.mean()
    ...
    ...         return [fedpfl.Phase(train=fedpfl.everything, epochs=1, loss=loss)]
    """

    def shape(self, model: nn.Module) -> tuple[int, ...]:
        """Return the shape of the prototypes: (classes, numbers that describe a sample). Default: its features."""
        return class_by_width(model)

    def description(self, model: nn.Module) -> Forward:
        """Return the part that describes a sample; means over the samples of a class are sent. Default: the base."""
        return cut(model).base

    @property
    def extras(self) -> Sequence[Extra]:
        """The prototypes both ways; what their mean is weighted by; which classes have one."""
        return (
            Extra("prototypes", BOTH, "mean features of each class", self.shape, private_from=RECEIVED, kind=MEANS),
            Extra("counts", SERVER, "training samples of each class", classes, kind=COUNTS),
            Extra("known", CLIENT, "1 for classes with a prototype", classes, exact="uint8"),
        )  # fmt: skip

    def prototypes(self, local: LocalRound) -> tuple[Tensor, Tensor]:
        """Return the server's prototypes, (classes, features), and a mark at the classes that have one, (classes,)."""
        example = next(local.model.parameters())
        if not local.has_received("prototypes"):
            shape = self.shape(local.model)
            return example.new_zeros(shape), example.new_zeros(shape[0], dtype=torch.bool)
        has_prototype = torch.tensor(local.received("known"), device=example.device).bool()
        return torch.tensor(local.received("prototypes")).to(example), has_prototype

    def conclude(self, local: LocalRound) -> Payload:
        """Send the mean features of each class by the trained model; of the others what came from the server."""
        features, of_class = by_class(local, self.description(local.model))
        counts, received = of_class.sum(0), self.prototypes(local)[0].double()
        means = of_class.T @ features / counts.clamp(min=1)[:, None]
        means = torch.where(counts[:, None] > 0, means, received)
        arrays = {"prototypes": means, "counts": counts}
        return Payload(arrays={name: array.float().cpu().numpy() for name, array in arrays.items()})


@torch.no_grad()
def by_class(local: LocalRound, description: Forward | None = None) -> tuple[Tensor, Tensor]:
    """Return descriptions of the training samples, by default their features, and a one-hot row for each."""
    x, y = local.samples
    model = local.model.eval()
    features = predict(description or cut(model).base, x).double()
    return features, F.one_hot(y, class_by_width(model)[0]).to(features)


def apart(features: Tensor, y: Tensor, prototypes: Tensor, has_prototype: Tensor) -> Tensor:
    """Return the mean of (z − c_y)² over a batch's samples and all features; 0 for classes without a prototype."""
    return ((features - prototypes[y]).square().mean(1) * has_prototype[y]).mean()
