"""Settings that the version before had and this one has not, each with what to use instead. Kept for one version."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

from ..core.errors import ConfigError


class Removed(NamedTuple):
    """A setting that was removed."""

    default: Any
    instead: str  # in words
    key: str = ""  # the setting that has its values now


def _renamed(default: Any, key: str) -> Removed:
    return Removed(default, f"it is called {key} now", key)


_FACTORIZED_FL: dict[str, Any] = {
    "l1": 5e-4, "penalty": "gradient", "mu": True, "threshold": 0.0, "scaling": 1.0, "min-aggregate": 10,
    "matching": "similar", "classifier": "personal",
}  # fmt: skip
_TRAINED = Removed("received", "evaluate-trained tests clients right after training as well")
_CHANNELS = {
    **{
        key: _renamed(default, f"fedfac-{key}")
        for key, default in {"layers": "auto", "splits": "channel", "share-buffers": True}.items()
    },
    "server-step": Removed(1.0, "the server takes the mean itself, a step of 1"),
}
_HEAD = {"head-layers": _renamed(1, "head-layers")}

# By method: those of all methods under an empty name.
_OF: Mapping[str, Mapping[str, Removed]] = {
    "": {
        "device-models-kept": Removed(2, "a client keeps its two newest models"),
        "krum-clients": Removed(0, "krum averages all updates except as many as may be malicious"),
        "label-smoothing": Removed(0.0, "loss takes a function of your own: F.cross_entropy(…, label_smoothing=0.1)"),
        "learning-rate-decay-every": Removed(10, "the schedule exponential decays each round"),
        "learning-rate-over": Removed("rounds", "learning-rate-schedule counts rounds"),
        "text-step": Removed(80, "window-step counts the characters of running text as well"),
        "tracker": Removed("none", "use listeners = fedpfl.trackers:WeightsAndBiases or fedpfl.trackers:MLflow"),
        "tracker-project": Removed(
            "fedpfl", "WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME names it, on the server's machine"
        ),
        "server-beta2": Removed(0.99, "β₂ is 0.99, as in the paper"),
        "server-tau": Removed(0.001, "τ is 0.001, the paper's default"),
    },
    "clustered-fl": {
        "weights": Removed("examples", "a cluster's mean is weighted by training samples"),
        "linkage": Removed("complete", "a cluster is split by complete linkage, as in the authors' code"),
        "smallest-split": Removed(3, "a cluster of at least 3 clients may split, as in the authors' code"),
    },
    "factorized-fl": {"test": _TRAINED},
    "factorized-fl-plus": {
        **{key: _renamed(default, f"factorized-fl-{key}") for key, default in _FACTORIZED_FL.items()},
        "test": _TRAINED,
    },
    "fedala": {
        "epochs": Removed(1, "W is learned for one epoch, as in the paper; fedala-samples sets on how many samples"),
        "first-epochs": Removed(10, "W is learned for 10 epochs the first time"),
    },
    "fedas": {
        "alignment-epochs": Removed(1, "the base is aligned for one epoch, as in the authors' code"),
        "alignment-learning-rate": Removed(0.01, "the base is aligned with 0.01, as in the authors' code"),
    },
    "fedbabu": _HEAD,
    "fedfac": {
        "server-step": _CHANNELS["server-step"],
        "tolerance": Removed(1e-3, "the iteration stops at a change of 0.001"),
        "max-iterations": Removed(200, "the iteration stops after 200 iterations"),
        "pre-rounds": Removed(1, "the static split follows round 1; local-epochs sets how long that trains"),
    },
    "fedfomo": {
        "epsilon": Removed(0.3, "ε is 0.3 in round 1"),
        "epsilon-decay": Removed(0.05, "ε falls by 0.05 a round"),
        "baseline": Removed("before-training", "models are compared with the one from before the last local training"),
    },
    "fedgh": {
        "server-learning-rate": Removed(0.01, "the server's learning rate is 0.01"),
        "server-epochs": Removed(1, "the server trains for one epoch a round"),
        "server-batch-size": Removed(1, "the server takes one class mean a step"),
    },
    "fedpac": {
        "alignment": Removed(1.0, "features are aligned with the weight 1"),
        "p-epochs": Removed(1, "the head trains for one epoch a round; fedrep-p-epochs is FedRep's"),
        "combine": Removed(True, "heads are always combined; method = fedrep does without"),
    },
    "fedper": _HEAD,
    "fedreg": {
        **_HEAD,
        "redraw": Removed(False, "the rebalanced set is drawn once, as in Algorithm 1"),
        "order": Removed("sequential", "clients train on the original data first, then on the rebalanced ones"),
        "max-growth": Removed(20.0, "a rebalanced set has at most 20 times the client's own samples"),
    },
    "fedrep": _HEAD,
    "fedrod": {"balanced": Removed(True, "the generic head is always trained with balanced softmax")},
    "fedsplit": _CHANNELS,
    "fedtgp": {
        "pull": _renamed(1.0, "fedproto-pull"),
        "predict": _renamed("model", "fedproto-predict"),
        "server-learning-rate": Removed(0.01, "the server's learning rate is 0.01"),
        "server-epochs": Removed(100, "the server trains for 100 epochs a round, as in the paper"),
    },
    "knn-per": {
        "k": Removed(10, "ten neighbours count"),
        "scale": Removed(1.0, "distances have the scale 1"),
    },
    "lg-fedavg": _HEAD,
    "moon": {"temperature": Removed(0.5, "the temperature is 0.5, as in the paper")},
    "per-fedavg": {"delta": Removed(0.001, "the finite difference has a step of 0.001")},
    "pfedfda": {"beta": Removed(-1.0, "each client chooses β by cross-validation, as in the paper")},
    "pfedgate": {
        "opened": Removed(0.99, "every gate starts at 0.99"),
        "gate-learning-rate": Removed(0.1, "the gate's learning rate is 0.1"),
        "clip-norm": Removed(10.0, "the gradients of gate and model are clipped at 10"),
        "blocks": Removed(5, "every parameter is divided into 5 blocks"),
    },
    "pfedsd": {"temperature": Removed(3.0, "the temperature is 3")},
    "scaffold": {
        "control": Removed("steps", "c_i is the mean gradient of a client's steps, option II of the paper"),
        "momentum": Removed(0.0, "clients train without momentum, as in the paper"),
        "server-learning-rate": Removed(1.0, "the server takes the mean itself, a step of 1 as in the paper's runs"),
    },
}

REMOVED = {f"{method}-{key}" if method else key: of for method, ones in _OF.items() for key, of in ones.items()}


def of_method(method: str) -> dict[str, Removed]:
    """Return the removed settings that runs of a method had, by key."""
    own = {f"{method}-{key}": removed for key, removed in _OF.get(method, {}).items()} if method else {}
    return {**_OF[""], **own}


def require_there(values: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a removed setting that has another value than its default was."""
    for key, value in values.items():
        if key in REMOVED and value != REMOVED[key].default:
            raise ConfigError(key, value, f"this setting was removed: {REMOVED[key].instead}")


def still_unknown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some unknown settings that were never there; errors are those of :func:`require_there`."""
    require_there(values)
    return {key: value for key, value in values.items() if key not in REMOVED}


def renewed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of the version before with the keys of today, without removed ones that were not used."""
    used = {key: value for key, value in values.items() if key not in REMOVED or value != REMOVED[key].default}
    return {REMOVED[key].key or key if key in REMOVED else key: value for key, value in used.items()}


def as_before(values: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the settings of a run with the keys of the version before, by which runs are named."""
    found = dict(values)
    for key, removed in of_method(method).items():
        found[key] = found.pop(removed.key, removed.default) if removed.key else removed.default
    return found
