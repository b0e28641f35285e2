"""fedpfl: personalised federated learning as one Flower app.

The names below are what a script or a notebook uses (docs/python.md). Each is imported when it is first asked for, so
that a device's worker, which needs none of them, neither waits for them nor has to have what they import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .api.many import Comparison, Sweep, compare, sweep
    from .api.runs import Run, load, run
    from .client.device_model import LoadedModel, load_model
    from .core.errors import ConfigError, DataError, FedpflError
    from .core.extras import Extra
    from .core.settings import setting
    from .data import Dataset
    from .engine.listener import Listener
    from .methods.base import Aggregation, LocalRound, Method
    from .models import BaseHeadModel
    from .rules import Rule
    from .training.phase import Phase

# A name → the module of this package that it is in.
_PUBLIC = {
    # what there is to do
    "run": "api.runs", "load": "api.runs", "compare": "api.many", "sweep": "api.many",
    "load_model": "client.device_model",
    # what comes back
    "Run": "api.runs", "Comparison": "api.many", "Sweep": "api.many", "LoadedModel": "client.device_model",
    # what custom code is made of
    "Method": "methods.base", "Aggregation": "methods.base", "LocalRound": "methods.base", "Phase": "training.phase",
    "Rule": "rules", "Extra": "core.extras", "setting": "core.settings", "Dataset": "data", "BaseHeadModel": "models",
    # what follows a run
    "Listener": "engine.listener",
    # what can go wrong
    "FedpflError": "core.errors", "ConfigError": "core.errors", "DataError": "core.errors",
}  # fmt: skip

__all__ = [
    "Aggregation",
    "BaseHeadModel",
    "Comparison",
    "ConfigError",
    "DataError",
    "Dataset",
    "Extra",
    "FedpflError",
    "Listener",
    "LoadedModel",
    "LocalRound",
    "Method",
    "Phase",
    "Rule",
    "Run",
    "Sweep",
    "__version__",
    "compare",
    "load",
    "load_model",
    "run",
    "setting",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
