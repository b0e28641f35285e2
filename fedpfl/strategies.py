"""Flower strategies: one class for each method, and the client's half.

``FedAvg``, ``FedPer``, ``FedFac``, … are subclasses of Flower's ``Strategy``. Each takes Flower's settings and the
method's own as keywords. :func:`of` makes the class of a method of one's own.

On a client, the mod :func:`keep` makes a ClientApp personal, its functions as they are; :func:`fit` answers for methods
with phases, and :func:`client_app` returns a whole ClientApp of it. docs/how-to/from-a-flower-app.md shows them.

Examples
--------
>>> from fedpfl import strategies
>>> strategy = strategies.FedPer(head="fc2", fraction_train=0.5)
>>> strategy.method.shares
'the base'
"""

from __future__ import annotations

from typing import Any

_FUNCTIONS = {"MethodStrategy": "strategy", "of": "strategy", "client_app": "fit", "fit": "fit", "keep": "keep"}


def _names() -> dict[str, str]:
    """Return the names of methods by those of their classes, without case: no method is imported."""
    from .methods import SETTINGS

    return {name.replace("-", ""): name for name in SETTINGS}


def _class(name: str) -> Any:
    """Return the class of a method by its name; ``None`` if there is none."""
    from .methods import find

    method = _names().get(name.lower())
    kind = None if method is None else find(method)
    return kind if getattr(kind, "__name__", "") == name else None


def __getattr__(name: str) -> Any:
    # torch and the methods take seconds to import.
    if name.startswith("__"):
        raise AttributeError(name)
    from importlib import import_module

    if name in _FUNCTIONS:
        attribute = getattr(import_module(f"{__package__}.flower.{_FUNCTIONS[name]}"), name)
    elif (method := _class(name)) is not None:
        from .flower.strategy import of

        attribute = of(method)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    globals()[name] = attribute
    return attribute


def __dir__() -> list[str]:
    from .methods import methods

    return sorted([*_FUNCTIONS, *(method.__name__ for method in methods().values())])
