"""What the functions and classes that a program hands over compute: a hash of their code and of what it uses."""

from __future__ import annotations

import dis
import hashlib
import sys
from argparse import Namespace
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Iterable, Iterator

import numpy as np

from . import references
from .references import PYTHON, objects
from .user_code import is_users_module, sources_of

# Arrays of more values, such as a data set's samples, count by their shape: samples have a hash of their own.
MAX_VALUES = 2**20
# Lists, dicts and sets of more values count by how many there are.
MAX_ITEMS = 2**12
# Values of which code is made, or which it uses.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Those in which code may keep results; they count where it does not change them.
_CONTAINERS = (list, dict, set)
_OF_MODULES = {"_parameters", "_buffers", "_modules"}  # of torch's, in dicts
_SETTINGS = (Namespace, SimpleNamespace)
# Methods that change a list, dict or set.
_CHANGE = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault",
    "sort", "update",
}  # fmt: skip
_CHANGE_ITEMS = ("STORE_SUBSCR", "DELETE_SUBSCR")


def handed_over(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a hash of the code of each function, class or callable object that a program has handed over, by its name.

    It counts what the code uses: defaults, values around it, attributes, the user's functions, classes, modules and
    values that it finds in its module, lists and dicts that it does not change. Another Python has other code of the
    same lines, so its version is part of the name.
    """
    version = ".".join(map(str, sys.version_info[:2]))
    things = {text: objects.get(text) for _, text in named if text.startswith(f"{PYTHON}:")}
    return {
        f"{references.short_name(text)} (Python {version})": hashlib.sha256(repr(code).encode()).hexdigest()[:16]
        for text, thing in things.items() if callable(thing) and (code := _Code().of(thing))
    }  # fmt: skip


class _Code:
    """Follows code to what it uses; each thing counts once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}

    def of(self, thing: Any) -> Any:
        """Return code and values of a thing as a text shows them; nothing of what is neither."""
        if isinstance(thing, _PLAIN):
            return [thing]
        if isinstance(thing, (tuple, frozenset)):
            return sorted(map(repr, thing)) if isinstance(thing, frozenset) else [self.of(one) for one in thing]
        if id(thing) in self._seen:
            return []
        self._seen[id(thing)] = thing
        if isinstance(thing, CodeType):
            return [thing.co_code, thing.co_names, *map(self.of, thing.co_consts)]
        if (torch := sys.modules.get("torch")) is not None and isinstance(thing, torch.Tensor):
            usual = thing.layout == torch.strided and not (thing.is_meta or thing.is_quantized)
            few = usual and thing.numel() <= MAX_VALUES
            return [str(thing.dtype), thing.shape, *([self.of(thing.detach().cpu().double().numpy())] if few else [])]
        if isinstance(thing, np.ndarray):
            few = thing.size <= MAX_VALUES and not thing.dtype.hasobject
            return [str(thing.dtype), thing.shape, *([hashlib.sha256(thing.tobytes()).hexdigest()] if few else [])]
        if isinstance(thing, partial):
            return [self.of(thing.func), self.of(thing.args), self._of_names(thing.keywords.items())]
        if isinstance(thing, MethodType):
            return [self.of(thing.__func__), self.of(thing.__self__)]
        if isinstance(thing, FunctionType):
            return self._of_function(thing)
        if isinstance(thing, type):
            return self._of_class(thing)
        if isinstance(thing, ModuleType):
            counts = thing.__name__ != "__main__" and is_users_module(thing.__name__)
            return [sources_of(thing.__name__)] if counts else []
        if isinstance(thing, _CONTAINERS):
            return self._of_container(thing)
        is_users = isinstance(thing, _SETTINGS) or is_users_module(type(thing).__module__)
        return self._of_object(thing) if callable(thing) or is_users else []

    def _of_container(self, thing: Any) -> Any:
        kind = type(thing).__name__
        if len(thing) > MAX_ITEMS:
            return [kind, len(thing)]
        if isinstance(thing, dict):
            return [kind, *([self.of(name), self.of(value)] for name, value in thing.items())]
        return [kind, *(sorted(map(repr, thing)) if isinstance(thing, set) else map(self.of, thing))]

    def _of_names(self, pairs: Iterable[tuple[str, Any]]) -> Any:
        return [[name, *code] for name, value in sorted(pairs) if (code := self.of(value))]

    def _of_function(self, function: FunctionType) -> Any:
        if not is_users_module(function.__module__):
            return [f"{function.__module__}:{function.__qualname__}"]
        code = function.__code__
        cells = [
            cell.cell_contents
            for name, cell in zip(code.co_freevars, function.__closure__ or ())
            if cell != CellType() and not _changes([code], name, cell.cell_contents)
        ]
        held = [self.of(value) for value in (*cells, *(function.__defaults__ or ()))]
        there = function.__globals__
        used = {name: there[name] for name in _global_names(code) if name in there}
        used = {name: value for name, value in used.items() if not _changes([code], name, value)}
        named = self._of_names({**used, **(function.__kwdefaults__ or {})}.items())
        return [self.of(function.__code__), held, named]

    def _of_class(self, kind: type) -> Any:
        if not is_users_module(kind.__module__):
            return [f"{kind.__module__}:{kind.__qualname__}"]
        parts = [self._of_class(base) for base in kind.__bases__]
        values = {name: getattr(value, "__func__", getattr(value, "fget", value)) for name, value in vars(kind).items()}
        about = ("__module__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__")
        return [*parts, self._of_names((name, value) for name, value in values.items() if name not in about)]

    def _of_object(self, thing: Any) -> Any:
        """Count the plain attributes, unless the object itself changes them when it is used."""
        kinds = type(thing).__mro__[:-1]
        functions = [value for kind in kinds for name, value in vars(kind).items() if name != "__init__"]
        codes = [one.__code__ for one in functions if isinstance(one, FunctionType)]
        of_users = [
            one.__code__ for one in functions if isinstance(one, FunctionType) and is_users_module(one.__module__)
        ]
        library = not is_users_module(type(thing).__module__)
        changed = {name for code in codes for name in _names_of(code, "STORE_ATTR")}
        plain = {
            name: value for name, value in getattr(thing, "__dict__", {}).items()
            if name in _OF_MODULES or not (
                name in changed or _changes(of_users, name, value) or (library and isinstance(value, _CONTAINERS))
            )
        }  # fmt: skip
        return [self._of_class(type(thing)), self._of_names(plain.items())]


def _changes(codes: Iterable[CodeType], name: str, value: Any) -> bool:
    """Tell whether code may change a list, dict or set that it has under a name."""
    if not isinstance(value, _CONTAINERS):
        return False
    for code in codes:
        last = ""
        for instruction in dis.get_instructions(code):
            if instruction.opname in _CHANGE_ITEMS or (last == name and instruction.argval in _CHANGE):
                return True
            last = str(instruction.argval)
        if _changes((one for one in code.co_consts if isinstance(one, CodeType)), name, value):
            return True
    return False


def _global_names(code: CodeType) -> set[str]:
    """Return the global names that code reads and does not set, also in the functions inside it."""
    return {*_names_of(code, "LOAD_GLOBAL")} - {*_names_of(code, "STORE_GLOBAL")}


def _names_of(code: CodeType | None, operation: str) -> Iterator[str]:
    """Yield the names with which code does an operation."""
    if code is None:
        return
    for instruction in dis.get_instructions(code):
        if instruction.opname == operation:
            yield str(instruction.argval)
    for inside in code.co_consts:
        if isinstance(inside, CodeType):
            yield from _names_of(inside, operation)
