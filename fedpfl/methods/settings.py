"""The settings of this package's methods, apart from what the methods compute with: a wrong one is said at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from ..core.option import NoSettings
from ..core.registry import Registry
from ..core.settings import MOST_EPOCHS, setting

# By the method's name; those that are not here have a file of the user's.
SETTINGS: Registry[type[Any]] = Registry(
    "method",
    # Files of methods that have their settings themselves: ("fedpfl.methods.fedrecon", "fedrecon").
    files=[],
)
# Other names that users may write.
ALIASES = {"fd": "feddistill", "fedlora": "feddecomp"}


def settings_of(*methods: str) -> Callable[[type[Any]], type[Any]]:
    """Make a class of settings a frozen dataclass, and register it as that of methods."""

    def register(fields: type[Any]) -> type[Any]:
        settings = dataclass(frozen=True)(fields)
        for method in methods:
            SETTINGS.add(method, lambda cls: cls)(settings)
        return settings

    return register


WITHOUT_SETTINGS = (
    "fedas", "fedbn", "feddpa", "fedgh", "fedpac", "fedsa-lora", "ffa-lora", "local", "pfedfda", "scaffold",
)  # fmt: skip
for _name in WITHOUT_SETTINGS:
    SETTINGS.add(_name, lambda cls: cls)(NoSettings)


# Of methods whose clients train one model together.


@settings_of("fedavg")
class FedAvgSettings:
    weights: str = setting(
        "examples",
        "Weights of the mean: by training samples, or equal.",
        choices=("examples", "uniform"),
    )
    share_buffers: bool = setting(True, "Whether BatchNorm's running statistics are averaged, too.")


@settings_of("fedprox")
class FedProxSettings:
    mu: float = setting(0.001, "Weight µ of the pull towards the received model. 0: FedAvg.", minimum=0)


@settings_of("feddyn")
class FedDynSettings:
    alpha: float = setting(0.01, "Weight α of the regulariser. 0: FedAvg with equal weights.", minimum=0)


@settings_of("moon")
class MoonSettings:
    """Settings of MOON; the paper takes the best µ of 0.1, 1, 5 and 10: 5 for CIFAR-10, 1 for its other data."""

    mu: float = setting(1.0, "Weight µ of the contrastive loss. 0: FedAvg.", minimum=0)


@settings_of("per-fedavg")
class PerFedAvgSettings:
    """Settings of Per-FedAvg; the step α of the adaptation is ``learning-rate``."""

    beta: float = setting(0.001, "Step size β of the shared model.", above=0)


# Of methods that cut a model into base and head, or learn from what the base computes.


@settings_of("fedper", "lg-fedavg")
class HeadSettings:
    """The beginning of the head."""

    head_layers: int = setting(1, "Number of last linear layers that form the head.", minimum=1, of="")


@settings_of("fedbabu")
class FedBABUSettings(HeadSettings):
    """Settings of FedBABU; epochs as in FedReG's comparison."""

    tuning_epochs: int = setting(
        10, "Epochs for which a client fine-tunes a copy before a test.", minimum=0, maximum=MOST_EPOCHS
    )
    tune: str = setting("head", "What is fine-tuned: the head or everything.", choices=("head", "everything"))


@settings_of("fedrep")
class FedRepSettings(HeadSettings):
    p_epochs: int = setting(5, "Epochs of the head, before the E epochs of the base.", minimum=0, maximum=MOST_EPOCHS)


@settings_of("fedrod")
class FedRoDSettings:
    personal_start: str = setting(
        "generic",
        "Start of the personal head: a copy of the generic head, or zeros.",
        choices=("generic", "zero"),
    )


@settings_of("fedreg")
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
class FedCPSettings:
    alignment: float = setting(5.0, "Weight λ of the distance to the received base's features.", minimum=0)


@settings_of("feddbe")
class FedDBESettings:
    """Settings of FedDBE; the defaults are the paper's for its CNN."""

    kappa: float = setting(50.0, "Weight κ of the distance to the global mean of the features.", minimum=0)


@settings_of("fedproto", "fedtgp")
class FedProtoSettings:
    pull: float = setting(
        1.0, "Weight λ of the distance to the prototypes. 0: local training.", minimum=0, of="fedproto"
    )
    predict: str = setting(
        "model", "Prediction by the client's model, or the class of the nearest prototype.",
        choices=("model", "prototype"), of="fedproto",
    )  # fmt: skip


@settings_of("feddistill")
class FedDistillSettings:
    teaching: float = setting(1.0, "Weight γ of what the mean predictions teach. 0: local training.", minimum=0)


@settings_of("fednh")
class FedNHSettings:
    smoothing: float = setting(
        0.9, "Share ρ of a prototype that stays in a round. 1: the prototypes do not move.", minimum=0, maximum=1
    )


@settings_of("gpfl")
class GPFLSettings:
    """Settings of GPFL; the defaults are those of the authors' runs with CNNs."""

    guidance_weight: float = setting(0.01, "Weight λ of a batch's distance to the global class embeddings.", minimum=0)
    embedding_decay: float = setting(
        0.1, "Weight decay µ of the class embeddings and the conditional valve.", minimum=0
    )


# Of methods whose clients have models of their own, mixtures of models, or clusters.

OWN = "own"  # stands for a model like the client's own


@settings_of("apfl")
class APFLSettings:
    alpha: float = setting(0.5, "Initial share α of the client's own model, which learns it.", minimum=0, maximum=1)


@settings_of("ditto")
class DittoSettings:
    pull: float = setting(0.1, "Weight λ of the pull towards the received model. 0: local training.", minimum=0)
    p_epochs: int = setting(5, "Epochs per round for the personal model.", minimum=1, maximum=MOST_EPOCHS)


@settings_of("pfedme")
class PFedMeSettings:
    """Settings of pFedMe; the step η of w is ``learning-rate``. λ and K are the paper's for MNIST."""

    pull: float = setting(
        15.0,
        "Weight λ of the pull between v and w. 0: v trains alone and w never changes.",
        minimum=0,
    )
    steps: int = setting(5, "Number of steps K of v per batch.", minimum=1, maximum=MOST_EPOCHS)
    personal_learning_rate: float = setting(
        0.02, "Learning rate of v; its product with λ should stay well below 2.", above=0
    )


@settings_of("pfedsd")
class PFedSDSettings:
    distillation: float = setting(0.5, "Weight λ of the distillation.", minimum=0)


@settings_of("fedamp")
class FedAMPSettings:
    alpha: float = setting(1.0, "Step α of the mixture. 0: every client keeps its own model.", minimum=0)
    sigma: float = setting(
        50.0,
        "Scale σ. The weights of all other clients must sum to less than 1.",
        above=0,
    )
    prox: float = setting(0.1, "Weight λ of the pull towards the client's mixture.", minimum=0)


@settings_of("fedala")
class FedALASettings:
    layers: int = setting(
        1,
        "Number of layers to mix, counted from the output. 0: FedAvg.",
        minimum=0,
    )


@settings_of("fedcac")
class FedCACSettings:
    """The paper's for CIFAR-10 (0.4 and 170 for CIFAR-100); each is the rule's option of the same name."""

    share: float = setting(
        0.5, "Share τ of each array's values that are critical; fewer if fewer changed.", above=0, maximum=1
    )
    beta: float = setting(100.0, "Number of rounds β over which collaboration on them fades out.", above=0)


@settings_of("fedfomo")
class FedFomoSettings:
    models: int = setting(5, "Maximum number M of other clients' models sent to a client.", minimum=0)
    validation: float = setting(
        0.2,
        "Share of a client's training samples held out to compare models.",
        minimum=0,
        maximum=0.9,
    )


@settings_of("fedem")
class FedEMSettings:
    components: int = setting(3, "Number M of models in the mixture, each of full size.", minimum=1, maximum=100)


@settings_of("apple")
class APPLESettings:
    """Settings of APPLE; the defaults are those of the authors' program for 200 rounds."""

    relation_learning_rate: float = setting(0.001, "Step η₂ of the weights p_ij. 0: they stay.", minimum=0)
    mu: float = setting(0.1, "Weight µ of the pull of p_ij to the clients' shares of samples.", minimum=0)
    pull_rounds: int = setting(20, "Number of rounds L in which the pull falls to a thousandth and ends.", minimum=0)


@settings_of("floco")
class FlocoSettings:
    """Settings of Floco; the defaults are those of the authors' program."""

    endpoints: int = setting(10, "Number M of heads that span the simplex.", minimum=1, maximum=100)
    round: int = setting(10, "Round τ after which each client trains in a region of its own.", minimum=1)
    radius: float = setting(0.1, "Radius ρ of the regions. 0: their centres alone.", minimum=0)


@settings_of("pfedhn")
class PFedHNSettings:
    learning_rate: float = setting(0.001, "Step α of the hypernetwork. 0: its models stay.", minimum=0)


@settings_of("fedphp")
class FedPHPSettings:
    distillation: float = setting(0.1, "Weight λ of the distillation. 0: FedAvg in training.", minimum=0, maximum=1)
    trainings: int = setting(
        20, "Number K of times that a client trains until the inherited model weighs 0.9.", minimum=1
    )


@settings_of("fml", "fedmrl")
class CommonModelSettings:
    """The model that all clients share beside their own."""

    common_model: str = setting(
        OWN,
        "Common model, which alone travels. own: one like the client's own.",
        form="own, or the name of a built-in model",
        of="",
    )


@settings_of("fedkd")
class FedKDSettings(CommonModelSettings):
    energy: float = setting(
        0.95, "Share T of the squares of an update's singular values that its factors keep.", above=0, maximum=1
    )


@settings_of("ifca")
class IFCASettings:
    clusters: int = setting(3, "Number M of clusters, of whose models a client is sent all.", minimum=2, maximum=100)


@settings_of("clustered-fl")
class ClusteredFLSettings:
    epsilon1: float = setting(0.4, "A cluster may split if its mean update has a norm below ε1.", minimum=0)
    epsilon2: float = setting(1.6, "It then splits if some client's update has a norm above ε2.", minimum=0)
    first_split: int = setting(21, "First round after which clusters may split, as in the authors' code.", minimum=1)


@settings_of("knn-per")
class KNNPerSettings:
    weight: float = setting(
        0.5, "Weight λ of the neighbours. 0: FedAvg. 1: the neighbours alone.", minimum=0, maximum=1
    )


# Of methods that divide layers: by channels, values, ranks, or terms of their weights.

SCALE = 0.25  # of FedDecomp's τ
FACTORIZED = "factorized-fl"  # stands before the keys of both variants


@settings_of("feddecomp")
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
        "paper",
        "Shape and initialisation of τ, as in the paper or in the authors' code, whose τ hardly moves in short runs.",
        choices=("paper", "code"),
    )
    scale: float = setting(
        SCALE,
        "Factor s of τ = s·B·A with init = paper. A has the deviation of PyTorch's default for a layer; the paper "
        "gives none. The larger the factor, the further τ moves in comparison with σ.",
        above=0,
    )
    variant: str = setting(
        "alternating",
        "alternating: τ first, then σ. simultaneous: both together. reverse: τ shared, σ personal. tau-only: σ stays "
        "as initialised, but for running statistics. Table 4's controls train both together and share both "
        "(all-shared) or neither (all-local).",
        choices=("alternating", "reverse", "tau-only", "simultaneous", "all-shared", "all-local"),
    )
    absent_clients: str = setting(
        "skip",
        "Clients not asked: left out of the mean, or counted with the last one.",
        choices=("skip", "last"),
    )


@settings_of("factorized-fl", "factorized-fl-plus")
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
    kernels: str = setting(
        "filter",
        "filter: kernels of a convolution are multiples of one filter u, as in equation 3. view: u·v, of size k² by "
        "O·I, is read in order as the weight, as in the authors' code, so they differ in shape.",
        choices=("filter", "view"),
        of=FACTORIZED,
    )
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
class ChannelSettings:
    """Settings common to FedSplit and FedFac."""

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


@settings_of("fedsplit")
class FedSplitSettings(ChannelSettings):
    split: str = setting(
        "random",
        "random, or the absolute path of a NumPy file on the server with 1 (shared) or 0 for each channel of Λ, such "
        "as FedFac's RUN/arrays/split.",
    )
    shared: float = setting(0.5, "Share of shared channels of each layer, with split = random.", minimum=0, maximum=1)


@settings_of("fedfac")
class FedFacSettings(ChannelSettings):
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
        "Factor analysis as in the paper (principal-axis) or the authors' code (eigenvector); for comparison, "
        "communalities drawn at random.",
        choices=("principal-axis", "eigenvector", "random"),
    )
    turned: str = setting(
        "difference",
        "What a channel takes that turns shared. difference: its last shared value plus the clients' mean change, as "
        "in Algorithm 2. weights: the mean of the clients' weights, which trained apart, as in the authors' code.",
        choices=("difference", "weights"),
    )
    mask: str = setting(
        "none",
        "Ablation of table 8: channels of Λ (none, shared, personal) whose weights a client replaces by noise before "
        "it trains and before a test.",
        choices=("none", "shared", "personal"),
    )


@settings_of("fedselect")
class FedSelectSettings:
    """Settings of FedSelect; the defaults are those of the authors' program."""

    share: float = setting(
        0.25,
        "Share p of an array's common values that become personal in a round. 0: FedAvg with equal weights.",
        minimum=0, maximum=1,
    )  # fmt: skip
    most: float = setting(
        0.8, "Share α of an array's values from which on no more become personal.", minimum=0, maximum=1
    )


@settings_of("flexlora")
class FlexLoRASettings:
    ranks: str = setting(
        "",
        "Ranks of the clients' adapters, with commas, each at most lora-rank; the list repeats. Empty: lora-rank.",
    )


@settings_of("pfedpara")
class PFedParaSettings:
    gamma: float = setting(
        0.5,
        "Position γ of the inner rank between the smallest that allows full rank (0) and the largest that has no more "
        "values than the weight (1).",
        minimum=0, maximum=1,
    )  # fmt: skip


@settings_of("pfedgate")
class PFedGateSettings:
    share: float = setting(0.5, "Share s of the model's values that a client uses.", above=0, maximum=1)
    factor: str = setting(
        "double",
        "What a block's weights are multiplied by: 2·g of its gate g (double), which leaves them as they are at the "
        "start, when g = 0.5; or g (gate), as in the authors' code.",
        choices=("gate", "double"),
    )


@settings_of("heterofl", "fedrolex")
class SubModelSettings:
    """Settings of HeteroFL and FedRolex; ``client-models`` has the widths."""

    scale: str = setting(
        "auto",
        "Whether a client of width r multiplies the outputs of its hidden layers by 1/r. auto: in models with batch "
        "normalisation, as in the papers.",
        choices=("auto", "always", "never"),
    )
    mask: bool = setting(
        True,
        "Whether classes that a client lacks are left out of its loss, its predictions and its rows of the head, with "
        "cross-entropy. false with differential privacy: clients send which classes they have.",
    )
