"""A limit for the norms of what clients send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.option import Option
from ...core.settings import setting


@dataclass(frozen=True)
class NormLimitSettings:
    """Which updates the server refuses."""

    update_norm_limit: float = setting(
        4.0,
        "Factor f: refuse a client's update whose norm exceeds f · max(norm of the shared vector, norm of newly "
        "initialised weights, 5 · median norm of recent updates). 0: refuse only norms that float32 cannot hold.",
        minimum=0,
        tags="free repeat server combining",
    )


class NormLimitOption(Option):
    """Refuses updates that are too long; always, because what a number type holds is a limit, too."""

    title = "False updates"
    Settings = NormLimitSettings

    def wanted(self, config: Any) -> bool:
        """Return True."""
        return True
