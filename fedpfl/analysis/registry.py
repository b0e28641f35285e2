"""What an analysis is: a name, what it shows, and a function of run folders that returns tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import ConfigError, FedpflError
from ..core.settings import keys, parse
from ..results.run import RunFolder
from ..results.tables import Table
from .figure import Figure


class NotRecorded(FedpflError):
    """No run has what an analysis needs; says which setting or method records it."""


@dataclass(frozen=True)
class Result:
    """What an analysis found.

    Parameters
    ----------
    tables : list of Table
        Numbers.
    figures : list of Figure
        Plain data of figures.
    """

    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


@dataclass(frozen=True)
class NoOptions:
    """The analysis cannot be told anything."""


@dataclass(frozen=True)
class Analysis:
    """A registered analysis.

    Parameters
    ----------
    name : str
        As users write it.
    shows : str
        One line: what it shows, and where that comes from.
    function : callable
        (runs, options) → Result.
    options : type
        Dataclass of its options, made of :func:`fedpfl.core.settings.setting`.
    computes : bool
        Whether it computes with the clients' models and data, which must then be on this machine, and takes seconds to
        minutes; otherwise it reads what runs recorded.
    """

    name: str
    shows: str
    function: Callable[[Sequence[RunFolder], Any], Result]
    options: type[Any] = NoOptions
    computes: bool = False

    def make(self, runs: Sequence[RunFolder], **options: Any) -> Result:
        """Analyse runs.

        Parameters
        ----------
        runs : sequence of RunFolder
            In the order in which they are to appear; at least one.
        **options
            Of this analysis, by the names of its dataclass's fields.

        Raises
        ------
        ConfigError
            No runs, an unknown option, or an option with a value that is not allowed.
        NotRecorded
            None of the runs has what is needed.
        StateError
            A file of a run is missing or damaged.
        """
        if not runs:
            raise ConfigError("run", [], f"the analysis {self.name!r} needs at least one run")
        given = {key.replace("_", "-"): value for key, value in options.items()}
        known = keys(self.options)
        for key in given.keys() - set(known):
            allowed = "is no option of this analysis; it has " + (", ".join(known) or "none")
            raise ConfigError(key, given[key], allowed)
        return self.function(runs, parse(self.options, given))


REGISTERED: dict[str, Analysis] = {}


def analysis(
    name: str, shows: str, options: type[Any] = NoOptions, computes: bool = False
) -> Callable[[Callable[[Sequence[RunFolder], Any], Result]], Callable[[Sequence[RunFolder], Any], Result]]:
    """Register the function below as an analysis.

    Parameters
    ----------
    name : str
        As users write it.
    shows : str
        One line: what it shows, and where that comes from.
    options : type
        Dataclass of its options, made of :func:`fedpfl.core.settings.setting`.
    computes : bool
        See :class:`Analysis`.
    """

    def register(
        function: Callable[[Sequence[RunFolder], Any], Result],
    ) -> Callable[[Sequence[RunFolder], Any], Result]:
        REGISTERED[name] = Analysis(name, shows, function, options, computes)
        return function

    return register


def sorted_analyses() -> Mapping[str, Analysis]:
    """Return what is registered so far, by name."""
    return dict(sorted(REGISTERED.items()))
