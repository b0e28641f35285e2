"""The user's own code: the functions and classes that settings name are found, imported and called.

:mod:`fedpfl.core.custom` knows the names alone. Code is only looked for on this machine. It is never downloaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import random
import sys
from bdb import BdbQuit
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Callable, Iterator, Mapping

import numpy as np

from . import custom
from .custom import (
    FORM,
    FUNCTIONS,
    GROUPS,
    PYTHON,
    SERVER_ONLY,
    article,
    entry_point_names,
    is_reference,
    objects,
    references,
)
from .errors import RAISED, ConfigError, FedpflError, in_one_line, one_of
from .process import process_kept


class _AppFolder:
    """The app's folder, and the modules that were imported from it."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.added = False
        # The file of each module that was imported for a setting, with its time and size.
        self.modules: dict[str, tuple[Path, tuple[int, int]]] = {}
        self.version = 0


_app = _AppFolder()


def find(kind: str, text: str, known: Any = ()) -> Any:
    """Return the object that the value of the setting ``kind`` names, or raise ``ConfigError``.

    ``known`` are the names of this package, which an installed one must not take.
    """
    if text.startswith(f"{PYTHON}:"):
        if text not in objects:
            raise ConfigError(kind, text, "is a Python object of the process that made the run; give it again")
        return objects[text]
    if is_reference(text):
        return _attribute(kind, text)
    registered = custom.entry_points_of(kind).get(text)
    if registered is None:
        raise ConfigError(kind, text, one_of(text, [*known, *entry_point_names(kind)], FORM))
    if text in known:
        raise ConfigError(kind, text, f"is a name in fedpfl and also in an installed package ({registered.value})")
    try:
        return registered.load()
    except RAISED as error:
        raise ConfigError(kind, text, f"{registered.value} cannot be loaded: {in_one_line(error)}") from error


def call(kind: str, text: str, function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Call a user's function with those of the ``offered`` arguments that it takes, by their names.

    Errors are those of :func:`guarded`.
    """
    guard = guarded(kind, text, function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []  # a function that is not written in Python
    taken: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY:
            taken[parameter.name] = offered[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD,
        ):  # fmt: skip
            allowed = f"needs an argument {parameter.name!r}; it is given {', '.join(offered)}, by these names"
            raise ConfigError(kind, text, allowed)
    return guard(**taken)


def guarded(kind: str, text: str, function: Any) -> Callable[..., Any]:
    """Return a user's function, or raise ``ConfigError`` for what is none.

    An exception in it becomes a ``ConfigError`` of one line about the setting; one that is already such a line passes.
    """
    if not callable(function):
        raise ConfigError(kind, text, f"is {article(function)}, and must be a function")

    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except FedpflError:
            raise
        except BdbQuit:  # the debugger was left: that ends the run as Ctrl-C does
            raise KeyboardInterrupt from None
        except RAISED as error:  # of any kind: it is the user's
            raise ConfigError(kind, text, f"raises {in_one_line(error)}") from error

    return called


def require_sendable(values: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` if a setting is an object of this process: one that is not forked lacks it."""
    for kind, text in references(values):
        if text.startswith(f"{PYTHON}:"):
            allowed = "only this process has this object: put it into a file and give MODULE:NAME, or use workers=0"
            raise ConfigError(kind, text, allowed)


def require_installed(values: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for a module of this folder if no Flower app would take it to the devices."""
    for kind, text in references(values):
        if has_module(text.partition(":")[0].partition(".")[0]):
            raise ConfigError(
                kind,
                text,
                "is not part of a Flower app, so it would not reach the devices: make an app with `fedpfl new NAME`",
            )


# -- the app's folder ---------------------------------------------------------------------------------------------


def set_folder(folder: Path | None) -> None:
    """Set the app's folder, where modules are looked for as well; drop imported ones that have changed since.

    None: modules are looked for only on Python's own path.
    """
    folder = None if folder is None else folder.resolve()
    changed = any(_stamp(path) != stamp for path, stamp in _app.modules.values())
    if changed or folder != _app.folder:
        for name in _app.modules:
            sys.modules.pop(name, None)
        _app.modules.clear()
        _app.version += 1
        importlib.invalidate_caches()
    if folder == _app.folder:
        return
    if _app.added:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(_app.folder))
    _app.folder, _app.added = folder, folder is not None and str(folder) not in sys.path
    if _app.added:
        # Last, so that a file with a common name shadows no other module.
        sys.path.append(str(folder))


def folder() -> Path | None:
    """Return the app's folder, as set by :func:`set_folder`."""
    return _app.folder


def has_module(name: str) -> bool:
    """Return whether the app's folder has a module of this name."""
    return _app_file(name) is not None


def version() -> int:
    """Return a number that grows whenever modules were dropped: what was made with them is out of date."""
    return _app.version


def fingerprint(values: Mapping[str, Any]) -> str:
    """Return a hash of the files of the app's folder that settings depend on; empty if they name none."""
    named = list(references(values))
    for kind, text in named:
        if not text.startswith(f"{PYTHON}:"):
            module(kind, text)
    if not named or not _app.modules:
        return ""
    digest = hashlib.sha256()
    for name, (path, _) in sorted(_app.modules.items()):
        digest.update(f"{name} ".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]


def is_current(text: str, at: int) -> bool:
    """Return whether a setting's value still names the object that it named when :func:`version` was ``at``."""
    return text in objects if text.startswith(f"{PYTHON}:") else at == _app.version


def app_folder(values: Mapping[str, Any]) -> Path | None:
    """Return the folder of the Flower app that has the modules which settings name; nothing is imported.

    None if they name none, or only modules of installed packages.
    """
    for _, text in references(values, (*GROUPS, *FUNCTIONS, *SERVER_ONLY)):
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
    """Import the module that ``MODULE:NAME`` names; errors are those of :func:`find`."""
    name = text.partition(":")[0]
    before = set(sys.modules)
    try:
        found = importlib.import_module(name)
    except RAISED as error:
        for new in set(sys.modules) - before:
            if _is_in_app(sys.modules[new]):
                del sys.modules[new]  # so that the next attempt reads the file again
        if isinstance(error, FedpflError):
            raise
        missing = (error.name if isinstance(error, ModuleNotFoundError) else None) or ""
        if missing and f"{name}.".startswith(f"{missing}."):
            where = f" in {_app.folder}, and none that is installed" if _app.folder else ""
            raise ConfigError(kind, text, f"there is no module {name}{where}") from error
        raise ConfigError(kind, text, f"the module {name} cannot be imported: {in_one_line(error)}") from error
    for new in set(sys.modules) - before:
        if _is_in_app(sys.modules[new]):
            path = Path(str(sys.modules[new].__file__))
            _app.modules[new] = (path, _stamp(path))
    _require_not_hidden(kind, text, name.partition(".")[0])
    return found


def _attribute(kind: str, text: str) -> Any:
    found: Any = module(kind, text)
    where, name = _origin(found), text.partition(":")[2]
    for word in name.split("."):
        if not hasattr(found, word):
            public = [key for key, value in vars(found).items() if _is_own(found, key, value)]
            has = f"it has {', '.join(public)}" if public else "it has none"
            raise ConfigError(kind, text, f"there is no {word} in {where}; {has}")
        found = getattr(found, word)
    return found


def _is_own(container: Any, key: str, value: object) -> bool:
    own = getattr(value, "__module__", None) == getattr(container, "__name__", None)
    return callable(value) and own and not key.startswith("_")


def _origin(found: ModuleType) -> str:
    path = getattr(found, "__file__", None)
    return found.__name__ if path is None else str(path)


def _require_not_hidden(kind: str, text: str, name: str) -> None:
    """Raise :class:`ConfigError` if another module shadows a file of the app's folder."""
    wanted, found = _app_file(name), sys.modules[name]
    if wanted is not None and not _is_in_app(found):
        allowed = f"{wanted} has the name of another module, {_origin(found)}; rename the file"
        raise ConfigError(kind, text, allowed)


def _app_file(name: str) -> Path | None:
    if _app.folder is None:
        return None
    mine = [_app.folder / f"{name}.py", _app.folder / name / "__init__.py"]
    return next((path for path in mine if path.is_file()), None)


def _is_in_app(found: ModuleType) -> bool:
    path = getattr(found, "__file__", None)
    # PyTorch has modules of no file, with a name such as "_classes.py".
    if path is None or _app.folder is None or not Path(path).is_absolute():
        return False
    resolved = Path(path).resolve()
    # A virtual environment may lie in the app's folder.
    return _app.folder in resolved.parents and "site-packages" not in resolved.parts


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


def require_hooks(kind: str, made: type, base: type) -> None:
    """Raise :class:`ConfigError` if a class has a hook of its base with other arguments, or a misspelt one.

    What resembles a hook passes if it begins with an underscore, if another base has it, or if the class also has the
    hook. ``kind`` is what errors call the class: ``method``.
    """
    from difflib import get_close_matches

    hooks = {name.replace("_", "").lower(): name for name in vars(base) if not name.startswith("_")}
    for name in vars(made):
        if name.startswith("_"):
            continue
        if isinstance(vars(base).get(name), FunctionType):
            _require_arguments(kind, made, base, name)
        if any(hasattr(other, name) for other in made.__mro__[1:]):
            continue
        near = get_close_matches(name.replace("_", "").lower(), hooks, 1, cutoff=0.8)
        if near and hooks[near[0]] not in vars(made):
            hint = f"did you mean {hooks[near[0]]!r}? A helper's name begins with _"
            raise ConfigError(kind, made.__name__, f"has {name!r}, which nothing calls; {hint}")


def _require_arguments(kind: str, made: type, base: type, name: str) -> None:
    """Raise :class:`ConfigError` if a hook does not take the arguments that its base's takes."""
    hook, given = vars(made)[name], list(inspect.signature(vars(base)[name]).parameters)
    if not isinstance(hook, FunctionType):
        return  # a descriptor, or another object that may be called
    try:
        inspect.signature(hook).bind(*given)
    except TypeError:
        takes = ", ".join(inspect.signature(hook).parameters)
        allowed = f"has {name}({takes}), which must be {name}({', '.join(given)})"
        raise ConfigError(kind, made.__name__, allowed) from None


@contextlib.contextmanager
def global_state_kept() -> Iterator[None]:
    """Put the global generators of torch (on the CPU), NumPy and Python back, and what a process is set to."""
    import torch

    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]), process_kept():
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)
