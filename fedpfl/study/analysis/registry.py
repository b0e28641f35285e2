"""What an analysis is: a name, what it shows, and a function of run folders that returns tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...core.errors import ConfigError, FedpflError
from ...core.registry import Registry
from ...core.settings import keys, parse
from ...results.run_folder import RunFolder
from ...results.tables import Table
from .figure import Figure


class NotRecorded(FedpflError):
    """No run has what an analysis needs; the text names the setting or method that records it."""


@dataclass(frozen=True)
class Result:
    """The tables that an analysis makes, and the plain data of its figures."""

    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


@dataclass(frozen=True)
class NoOptions:
    """The options of an analysis that has none."""


@dataclass(frozen=True)
class Analysis:
    """A registered analysis; see :func:`analysis`."""

    name: str
    shows: str
    function: Callable[[Sequence[RunFolder], Any], Result]
    options: type[Any] = NoOptions
    computes: bool = False

    def make(self, runs: Sequence[RunFolder], **options: Any) -> Result:
        """Analyse runs, in the order in which they are to appear, with options by the names of their fields."""
        if not runs:
            raise ConfigError("run", [], f"the analysis {self.name!r} needs at least one run")
        values = {key.replace("_", "-"): value for key, value in options.items()}
        option_keys = keys(self.options)
        for key in values.keys() - set(option_keys):
            allowed = "is not an option of this analysis; its options: " + (", ".join(option_keys) or "none")
            raise ConfigError(key, values[key], allowed)
        return self.function(runs, parse(self.options, values))


ANALYSES: Registry[Analysis] = Registry("analysis", __package__)

Function = TypeVar("Function", bound=Callable[[Sequence[RunFolder], Any], Result])


def analysis(
    name: str, shows: str, options: type[Any] = NoOptions, computes: bool = False
) -> Callable[[Function], Function]:
    """Register the function below as an analysis.

    The function gets the runs, at least one, and the options. It raises :class:`NotRecorded` if no run has what it
    needs, and another error if a file of a run is missing or damaged.

    Parameters
    ----------
    name : str
        As users write it.
    shows : str
        One line: what it shows, and where that comes from.
    options : type
        Dataclass of its options, made of :func:`fedpfl.core.settings.setting`.
    computes : bool
        Whether it computes with the clients' models and data, which must then be on this machine, and takes seconds to
        minutes; otherwise it reads what runs recorded.
    """
    return ANALYSES.add(name, lambda function: Analysis(name, shows, function, options, computes))
