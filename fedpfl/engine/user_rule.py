"""A rule of the user's: its mistakes are one line with its name, and what it does not remember is noticed."""

from __future__ import annotations

import math
import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from logging import WARNING, getLogger
from numbers import Real
from typing import Any

import numpy as np

from ..core import references, user_code
from ..core.errors import ConfigError
from ..core.metric_bounds import LARGEST
from ..core.payload import Payload
from ..core.vectors import is_finite, largest_of
from ..rules import Rule
from ..rules.mean import Mean

logger = getLogger("flwr")

# The hooks of a round, and what those must return that return something.
RETURNED = {"outgoing": np.ndarray, "attachments": Payload}
# Hooks that make what clients receive, in words.
_VECTORS = {"finish": "leaves self.shared as", "outgoing": "returns"}
# What the loop itself puts into the config of each message.
OF_MESSAGES = frozenset({"round", "personal-round", "state-key", "layout"})
HOOKS = ("begin", "check", "add", "add_rows", "finish", *RETURNED)


class UserRule:
    """Watches a rule: over its hooks in all rounds, over its attributes in the first two."""

    def __init__(self, rule: Rule) -> None:
        self._rule, self._name = rule, type(rule).__name__
        # Attributes that every rule has and restores by itself, or that this one names.
        self._attributes = {*vars(Mean(rule.federation, rule.shared)), *rule.remembers, *HOOKS}
        self._watched = type(rule).state is Rule.state
        self._first: np.ndarray | None = np.array(rule.shared)
        self._begun: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        self._weights: list[float] = []  # of a round
        for hook in HOOKS:
            setattr(rule, hook, self._guarded(hook))
        if isinstance(rule, Mean):
            rule.weight = self._checked_weight(rule.weight)  # type: ignore[method-assign]

    def _guarded(self, hook: str) -> Callable[..., Any]:
        where = f"{self._name}.{hook}"
        guard = user_code.guarded("method", where, getattr(self._rule, hook))

        def called(*arguments: Any, **named: Any) -> Any:
            kind = RETURNED.get(hook, object)
            if hook == "finish" and self._weights and not any(self._weights):
                raise ConfigError("method", f"{self._name}.weight", "returns 0 for every client of the round")
            # Messages are made in any order, and again: none may change what the next one has.
            with self._shared_kept() if kind is not object else nullcontext():
                result = guard(*arguments, **named)
            if not isinstance(result, kind):
                allowed = f"returns {references.article(result)}, and must return {references.article(kind)}"
                raise ConfigError("method", where, allowed)
            if taken := OF_MESSAGES.intersection(result.config) if isinstance(result, Payload) else ():
                allowed = f"returns the config {min(taken)!r}, which is a name of fedpfl's own in messages"
                raise ConfigError("method", where, allowed)
            if hook == "begin":
                self._weights.clear()
            if hook in _VECTORS:
                self._require_vector(where, _VECTORS[hook], self._rule.shared if hook == "finish" else result)
            if hook == "finish":
                self._look_at_first(self._rule.shared)
            return result

        return called

    def _checked_weight(self, weight: Callable[..., Any]) -> Callable[..., float]:
        where = f"{self._name}.weight"
        guard = user_code.guarded("method", where, weight)

        def called(*arguments: Any, **named: Any) -> float:
            result = guard(*arguments, **named)
            number = float(result) if isinstance(result, Real) else math.nan
            if not 0 <= number < math.inf:
                raise ConfigError("method", where, f"returns {result!r}, and must return a number of at least 0")
            self._weights.append(number)
            return number

        return called

    @contextmanager
    def _shared_kept(self) -> Iterator[None]:
        shared = self._rule.shared
        was = shared.flags.writeable
        shared.setflags(write=False)
        try:
            yield
        finally:
            if was:
                shared.setflags(write=True)

    def _require_vector(self, where: str, what: str, vector: Any) -> None:
        """Refuse what no client could receive, where it is made."""
        size = self._rule.layout.size
        if isinstance(vector, np.ndarray) and vector.shape == (size,) and vector.dtype.kind == "f":
            if what == _VECTORS["finish"]:
                if not is_finite(vector):
                    raise ConfigError("method", where, f"{what} one with values that are not finite")
                if (largest := largest_of(vector)) > LARGEST:
                    allowed = f"must stay below {LARGEST:g}, beyond which no model computes"
                    raise ConfigError("method", where, f"{what} one with the value {largest:g}; {allowed}")
            return
        is_array = isinstance(vector, np.ndarray)
        has = f"{vector.dtype} of shape {vector.shape}" if is_array else references.article(vector)
        raise ConfigError("method", where, f"{what} {has}; it must be a vector of {size} floats")

    def _look_at_first(self, shared: np.ndarray) -> None:
        """Warn of a rule whose first round leaves the shared vector as it was, and that sends nothing else."""
        if self._first is not None and type(self._rule).outgoing is Rule.outgoing:
            if shared.size and np.array_equal(self._first, shared):
                text = "fedpfl: the rule %s leaves self.shared as it was in its first round: does its finish set it?"
                logger.log(WARNING, text, self._name)
            self._first = None

    def round_begun(self, number: int) -> None:
        """Warn of attributes that round 1 changed and that round 2 begins with: a resumed run would not have them."""
        if number > 2 or not self._watched:
            return
        marks = self._marks()
        attributes = [name for name, mark in self._ended.items() if mark not in (self._begun.get(name), None)
                and marks.get(name) == mark]  # fmt: skip
        if attributes:
            text = "fedpfl: the rule %s keeps %s from round to round, which a resumed run loses: name it in `remembers`"
            logger.log(WARNING, text, self._name, ", ".join(attributes))
        self._begun, self._ended = marks, {}

    def round_ended(self, number: int) -> None:
        """Note what the attributes are after round 1."""
        if number == 1 and self._begun:
            self._ended = self._marks()

    def _marks(self) -> dict[str, int]:
        """Return a checksum of each attribute of the rule's own."""
        marks = {}
        for name, value in vars(self._rule).items():
            if name in self._attributes or hasattr(type(self._rule), name):  # such as a cached property
                continue
            try:
                marks[name] = zlib.crc32(pickle.dumps(value))
            except (pickle.PicklingError, TypeError, AttributeError, ValueError):
                continue  # nothing that a run could store either
        return marks
