"""Types of the strategies for editors. Written by `fedpfl config --update`."""

# ruff: noqa: D204, E501
# fmt: off

from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import nn

from .engine.listener import Listener
from .flower.fit import client_app as client_app
from .flower.fit import fit as fit
from .flower.keep import keep as keep
from .flower.strategy import MethodStrategy as MethodStrategy
from .flower.strategy import MetricsFunction
from .flower.strategy import of as of

class APFL(MethodStrategy):
    """Mix the global model with a second one, v, which stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., alpha: float = ..., **settings: Any,
    ) -> None: ...

class APPLE(MethodStrategy):
    """Train a core w_i and the weights of all cores in the client's own model."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., relation_learning_rate: float = ..., mu: float = ..., pull_rounds: int = ..., **settings: Any,
    ) -> None: ...

class ClusteredFL(MethodStrategy):
    """Run FedAvg in each cluster; initially all clients form one."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., epsilon1: float = ..., epsilon2: float = ..., first_split: int = ..., **settings: Any,
    ) -> None: ...

class Ditto(MethodStrategy):
    """Train a second model v, which stays, near the global one."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., pull: float = ..., p_epochs: int = ..., **settings: Any,
    ) -> None: ...

class FactorizedFL(MethodStrategy):
    """Share u of each weight with similar clients; v and µ stay."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., l1: float = ..., penalty: Literal["gradient", "threshold"] = ..., mu: bool = ..., kernels: Literal["filter", "view"] = ..., threshold: float = ..., scaling: float = ..., min_aggregate: int = ..., matching: Literal["similar", "random", "worst"] = ..., classifier: Literal["personal", "shared"] = ..., **settings: Any,
    ) -> None: ...

class FactorizedFLPlus(MethodStrategy):
    """Share u, v and the sparse µ of each weight with similar clients."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., l1: float = ..., penalty: Literal["gradient", "threshold"] = ..., mu: bool = ..., kernels: Literal["filter", "view"] = ..., threshold: float = ..., scaling: float = ..., min_aggregate: int = ..., matching: Literal["similar", "random", "worst"] = ..., classifier: Literal["personal", "shared"] = ..., **settings: Any,
    ) -> None: ...

class FedALA(MethodStrategy):
    """Start local training from a learned mixture of the received and the own higher layers."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., layers: int = ..., **settings: Any,
    ) -> None: ...

class FedAMP(MethodStrategy):
    """Send each client a mixture u_i of all models, in which similar ones weigh most."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., alpha: float = ..., sigma: float = ..., prox: float = ..., **settings: Any,
    ) -> None: ...

class FedAS(MethodStrategy):
    """Share the base, aligned with the client's last one; the head stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedAvg(MethodStrategy):
    """Share everything: one model for all."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., weights: Literal["examples", "uniform"] = ..., share_buffers: bool = ..., **settings: Any,
    ) -> None: ...

class FedBABU(MethodStrategy):
    """Share the base; the head never changes but for a client's tests."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., head_layers: int = ..., tuning_epochs: int = ..., tune: Literal["head", "everything"] = ..., **settings: Any,
    ) -> None: ...

class FedBN(MethodStrategy):
    """Share all but BatchNorm's parameters and running statistics."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedCAC(MethodStrategy):
    """Start each client from the global model, its critical values from those of similar clients."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., share: float = ..., beta: float = ..., **settings: Any,
    ) -> None: ...

class FedCP(MethodStrategy):
    """Share the base, a policy and a global head; the own head stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., alignment: float = ..., **settings: Any,
    ) -> None: ...

class FedDBE(MethodStrategy):
    """Share everything but a vector p_i, which a client adds to its features."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., kappa: float = ..., **settings: Any,
    ) -> None: ...

class FedDecomp(MethodStrategy):
    """Share the full-rank part σ of each weight; the low-rank part τ stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., rank_conv: float = ..., rank_linear: float = ..., lora_epochs: int = ..., init: Literal["paper", "code"] = ..., scale: float = ..., variant: Literal["alternating", "reverse", "tau-only", "simultaneous", "all-shared", "all-local"] = ..., absent_clients: Literal["skip", "last"] = ..., **settings: Any,
    ) -> None: ...

class FedDistill(MethodStrategy):
    """Share the mean probabilities q_c that models give to the samples of each class c."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., teaching: float = ..., **settings: Any,
    ) -> None: ...

class FedDPA(MethodStrategy):
    """Share the global adapter and the head; the personal adapter stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedDyn(MethodStrategy):
    """Add a linear and a quadratic term to a client's loss, and renew both each round."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., alpha: float = ..., **settings: Any,
    ) -> None: ...

class FedEM(MethodStrategy):
    """Train a few models together; each client mixes them in shares π_i."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., components: int = ..., **settings: Any,
    ) -> None: ...

class FedFac(MethodStrategy):
    """Share the channels that a factor analysis of all clients' channels explains well."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., layers: str | float = ..., splits: Literal["channel", "weight"] = ..., share_buffers: bool = ..., variant: Literal["static", "dynamic"] = ..., kappa: str | float = ..., tau: str | float = ..., factor: Literal["principal-axis", "eigenvector", "random"] = ..., turned: Literal["difference", "weights"] = ..., mask: Literal["none", "shared", "personal"] = ..., **settings: Any,
    ) -> None: ...

class FedFomo(MethodStrategy):
    """Send each client some other clients' models, of which it takes what helps."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., models: int = ..., validation: float = ..., **settings: Any,
    ) -> None: ...

class FedGH(MethodStrategy):
    """Share a head that the server trains on the clients' class means."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedKD(MethodStrategy):
    """Share a model w that learns with the client's own, v_i, and send its update in factors."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., common_model: str | float = ..., energy: float = ..., **settings: Any,
    ) -> None: ...

class FedMRL(MethodStrategy):
    """Project the features of a shared model w = (θ, φ) and of the client's own, (θ_v, φ_v), into one space."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., common_model: str | float = ..., **settings: Any,
    ) -> None: ...

class FedNH(MethodStrategy):
    """Share a base whose features are compared with prototypes µ_c of the classes."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., smoothing: float = ..., **settings: Any,
    ) -> None: ...

class FedPAC(MethodStrategy):
    """Align features with all clients' class means µ_c; combine heads of similar clients."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedPer(MethodStrategy):
    """Share the base; the head stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., head_layers: int = ..., **settings: Any,
    ) -> None: ...

class FedPHP(MethodStrategy):
    """Distil a client's inherited model v_i into the one that it received, and inherit that in turn."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., distillation: float = ..., trainings: int = ..., **settings: Any,
    ) -> None: ...

class FedProto(MethodStrategy):
    """Share the class means µ_c of features and nothing of the model."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., pull: float = ..., predict: Literal["model", "prototype"] = ..., **settings: Any,
    ) -> None: ...

class FedProx(MethodStrategy):
    """Pull each client back to the model that it received."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., mu: float = ..., **settings: Any,
    ) -> None: ...

class FedReG(MethodStrategy):
    """Share the base and a head that learns from rebalanced data; a personal head p_i stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., head_layers: int = ..., threshold: Literal["average", "median", "max", "second-min"] = ..., augmentation: Literal["simple", "auto", "none"] = ..., personal_start: Literal["generic", "random"] = ..., variant: Literal["full", "same-weights", "one-head", "original-only", "rebalanced-only"] = ..., **settings: Any,
    ) -> None: ...

class FedRep(MethodStrategy):
    """Share the base; the head stays, and trains first."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., head_layers: int = ..., p_epochs: int = ..., **settings: Any,
    ) -> None: ...

class FedRoD(MethodStrategy):
    """Share the base and a generic head; a personal head p_i stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., personal_start: Literal["generic", "zero"] = ..., **settings: Any,
    ) -> None: ...

class FedRolex(MethodStrategy):
    """Share the model; a client of width r has ⌈r·K⌉ of the K channels of each hidden layer, from j mod K on."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., scale: Literal["auto", "always", "never"] = ..., mask: bool = ..., **settings: Any,
    ) -> None: ...

class FedSALoRA(MethodStrategy):
    """Share A of each adapter B·A; B and the head stay."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FedSelect(MethodStrategy):
    """Keep a growing share of the values, those that M_i marks; it marks none at first."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., share: float = ..., most: float = ..., **settings: Any,
    ) -> None: ...

class FedSplit(MethodStrategy):
    """Share some output channels of some layers Λ; the others stay."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., layers: str | float = ..., splits: Literal["channel", "weight"] = ..., share_buffers: bool = ..., split: str | float = ..., shared: float = ..., **settings: Any,
    ) -> None: ...

class FedTGP(MethodStrategy):
    """Share class prototypes P_c that the server trains on the clients' class means."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., pull: float = ..., predict: Literal["model", "prototype"] = ..., **settings: Any,
    ) -> None: ...

class FFALoRA(MethodStrategy):
    """Share B of each adapter B·A; A never trains, so that the mean of B·A is the mean of B times A."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class FlexLoRA(MethodStrategy):
    """Share all of the model; clients differ in the rank r_i of their adapters."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., ranks: str | float = ..., **settings: Any,
    ) -> None: ...

class Floco(MethodStrategy):
    """Share a base θ and M endpoints W_m of a head, and give each client a region of their simplex."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., endpoints: int = ..., round: int = ..., radius: float = ..., **settings: Any,
    ) -> None: ...

class FML(MethodStrategy):
    """Share a model w that learns with the client's own, v_i, which may have another architecture."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., common_model: str | float = ..., **settings: Any,
    ) -> None: ...

class GPFL(MethodStrategy):
    """Share the base, class embeddings E and a conditional valve V; the head stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., guidance_weight: float = ..., embedding_decay: float = ..., **settings: Any,
    ) -> None: ...

class HeteroFL(MethodStrategy):
    """Share the model; a client of width r has the first ⌈r·K⌉ of the K channels of each hidden layer."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., scale: Literal["auto", "always", "never"] = ..., mask: bool = ..., **settings: Any,
    ) -> None: ...

class IFCA(MethodStrategy):
    """Keep M models; a client trains the one that suits it best."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., clusters: int = ..., **settings: Any,
    ) -> None: ...

class KNNPer(MethodStrategy):
    """Train as FedAvg does; let the client's nearest samples vote as well."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., weight: float = ..., **settings: Any,
    ) -> None: ...

class LGFedAvg(MethodStrategy):
    """Share the head; the base stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., head_layers: int = ..., **settings: Any,
    ) -> None: ...

class Local(MethodStrategy):
    """Share nothing."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class Moon(MethodStrategy):
    """Add a contrastive loss that compares a sample's features with those of two earlier models."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., mu: float = ..., **settings: Any,
    ) -> None: ...

class PerFedAvg(MethodStrategy):
    """Train a model for its loss after one step of gradient descent."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., beta: float = ..., **settings: Any,
    ) -> None: ...

class PFedFDA(MethodStrategy):
    """Share the base and Gaussians of the features, of which each client makes its head."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...

class PFedGate(MethodStrategy):
    """Share a dense model, of which a personal gate uses some blocks."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., share: float = ..., factor: Literal["gate", "double"] = ..., **settings: Any,
    ) -> None: ...

class PFedHN(MethodStrategy):
    """Give each client the model that a hypernetwork h makes of the client's embedding e_i."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., learning_rate: float = ..., **settings: Any,
    ) -> None: ...

class PFedMe(MethodStrategy):
    """Train a second model v near w on each batch, and move w towards it."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., pull: float = ..., steps: int = ..., personal_learning_rate: float = ..., **settings: Any,
    ) -> None: ...

class PFedPara(MethodStrategy):
    """Share one low-rank factor of each weight; the other stays."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., gamma: float = ..., **settings: Any,
    ) -> None: ...

class PFedSD(MethodStrategy):
    """Distil a client's last model into the one that it received."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., distillation: float = ..., **settings: Any,
    ) -> None: ...

class Scaffold(MethodStrategy):
    """Correct each gradient by c − c_i."""
    def __init__(
        self, fraction_train: float = ..., fraction_evaluate: float = ..., min_train_nodes: int = ..., min_evaluate_nodes: int = ..., min_available_nodes: int = ..., weighted_by_key: str = ..., arrayrecord_key: str = ..., configrecord_key: str = ..., train_metrics_aggr_fn: MetricsFunction | None = ..., evaluate_metrics_aggr_fn: MetricsFunction | None = ...,
        *, model: Callable[..., nn.Module] | nn.Module | str | None = ..., head: str = ..., keep: str | Sequence[str] = ..., personal: str | Sequence[str] = ..., state_key: str = ..., listeners: Sequence[Listener] = ..., **settings: Any,
    ) -> None: ...
