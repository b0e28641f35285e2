"""The settings of this package's methods, apart from what the methods compute with: a wrong one is said at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from ..core.option import NoSettings
from ..core.settings import setting

FACTORIZED = "factorized-fl"  # stands before the keys of both variants


@dataclass(frozen=True)
class APFLSettings:
    """Settings of APFL."""

    alpha: float = setting(
        0.5, "Initial share α of the client's own model. 0: FedAvg with equal weights.",
        minimum=0, maximum=1,
    )  # fmt: skip
    adaptive: bool = setting(True, "Whether each client learns α.")


@dataclass(frozen=True)
class HeadSettings:
    """Where the head begins."""

    head_layers: int = setting(1, "Number of last linear layers that form the head.", minimum=1, of="")


@dataclass(frozen=True)
class ClusteredFLSettings:
    """Settings of clustered federated learning."""

    epsilon1: float = setting(0.4, "A cluster may split if its mean update has a norm below ε1.", minimum=0)
    epsilon2: float = setting(1.6, "It then splits if some client's update has a norm above ε2.", minimum=0)
    first_split: int = setting(21, "First round after which clusters may split, as in the authors' code.", minimum=1)


@dataclass(frozen=True)
class DittoSettings:
    """Settings of Ditto."""

    pull: float = setting(0.1, "Weight λ of the pull towards the received model. 0: local training.", minimum=0)
    p_epochs: int = setting(5, "Epochs per round for the personal model.", minimum=1)


@dataclass(frozen=True)
class FactorizedFLSettings:
    """Settings of Factorized-FL; the defaults are those for permuted labels within one domain."""

    l1: float = setting(
        5e-4, "Weight λ of ‖µ‖₁ in the loss. Outside training, entries below λ count as 0.", minimum=0, of=FACTORIZED
    )
    penalty: str = setting(
        "gradient",
        "gradient: λ‖µ‖₁ is part of the loss. threshold: entries below λ count as 0, as in the authors' code.",
        choices=("gradient", "threshold"),
        of=FACTORIZED,
    )
    mu: bool = setting(True, "Whether weights have the term µ.", of=FACTORIZED)
    threshold: float = setting(
        0.0,
        "Threshold τ of the cosines s; above 1 all other clients are left out.",
        minimum=-1,
        of=FACTORIZED,
    )
    scaling: float = setting(1.0, "Scaling ε of the similarities. 0: equal weights.", minimum=0, of=FACTORIZED)
    min_aggregate: int = setting(
        10,
        "Minimum number of clients to average, itself included, even below τ.",
        minimum=1,
        of=FACTORIZED,
    )
    matching: str = setting(
        "similar",
        "Clients that are averaged: similar ones or, for comparison, three random or the three worst.",
        choices=("similar", "random", "worst"),
        of=FACTORIZED,
    )
    classifier: str = setting(
        "personal",
        "personal: each client keeps its classifier. shared: it is a layer like any other.",
        choices=("personal", "shared"),
        of=FACTORIZED,
    )


@dataclass(frozen=True)
class FedALASettings:
    """Settings of FedALA."""

    layers: int = setting(
        1,
        "Number of layers to mix, counted from the output. 0: FedAvg.",
        minimum=0,
    )
    samples: float = setting(0.8, "Share s of a client's samples on which W is learned.", above=0, maximum=1)
    weight_learning_rate: float = setting(1.0, "Learning rate η of W.", above=0)


@dataclass(frozen=True)
class FedAMPSettings:
    """Settings of FedAMP."""

    alpha: float = setting(1.0, "Step α of the mixture. 0: every client keeps its own model.", minimum=0)
    sigma: float = setting(
        50.0,
        "Scale σ. The weights of all other clients must sum to less than 1.",
        above=0,
    )
    prox: float = setting(0.1, "Weight λ of the pull towards the client's mixture.", minimum=0)


@dataclass(frozen=True)
class FedAvgSettings:
    """Settings of FedAvg."""

    weights: str = setting(
        "examples",
        "Weights of the mean: by training samples, or equal.",
        choices=("examples", "uniform"),
    )
    share_buffers: bool = setting(True, "Whether BatchNorm's running statistics are averaged, too.")


@dataclass(frozen=True)
class FedBABUSettings(HeadSettings):
    """Settings of FedBABU; epochs as in FedReG's comparison."""

    tuning_epochs: int = setting(10, "Epochs for which a client fine-tunes a copy before a test.", minimum=0)
    tune: str = setting("head", "What is fine-tuned: the head or everything.", choices=("head", "everything"))


@dataclass(frozen=True)
class FedCACSettings:
    """Settings of FedCAC, the paper's for CIFAR-10 (0.4 and 170 for CIFAR-100).

    Each is the rule's option of the same name.
    """

    share: float = setting(
        0.5, "Share τ of each array's values that are critical; fewer if fewer changed.", above=0, maximum=1
    )
    beta: float = setting(100.0, "Number of rounds β over which collaboration on them fades out.", above=0)


@dataclass(frozen=True)
class FedCPSettings:
    """Settings of FedCP."""

    alignment: float = setting(5.0, "Weight λ of the distance to the received base's features.", minimum=0)


@dataclass(frozen=True)
class FedDBESettings:
    """Settings of FedDBE; the defaults are the paper's for its CNN."""

    kappa: float = setting(50.0, "Weight κ of the distance to the global mean of the features.", minimum=0)
    momentum: float = setting(1.0, "Weight µ of the newest batch in the running mean.", above=0, maximum=1)


@dataclass(frozen=True)
class FedDecompSettings:
    """Settings of FedDecomp; the ranks are the paper's for CIFAR-10."""

    rank_conv: float = setting(0.6, "Rank ratio R_c of τ in convolutions.", above=0, maximum=1)
    rank_linear: float = setting(0.6, "Rank ratio R_l of τ in linear layers.", above=0, maximum=1)
    lora_epochs: int = setting(
        -1,
        "Epochs E_lora that train τ; at least one remains for σ. -1: two fifths of E, as in the authors' code, at "
        "least 1; with a single epoch both train together. 0: FedAvg with equal weights.",
        minimum=-1,
    )
    init: str = setting(
        "code",
        "Shape and initialisation of τ, as in the paper or in the authors' code.",
        choices=("paper", "code"),
    )
    variant: str = setting(
        "alternating",
        "alternating: τ first, then σ. simultaneous: both together. reverse: τ shared, σ personal. tau-only: σ stays "
        "as initialised. Table 4's controls train both together and share both (all-shared) or neither (all-local).",
        choices=("alternating", "reverse", "tau-only", "simultaneous", "all-shared", "all-local"),
    )
    absent_clients: str = setting(
        "skip",
        "Clients not asked: left out of the mean, or counted with the last one.",
        choices=("skip", "last"),
    )
    lora_moves_statistics: bool = setting(
        False, "Whether BatchNorm's running statistics move while τ trains, as in the authors' code."
    )


@dataclass(frozen=True)
class FedDynSettings:
    """Settings of FedDyn."""

    alpha: float = setting(0.01, "Weight α of the regulariser. 0: FedAvg with equal weights.", minimum=0)


@dataclass(frozen=True)
class FedEMSettings:
    """Settings of FedEM."""

    components: int = setting(3, "Number M of models in the mixture, each of full size.", minimum=1, maximum=100)


@dataclass(frozen=True)
class ChannelSettings:
    """What FedSplit and FedFac have in common."""

    layers: str = setting(
        "auto",
        'Layers Λ to split, by name or number ("16,17"; projections of residual networks are not counted). auto: the '
        "last convolution, or else the last hidden layer.",
        of="fedfac",
    )
    splits: str = setting(
        "channel",
        "channel: the row of the weight, bias and BatchNorm channel. weight: the row; biases and BatchNorm are "
        "personal, as in the authors' code.",
        choices=("channel", "weight"),
        of="fedfac",
    )
    share_buffers: bool = setting(
        True,
        "Whether BatchNorm's running statistics are shared; in the authors' runs not.",
        of="fedfac",
    )


@dataclass(frozen=True)
class FedSplitSettings(ChannelSettings):
    """Settings of FedSplit."""

    split: str = setting(
        "random",
        "random, or the absolute path of a NumPy file on the server with 1 (shared) or 0 for each channel of Λ, such "
        "as FedFac's RUN/arrays/split.",
    )
    shared: float = setting(0.5, "Share of shared channels of each layer, with split = random.", minimum=0, maximum=1)


@dataclass(frozen=True)
class FedFomoSettings:
    """Settings of FedFomo."""

    models: int = setting(5, "Maximum number M of other clients' models sent to a client.", minimum=0)
    validation: float = setting(
        0.2,
        "Share of a client's training samples held out to compare models.",
        minimum=0,
        maximum=0.9,
    )


@dataclass(frozen=True)
class FedProtoSettings:
    """Settings of FedProto."""

    pull: float = setting(
        1.0, "Weight λ of the distance to the prototypes. 0: local training.", minimum=0, of="fedproto"
    )
    predict: str = setting(
        "model", "Prediction by the client's model, or the class of the nearest prototype.",
        choices=("model", "prototype"), of="fedproto",
    )  # fmt: skip


@dataclass(frozen=True)
class FedProxSettings:
    """Settings of FedProx."""

    mu: float = setting(0.001, "Weight µ of the pull towards the received model. 0: FedAvg.", minimum=0)


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


@dataclass(frozen=True)
class FedRepSettings(HeadSettings):
    """Settings of FedRep."""

    p_epochs: int = setting(5, "Epochs of the head, before the E epochs of the base.", minimum=0)


@dataclass(frozen=True)
class FedRoDSettings:
    """Settings of FedRoD."""

    personal_start: str = setting(
        "generic",
        "Start of the personal head: a copy of the generic head, or zeros.",
        choices=("generic", "zero"),
    )


@dataclass(frozen=True)
class FedTGPSettings(FedProtoSettings):
    """Settings of FedTGP."""

    margin: float = setting(100.0, "Maximum margin τ.", minimum=0)


@dataclass(frozen=True)
class FlexLoRASettings:
    """Settings of FlexLoRA."""

    ranks: str = setting(
        "",
        "Ranks of the clients' adapters, with commas, each at most lora-rank; the list repeats. Empty: lora-rank.",
    )


@dataclass(frozen=True)
class GPFLSettings:
    """Settings of GPFL; the defaults are those of the authors' runs with CNNs."""

    guidance_weight: float = setting(0.01, "Weight λ of a batch's distance to the global class embeddings.", minimum=0)
    embedding_decay: float = setting(
        0.1, "Weight decay µ of the class embeddings and the conditional valve.", minimum=0
    )


@dataclass(frozen=True)
class KNNPerSettings:
    """Settings of kNN-Per."""

    weight: float = setting(
        0.5, "Weight λ of the neighbours. 0: FedAvg. 1: the neighbours alone.", minimum=0, maximum=1
    )
    tune: bool = setting(
        False,
        "Each client chooses λ from 0, 0.1, … 1 by its validation samples (validation-fraction), if it has any.",
        needs="validation-fraction",
    )


@dataclass(frozen=True)
class MoonSettings:
    """Settings of MOON; the paper takes the best µ of 0.1, 1, 5 and 10: 5 for CIFAR-10, 1 for its other data."""

    mu: float = setting(1.0, "Weight µ of the contrastive loss. 0: FedAvg.", minimum=0)


@dataclass(frozen=True)
class PerFedAvgSettings:
    """Settings of Per-FedAvg; the step α of the adaptation is ``learning-rate``."""

    beta: float = setting(0.001, "Step size β of the shared model.", above=0)
    gradient: str = setting(
        "first-order",
        "Without the Hessian, or with its product by a finite difference (hessian-free).",
        choices=("first-order", "hessian-free"),
    )


@dataclass(frozen=True)
class PFedGateSettings:
    """Settings of pFedGate."""

    share: float = setting(0.5, "Share s of the model's values that a client uses.", above=0, maximum=1)


@dataclass(frozen=True)
class PFedMeSettings:
    """Settings of pFedMe; the step η of w is ``learning-rate``. λ and K are the paper's for MNIST."""

    pull: float = setting(
        15.0,
        "Weight λ of the pull between v and w. 0: v trains alone and w never changes.",
        minimum=0,
    )
    steps: int = setting(5, "Number of steps K of v per batch.", minimum=1)
    personal_learning_rate: float = setting(
        0.02, "Learning rate of v; its product with λ should stay well below 2.", above=0
    )
    beta: float = setting(1.0, "Server step β towards the mean.", above=0)


@dataclass(frozen=True)
class PFedParaSettings:
    """Settings of pFedPara."""

    gamma: float = setting(
        0.5,
        "Position γ of the inner rank between the smallest that allows full rank (0) and the largest that has no more "
        "values than the weight (1).",
        minimum=0, maximum=1,
    )  # fmt: skip


@dataclass(frozen=True)
class PFedSDSettings:
    """Settings of pFedSD."""

    distillation: float = setting(0.5, "Weight λ of the distillation.", minimum=0)


@dataclass(frozen=True)
class ScaffoldSettings:
    """Settings of SCAFFOLD."""

    momentum: float = setting(
        0.0,
        "Momentum of clients, in place of `momentum`; the paper uses none.",
        minimum=0,
        maximum=0.999999,
    )


@dataclass(frozen=True)
class FedFacSettings(ChannelSettings):
    """Settings of FedFac."""

    variant: str = setting(
        "dynamic",
        "One factor analysis, after round 1 (static), or one after every round (dynamic).",
        choices=("static", "dynamic"),
    )
    kappa: str = setting("0.85", 'Share κ of the variance explained by the factors; per layer "0.75,0.9".')
    tau: str = setting(
        "0.5",
        'Threshold τ as a quantile of the communalities ν; per layer "0.25,inf". inf: the whole layer is personal. '
        "-inf: shared. mean: the mean of ν.",
    )
    factor: str = setting(
        "principal-axis",
        "Factor analysis as in the paper (principal-axis) or the authors' code (eigenvector).",
        choices=("principal-axis", "eigenvector"),
    )
    update: str = setting(
        "weights",
        "What is analysed: weights, or their difference since the start of the round.",
        choices=("weights", "difference"),
    )
    mask: str = setting(
        "none",
        "Ablation of table 8: channels of Λ (none, shared, personal) that a client draws again before it trains.",
        choices=("none", "shared", "personal"),
    )


# By the method's name; those that are not here have a file of the user's.
SETTINGS: Mapping[str, type[Any]] = {
    "apfl": APFLSettings,
    "clustered-fl": ClusteredFLSettings,
    "ditto": DittoSettings,
    "factorized-fl": FactorizedFLSettings,
    "factorized-fl-plus": FactorizedFLSettings,
    "fedala": FedALASettings,
    "fedamp": FedAMPSettings,
    "fedas": NoSettings,
    "fedavg": FedAvgSettings,
    "fedbabu": FedBABUSettings,
    "fedbn": NoSettings,
    "fedcac": FedCACSettings,
    "fedcp": FedCPSettings,
    "feddbe": FedDBESettings,
    "feddecomp": FedDecompSettings,
    "feddyn": FedDynSettings,
    "fedem": FedEMSettings,
    "fedfac": FedFacSettings,
    "fedfomo": FedFomoSettings,
    "fedgh": NoSettings,
    "fedpac": NoSettings,
    "fedper": HeadSettings,
    "fedproto": FedProtoSettings,
    "fedprox": FedProxSettings,
    "fedreg": FedReGSettings,
    "fedrep": FedRepSettings,
    "fedrod": FedRoDSettings,
    "fedsa-lora": NoSettings,
    "fedsplit": FedSplitSettings,
    "fedtgp": FedTGPSettings,
    "flexlora": FlexLoRASettings,
    "gpfl": GPFLSettings,
    "knn-per": KNNPerSettings,
    "lg-fedavg": HeadSettings,
    "local": NoSettings,
    "moon": MoonSettings,
    "per-fedavg": PerFedAvgSettings,
    "pfedfda": NoSettings,
    "pfedgate": PFedGateSettings,
    "pfedme": PFedMeSettings,
    "pfedpara": PFedParaSettings,
    "pfedsd": PFedSDSettings,
    "scaffold": ScaffoldSettings,
}
# Other names that users may write.
ALIASES = {"fedlora": "feddecomp"}
