"""Options: parts of a run beyond training and testing a federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple


class TaskFacts(NamedTuple):
    """Facts of a run's task that a server knows before round 1."""

    model: Any
    asked: int  # clients in a round
    shared: int  # values that travel
    real: bool  # whether the clients are on devices


@dataclass(frozen=True)
class NoSettings:
    """An option whose settings belong to the run."""


@dataclass(frozen=True)
class Option:
    """An option and its settings: a subclass in a file of ``setup/options/``.

    It has a ``title`` in the reference, a dataclass ``Settings`` of fields made by ``setting(…)``, and ``at_server`` if
    it needs fedpfl's own loop over the rounds. What it does is called in ``setup/assembly.py``, ``client/options/`` and
    ``engine/options/``.
    """

    title: ClassVar[str]
    Settings: ClassVar[type] = NoSettings
    at_server: ClassVar[bool] = False

    settings: Any

    # `config` is a Config of fedpfl/setup/, which is above.
    def wanted(self, config: Any) -> bool:
        """Tell whether a run needs the option's parts: by default if any of its settings is not at its default."""
        return bool(self.settings != self.Settings())

    def check(self, config: Any) -> None:
        """Raise ``ConfigError`` for settings that do not fit together, or not with those of other parts."""

    def remarks(self, config: Any, task: TaskFacts) -> list[str]:
        """Return sentences that a user should read before round 1."""
        return []
