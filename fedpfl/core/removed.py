"""Settings of the version before that this one no longer has."""

from __future__ import annotations

from typing import NamedTuple


class Removed(NamedTuple):
    """A setting that was removed."""

    default: bool | int | float | str
    instead: str


# The default that each had, and what to use instead. Kept for one version.
REMOVED = {
    "fedala-epochs": Removed(1, "W is learned for one epoch, as in the paper; fedala-samples sets on how many samples"),
    "fedreg-redraw": Removed(False, "the rebalanced set is drawn once, as in Algorithm 1"),
    "pfedgate-opened": Removed(0.99, "every gate starts at 0.99"),
}
