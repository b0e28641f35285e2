"""Who may refuse a run on this device, and bounds it: its owner's policy, if there is one."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Collection, ContextManager, Mapping, Protocol, cast

from ..core.settings import Value

# Names the policy's file; fedpfl/client/policy.py reads it.
VARIABLE = "FEDPFL_POLICY"
# What the smallest file takes on a disk.
FILE_BYTES = 4096


class Owner(Protocol):
    """What is asked before a client does something; each raises a ``FedpflError`` that says what is refused."""

    counts_answers: bool
    """Whether a client gives each round one answer, which is counted."""

    def check(self, run_config: Mapping[str, Value], own_data: str, sent: Collection[str] | None = None) -> None:
        """Refuse a run; ``sent`` are the settings that a server chose, by default all."""

    def check_model(self, model: str) -> None:
        """Refuse a model, before it is built; a function may have named it."""

    def require_room(self, size: int) -> None:
        """Refuse ``size`` bytes more of state."""

    def count_release(self, noise: float) -> None:
        """Refuse an answer with arrays more, else count it; ``noise`` is its noise multiplier."""

    def bounded(self) -> ContextManager[None]:
        """Return what ends the work on a message that takes too long or too much memory."""


def bounded() -> ContextManager[None]:
    """Return what bounds the work on a message, if this device has a policy."""
    owner = guard()
    return nullcontext() if owner is None else owner.bounded()


def guard() -> Owner | None:
    """Return the policy of this device's owner; None if it has none, and an error if it cannot be read."""
    from fedpfl.client.policy import current

    return cast(Owner, current()) if os.environ.get(VARIABLE) else None
