"""Trains a module of the server's, for rules that learn something from what clients send."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from torch import nn

from ..core.process import computing
from ..core.samples import Samples
from .loop import run_phase
from .phase import Phase
from .settings import TrainingSettings


def fit(module: nn.Module, phase: Phase, rng: np.random.Generator) -> float:
    """Train a module of the server's in place through one phase on the phase's own data; return the mean loss.

    For rules that train. Settings that the phase does not have are at their defaults, and all samples take part. One
    thread computes, so that the bits are the same on any number of cores.

    Parameters
    ----------
    module : nn.Module
        On the CPU.
    phase : Phase
        With ``data``.
    rng : Generator
        Of the rule (``self.generator("what for")``): decides the order of the samples.

    Examples
    --------
    >>> import fedpfl, numpy, torch
    >>> data = fedpfl.Samples(torch.eye(3), torch.arange(3))
    >>> phase = fedpfl.Phase(train=fedpfl.everything, epochs=200, data=data, learning_rate=0.5, **fedpfl.PLAIN_SGD)
    >>> layer = torch.nn.Linear(3, 3)
    >>> loss = fedpfl.fit(layer, phase, numpy.random.default_rng(0))
    >>> layer(data.x).argmax(1)
    tensor([0, 1, 2])
    """
    with computing(1):
        loss = run_phase(module, phase, cast(Samples, phase.data), TrainingSettings(last_batch="keep"), rng)
    return math.nan if loss is None else loss
