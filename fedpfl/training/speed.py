"""How long a training step takes on this machine in either precision."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from ..core.process import computing
from ..core.samples import Samples
from ..models import build
from .loop import run_phase
from .phase import Phase
from .settings import TrainingSettings

BATCH = 20


class StepSeconds(NamedTuple):
    """Median seconds of a training step; the ratio is that of neighbouring steps, as a machine's speed may drift."""

    float32: float
    bf16: float
    ratio: float


def compare_precisions(settings: TrainingSettings, seconds: float = 2.0) -> StepSeconds:
    """Train FedAvg's CNN on noise, a step in float32 and one in bf16 in turn, for some seconds; at least one turn.

    Device and threads of the settings count.
    """
    with computing(settings.threads or torch.get_num_threads()):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build("fedavg-cnn", (1, 28, 28), 10).to(settings.device)
            model = model.to(memory_format=torch.channels_last)
            x, y = torch.randn(BATCH, 1, 28, 28), torch.arange(BATCH) % 10
        samples = Samples(*(tensor.to(settings.device) for tensor in (x, y)))

        def step_seconds(precision: str) -> float:
            own = replace(settings, precision=precision, optimizer="sgd", learning_rate=1e-3, batch_size=BATCH)
            started = time.perf_counter()
            # It ends by reading the loss, for which a GPU has to have finished.
            run_phase(model, Phase(lambda name: True, 1), samples, own, np.random.default_rng(0))
            return time.perf_counter() - started

        for precision in ("float32", "bf16"):
            step_seconds(precision)
        turns: list[tuple[float, float]] = []
        end = time.perf_counter() + seconds
        while not turns or time.perf_counter() < end:
            turns.append((step_seconds("float32"), step_seconds("bf16")))
    plain, half = ([turn[at] for turn in turns] for at in (0, 1))
    ratio = statistics.median(b / a for a, b in turns)
    return StepSeconds(statistics.median(plain), statistics.median(half), ratio)
