"""The one way in which files register what users can name: a decorator with the name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Callable, Iterable, Iterator, Mapping, TypeVar

from .errors import ConfigError, one_of

T = TypeVar("T")
D = TypeVar("D")


class Registry(Mapping[str, T]):
    """The entries registered under names of one ``kind``, which errors name; each has a decorator that calls ``add``.

    All files of a ``package`` are imported when the registry is first read, those of ``files``, (module, names), when
    one of their names is asked for. With ``sort`` entries are in the order of their names.
    """

    def __init__(
        self, kind: str, package: str = "", sort: bool = True, files: Iterable[tuple[str, str]] = ()
    ) -> None:  # fmt: skip
        self._kind, self._package, self._sort = kind, package, sort
        self._files = {name: module for module, names in files for name in names.split()}
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: Callable[[Any], T]) -> Callable[[D], D]:
        """Return a decorator that registers ``entry(decorated)``; ``ValueError`` if the name is taken."""

        def register(decorated: D) -> D:
            made_in = getattr(decorated, "__module__", "")
            if name in self._entries or self._files.get(name, made_in) != made_in:
                raise ValueError(f"{self._kind} {name!r} is already registered")
            self._entries[name] = entry(decorated)
            return decorated

        return register

    def find(self, name: str) -> T:
        """Return an entry; a :class:`ConfigError` lists the names if there is none."""
        if name not in self:
            raise ConfigError(self._kind, name, one_of(name, self))
        return self[name]

    def _names(self) -> dict[str, None]:
        return dict.fromkeys([*self._files, *self._load()])

    def _load(self) -> dict[str, T]:
        if self._package:
            package, self._package = importlib.import_module(self._package), ""
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{package.__name__}.{module.name}")
        return self._entries

    def __getitem__(self, name: str) -> T:
        if name in self._files and name not in self._entries:
            importlib.import_module(self._files[name])
        return self._load()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names()) if self._sort else self._names())

    def __len__(self) -> int:
        return len(self._names())
