"""Arrays of whatever is handed over."""

from __future__ import annotations

from numbers import Number
from typing import Any, Callable, Mapping

import numpy as np

from ..core import references, user_code
from ..core.errors import RAISED, DataError, in_one_line

# What an array of objects may be made of.
_NUMBERS, _TRUTH = (int, float, np.integer, np.floating), {bool, np.bool_}
_ABSENT = object()


def array(thing: object, where: str) -> np.ndarray:
    """Return an array, made without a guess of a thing such as a tensor on the CPU or a list of words.

    ``where`` is what a ``DataError`` calls it.
    """
    what = f"{where} is {references.article(thing)}"
    if attribute(thing, "read_later") is True:  # of fedpfl.Lazy
        return thing  # type: ignore[return-value]
    if are_several(thing):
        raise DataError(f"{what} of arrays, and a model takes one: lay them end to end, and part them in its forward")
    if has(thing, "toarray"):
        raise DataError(f"{what}, a sparse matrix; give its .toarray()")
    if has(thing, "to_pandas") and has(thing, "columns"):  # of pyarrow and polars, whose columns have names and roles
        raise DataError(f"{what} with named columns; give its .to_pandas()")
    if isinstance(thing, np.ma.MaskedArray) and np.ma.is_masked(thing):
        raise DataError(f"{what} with masked values; give its .filled(…)")
    try:
        values = np.asarray(thing)
    except RAISED as error:  # of any kind: the object may be of the user's code
        raise DataError(f"{what} that NumPy cannot make an array of: {in_one_line(error)}") from error
    if values.dtype != object:
        return values
    kinds = {type(one) for one in values.reshape(-1).tolist()}
    if kinds and all(issubclass(kind, str) for kind in kinds):
        return values.astype(str)
    # Truth values among numbers are not taken for numbers.
    if kinds and (kinds <= _TRUTH or all(issubclass(kind, _NUMBERS) and kind not in _TRUTH for kind in kinds)):
        return np.array(values.tolist())
    named = ", ".join(sorted(kind.__name__ for kind in kinds)[:4])
    hint = "; numbers are Python's or NumPy's int and float" if any(issubclass(kind, Number) for kind in kinds) else ""
    raise DataError(f"{what} of objects ({named or 'none'}): must be all numbers, or all words{hint}")


def are_several(thing: object) -> bool:
    """Tell whether an object is a tuple or dict of arrays."""
    each = [*thing.values()] if isinstance(thing, Mapping) else thing if isinstance(thing, tuple) else ()
    return any(has(one, "__array__") and not isinstance(one, np.generic) for one in each)


def asked(where: str, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call code of the user's; what it raises becomes a ``DataError``."""
    return user_code.told(function, lambda reason: DataError(f"{where}: {what} {reason}"))(*arguments)


def attribute(thing: object, name: str, default: Any = None) -> Any:
    """Return an attribute of an object that is handed over, whose code may compute it, or the default."""
    return asked(references.article(thing), f"its attribute {name!r}", getattr, thing, name, default)


def has(thing: object, name: str) -> bool:
    """Tell whether an object that is handed over has an attribute; its code may answer."""
    return attribute(thing, name, _ABSENT) is not _ABSENT


def smallest_integers(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return tokens in the smallest type that holds them and that PyTorch has."""
    return tokens.astype(np.uint8 if vocabulary <= 2**8 else np.int16 if vocabulary <= 2**15 else np.int32)
