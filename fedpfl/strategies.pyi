"""Types of the strategies for editors. Written by `fedpfl config --update`."""

# ruff: noqa: D204, E501
# fmt: off

from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import nn

from .engine.listener import Listener
from .flower.clients import PersonalRound as PersonalRound
from .flower.clients import client_app as client_app
from .flower.clients import personal as personal
from .flower.strategy import MethodStrategy as MethodStrategy
from .flower.strategy import MetricsFunction
from .flower.strategy import of as of

class APFL(MethodStrategy):
    """v̄ = α·v + (1 − α)·w predicts. α ← α − η·⟨v − w, ∇f(v̄)⟩, kept in 0 … 1; w ← w − η·∇f(w), v ← v − η·α·∇f(v̄)."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., alpha: float = ..., adaptive: bool = ..., **settings: Any,
    ) -> None: ...

class ClusteredFL(MethodStrategy):
    """Federated averaging in each cluster; initially all clients form one cluster."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., epsilon1: float = ..., epsilon2: float = ..., first_split: int = ..., **settings: Any,
    ) -> None: ...

class Ditto(MethodStrategy):
    """w as in FedAvg; v ← v − η·(∇CE(v) + λ·(v − w^t)) with the received w^t. A client predicts with v."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., pull: float = ..., p_epochs: int = ..., **settings: Any,
    ) -> None: ...

class FactorizedFL(MethodStrategy):
    """W = u ⊗ v + µ: u is averaged over clients with a similar v; v and µ stay."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., l1: float = ..., penalty: Literal["gradient", "threshold"] = ..., mu: bool = ..., threshold: float = ..., scaling: float = ..., min_aggregate: int = ..., matching: Literal["similar", "random", "worst"] = ..., classifier: Literal["personal", "shared"] = ..., **settings: Any,
    ) -> None: ...

class FactorizedFLPlus(MethodStrategy):
    """W = u ⊗ v + µ: all three are averaged over clients with a similar v."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., l1: float = ..., penalty: Literal["gradient", "threshold"] = ..., mu: bool = ..., threshold: float = ..., scaling: float = ..., min_aggregate: int = ..., matching: Literal["similar", "random", "worst"] = ..., classifier: Literal["personal", "shared"] = ..., **settings: Any,
    ) -> None: ...

class FedALA(MethodStrategy):
    """Client i starts from Θ_i + (Θ − Θ_i) ⊙ W_i, 0 ≤ W_i ≤ 1, in the higher layers, then trains as in FedAvg."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., layers: int = ..., samples: float = ..., weight_learning_rate: float = ..., **settings: Any,
    ) -> None: ...

class FedAMP(MethodStrategy):
    """u_i = Σ_j ξ_ij·w_j goes to client i, which minimises its loss near u_i."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., alpha: float = ..., sigma: float = ..., prox: float = ..., **settings: Any,
    ) -> None: ...

class FedAS(MethodStrategy):
    """Base and personal head train together, after the base has learnt the class means of the client's last base."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedAvg(MethodStrategy):
    """One model for all: w ← Σ n_i·w_i / Σ n_i."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., weights: Literal["examples", "uniform"] = ..., share_buffers: bool = ..., **settings: Any,
    ) -> None: ...

class FedBABU(MethodStrategy):
    """Base: Σ n_i·θ_i / Σ n_i under a head that never changes; a client predicts after tuning."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., head_layers: int = ..., tuning_epochs: int = ..., tune: Literal["head", "everything"] = ..., **settings: Any,
    ) -> None: ...

class FedBN(MethodStrategy):
    """w ← Σ n_i·w_i / Σ n_i, except for BatchNorm's parameters and running statistics, which stay."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedCAC(MethodStrategy):
    """Start of client i = M_i ⊙ custom_i + (1 − M_i) ⊙ global; local training as in FedAvg."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., share: float = ..., beta: float = ..., **settings: Any,
    ) -> None: ...

class FedCP(MethodStrategy):
    """Base, policy and global head are averaged; the own head stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., alignment: float = ..., **settings: Any,
    ) -> None: ...

class FedDBE(MethodStrategy):
    """A client predicts with head(base(x) + p_i) and learns p_i; the mean of its features is pulled to that of all."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., kappa: float = ..., momentum: float = ..., **settings: Any,
    ) -> None: ...

class FedDecomp(MethodStrategy):
    """θ = σ + B·A: σ is averaged, B and A stay."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., rank_conv: float = ..., rank_linear: float = ..., lora_epochs: int = ..., init: Literal["paper", "code"] = ..., variant: Literal["alternating", "reverse", "tau-only", "simultaneous", "all-shared", "all-local"] = ..., absent_clients: Literal["skip", "last"] = ..., lora_moves_statistics: bool = ..., **settings: Any,
    ) -> None: ...

class FedDyn(MethodStrategy):
    """A client minimises CE(w) − ⟨h_i, w⟩ + α/2·‖w − w^t‖² and then sets h_i ← h_i − α·(w_i − w^t)."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., alpha: float = ..., **settings: Any,
    ) -> None: ...

class FedEM(MethodStrategy):
    """Expectation: which component explains which sample; maximisation: each trains on the samples that it explains."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., components: int = ..., **settings: Any,
    ) -> None: ...

class FedFac(MethodStrategy):
    """The channels with the lowest communality are client-specific."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., layers: str | float = ..., splits: Literal["channel", "weight"] = ..., share_buffers: bool = ..., variant: Literal["static", "dynamic"] = ..., kappa: str | float = ..., tau: str | float = ..., factor: Literal["principal-axis", "eigenvector"] = ..., update: Literal["weights", "difference"] = ..., mask: Literal["none", "shared", "personal"] = ..., **settings: Any,
    ) -> None: ...

class FedFomo(MethodStrategy):
    """w_i ← w_i + Σ_j ω_j·(w_j − w_i), then local training; no model is the same for all."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., models: int = ..., validation: float = ..., **settings: Any,
    ) -> None: ...

class FedGH(MethodStrategy):
    """A client takes the head, trains base and head, and sends the mean features of each of its classes."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedPAC(MethodStrategy):
    """The head on CE; then the base on CE + λ·mean (f(x) − c_y)²; centroids c_y are the means of all clients' features."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedPer(MethodStrategy):
    """Base: Σ n_i·θ_i / Σ n_i; the head never leaves the client."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., head_layers: int = ..., **settings: Any,
    ) -> None: ...

class FedProto(MethodStrategy):
    """CE + λ·mean of (f(x) − C(y))², C(j) being the mean features of class j over all clients (Equation 7)."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., pull: float = ..., predict: Literal["model", "prototype"] = ..., **settings: Any,
    ) -> None: ...

class FedProx(MethodStrategy):
    """A client minimises CE(w) + µ/2·‖w − w^t‖² with the received w^t; w ← Σ n_i·w_i / Σ n_i."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., mu: float = ..., **settings: Any,
    ) -> None: ...

class FedReG(MethodStrategy):
    """Base and head_G are shared, head_P is personal; clients predict with the sum of both heads."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., head_layers: int = ..., threshold: Literal["average", "median", "max", "second-min"] = ..., augmentation: Literal["simple", "auto", "none"] = ..., personal_start: Literal["generic", "random"] = ..., variant: Literal["full", "same-weights", "one-head", "original-only", "rebalanced-only"] = ..., **settings: Any,
    ) -> None: ...

class FedRep(MethodStrategy):
    """p-epochs on the head over a frozen base, then E epochs on the base under a frozen head."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., head_layers: int = ..., p_epochs: int = ..., **settings: Any,
    ) -> None: ...

class FedRoD(MethodStrategy):
    """Features z, generic logits g(z), personal logits p(z); a client predicts by g + p, the global model is g."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., personal_start: Literal["generic", "zero"] = ..., **settings: Any,
    ) -> None: ...

class FedSALoRA(MethodStrategy):
    """A ← Σ n_i·A_i / Σ n_i; B_i and the head never leave the client."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedSplit(MethodStrategy):
    """W_k = (W^s, W_k^p): shared channels are averaged, client-specific ones never leave the client."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., layers: str | float = ..., splits: Literal["channel", "weight"] = ..., share_buffers: bool = ..., split: str | float = ..., shared: float = ..., **settings: Any,
    ) -> None: ...

class FedTGP(MethodStrategy):
    """Clients do what they do in FedProto; the server trains prototypes P = g(E), a network g of one vector per class."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., pull: float = ..., predict: Literal["model", "prototype"] = ..., margin: float = ..., **settings: Any,
    ) -> None: ...

class FlexLoRA(MethodStrategy):
    """All of the model is shared; clients differ in the rank of their adapters."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., ranks: str | float = ..., **settings: Any,
    ) -> None: ...

class GPFL(MethodStrategy):
    """Base, class embeddings and conditional valve are averaged; the head stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., guidance_weight: float = ..., embedding_decay: float = ..., **settings: Any,
    ) -> None: ...

class KNNPer(MethodStrategy):
    """Training is FedAvg's. A client predicts with λ·h_knn + (1 − λ)·h, h_knn by its nearest training samples."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., weight: float = ..., tune: bool = ..., **settings: Any,
    ) -> None: ...

class LGFedAvg(MethodStrategy):
    """Head: Σ n_i·φ_i / Σ n_i; the base never leaves the client. Both train together."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., head_layers: int = ..., **settings: Any,
    ) -> None: ...

class Local(MethodStrategy):
    """Nothing is shared."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class Moon(MethodStrategy):
    """CE + µ·ℓ, ℓ = −log(exp(cos(z, z_glob)/τ) / (exp(cos(z, z_glob)/τ) + exp(cos(z, z_prev)/τ))); the mean of all."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., mu: float = ..., **settings: Any,
    ) -> None: ...

class PerFedAvg(MethodStrategy):
    """Minimises Σ_i f_i(w − α∇f_i(w)); a client is tested after one step on its own data."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., beta: float = ..., gradient: Literal["first-order", "hessian-free"] = ..., **settings: Any,
    ) -> None: ...

class PFedFDA(MethodStrategy):
    """The base trains under the classifier of all clients' Gaussians; a client predicts with that of a mixture."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class PFedGate(MethodStrategy):
    """The dense model is averaged; the gate stays (Algorithm 1)."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., share: float = ..., **settings: Any,
    ) -> None: ...

class PFedMe(MethodStrategy):
    """θ ≈ argmin f(θ) + λ/2·‖θ − w‖² by K steps on a batch, then w ← w − η·λ·(w − θ); w ← (1 − β)·w + β·mean(w_i)."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., pull: float = ..., steps: int = ..., personal_learning_rate: float = ..., beta: float = ..., **settings: Any,
    ) -> None: ...

class PFedPara(MethodStrategy):
    """W = W1 ⊙ (W2 + 1): W1 is averaged, W2 stays (Section 2.3)."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., gamma: float = ..., **settings: Any,
    ) -> None: ...

class PFedSD(MethodStrategy):
    """Cross-entropy + λτ²·KL(teacher ‖ student); the teacher is the model that the client trained last."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., distillation: float = ..., **settings: Any,
    ) -> None: ...

class Scaffold(MethodStrategy):
    """A client steps y_i ← y_i − η·(∇f_i(y_i) − c_i + c) and then renews c_i, of which it sends the change Δc_i."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., personal: Sequence[str] = ..., listeners: Sequence[Listener] = ..., momentum: float = ..., **settings: Any,
    ) -> None: ...
