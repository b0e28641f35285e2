"""The methods, each in a file or, with its own rule or layers, in a folder. A new one is found by its ``name``.

Custom ones (:mod:`fedpfl.core.references`) are known as soon as a setting has named them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import pkgutil
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..core import references, user_code
from ..core.errors import ConfigError
from .settings import ALIASES, SETTINGS

if TYPE_CHECKING:
    from .base import Method

__all__ = [
    "Method",
    "discover",
    "find",
    "method_class",
    "methods",
    "names",
    "own_settings",
    "settings_of_custom",
    "settings_of_methods",
    "with_custom",
]

# What can be (the beginning of) a key: lower-case letters and digits with dashes between them.
_WORD = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# Custom methods that :func:`find` has found: the value of the setting, the class, and a token that tells whether it is
# current.
_users_methods: dict[str, tuple[type[Method], int]] = {}
# The module of an app's folder that has methods, as `fedpfl new` makes it.
PARTS = "parts"


@lru_cache(maxsize=1)
def methods() -> dict[str, type[Method]]:
    """Return every method of this package by name, in alphabetical order."""
    by_name: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if _is_method(value):
                by_name[value.name] = value
    return dict(sorted(by_name.items()))


def with_custom() -> dict[str, type[Method]]:
    """Return every method that a setting can have settings of, by name: this package's and custom ones."""
    return {**methods(), **{method.name: method for method in _custom()}}


def _custom(look: bool = True) -> list[type[Method]]:
    """Return the custom methods that have been found; ``look`` for those of installed packages as well."""
    for name in references.entry_point_names("method") if look else ():
        if name not in _users_methods:
            try:
                find(name)
            except ConfigError:
                continue  # said where it is asked for: a package that is broken is no reason to fail without it
    return [method for name, (method, version) in _users_methods.items() if user_code.is_current(name, version)]


def settings_of_custom() -> dict[str, type[Any]]:
    """Return the settings classes of the custom methods that have been found, by method."""
    return {method.name: method.Settings for method in _custom(look=False)}


def settings_of_methods(look: bool = True) -> dict[str, type[Any]]:
    """Return the settings classes by method; ``look`` for custom methods in installed packages as well."""
    return {**SETTINGS, **{method.name: method.Settings for method in _custom(look)}}


def own_settings(method: str) -> type[Any] | None:
    """Return the settings class of a method; None if there is none of this name, or it is custom and not found yet."""
    if method in SETTINGS:
        return SETTINGS[method]
    return next((user_method.Settings for user_method in _custom(look=False) if user_method.name == method), None)


def discover() -> list[type[Method]]:
    """Make the methods in the module ``parts`` of the app's folder known, if there is one; return them by name."""
    if not user_code.has_module(PARTS):
        return []
    contents = vars(user_code.module("method", f"{PARTS}:method"))
    keys = [key for key, value in contents.items() if _is_method(value) and value.__module__ == PARTS]
    return sorted((find(f"{PARTS}:{key}") for key in keys), key=lambda method: method.name)


def _is_method(value: Any) -> bool:
    from .base import Method

    return isinstance(value, type) and issubclass(value, Method) and "name" in vars(value)


def names() -> list[str]:
    """Return the names and aliases that users may write."""
    builtin: list[str] = []
    for name in SETTINGS:
        builtin += [name, *(alias for alias, target in ALIASES.items() if target == name)]
    return [*builtin, *(name for name in references.entry_point_names("method") if name not in builtin)]


@lru_cache(maxsize=64)
def _in_own_file(name: str) -> type[Method] | None:
    """Return the method of a file or folder that is called like it; None if there is none, or it may be another's."""
    file = name.replace("-", "_")
    if not file.isidentifier() or importlib.util.find_spec(f"{__name__}.{file}") is None:
        return None
    values = vars(importlib.import_module(f"{__name__}.{file}")).values()
    return next((value for value in values if _is_method(value) and value.name == name), None)


def find(name: str) -> type[Method]:
    """Return the method called ``name``, or the custom one that it refers to."""
    if not isinstance(name, str):
        raise ConfigError("method", references.article(name), "must be a method's name, a class or a method")
    builtin = [*SETTINGS, *ALIASES]
    if name in builtin and name not in references.entry_point_names("method"):
        name = ALIASES.get(name, name)
        return _in_own_file(name) or methods()[name]
    method = user_code.find("method", name, builtin)
    if method not in methods().values():
        _require_method(name, method, builtin)
        _users_methods[name] = method, user_code.version()
    return method


def method_class(name: str) -> type[Method]:
    """Return the class of a method by its name, to make a method of it.

    Examples
    --------
    >>> import fedpfl
    >>> class Longer(fedpfl.method_class("fedper")):
    ...     name = "longer-fedper"
    """
    return find(name)


def _require_method(name: str, method: Any, taken: list[str]) -> None:
    from .base import Method

    if not (isinstance(method, type) and issubclass(method, Method)):
        message = f"is {references.article(method)}, and must be a subclass of fedpfl.Method"
        raise ConfigError("method", name, message)
    missing = [word for word in ("name", "paper", "shares") if not isinstance(getattr(method, word, None), str)]
    if missing:
        raise ConfigError("method", name, f'the class {method.__name__} lacks {missing[0]} = "…", a text')
    if method.name in taken:
        message = (
            f"the class {method.__name__} has the name {method.name!r}, which is a method of fedpfl; choose another"
        )
        raise ConfigError("method", name, message)
    if not _WORD.fullmatch(method.name):
        message = f"the class {method.__name__} has the name {method.name!r}; it must be lower-case words with dashes"
        raise ConfigError("method", name, message)
    _require_settings("method", name, method.Settings)


def _require_settings(key: str, value: str, cls: Any) -> None:
    """Raise ``ConfigError`` for a user's class of settings that :func:`parse` cannot work with."""
    name = getattr(cls, "__name__", repr(cls))
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ConfigError(key, value, f"{name} must be a dataclass of settings: @dataclass(frozen=True)")
    for field in dataclasses.fields(cls):
        if "limits" not in field.metadata or type(field.default) not in (bool, int, float, str):
            raise ConfigError(key, value, f'{name}.{field.name} must be made by setting(default, "its meaning")')


def __getattr__(name: str) -> Any:
    if name != "Method":
        raise AttributeError(name)
    from .base import Method

    return Method
