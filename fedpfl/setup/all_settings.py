"""Which settings there are, by key: those of all methods, and those of each."""

from __future__ import annotations

from dataclasses import Field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Collection, Mapping

from ..core import references
from ..core import settings as s
from ..core.errors import ConfigError
from ..data.settings import DataSettings
from ..methods import find, own_settings, settings_of_custom, settings_of_methods
from ..training.settings import TrainingSettings
from .config import RunSettings
from .options import OPTIONS

# Titles of parts of the settings.
SEVERAL, METHOD = "Several methods", "Method "


def _common() -> list[tuple[str, type]]:
    """Return title and settings class of every part that all methods have."""
    usual = [("Run", RunSettings), ("Data", DataSettings), ("Local training", TrainingSettings)]
    return [*usual, *((option.title, option.Settings) for option in OPTIONS if s.keys(option.Settings))]


def keys_of(method: str = "") -> list[str]:
    """Return every key that all methods have, and those of a method of this package."""
    return list(_fields_of(method))


def _fields_of(method: str) -> dict[str, Field[Any]]:
    """Return the settings that all methods have, and those of a method, by key."""
    of_method = own_settings(method)
    common = {key: field for _, cls in _common() for key, field in s.by_key(cls).items()}
    return {**common, **(s.by_key(of_method, method) if of_method else {})}


def sections(look: bool = True) -> dict[str, dict[str, Field[Any]]]:
    """Return the settings by key, each once, in parts by their titles: those of methods last, ``METHOD`` and a name."""
    titled = {title: dict(s.by_key(cls)) for title, cls in _common()}
    titled[SEVERAL] = {}
    listed: set[str] = set()
    for name, cls in settings_of_methods(look).items():
        of_method = {key: field for key, field in s.by_key(cls, name).items() if key not in listed}
        titled[SEVERAL].update({key: field for key, field in of_method.items() if field.metadata["of"] == ""})
        titled[f"{METHOD}{name}"] = {key: field for key, field in of_method.items() if field.metadata["of"] != ""}
        listed |= of_method.keys()
    return {title: section for title, section in titled.items() if section}


def all_settings(look: bool = True) -> dict[str, Field[Any]]:
    """Return every setting of a run by key; ``look`` for methods in installed packages as well."""
    return {key: field for section in sections(look).values() for key, field in section.items()}


def owners() -> dict[str, tuple[str, ...]]:
    """Return the methods of every setting that only some methods have, by key."""
    methods: dict[str, tuple[str, ...]] = {}
    for name, cls in settings_of_methods().items():
        for key in s.keys(cls, name):
            methods[key] = (*methods.get(key, ()), name)
    return methods


def check(settings: Mapping[str, Any], app: Mapping[str, Any], named: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Raise :class:`ConfigError` for ``settings`` that there are not or that are not allowed, without torch.

    ``app`` has the settings of the app. ``named`` are settings whose values are checked later, as is what needs torch.
    """
    method = settings.get("method", app.get("method", ""))
    if isinstance(method, str) and references.is_custom("method", method):
        return  # whose settings are known once it is imported
    fields = _fields_of(method if isinstance(method, str) else "")
    if {*named, *settings} - fields.keys():
        fields = all_settings(look=False)
        s.require_keys({**named, **settings}, {*fields, *app})
    for key, value in settings.items():
        if key == "model":
            s.typed(key, value, fields[key])
        elif key in fields:
            s.checked(key, value, fields[key])


def unused(values: Mapping[str, Any], method: str) -> list[str]:
    """Name, in one line, the settings of other methods that are not at their defaults; an empty list if there are none.

    Flower hands over every key that the app has, so that only another value shows that a setting was given.
    """
    if not set(values) - {*keys_of(method)}:  # so that no other method needs to be imported
        return []
    every = all_settings()
    by_methods: dict[str, list[str]] = {}
    for key, methods in owners().items():
        if method not in methods and values.get(key, every[key].default) != every[key].default:
            by_methods.setdefault(", ".join(methods), []).append(key)
    named = "; ".join(f"{', '.join(keys)} of {name}" for name, keys in by_methods.items())
    return [f"settings of other methods, which {method} does not use: {named}"] if by_methods else []


def require_used(values: Mapping[str, Any], methods: Collection[str]) -> None:
    """Raise :class:`ConfigError` for a setting of methods other than these."""
    used = {key for name in methods for key in keys_of(name)}
    if not values.keys() - used:  # so that no other method needs to be imported
        return
    methods_of = owners()
    for key, value in values.items():
        if key in methods_of and not {*methods_of[key]} & {*methods}:
            allowed = f"is a setting of {', '.join(methods_of[key])}, and the method is {' or '.join(methods)}"
            raise ConfigError(key, value, allowed)


def know_method(values: Mapping[str, Any]) -> None:
    """Make the settings of a custom method known, wherever its class comes from, if ``values`` name one."""
    named = values.get("method")
    if isinstance(named, str) and references.is_custom("method", named):
        find(named)


def check_keys(values: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for a key that no part of the program knows, or a method that cannot be found."""
    know_method(values)
    if not set(values) - {*keys_of(str(values.get("method", "")))}:  # so that no other method needs to be imported
        return
    s.require_keys(values, all_settings())


def tagged(tag: str) -> frozenset[str]:
    """Return the keys of the settings with a tag (see ``setting``), those of custom methods that were found, too."""
    sections_of_custom = (s.by_key(cls, name) for name, cls in settings_of_custom().items())
    return _tagged(tag).union(
        key for fields in sections_of_custom for key, field in fields.items() if tag in field.metadata["tags"]
    )


@lru_cache(maxsize=None)
def _tagged(tag: str) -> frozenset[str]:
    return frozenset(
        key for _, cls in _common() for key, field in s.by_key(cls).items() if tag in field.metadata["tags"]
    )


def places(values: Mapping[str, Any], keys: Collection[str] | None = None) -> dict[str, str]:
    """Return the paths among settings, of those with these keys, by key; one that names code instead is none."""
    keys = tagged("place") if keys is None else keys
    texts = {key: str(values[key]) for key in sorted(keys) if values.get(key)}
    code = functions()
    return {key: place for key, place in texts.items() if key not in code or not references.is_reference(place)}


def at_home(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for other machines: what is below this user's home is below that of each device's user."""
    home = f"{Path.home()}/"
    named = {key: place for key, place in places(values).items() if place.startswith(home)}
    return {**values, **{key: f"~/{place.removeprefix(home)}" for key, place in named.items()}}


def functions() -> frozenset[str]:
    """Return the keys of the settings that may name functions of the user's, several separated by commas."""
    return tagged("code") - references.GROUPS.keys()


@lru_cache(maxsize=None)
def single() -> frozenset[str]:
    """Return the keys of the common settings whose value is one of several words, not a list."""
    fields = [field for _, cls in _common() for field in s.by_key(cls).items()]
    return frozenset(key for key, field in fields if field.metadata["limits"].choices is not None)


def code_in(values: Mapping[str, Any], without: str = "server") -> list[tuple[str, str]]:
    """Return (setting, ``MODULE:NAME``) for each of the user's own parts that settings without a tag name."""
    return list(references.references(values, sorted(tagged("code") - tagged(without))))


def require_absolute(values: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for a place that depends on the working directory, which Flower's processes share."""
    for key, place in places(values).items():
        s.require_absolute_path(key, place)


def absolute_places(values: Mapping[str, s.Value]) -> dict[str, s.Value]:
    """Return settings whose places no longer depend on the working directory; a place that is not set stays so."""
    return {**values, **{key: str(Path(place).expanduser().absolute()) for key, place in places(values).items()}}
