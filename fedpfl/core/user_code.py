"""The user's own code: the functions and classes that settings name are found, imported and called.

:mod:`fedpfl.core.references` knows the names alone. Code is only looked for on this machine. It is never downloaded.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import random
import sys
import time
import weakref
from bdb import BdbQuit
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple

import numpy as np

from . import opened_files, references
from .errors import RAISED, ConfigError, FedpflError, in_one_line, one_of
from .files import stamp_of
from .opened_files import OF_PACKAGE_AND_PYTHON, noted, opened_by, variables_of
from .process import process_kept
from .references import FORM, GROUPS, PYTHON, article, entry_point_names, is_reference, objects


class _AppFolder:
    """The app's folder, and the modules that were imported from it."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.added = False
        # Of each module that was imported for a setting: its file, with time and size.
        self.modules: dict[str, tuple[Path, tuple[int, ...]]] = {}
        self.version = 0
        self.things: dict[str, weakref.ref[Any]] = {}  # what Python objects' texts stand for
        self.runs = 0


class _Source(NamedTuple):
    """A file of Python: a hash of it, and the modules that it names in its imports, wherever these stand."""

    digest: str
    imports: tuple[str, ...]


_app = _AppFolder()
# Files as they were when they were read last, and modules with their files as these were when they were imported.
_read: dict[Path, tuple[tuple[int, ...], _Source]] = {}
_imported: dict[str, tuple[ModuleType, _Source]] = {}
# Nanoseconds within which a file may change twice and look the same.
FRESH = 10**9


def find(kind: str, text: str, builtin_names: Any = ()) -> Any:
    """Return the object that the value of the setting ``kind`` names, or raise ``ConfigError``.

    ``builtin_names`` are those of this package, which an installed one must not take.
    """
    if text.startswith(f"{PYTHON}:"):
        if text not in objects:
            raise ConfigError(kind, text, "is a Python object of the process that made the run; give it again")
        return objects[text]
    if is_reference(text):
        return _attribute(kind, text)
    registered = references.entry_points_of(kind).get(text)
    if registered is None:
        raise ConfigError(kind, text, one_of(text, [*builtin_names, *entry_point_names(kind)], FORM))
    if text in builtin_names:
        raise ConfigError(kind, text, f"is a name in fedpfl and also in an installed package ({registered.value})")
    try:
        return registered.load()
    except RAISED as error:
        raise ConfigError(kind, text, f"{registered.value} cannot be loaded: {in_one_line(error)}") from error


def call(
    kind: str, text: str, function: Callable[..., Any], offered: Mapping[str, Any], unset: Iterable[str] = ()
) -> Any:
    """Call a user's function with those of the ``offered`` arguments that it takes, by their names.

    ``unset`` names those that no setting decides: there a function's own default counts. What ``functools.partial`` has
    fixed stays as it is. Errors are those of :func:`guarded`.
    """
    guard = guarded(kind, text, function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []  # a function that is not written in Python
    values: dict[str, Any] = {}
    fixed = getattr(function, "keywords", {})
    for parameter in parameters:
        if parameter.name in fixed or (parameter.name in unset and parameter.default is not parameter.empty):
            continue
        if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY:
            values[parameter.name] = offered[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD,
        ):  # fmt: skip
            message = f"needs an argument {parameter.name!r}; it is given {', '.join(offered)}, by these names"
            raise ConfigError(kind, text, message)
    if kind != "model":
        return guard(**values)
    with noted(text):
        return guard(**values)


def guarded(kind: str, text: str, function: Any, no_class: bool = False) -> Callable[..., Any]:
    """Return a user's function, or raise ``ConfigError`` for what is none; ``no_class``: a class makes no result.

    An exception in it becomes a ``ConfigError`` of one line about the setting; one that is already such a line passes.
    """
    if not callable(function):
        raise ConfigError(kind, text, f"is {article(function)}, and must be a function")
    if no_class and isinstance(function, type):
        raise ConfigError(kind, text, f"is a class: give an instance of it, such as {function.__name__}()")

    return told(function, partial(ConfigError, kind, text))


def told(function: Callable[..., Any], error_of: Callable[[str], FedpflError]) -> Callable[..., Any]:
    """Return a user's function, of which an exception becomes the error that is made of its one line."""

    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except FedpflError:
            raise
        except BdbQuit:  # the debugger was left: that ends the run as Ctrl-C does
            raise KeyboardInterrupt from None
        except RAISED as error:  # of any kind: it is the user's
            raise error_of(f"raises {in_one_line(error)}") from error

    return called


def takes_truth_first(function: Any) -> bool:
    """Return whether a function takes the truth before what a model gives, as those of scikit-learn and Keras do."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # one that is not written in Python
        return False
    return names[:1] == ["y_true"]


def require_sendable(named: Iterable[tuple[str, str]]) -> None:
    """Raise :class:`ConfigError` if a setting is an object of this process: one that is not forked lacks it."""
    for kind, text in named:
        if text.startswith(f"{PYTHON}:"):
            message = "only this process has this object: put it into a file and give MODULE:NAME, or use workers=0"
            raise ConfigError(kind, text, message)


def require_installed(named: Iterable[tuple[str, str]]) -> None:
    """Raise :class:`ConfigError` for a module of this folder if no Flower app would take it to the devices."""
    for kind, text in named:
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


def begin_run() -> None:
    """Note that a run begins: what the user's functions of data give may have changed since the run before."""
    _app.runs += 1
    opened_files.begin_run()


def runs() -> int:
    """Return a number that grows with :func:`begin_run`."""
    return _app.runs


def folder() -> Path | None:
    """Return the app's folder, as set by :func:`set_folder`."""
    return _app.folder


def has_module(name: str) -> bool:
    """Tell whether the app's folder has a module of this name."""
    return _app_file(name) is not None


def stands_for(text: str, thing: object) -> None:
    """Note what a text stands for now: what was made with another object of this text is out of date."""
    try:
        now = weakref.ref(thing)
    except TypeError:  # a list, a tuple, a dict: data, which are compared where they are read
        return
    if _app.things.setdefault(text, now)() is not thing:
        _app.things[text] = now
        _app.version += 1


def version() -> int:
    """Return a number that grows whenever modules were dropped: what was made with them is out of date."""
    return _app.version


def sources(named: Iterable[tuple[str, str]], values: Mapping[str, Any], imported: bool = True) -> dict[str, str]:
    """Return a hash of each file of the user's code on which settings depend, by the name of its module.

    These are the modules that settings name and all that these import, also inside functions and outside of the app's
    folder; of an installed package that a setting names, one hash. ``imported``: modules count as they were when they
    were imported, else as their files are now.
    """
    named = [(kind, text) for kind, text in named if not text.startswith(f"{PYTHON}:")]
    for kind, text in named if imported else ():
        module(kind, text)
    names = _named_modules(named, values)
    hashes = {top: _installed(top) for top in {name.partition(".")[0] for name in names} if _is_installed(top)}
    hashes.update({name: source.digest for name, _, source in _needed(names, imported)})
    return dict(sorted(hashes.items()))


def sources_of(name: str) -> dict[str, str]:
    """Return a hash of the file of a user's module, and of those that it imports, as they were imported."""
    return {module: source.digest for module, _, source in _needed([name], imported=True)}


def files(named: Iterable[tuple[str, str]], values: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files of the user's code on which settings depend, by where they lie below the folder of imports."""
    named = [(kind, text) for kind, text in named if not text.startswith(f"{PYTHON}:")]
    paths = {}
    for name, path, _ in _needed(_named_modules(named, values), imported=False):
        inside = name.replace(".", "/")
        paths[f"{inside}/{path.name}" if path.name == "__init__.py" else f"{inside}.py"] = path
    return paths


def opened(named: Iterable[tuple[str, str]], values: Mapping[str, Any]) -> list[Path]:
    """Return the files that this process has read while it imported the user's modules and built models.

    Files of modules that :func:`sources` cannot see, since their names are computed, are among them.
    """
    named = [*named]
    counted = {path.resolve() for path in files(named, values).values()}
    paths = {path: None for name in _noted_as(named) for path in opened_by(name)}
    return [path for path in paths if path.resolve() not in counted]


def variables(named: Iterable[tuple[str, str]]) -> list[str]:
    """Return the variables of the environment that the user's code has read in this process, as :func:`opened` does."""
    return list(dict.fromkeys(variable for name in _noted_as(named) for variable in variables_of(name)))


def _noted_as(named: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names under which is noted what code reads."""
    return list(dict.fromkeys(name for _, text in named for name in (text.partition(":")[0], text)))


def _named_modules(named: Iterable[tuple[str, str]], values: Mapping[str, Any]) -> list[str]:
    points = [references.entry_points_of(kind).get(str(values.get(kind, ""))) for kind in GROUPS]
    texts = [text for _, text in named] + [point.value for point in points if point is not None]
    return [text.partition(":")[0] for text in texts]


def _needed(names: Iterable[str], imported: bool) -> Iterator[tuple[str, Path, _Source]]:
    """Yield the modules of the user's, and all of the user's that they import: name, file and source."""
    waiting = [*names]
    done: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        path = _file_of(name)
        if path is None or not _is_users(path):
            continue
        source = _source_of(name, path, imported)
        yield name, path, source
        waiting += [name.rpartition(".")[0], *source.imports]


def _source_of(name: str, path: Path, imported: bool = True) -> _Source:
    """Return the file of a module: as it was when the module was imported, if that is wanted and known."""
    loaded = sys.modules.get(name) if imported else None
    if loaded is None:
        return _source(name, path)
    if name not in _imported or _imported[name][0] is not loaded:
        _imported[name] = loaded, _source(name, path)
    return _imported[name][1]


def _source(name: str, path: Path) -> _Source:
    stamp = _stamp(path)
    if path not in _read or _read[path][0] != stamp or time.time_ns() - stamp[0] < FRESH:
        text = path.read_bytes().replace(b"\r\n", b"\n")
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        _read[path] = stamp, _Source(hashlib.sha256(text).hexdigest()[:16], tuple(_imports(text, package)))
    return _read[path][1]


def _imports(text: bytes, package: str) -> Iterable[str]:
    """Return the names of what a file imports that may be modules; a file with a mistake imports nothing."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module or ""]))
            names.update((f"{base}.{alias.name}", None) for alias in node.names)
            names[base] = None
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = getattr(node.args[0], "value", None)
            if called in ("import_module", "__import__") and isinstance(name, str):
                names[name if not name.startswith(".") else f"{package}.{name.lstrip('.')}"] = None
    return [name for name in names if name]


def _is_users(path: Path) -> bool:
    """Tell whether a file is the user's: no part of Python, of this package or of an installed one."""
    resolved = path.resolve()
    if any(folder in resolved.parents for folder in OF_PACKAGE_AND_PYTHON):
        return False
    return resolved.suffix == ".py" and not {"site-packages", "dist-packages"} & {*resolved.parts}


def is_users_module(name: str) -> bool:
    """Tell whether an imported module is the user's: a file of the user's, or one without a file, as in a notebook."""
    path = _loaded_from(name)
    return _is_users(path) if path is not None else name.partition(".")[0] not in sys.builtin_module_names


def _is_installed(top: str) -> bool:
    path = _file_of(top)
    return path is not None and bool({"site-packages", "dist-packages"} & {*path.resolve().parts})


@lru_cache(maxsize=None)
def _installed(top: str) -> str:
    """Return a hash of the Python files of an installed package, by what was noted when it was installed."""
    from importlib import metadata

    digest = hashlib.sha256()
    distributions: Callable[[], Mapping[str, list[str]]] = getattr(metadata, "packages_distributions", dict)
    for name in distributions().get(top, ()):
        for file in metadata.distribution(name).files or ():
            if file.suffix == ".py" and file.hash:
                digest.update(f"{file} {file.hash.value} ".encode())
    return digest.hexdigest()[:16]


def is_current(text: str, seen_version: int) -> bool:
    """Tell whether a setting's value still names the object that it named at ``seen_version`` of :func:`version`."""
    return text in objects if text.startswith(f"{PYTHON}:") else seen_version == _app.version


def app_folder(named: Iterable[tuple[str, str]]) -> Path | None:
    """Return the folder of the Flower app that has the modules which settings name; nothing is imported.

    None if they name none, or only modules of installed packages.
    """
    for _, text in named:
        folder = folder_of(text)
        if folder is not None and (folder / "pyproject.toml").is_file():
            return folder
    return None


def folder_of(text: str) -> Path | None:
    """Return the folder from which the module of ``MODULE:NAME`` would be imported; None if there is no such file."""
    path = _file_of(text.partition(":")[0].partition(".")[0])
    if path is None:
        return None
    return path.parent.parent if path.name == "__init__.py" else path.parent


def module(kind: str, text: str) -> ModuleType:
    """Import the module that ``MODULE:NAME`` names; errors are those of :func:`find`."""
    name = text.partition(":")[0]
    before = set(sys.modules)
    try:
        with noted(name, importing=True):
            imported = importlib.import_module(name)
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
        path = _loaded_from(new)
        if path is not None and _is_users(path):
            _source_of(new, path)  # as it is imported
        if _is_in_app(sys.modules[new]):
            path = Path(str(sys.modules[new].__file__))
            _app.modules[new] = (path, _stamp(path))
    _require_not_hidden(kind, text, name.partition(".")[0])
    return imported


def _attribute(kind: str, text: str) -> Any:
    target: Any = module(kind, text)
    where, name = _origin(target), text.partition(":")[2]
    for word in name.split("."):
        if not hasattr(target, word):
            public = [key for key, value in vars(target).items() if _is_defined_in(target, key, value)]
            has = f"it has {', '.join(public)}" if public else "it has none"
            raise ConfigError(kind, text, f"there is no {word} in {where}; {has}")
        target = getattr(target, word)
    return target


def _is_defined_in(container: Any, key: str, value: object) -> bool:
    defined_here = getattr(value, "__module__", None) == getattr(container, "__name__", None)
    return callable(value) and defined_here and not key.startswith("_")


def _origin(imported: ModuleType) -> str:
    path = getattr(imported, "__file__", None)
    return imported.__name__ if path is None else str(path)


def _require_not_hidden(kind: str, text: str, name: str) -> None:
    """Raise :class:`ConfigError` if another module shadows a file of the app's folder."""
    wanted, imported = _app_file(name), sys.modules[name]
    if wanted is not None and not _is_in_app(imported):
        message = f"{wanted} has the name of another module, {_origin(imported)}; rename the file"
        raise ConfigError(kind, text, message)


def _app_file(name: str) -> Path | None:
    if _app.folder is None:
        return None
    mine = [_app.folder / f"{name}.py", _app.folder / name / "__init__.py"]
    return next((path for path in mine if path.is_file()), None)


def _is_in_app(imported: ModuleType) -> bool:
    path = getattr(imported, "__file__", None)
    # PyTorch has modules of no file, with a name such as "_classes.py".
    if path is None or _app.folder is None or not Path(path).is_absolute():
        return False
    resolved = Path(path).resolve()
    # A virtual environment may lie in the app's folder.
    return _app.folder in resolved.parents and "site-packages" not in resolved.parts


def _loaded_from(name: str) -> Path | None:
    path = getattr(sys.modules.get(name), "__file__", None)
    return Path(path) if isinstance(path, str) and Path(path).is_absolute() else None


def _file_of(name: str) -> Path | None:
    """Return the file from which a module was imported, or would be; nothing is imported."""
    top, _, rest = name.partition(".")
    if name in sys.modules:
        return _loaded_from(name)
    if top in getattr(sys, "stdlib_module_names", ()):
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin else None
    for place in spec.submodule_search_locations or ():
        inside = Path(place, *rest.split("."))
        for path in (inside.with_name(f"{inside.name}.py"), inside / "__init__.py"):
            if path.is_file():
                return path
    return None


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        return stamp_of(path)
    except OSError:
        return (0, -1)


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
    hook, arguments = vars(made)[name], list(inspect.signature(vars(base)[name]).parameters)
    if not isinstance(hook, FunctionType):
        return  # a descriptor, or another object that may be called
    try:
        inspect.signature(hook).bind(*arguments)
    except TypeError:
        takes = ", ".join(inspect.signature(hook).parameters)
        message = f"has {name}({takes}), which must be {name}({', '.join(arguments)})"
        raise ConfigError(kind, made.__name__, message) from None


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
