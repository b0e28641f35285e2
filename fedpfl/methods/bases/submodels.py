"""What methods have in common whose clients train slices of one model, each as wide as its device allows."""

from __future__ import annotations

from typing import Any, ClassVar, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...core.extra_arrays import SERVER, Extra
from ...core.metrics import CLASSES
from ...core.payload import Payload
from ...training.phase import Batch, Forward, Phase
from ..base import LocalRound, Method, everything
from .prototypes import classes, require_settable_head

PRESENT = "present"  # the model's buffer: 1 for a class of which the client has training samples
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Scaler:
    """Multiplies the output of a layer of a model of width r by 1/r."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """Return the output, scaled."""
        return output * self.factor


class SubModelMethod(Method):
    """A method whose clients may have the model at a width r (``client-models``), for a rule that takes slices."""

    shares = "everything; a narrower client a slice"
    refuses: ClassVar[Mapping[str, str]] = {"trainable": "splits whole arrays into slices"}

    @property
    def masks(self) -> bool:
        """Whether classes that the client lacks are left out."""
        return bool(self.settings.mask) and self.training.labels == CLASSES

    @property
    def extras(self) -> Sequence[Extra]:
        """The client's classes: in a class's row of the head only clients that have it count."""
        about = "1 for the classes of the client's training samples"
        return (Extra("classes", SERVER, about, classes, exact="uint8", bounds=(0, 1)),) if self.masks else ()

    def build(self, model: nn.Module) -> nn.Module:
        """Scale the hidden layers of a narrower model, and add the client's classes."""
        if self.masks:
            require_settable_head(model)
            head: Any = model.head
            model.register_buffer(PRESENT, torch.ones(head.out_features))
        for layer in self._scaled(model).values():
            layer.register_forward_hook(Scaler(1 / width_of(model)))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share everything but the client's classes."""
        return name != PRESENT

    def in_mean_model(self, name: str) -> bool:
        """Leave out the client's classes."""
        return name != PRESENT

    @torch.no_grad()
    def prepare(self, local: LocalRound) -> None:
        """Note the client's classes; a client without training samples may have all."""
        counts = local.class_counts if self.masks else None
        if counts is not None:
            there = (counts > 0) | (counts.sum() == 0)
            present: Any = local.model.present
            present.copy_(torch.from_numpy(there[: len(present)]))

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train everything for E epochs, on the logits of the client's classes."""
        if not self.masks:
            return super().schedule(local)
        return [Phase(train=everything, epochs=self.training.local_epochs, loss=self._masked_loss)]

    def _masked_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.training.criterion(masked(model, batch.x), batch.y)

    def conclude(self, local: LocalRound) -> Payload:
        """Send the client's classes."""
        return Payload(arrays={"classes": (local.class_counts > 0).astype(np.uint8)} if self.masks else {})

    def personalised(self, model: nn.Module) -> Forward:
        """Return the client's slice; the logits of classes that it lacks are 0."""
        return (lambda x: masked(model, x)) if self.masks else model

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return the whole model, which a narrower client does not have."""
        return super().global_model(model) if width_of(model) == 1 else None

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the narrower model, with the scale in its weights and nothing in the rows of absent classes."""
        arrays = dict(model.state_dict())
        for name in self._scaled(model):
            for key in (key for key in (f"{name}.weight", f"{name}.bias") if key in arrays):
                arrays[key] = arrays[key] / width_of(model)
        if self.masks:
            absent = arrays.pop(PRESENT) == 0
            for key in (key for key in ("head.weight", "head.bias") if key in arrays):
                arrays[key] = arrays[key].clone()
                arrays[key][absent] = 0
        return arrays

    def _scaled(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return the layers, by name, whose outputs are scaled: all but the head."""
        normalised = any(isinstance(module, _BatchNorm) for module in model.modules())
        if width_of(model) == 1 or not {"always": True, "auto": normalised, "never": False}[self.settings.scale]:
            return {}
        base: Any = model.base
        return {f"base.{name}": layer for name, layer in base.named_modules() if isinstance(layer, LAYERS)}


def width_of(model: nn.Module) -> float:
    """Return the share of the whole model's channels that a model has."""
    return float(getattr(model, "width", 1.0))


def masked(model: nn.Module, x: Tensor) -> Tensor:
    """Return the logits, which are 0 for classes that the client lacks."""
    logits, present = model(x), getattr(model, PRESENT)
    return logits.masked_fill(present == 0, 0.0)
