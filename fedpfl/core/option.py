"""What a run may have beyond training and testing a federation: options, which the core knows only as a list."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Mapping, NamedTuple


class TaskFacts(NamedTuple):
    """What a server knows of a run's task before round 1."""

    model: Any
    asked: int  # clients in a round
    shared: int  # values that travel
    real: bool  # whether the clients are on devices


@dataclass(frozen=True)
class NoSettings:
    """What an option has whose settings belong to the run."""


@dataclass(frozen=True)
class Option:
    """An option and its settings: a subclass in a folder of ``options/``, whose ``__init__.py`` imports only the core.

    Attributes
    ----------
    title : str
        The heading of its settings in the reference.
    Settings : type
        A dataclass of fields made by ``setting(…)``. Default: none.
    of_arrays : bool
        Whether form or meaning of the arrays that a run stores follow from the settings.
    parts : mapping of str to str
        What it brings where it is wanted, as MODULE:NAME of a function, imported where it is used:

        * ``model`` (config, model) returns the model that a method gets;
        * ``client`` (engine) returns a ``ClientPart``, which sees a client's training and tests;
        * ``train`` (engine, client, message) answers in place of a client's training;
        * ``extras`` (config, model, sharing) returns further arrays that travel;
        * ``rule`` (config, rule) changes the rule before round 1;
        * ``plan`` (config) checks what is needed before anything starts;
        * ``of_client`` (config, names) returns a function of a config and a client, which returns the client's config;
        * ``instead`` (transport, config) runs in place of the rounds and returns the run's folder;
        * ``follower`` (config, folder) returns listeners that see the run from before its first message;
        * ``attendance`` (config, folder, transport) returns what decides who takes part;
        * ``listener`` (server) returns a listener;
        * ``loop`` (config) returns what makes the loop over the rounds;
        * ``afterwards`` (transport, server) is called once the results are written.

        Of ``of_client``, ``train``, ``instead``, ``attendance`` and ``loop`` a run has one: the last.
    """

    title: ClassVar[str]
    Settings: ClassVar[type] = NoSettings
    of_arrays: ClassVar[bool] = False
    parts: ClassVar[Mapping[str, str]] = {}

    settings: Any

    # `config` is a Config of fedpfl/setup/, which is above.
    def wanted(self, config: Any) -> bool:
        """Return whether a run needs the option's parts: by default if any of its settings is not at its default."""
        return bool(self.settings != self.Settings())

    def check(self, config: Any) -> None:
        """Raise ``ConfigError`` for settings that do not fit together, or not with those of other parts."""

    def remarks(self, config: Any, task: TaskFacts) -> list[str]:
        """Return what a user should know before round 1."""
        return []


@lru_cache(maxsize=1)
def options() -> tuple[type[Option], ...]:
    """Return all options, in the order in which they are called."""
    found: tuple[type[Option], ...] = importlib.import_module("fedpfl.options").OPTIONS
    return found


def part(place: str) -> Any:
    """Import and return what MODULE:NAME names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
