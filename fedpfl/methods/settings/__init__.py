"""The settings of this package's methods, apart from what the methods compute with: a wrong one is said at once.

A file of them is imported when a setting of one of its methods is asked for.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from ...core.option import NoSettings
from ...core.registry import Registry

C = TypeVar("C", bound=type)

# By the method's name; those that are not here have a file of the user's.
SETTINGS: Registry[type[Any]] = Registry(
    "method",
    files=[
        ("fedpfl.methods.settings.one_model", "fedavg feddyn fedprox moon per-fedavg"),
        (
            "fedpfl.methods.settings.heads",
            "fedbabu fedcp feddbe feddistill fednh fedper fedproto fedreg fedrep fedrod fedtgp gpfl lg-fedavg",
        ),
        (
            "fedpfl.methods.settings.own_models",
            "apfl apple clustered-fl ditto fedala fedamp fedcac fedem fedfomo fedkd fedmrl fedphp floco fml ifca "
            "knn-per pfedhn pfedme pfedsd",
        ),
        (
            "fedpfl.methods.settings.divided_layers",
            "factorized-fl factorized-fl-plus feddecomp fedfac fedrolex fedselect fedsplit flexlora heterofl pfedgate "
            "pfedpara",
        ),
    ],
)
# Other names that users may write.
ALIASES = {"fd": "feddistill", "fedlora": "feddecomp"}


def settings_of(*methods: str) -> Callable[[C], C]:
    """Register a class of settings as that of methods."""

    def register(settings: C) -> C:
        for method in methods:
            SETTINGS.add(method, lambda cls: cls)(settings)
        return settings

    return register


settings_of(*["fedas", "fedbn", "feddpa", "fedgh", "fedpac", "fedsa-lora", "ffa-lora", "local", "pfedfda", "scaffold"])(
    NoSettings
)
