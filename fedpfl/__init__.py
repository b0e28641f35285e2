"""fedpfl: personalised federated learning as one Flower app.

The names below are what a script or a notebook uses (docs/how-to/python.md). Each is imported when it is first asked
for, so that a device's worker, which needs none of them, neither waits for them nor has to have what they import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .api.comparisons import Comparison, Experiment, Sweep
    from .api.runs import Run, load
    from .api.start import compare, experiment, run, sweep
    from .client.device_model import LoadedModel, load_model
    from .core.errors import ConfigError, DataError, FedpflError, LayoutError, NoPlainModel
    from .core.extra_arrays import Extra
    from .core.layout import Layout
    from .core.payload import Payload
    from .core.samples import Samples
    from .core.server_view import Client, Federation, LastTraining
    from .core.settings import setting
    from .core.sharing import Sharing
    from .data import Dataset
    from .data.datasets.lazy import Lazy
    from .engine.listener import Listener
    from .layers.memory import Memory, in_twin, remembered, twin
    from .methods import method_class
    from .methods.base import Aggregation, LocalRound, Method, everything, excluding
    from .methods.bases.adapters import AdapterMethod
    from .methods.bases.kept_models import KeepsTrained
    from .methods.bases.prototypes import PairsRule, PrototypeMethod, class_by_width, require_settable_head
    from .models import BaseHeadModel, cut
    from .models.adapters import matrix_of
    from .rules import Rule
    from .rules.mean import Mean
    from .rules.per_client import PerClientRule
    from .training.at_server import fit
    from .training.loop import predict
    from .training.penalties import L1, Correction, Proximal
    from .training.phase import PLAIN_SGD, Batch, Phase

# A name → the module of this package that it is in.
_PUBLIC = {
    # what there is to do
    "run": "api.start", "compare": "api.start", "sweep": "api.start", "experiment": "api.start",
    "load": "api.runs", "load_model": "client.device_model",
    # what comes back
    "Run": "api.runs", "Comparison": "api.comparisons", "Sweep": "api.comparisons",
    "Experiment": "api.comparisons",
    "LoadedModel": "client.device_model", "Lazy": "data.datasets.lazy",
    # what custom code is made of
    "Method": "methods.base", "Aggregation": "methods.base", "LocalRound": "methods.base", "Phase": "training.phase",
    "Rule": "rules", "Extra": "core.extra_arrays", "setting": "core.settings", "Dataset": "data",
    "BaseHeadModel": "models",
    # what its messages, its data and the server's rules are made of
    "Payload": "core.payload", "Sharing": "core.sharing", "Samples": "core.samples", "Batch": "training.phase",
    "Client": "core.server_view", "Federation": "core.server_view", "LastTraining": "core.server_view",
    "Mean": "rules.mean", "PerClientRule": "rules.per_client", "Layout": "core.layout",
    # what the built-in methods use, too
    "method_class": "methods", "cut": "models", "class_by_width": "methods.bases.prototypes",
    "require_settable_head": "methods.bases.prototypes", "everything": "methods.base",
    "excluding": "methods.base", "PLAIN_SGD": "training.phase",
    "Proximal": "training.penalties", "L1": "training.penalties", "Correction": "training.penalties",
    "predict": "training.loop", "fit": "training.at_server",
    "KeepsTrained": "methods.bases.kept_models", "twin": "layers.memory", "in_twin": "layers.memory",
    "Memory": "layers.memory", "remembered": "layers.memory",
    "PrototypeMethod": "methods.bases.prototypes", "PairsRule": "methods.bases.prototypes",
    "AdapterMethod": "methods.bases.adapters", "matrix_of": "models.adapters",
    # what follows a run
    "Listener": "engine.listener",
    # what can go wrong
    "FedpflError": "core.errors", "ConfigError": "core.errors", "DataError": "core.errors",
    "LayoutError": "core.errors", "NoPlainModel": "core.errors",
}  # fmt: skip

__all__ = [
    "L1",
    "PLAIN_SGD",
    "AdapterMethod",
    "Aggregation",
    "BaseHeadModel",
    "Batch",
    "Client",
    "Comparison",
    "ConfigError",
    "Correction",
    "DataError",
    "Dataset",
    "Experiment",
    "Extra",
    "Federation",
    "FedpflError",
    "KeepsTrained",
    "LastTraining",
    "Layout",
    "LayoutError",
    "Lazy",
    "Listener",
    "LoadedModel",
    "LocalRound",
    "Mean",
    "Memory",
    "Method",
    "NoPlainModel",
    "PairsRule",
    "Payload",
    "PerClientRule",
    "Phase",
    "PrototypeMethod",
    "Proximal",
    "Rule",
    "Run",
    "Samples",
    "Sharing",
    "Sweep",
    "__version__",
    "class_by_width",
    "compare",
    "cut",
    "everything",
    "excluding",
    "experiment",
    "fit",
    "in_twin",
    "load",
    "load_model",
    "matrix_of",
    "method_class",
    "predict",
    "remembered",
    "require_settable_head",
    "run",
    "setting",
    "sweep",
    "twin",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    attribute = globals()[name] = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    return attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC} - {"Any", "TYPE_CHECKING", "annotations"})
