"""Settings of methods that divide layers: by channels, values, ranks, or terms of their weights."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.settings import setting
from . import settings_of

SCALE = 0.25  # of FedDecomp's A
FACTORIZED = "factorized-fl"  # stands before the keys of both variants


@settings_of("feddecomp")
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
        "paper",
        "Shape and initialisation of τ, as in the paper or in the authors' code, whose τ hardly moves in short runs.",
        choices=("paper", "code"),
    )
    scale: float = setting(
        SCALE,
        "Deviation of A's Gaussian values with init = paper, as a factor of PyTorch's default for a layer; the paper "
        "leaves it open. The larger, the further τ moves in comparison with σ.",
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
@dataclass(frozen=True)
class FedSplitSettings(ChannelSettings):
    """Settings of FedSplit."""

    split: str = setting(
        "random",
        "random, or the absolute path of a NumPy file on the server with 1 (shared) or 0 for each channel of Λ, such "
        "as FedFac's RUN/arrays/split.",
    )
    shared: float = setting(0.5, "Share of shared channels of each layer, with split = random.", minimum=0, maximum=1)


@settings_of("fedfac")
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
@dataclass(frozen=True)
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
@dataclass(frozen=True)
class FlexLoRASettings:
    """Settings of FlexLoRA."""

    ranks: str = setting(
        "",
        "Ranks of the clients' adapters, with commas, each at most lora-rank; the list repeats. Empty: lora-rank.",
    )


@settings_of("pfedpara")
@dataclass(frozen=True)
class PFedParaSettings:
    """Settings of pFedPara."""

    gamma: float = setting(
        0.5,
        "Position γ of the inner rank between the smallest that allows full rank (0) and the largest that has no more "
        "values than the weight (1).",
        minimum=0, maximum=1,
    )  # fmt: skip


@settings_of("pfedgate")
@dataclass(frozen=True)
class PFedGateSettings:
    """Settings of pFedGate."""

    share: float = setting(0.5, "Share s of the model's values that a client uses.", above=0, maximum=1)
    factor: str = setting(
        "double",
        "What a block's weights are multiplied by: 2·g of its gate g (double), which leaves them as they are at the "
        "start, when g = 0.5; or g (gate), as in the authors' code.",
        choices=("gate", "double"),
    )


@settings_of("heterofl", "fedrolex")
@dataclass(frozen=True)
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
