"""Parts that users bring: a model, a data set or a method that is not of this package.

A setting names one in three ways:

* ``MODULE:NAME``, an attribute of a module: of a file in the app's folder (:func:`look_in`), where Flower has unpacked
  the app, or of an installed package;
* the name of an entry point of an installed package (:data:`GROUPS`);
* ``python:…``, an object of this process (:func:`given`), which no other process but a forked one has.

Code is found where it lies already. It is never fetched by its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import re
import secrets
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping

from .errors import ConfigError, FedpflError, in_one_line, meant

# The setting → the group of entry points under which installed packages register theirs.
GROUPS = {"model": "fedpfl.models", "dataset": "fedpfl.datasets", "method": "fedpfl.methods"}
# What may be written besides the names that there are, and in which words.
FORM = "MODULE:NAME for one of your own"
PYTHON = "python"

_WORD = r"[^\W\d]\w*"
_REFERENCE = re.compile(rf"{_WORD}(?:\.{_WORD})*:{_WORD}(?:\.{_WORD})*(?:#\d+)?")
_given: dict[str, Any] = {}
# So that no two objects have one name, in no two processes either: a run may be resumed in another one.
_numbers = itertools.count(secrets.randbits(40))


class _Place:
    """The app's folder, and what has been imported of it."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.added = False
        # The file of each module that was imported for a setting, and what changes when the file is written.
        self.modules: dict[str, tuple[Path, tuple[int, int]]] = {}
        self.version = 0


_place = _Place()


def is_reference(text: str) -> bool:
    """Return whether a setting's value has the form ``MODULE:NAME``."""
    return _REFERENCE.fullmatch(text) is not None


def named(kind: str) -> list[str]:
    """Return the names under which installed packages register a kind (``model``, ``dataset``, ``method``), sorted."""
    return sorted(_entry_points(kind))


def is_part(kind: str, text: str) -> bool:
    """Return whether :func:`find` resolves a setting's value, without looking whether there is such a part."""
    return is_reference(text) or text in _entry_points(kind)


def find(kind: str, text: str, known: Any = ()) -> Any:
    """Return the object that the value of the setting ``kind`` names, or raise ``ConfigError``.

    ``known`` are the names of this package, which an installed one must not take.
    """
    if text.startswith(f"{PYTHON}:"):
        if text not in _given:
            raise ConfigError(kind, text, "is a Python object of the process that made the run; give it again")
        return _given[text]
    if is_reference(text):
        return _attribute(kind, text)
    registered = _entry_points(kind).get(text)
    if registered is None:
        words = [*known, *named(kind)]
        raise ConfigError(kind, text, f"must be one of {', '.join(words)}, or {FORM}{meant(text, words)}")
    if text in known:
        raise ConfigError(kind, text, f"is a name of fedpfl, and of {registered.value} of an installed package, too")
    try:
        return registered.load()
    except Exception as error:
        raise ConfigError(kind, text, f"{registered.value} cannot be loaded: {in_one_line(error)}") from error


def call(kind: str, text: str, function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Call a user's function with those of the ``offered`` arguments that it takes, by their names.

    An exception in it becomes a ``FedpflError`` of one line about the setting; one that is already such a line passes.
    """
    if not callable(function):
        raise ConfigError(kind, text, f"is {article(function)}, and must be a function")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []  # of a function that is not written in Python
    taken: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY:
            taken[parameter.name] = offered[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD,
        ):  # fmt: skip
            allowed = f"needs an argument {parameter.name!r}; it is given {', '.join(offered)}, by these names"
            raise ConfigError(kind, text, allowed)
    try:
        return function(**taken)
    except FedpflError:
        raise
    except Exception as error:
        raise ConfigError(kind, text, f"raises {in_one_line(error)}") from error


def article(thing: object) -> str:
    """Return what an object is, for an error: ``a list``, ``the class Net``."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    word = type(thing).__name__
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


@contextlib.contextmanager
def given(kind: str, thing: object, text: str = "") -> Iterator[str]:
    """Make a Python object a setting's value, for the time of a ``with`` statement.

    Yields the value: ``MODULE:NAME`` where other processes can import the object, else ``python:…``; ``text`` is the
    value by which a finished run knew it.
    """
    reference = None if text else _importable(thing)
    if reference is not None:
        yield reference
        return
    if not text:
        name = str(getattr(thing, "__name__", kind))
        text = f"{PYTHON}:{name if name.isidentifier() else kind}#{next(_numbers)}"
    before = _given.get(text)
    _given[text] = thing
    try:
        yield text
    finally:
        del _given[text]
        if before is not None:
            _given[text] = before


def require_sendable(values: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` if a setting is an object of this process: one that is not forked lacks it."""
    for kind in GROUPS:
        text = values.get(kind)
        if isinstance(text, str) and text.startswith(f"{PYTHON}:"):
            allowed = "only this process has this object: put it into a file and give MODULE:NAME, or use workers=0"
            raise ConfigError(kind, text, allowed)


def require_installed(values: Mapping[str, Any]) -> None:
    """Refuse a module of this folder where no app is in it that could take the module to devices."""
    for kind in GROUPS:
        text = values.get(kind)
        if isinstance(text, str) and is_reference(text) and has(text.partition(":")[0].partition(".")[0]):
            raise ConfigError(kind, text, "lies in no Flower app, which would take it to the devices: fedpfl new NAME")


def short(text: str) -> str:
    """Return what a part is called in titles and in names of files: ``parts:har_cnn`` is ``har_cnn``."""
    return text.partition(":")[2].partition("#")[0] if is_reference(text) else text


# -- where modules lie ---------------------------------------------------------------------------------------------


def look_in(folder: Path | None) -> None:
    """Set the folder in which modules of settings lie; forget what was imported from there and has changed since.

    None: they are looked for only where Python looks anyway.
    """
    folder = None if folder is None else folder.resolve()
    changed = any(_stamp(path) != stamp for path, stamp in _place.modules.values())
    if changed or folder != _place.folder:
        for name in _place.modules:
            sys.modules.pop(name, None)
        _place.modules.clear()
        _place.version += 1
        importlib.invalidate_caches()
    if folder == _place.folder:
        return
    if _place.added:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(_place.folder))
    _place.folder, _place.added = folder, folder is not None and str(folder) not in sys.path
    if _place.added:
        # At the end, so that a file of a common name takes no other module's place.
        sys.path.append(str(folder))


def folder() -> Path | None:
    """Return the folder in which :func:`look_in` said that modules lie."""
    return _place.folder


def has(name: str) -> bool:
    """Return whether the app's folder has a module of this name."""
    return _own_file(name) is not None


def version() -> int:
    """Return a number that grows whenever modules were forgotten: what was made with them is out of date."""
    return _place.version


def fingerprint(values: Mapping[str, Any]) -> str:
    """Return a hash of the files of the app's folder that settings depend on; empty if they name none."""
    for kind in GROUPS:
        text = str(values.get(kind, ""))
        if is_reference(text) and not text.startswith(f"{PYTHON}:"):
            module(kind, text)
    named = any(is_reference(str(values.get(kind, ""))) for kind in GROUPS)
    if not named or not _place.modules:
        return ""
    digest = hashlib.sha256()
    for name, (path, _) in sorted(_place.modules.items()):
        digest.update(f"{name} ".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]


def is_there(text: str, at: int) -> bool:
    """Return whether a part that was found when :func:`version` said ``at`` is what a setting's value still names."""
    return text in _given if text.startswith(f"{PYTHON}:") else at == _place.version


def app_folder(values: Mapping[str, Any]) -> Path | None:
    """Return the folder of the Flower app that holds the modules which settings name.

    None if they name none, or modules of installed packages alone. Nothing is imported.
    """
    for kind in GROUPS:
        text = values.get(kind)
        if isinstance(text, str) and is_reference(text):
            folder = folder_of(text)
            if folder is not None and (folder / "pyproject.toml").is_file():
                return folder
    return None


def folder_of(text: str) -> Path | None:
    """Return the folder from which the module of ``MODULE:NAME`` would be imported; None if there is no such file."""
    found = _file_of(text.partition(":")[0].partition(".")[0])
    if found is None:
        return None
    return found.parent.parent if found.name == "__init__.py" else found.parent


def module(kind: str, text: str) -> ModuleType:
    """Import the module that ``MODULE:NAME`` names; errors as of :func:`find`."""
    name = text.partition(":")[0]
    before = set(sys.modules)
    try:
        found = importlib.import_module(name)
    except Exception as error:
        for new in set(sys.modules) - before:
            if _lies_here(sys.modules[new]):
                del sys.modules[new]  # so that the next attempt sees the file as it is then
        if isinstance(error, FedpflError):
            raise
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        if missing and (name == error.name or name.startswith(f"{error.name}.")):  # type: ignore[attr-defined]
            where = f" in {_place.folder}, and none that is installed" if _place.folder else ""
            raise ConfigError(kind, text, f"there is no module {name}{where}") from error
        raise ConfigError(kind, text, f"the module {name} cannot be imported: {in_one_line(error)}") from error
    for new in set(sys.modules) - before:
        if _lies_here(sys.modules[new]):
            path = Path(str(sys.modules[new].__file__))
            _place.modules[new] = (path, _stamp(path))
    _require_not_hidden(kind, text, name.partition(".")[0])
    return found


def _attribute(kind: str, text: str) -> Any:
    found: Any = module(kind, text)
    where, name = _place_of(found), text.partition(":")[2]
    for word in name.split("."):
        if not hasattr(found, word):
            public = [key for key, value in vars(found).items() if _is_own(found, key, value)]
            has = f"it has {', '.join(public)}" if public else "it has nothing of the kind"
            raise ConfigError(kind, text, f"there is no {word} in {where}; {has}")
        found = getattr(found, word)
    return found


def _is_own(container: Any, key: str, value: object) -> bool:
    own = getattr(value, "__module__", None) == getattr(container, "__name__", None)
    return callable(value) and own and not key.startswith("_")


def _place_of(found: ModuleType) -> str:
    path = getattr(found, "__file__", None)
    return found.__name__ if path is None else str(path)


def _require_not_hidden(kind: str, text: str, name: str) -> None:
    """Refuse a module of somebody else's that has the name of a file of the user's."""
    wanted, found = _own_file(name), sys.modules[name]
    if wanted is not None and not _lies_here(found):
        allowed = f"{wanted} has the name of another module, {_place_of(found)}; rename the file"
        raise ConfigError(kind, text, allowed)


def _own_file(name: str) -> Path | None:
    if _place.folder is None:
        return None
    mine = [_place.folder / f"{name}.py", _place.folder / name / "__init__.py"]
    return next((path for path in mine if path.is_file()), None)


def _lies_here(found: ModuleType) -> bool:
    path = getattr(found, "__file__", None)
    if path is None or _place.folder is None:
        return False
    resolved = Path(path).resolve()
    # A virtual environment may lie in the app's folder.
    return _place.folder in resolved.parents and "site-packages" not in resolved.parts


def _file_of(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if spec is None or not spec.origin else Path(spec.origin)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, -1)
    return found.st_mtime_ns, found.st_size


def _importable(thing: object) -> str | None:
    """Return MODULE:NAME by which other processes get the very object; None if there is no such name."""
    name, of = getattr(thing, "__qualname__", ""), getattr(thing, "__module__", None)
    reference = f"{of}:{name}"
    if of in (None, "__main__") or not is_reference(reference):
        return None
    found: Any = sys.modules.get(str(of))
    # A module of another folder than Python's own would not be found again.
    if found is None or getattr(found, "__spec__", None) is None or getattr(found, "__file__", None) is None:
        return None
    for word in name.split("."):
        found = getattr(found, word, None)
    return reference if found is thing else None


@lru_cache(maxsize=None)
def _entry_points(kind: str) -> dict[str, EntryPoint]:
    found: Any = entry_points()
    # Python 3.10 and later select; older ones have a dict of groups.
    group = found.select(group=GROUPS[kind]) if hasattr(found, "select") else found.get(GROUPS[kind], ())
    return {point.name: point for point in group}
