"""Bounds of what clients of a simulation may take."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError
from ...core.option import Option
from ...core.settings import setting


@dataclass(frozen=True)
class WorkerLimits:
    """How long clients of a simulation may take, and how much memory."""

    client_timeout: float = setting(
        0.0,
        "Seconds that a client of `fedpfl run` may take for a message; one that takes longer fails. 0: no limit.",
        minimum=0,
        tags="idle",
    )
    worker_memory: float = setting(
        0.0,
        "GiB of memory that a worker of `fedpfl run` may take besides what it starts with, on Linux; a client that "
        "needs more fails. 0: no limit.",
        minimum=0,
        tags="idle",
    )


class WorkerLimitsOption(Option):
    """Bounds the time and the memory of clients in worker processes."""

    title = "Limits of clients"
    Settings = WorkerLimits

    def wanted(self, config: Any) -> bool:
        """Return False: it brings no parts."""
        return False

    def check(self, config: Any) -> None:
        """Refuse a bound of memory where the system has none."""
        if self.settings.worker_memory and sys.platform != "linux":
            raise ConfigError("worker-memory", self.settings.worker_memory, "must be 0: only Linux has this limit")
