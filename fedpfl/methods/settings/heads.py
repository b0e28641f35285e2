"""Settings of methods that cut a model into base and head, or learn from what the base computes."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.settings import setting
from . import settings_of


@settings_of("fedper", "lg-fedavg")
@dataclass(frozen=True)
class HeadSettings:
    """The beginning of the head."""

    head_layers: int = setting(1, "Number of last linear layers that form the head.", minimum=1, of="")


@settings_of("fedbabu")
@dataclass(frozen=True)
class FedBABUSettings(HeadSettings):
    """Settings of FedBABU; epochs as in FedReG's comparison."""

    tuning_epochs: int = setting(10, "Epochs for which a client fine-tunes a copy before a test.", minimum=0)
    tune: str = setting("head", "What is fine-tuned: the head or everything.", choices=("head", "everything"))


@settings_of("fedrep")
@dataclass(frozen=True)
class FedRepSettings(HeadSettings):
    """Settings of FedRep."""

    p_epochs: int = setting(5, "Epochs of the head, before the E epochs of the base.", minimum=0)


@settings_of("fedrod")
@dataclass(frozen=True)
class FedRoDSettings:
    """Settings of FedRoD."""

    personal_start: str = setting(
        "generic",
        "Start of the personal head: a copy of the generic head, or zeros.",
        choices=("generic", "zero"),
    )


@settings_of("fedreg")
@dataclass(frozen=True)
class FedReGSettings(HeadSettings):
    """Settings of FedReG; the defaults are the paper's choice (Section 4.3)."""

    threshold: str = setting(
        "average",
        "Size t of the rebalanced set, from the sizes n_i of all clients.",
        choices=("average", "median", "max", "second-min"),
    )
    augmentation: str = setting(
        "simple",
        "How classes are filled up. simple: flip, crop, rotation, colour jitter, affine map. auto: AutoAugment. none, "
        "and always but for images: copies.",
        choices=("simple", "auto", "none"),
    )
    personal_start: str = setting(
        "generic",
        "Start of the personal head: a copy of the generic head, or random, as in Algorithm 1.",
        choices=("generic", "random"),
    )
    variant: str = setting(
        "full",
        "full, or an ablation: same-weights (a: head weighted as the base), one-head (b: no personal head), "
        "original-only (c: no rebalanced data), rebalanced-only (d: no original data, no personal head).",
        choices=("full", "same-weights", "one-head", "original-only", "rebalanced-only"),
    )


@settings_of("fedcp")
@dataclass(frozen=True)
class FedCPSettings:
    """Settings of FedCP."""

    alignment: float = setting(5.0, "Weight λ of the distance to the received base's features.", minimum=0)


@settings_of("feddbe")
@dataclass(frozen=True)
class FedDBESettings:
    """Settings of FedDBE; the defaults are the paper's for its CNN."""

    kappa: float = setting(50.0, "Weight κ of the distance to the global mean of the features.", minimum=0)


@settings_of("fedproto", "fedtgp")
@dataclass(frozen=True)
class FedProtoSettings:
    """Settings of FedProto, and of FedTGP."""

    pull: float = setting(
        1.0, "Weight λ of the distance to the prototypes. 0: local training.", minimum=0, of="fedproto"
    )
    predict: str = setting(
        "model", "Prediction by the client's model, or the class of the nearest prototype.",
        choices=("model", "prototype"), of="fedproto",
    )  # fmt: skip


@settings_of("feddistill")
@dataclass(frozen=True)
class FedDistillSettings:
    """Settings of FedDistill."""

    teaching: float = setting(1.0, "Weight γ of what the mean predictions teach. 0: local training.", minimum=0)


@settings_of("fednh")
@dataclass(frozen=True)
class FedNHSettings:
    """Settings of FedNH."""

    smoothing: float = setting(
        0.9, "Share ρ of a prototype that stays in a round. 1: the prototypes do not move.", minimum=0, maximum=1
    )


@settings_of("gpfl")
@dataclass(frozen=True)
class GPFLSettings:
    """Settings of GPFL; the defaults are those of the authors' runs with CNNs."""

    guidance_weight: float = setting(0.01, "Weight λ of a batch's distance to the global class embeddings.", minimum=0)
    embedding_decay: float = setting(
        0.1, "Weight decay µ of the class embeddings and the conditional valve.", minimum=0
    )
