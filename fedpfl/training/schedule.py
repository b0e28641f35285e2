"""Learning rates over the rounds of a run."""

from __future__ import annotations

import math
from typing import Callable, Mapping

from .settings import TrainingSettings

# (rounds since warm-up, from 0; rounds without warm-up; settings) → factor of the learning rate.
SCHEDULES: Mapping[str, Callable[[int, int, TrainingSettings], float]] = {
    "constant": lambda at, rounds, settings: 1.0,
    "exponential": lambda at, rounds, settings: settings.learning_rate_decay**at,
    "cosine": lambda at, rounds, settings: (1 + math.cos(math.pi * min(at, rounds) / max(1, rounds))) / 2,
}


def rate_factor(settings: TrainingSettings, number: int, rounds: int) -> float:
    """Return by what all learning rates of clients are multiplied in round ``number`` of ``rounds``, from 1.

    With W rounds of warm-up r / (W + 1) in round r ≤ W; after them the schedule, which begins with 1.
    """
    warm_up = settings.learning_rate_warm_up
    if number <= warm_up:
        return number / (warm_up + 1)
    return SCHEDULES[settings.learning_rate_schedule](number - warm_up - 1, rounds - warm_up, settings)
