"""Python objects as values of settings, for the process that has them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import pickle
import secrets
import sys
import weakref
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any, Callable, Iterator, Mapping

from ..core.errors import RAISED
from ..core.references import PYTHON, article, is_reference, objects, without_clients
from ..core.user_code import guarded, stands_for
from .all_settings import single

# Unique across processes too: a run may be resumed in another one.
_numbers = itertools.count(secrets.randbits(40))
# The texts by which runs knew objects of this process: of functions and classes, and of data by a hash of them.
_of_functions: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_of_data: dict[bytes, str] = {}


@contextlib.contextmanager
def as_setting(kind: str, thing: object, text: str = "", again: bool = False) -> Iterator[str]:
    """Make a Python object a setting's value, for the time of a ``with`` statement.

    Yields the value: ``MODULE:NAME`` where other processes can import the object, else ``python:…``; ``text`` is the
    value by which a finished run knew it. ``again``: the same function, or equal data, are the same value again.
    """
    reference = None if text else _importable(kind, thing)
    if reference is not None:
        yield reference
        return
    if not text:
        name = _name_of(kind, thing)
        text = f"{PYTHON}:{name if name.isidentifier() else kind.replace('-', '_')}#{next(_numbers)}"
        text = _same_text(kind, thing, text) if again else text
    before = objects.get(text)
    objects[text] = thing
    stands_for(text, thing)
    try:
        yield text
    finally:
        del objects[text]
        if before is not None:
            objects[text] = before
            stands_for(text, before)


def functions_as_text(key: str, value: Any, text_of: Callable[[Any, str], str], before: str = "") -> Any:
    """Return a setting of names and objects, or of such for numbers of clients, as a text.

    A list stays one for a setting of which there is one: the check of settings refuses it, however it was given.
    ``before`` is that of a run which is resumed. ``text_of`` returns the text of an object, and is given the one by
    which that run knew it.
    """
    if isinstance(value, (list, tuple)) and key in single():
        return value
    listed = value if isinstance(value, (list, tuple, Mapping)) else [value]
    stored = [without_clients(part) for part in before.split(",")]
    earlier_texts = [text if text.startswith(f"{PYTHON}:") else "" for text in stored]
    things = listed.values() if isinstance(listed, Mapping) else listed
    pairs = zip_longest(things, earlier_texts[: len(listed)], fillvalue="")
    texts = [thing if isinstance(thing, str) else text_of(thing, earlier) for thing, earlier in pairs]
    prefixes = [f"{clients}:" for clients in listed] if isinstance(listed, Mapping) else [""] * len(texts)
    return ",".join(map("".join, zip(prefixes, texts)))


def _name_of(kind: str, thing: object) -> str:
    """Return the name of a function or class; of what makes a loss or a metric else that of its function or class."""
    if not callable(thing):
        return kind
    attribute = guarded(kind, article(thing), getattr)
    if kind in ("loss", "metrics") and attribute(thing, "__name__", None) is None:
        thing = attribute(thing, "func", type(thing))  # of functools.partial
    return str(attribute(thing, "__name__", kind))


def _same_text(kind: str, thing: object, text: str) -> str:
    """Return the text by which the same function, or equal data, were a setting before, or else the one given.

    By it, runs that were made one by one are known to have the same data and model. What a function of data or a torch
    Dataset gives may change, so these are new each time.
    """
    data = hashlib.sha256()
    try:
        if callable(thing):
            return text if kind == "dataset" else _of_functions.setdefault(thing, text)
        if not isinstance(thing, (tuple, list, dict)) and type(thing).__name__ not in ("DataFrame", "Dataset"):
            return text
        pickle.Pickler(SimpleNamespace(write=data.update), 5).dump(thing)
    except RAISED:  # code of the user's may be asked
        return text  # can be neither held weakly nor written as bytes
    return _of_data.setdefault(data.digest(), text)


def _importable(kind: str, thing: object) -> str | None:
    """Return MODULE:NAME by which other processes get a function or class; None if there is no such name."""
    if not callable(thing):
        return None
    attribute = guarded(kind, article(thing), getattr)
    name, module = attribute(thing, "__qualname__", ""), attribute(thing, "__module__", None)
    reference = f"{module}:{name}"
    if module in (None, "__main__") or not is_reference(reference):
        return None
    named: Any = sys.modules.get(str(module))
    # Other processes find only modules on Python's path.
    if named is None or getattr(named, "__spec__", None) is None or getattr(named, "__file__", None) is None:
        return None
    for word in name.split("."):
        named = getattr(named, word, None)
    return reference if named is thing else None
