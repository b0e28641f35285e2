"""Settings as frozen dataclasses whose fields carry their own documentation and limits.

A setting is written once, where it is used::

    @dataclass(frozen=True)
    class TrainingSettings:
        learning_rate: float = setting(0.01, "Learning rate η.", above=0)

and everything else (the key ``learning-rate`` in ``pyproject.toml``, its check, its line in the documentation) follows
from that line.
"""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Collection, Hashable, Iterator, Mapping, Sequence, TypeVar, Union, cast

from . import references
from .errors import ConfigError, did_you_mean, named, one_of

Value = Union[bool, int, float, str]
# Stands for any number above 0 where a setting names values of another one with which it acts.
ABOVE_0 = "above 0"
S = TypeVar("S")
# What a setting's tags tell of it. ``tagged`` of ``setup/all_settings.py`` gives the settings with a tag.
TAGS = {
    "place": "a path",
    "file": "a path whose content makes another run",
    "code": "may name code of the user's",
    "server": "only the server uses it: a device's policy is not asked",
    "own": "each side's: no strategy sends it",
    "free": "a resumed run may change it",
    "idle": "results do not depend on it",
    "repeat": "repetitions of a run may differ in it",
    "client": "a single client may have another value",
    "refusable": "a method may refuse all but the default",
    "loop": "acts in fedpfl's own loop over the rounds alone, not in Flower's",
    "whole": "acts on a whole run, or as the server takes it: not on one client or in one message",
    "built": "in Flower's loop it needs a strategy that has the model",
    "rounds": "depends on the number of rounds",
    "tests": "acts in tests alone",
    "training": "acts in training alone",
    "both": "one of training that acts in tests, too",
    "combining": "acts on what clients send of models, or on its mean",
    "source": "decides which data are read",
    "columns": "tells of tables and files what arrays do not need",
    "division": "a division file replaces it",
    "apart": "does not decide which samples clients get",
    "changes": "changes clients' samples or labels, not who has which",
}


# The most epochs or steps of a round: more would take memory for their batches before any computes, and then days.
MOST_EPOCHS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a setting allows. ``None`` means no limit of that kind.

    Where there are ``choices``, ``open_to`` lists what else is allowed: words for it, and a function that tells.
    """

    above: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: Callable[[], Sequence[str]] | None = None
    open_to: Mapping[str, Callable[[str], bool]] = dataclasses.field(default_factory=dict)

    def complaint(self, value: Value) -> str | None:
        """Return the allowed values in words if ``value`` is none of them, else ``None``."""
        if self.choices is not None:
            allowed = value in self.choices() or any(fits(str(value)) for fits in self.open_to.values())
            return None if allowed else one_of(value, self.choices(), *self.open_to)
        if isinstance(value, (bool, str)):
            return None
        low = (self.above is None or value > self.above) and (self.minimum is None or value >= self.minimum)
        high = self.maximum is None or value <= self.maximum
        # NaN compares false with everything, so it fails here as it should; infinity is never a useful setting.
        finite = value - value == 0
        if low and high:
            return None if finite else "must be finite"
        return "must be " + self.describe()

    def describe(self) -> str:
        """Describe the limits in words, for example ``> 0 and at most 1``."""
        if self.choices is not None:
            return "one of " + ", or ".join([", ".join(self.choices()), *self.open_to])
        parts = []
        for word, limit in ((">", self.above), ("at least", self.minimum), ("at most", self.maximum)):
            if limit is not None:
                parts.append(f"{word} {limit if isinstance(limit, int) else f'{limit:g}'}")
        return " and ".join(parts) or "a finite number"


def setting(
    default: Any,
    doc: str,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] | Callable[[], Sequence[str]] | None = None,
    open_to: Mapping[str, Callable[[str], bool]] | None = None,
    of: str | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
    form: str = "",
    tags: str = "",
) -> Any:
    """Declare a dataclass field that is a setting.

    Parameters
    ----------
    default : bool, int, float or str
        The default; its type is the setting's type (an int is accepted where a float is expected).
    doc : str
        One sentence for the documentation and for ``pyproject.toml``.
    above, minimum, maximum : float, optional
        Exclusive lower, inclusive lower and inclusive upper limit.
    choices : sequence of str, or a function that returns one, optional
        The allowed words; a function where the list is a registry that fills up later.
    open_to : mapping of str to callable, optional
        What else is allowed besides ``choices``: a description, and a function that tells whether a word fits.
    of : str, optional
        What stands before the key of a setting that several methods have, in place of the method's name; empty for
        nothing.
    only : mapping of str to sequence of str, optional
        Other settings, by their keys, and the values of each with which this one acts; ``custom.FORM`` stands for any
        ``MODULE:NAME``, ``ABOVE_0`` for any number above 0.
    form : str
        What a text may be, in words for the documentation, where there are no ``choices``.
    tags : str
        What else is true of it: words of :data:`TAGS`.

    Examples
    --------
    The setting ``near-mu`` of a method of your own:

    >>> from dataclasses import dataclass
    >>> import fedpfl
    >>> @dataclass(frozen=True)
    ... class NearSettings:
    ...     mu: float = fedpfl.setting(0.1, "Weight of the distance.", minimum=0)
    >>> class Near(fedpfl.Method):
    ...     name = "near"
    ...     Settings = NearSettings
    >>> fedpfl.run(method=Near, dataset="digits", near_mu=-1.0)
    Traceback (most recent call last):
    ...
    fedpfl.core.errors.ConfigError: near-mu = -1.0: must be at least 0
    """
    if choices is not None and not callable(choices):
        fixed = tuple(choices)
        choices = lambda: fixed  # noqa: E731
    limits = Limits(above, minimum, maximum, choices, open_to or {})
    facts = {"doc": doc, "limits": limits, "of": of, "only": only or {}, "form": form}
    return dataclasses.field(default=default, metadata={**facts, "tags": tags.split()})


def acts(field: dataclasses.Field[Any], values: Mapping[str, Any]) -> bool:
    """Return whether a setting has any effect beside the ``values`` of the others."""
    return all(
        values[key] in allowed
        or (ABOVE_0 in allowed and values[key] > 0)
        or (references.FORM in allowed and references.is_reference(str(values[key])))
        for key, allowed in field.metadata["only"].items()
    )


def idle(settings: Any, values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return settings that are not at their defaults and have no effect, by what of ``values`` is the reason."""
    keys_without: dict[str, list[str]] = {}
    fields, others = by_key(type(settings)), changed(settings)
    for key in (key for key in others if not acts(fields[key], values)):
        with_what = ", ".join(f"{other} = {named(str(values[other]))}" for other in fields[key].metadata["only"])
        keys_without.setdefault(with_what, []).append(key)
    return keys_without


def key_of(field: dataclasses.Field[Any], prefix: str = "") -> str:
    """Return the key of a field as users write it: kebab-case, with the method's name in front where it has one."""
    key: str = field.name.replace("_", "-")
    prefix = prefix if field.metadata["of"] is None else field.metadata["of"]
    return f"{prefix}-{key}" if prefix else key


def keys(cls: type[Any], prefix: str = "") -> list[str]:
    """Return the keys of a settings class in the order in which they are declared."""
    return list(by_key(cls, prefix))


def by_key(cls: type[Any], prefix: str = "") -> Mapping[str, dataclasses.Field[Any]]:
    """Return the fields of a settings class by their keys, in the order in which they are declared."""
    return _by_key(cast(Hashable, cls), prefix)


@lru_cache(maxsize=1024)  # grids plan thousands of runs
def _by_key(cls: Any, prefix: str) -> Mapping[str, dataclasses.Field[Any]]:
    return MappingProxyType({key_of(field, prefix): field for field in dataclasses.fields(cls)})


def parse(cls: type[S], values: Mapping[str, Any], prefix: str = "") -> S:
    """Build settings from a flat mapping, with the method's name as ``prefix``; ``ConfigError`` for a wrong value."""
    out: dict[str, Value] = {}
    for key, field in by_key(cls, prefix).items():
        if key in values:
            out[field.name] = checked(key, values[key], field)
    return cls(**out)


def checked(key: str, value: Any, field: dataclasses.Field[Any]) -> Value:
    """Return a value in its setting's type; raise :class:`ConfigError` for one that the field does not allow."""
    checked = typed(key, value, field)
    complaint = field.metadata["limits"].complaint(checked)
    if isinstance(checked, str) and "\0" in checked:  # no path and no name of anything can have it
        complaint = "has a NUL character"
    if complaint:
        raise ConfigError(key, value, complaint)
    return checked


def typed(key: str, value: Any, field: dataclasses.Field[Any]) -> Value:
    """Return a value in its setting's type; raise :class:`ConfigError` for one of another type."""
    kind: type = type(field.default)
    if kind is str and field.metadata["limits"].choices is None:  # of words to choose from there is one
        value = joined(value)
    number = float(value) if kind is float and type(value) is int and abs(value) < 2**63 else value
    if type(number) is not kind:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}
        raise ConfigError(key, value, f"must be {names[kind]}")
    if isinstance(number, int) and not -(2**63) <= number < 2**63:  # no message could carry it
        raise ConfigError(key, value, "must be a whole number of at most 64 bits")
    return cast(Value, number)


def plain(value: Any) -> Any:
    """Return a setting as its own type: a path as text, NumPy's number as Python's."""
    if isinstance(value, PathLike):
        return str(value)
    return value.item() if getattr(value, "shape", None) == () else value


def joined(value: Any) -> Any:
    """Return a list, or a table of tables by client, as the text that a setting has for it; other things stay."""
    if isinstance(value, dict) and value and all(isinstance(one, dict) for one in value.values()):
        tables = {
            (f"#{name}" if isinstance(name, int) else str(name)): {
                str(key).replace("_", "-"): one for key, one in each.items()
            }
            for name, each in value.items()
        }
        try:
            return json.dumps(tables)
        except (TypeError, ValueError):
            return value
    if isinstance(value, (list, tuple)) and all(type(one) in (int, float, str) for one in value):
        texts = [str(one) for one in value]
        return value if any("," in text for text in texts) else ",".join(texts)
    return value


def require_keys(values: Mapping[str, Any], keys: Collection[str]) -> None:
    """Raise ``ConfigError`` for a key that is none of ``keys``."""
    unknown = {key: value for key, value in values.items() if key not in keys}
    for key, value in unknown.items():
        hint = did_you_mean(key, sorted(keys)) or "; `fedpfl config` lists all keys"
        raise ConfigError(key, value, "there is no such setting" + hint)


def items(settings: Any, prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Yield ``(key, value)`` of a settings object, in declaration order."""
    for key, field in by_key(type(settings), prefix).items():
        yield key, getattr(settings, field.name)


def changed(settings: Any) -> list[str]:
    """Return the keys of settings that are not at their defaults."""
    default = type(settings)()
    fields = by_key(type(settings)).items()
    return [key for key, field in fields if getattr(settings, field.name) != getattr(default, field.name)]


def require_absolute_path(key: str, place: str) -> None:
    """Raise :class:`ConfigError` for a path that depends on the working directory."""
    if not place.startswith(("/", "~")) and not Path(place).is_absolute():
        raise ConfigError(
            key, place, "must be absolute or start with ~: this program runs in another folder than `flwr run`"
        )
