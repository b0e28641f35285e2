"""Settings of methods whose clients train one model together."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.settings import setting
from . import settings_of


@settings_of("fedavg")
@dataclass(frozen=True)
class FedAvgSettings:
    """Settings of FedAvg."""

    weights: str = setting(
        "examples",
        "Weights of the mean: by training samples, or equal.",
        choices=("examples", "uniform"),
    )
    share_buffers: bool = setting(True, "Whether BatchNorm's running statistics are averaged, too.")


@settings_of("fedprox")
@dataclass(frozen=True)
class FedProxSettings:
    """Settings of FedProx."""

    mu: float = setting(0.001, "Weight µ of the pull towards the received model. 0: FedAvg.", minimum=0)


@settings_of("feddyn")
@dataclass(frozen=True)
class FedDynSettings:
    """Settings of FedDyn."""

    alpha: float = setting(0.01, "Weight α of the regulariser. 0: FedAvg with equal weights.", minimum=0)


@settings_of("moon")
@dataclass(frozen=True)
class MoonSettings:
    """Settings of MOON; the paper takes the best µ of 0.1, 1, 5 and 10: 5 for CIFAR-10, 1 for its other data."""

    mu: float = setting(1.0, "Weight µ of the contrastive loss. 0: FedAvg.", minimum=0)


@settings_of("per-fedavg")
@dataclass(frozen=True)
class PerFedAvgSettings:
    """Settings of Per-FedAvg; the step α of the adaptation is ``learning-rate``."""

    beta: float = setting(0.001, "Step size β of the shared model.", above=0)
