"""Who may refuse a run on this device: its owner's policy, if there is one."""

from __future__ import annotations

import os
from typing import Mapping, Protocol, cast

from ..core.settings import Value

# Names the policy's file; fedpfl/client/policy.py reads it.
VARIABLE = "FEDPFL_POLICY"


class Owner(Protocol):
    """What is asked before a client does something; each raises a ``FedpflError`` that says what is refused."""

    def check(self, run_config: Mapping[str, Value], own_data: str) -> None:
        """Refuse a run."""

    def check_model(self, model: str) -> None:
        """Refuse a model, before it is built; a function may have named it."""

    def require_room(self, size: int) -> None:
        """Refuse ``size`` bytes more of state."""


def guard() -> Owner | None:
    """Return the policy of this device's owner; None if it has none, and an error if it cannot be read."""
    from fedpfl.client.policy import current

    return cast(Owner, current()) if os.environ.get(VARIABLE) else None
