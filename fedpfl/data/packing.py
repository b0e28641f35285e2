"""Arrays of whatever is handed over; of several inputs (a tuple or a dict of arrays) rows of numbers."""

from __future__ import annotations

import re
from operator import itemgetter
from typing import Any, Mapping, cast

import numpy as np

from ..core import custom
from ..core.custom import article
from ..core.errors import DataError, words_of
from ..core.inputs import FLOAT, MAX_DIMENSIONS, MAX_INPUTS, NAME, SMALL, TRUTH, WHOLE, Input, Inputs, inputs_of
from ..core.names import difference

# What an array of objects may be made of.
_NUMBERS, _TRUTH = (int, float, np.integer, np.floating), {bool, np.bool_}
# Arrays of a file: x_NAME, or x_train_NAME and so on; inputs without names have their places, from 0.
_KEY = re.compile(r"(x(?:_(?:train|test|val))?)_(\w+)", re.ASCII)


def array(thing: object, where: str) -> np.ndarray:
    """Return an array, made without a guess of a thing such as a tensor on the CPU or a list of words.

    ``where`` is what a ``DataError`` calls it.
    """
    what = f"{where} is {custom.article(thing)}"
    if getattr(thing, "read_later", False) is True:  # of fedpfl.Lazy
        return thing  # type: ignore[return-value]
    if hasattr(thing, "toarray"):
        raise DataError(f"{what}, a sparse matrix; give its .toarray()")
    if isinstance(thing, np.ma.MaskedArray) and np.ma.is_masked(thing):
        raise DataError(f"{what} with masked values; give its .filled(…)")
    try:
        values = np.asarray(thing)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = words_of(error, 200)
        raise DataError(f"{what} that NumPy cannot make an array of: {reason}") from error
    if values.dtype != object:
        return values
    kinds = {type(one) for one in values.reshape(-1).tolist()}
    if kinds and all(issubclass(kind, str) for kind in kinds):
        return values.astype(str)
    # Truth values among numbers are not taken for numbers.
    if kinds and (kinds <= _TRUTH or all(issubclass(kind, _NUMBERS) and kind not in _TRUTH for kind in kinds)):
        return np.array(values.tolist())
    named = ", ".join(sorted(kind.__name__ for kind in kinds)[:4])
    raise DataError(f"{what} of objects ({named or 'none'}): must be all numbers, or all words")


def smallest_integers(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return tokens in the smallest type that holds them and that PyTorch has."""
    return tokens.astype(np.uint8 if vocabulary <= 2**8 else np.int16 if vocabulary <= 2**15 else np.int32)


class Packed(np.ndarray):
    """Samples of several inputs, in rows of float32; ``inputs`` tells where each one lies."""

    inputs: Inputs | None

    def __array_finalize__(self, other: Any) -> None:
        self.inputs = getattr(other, "inputs", None)

    def __array_function__(self, function: Any, kinds: Any, arguments: Any, named: Any) -> Any:
        """Let rows that are laid end to end be samples of the same inputs."""
        result = super().__array_function__(function, kinds, arguments, named)
        if function is np.concatenate:
            result = result.view(Packed)
            result.inputs = self.inputs
        return result


def are_several(thing: object) -> bool:
    """Tell whether an object is a tuple or dict of arrays, which are the inputs of one model."""
    each = [*thing.values()] if isinstance(thing, Mapping) else thing if isinstance(thing, tuple) else ()
    return any(hasattr(one, "__array__") and not isinstance(one, np.generic) for one in each)


def with_inputs(x: Any, labels: int) -> Any:
    """Return x, as a tuple if it is a list of arrays of all samples, and not a list of samples."""
    each = x if isinstance(x, list) and len(x) != labels else []
    return tuple(x) if each and all(getattr(one, "ndim", 0) and len(one) == labels for one in each) else x


def packed(samples: Any, where: str, rows: bool = True) -> Packed:
    """Pack the inputs of samples, or with ``rows`` false of one sample; ``where`` is what a ``DataError`` calls them.

    Floats become float32. Booleans and whole numbers stay exact.
    """
    named = isinstance(samples, Mapping)
    items = [(str(key), one) for key, one in (samples.items() if named else enumerate(samples))]
    items = sorted(items, key=itemgetter(0)) if named else items
    if not 1 <= len(items) <= MAX_INPUTS:
        raise DataError(f"{where} has {len(items)} inputs; a model may have 1 to {MAX_INPUTS}")
    parts, columns = [], []
    for name, one in items:
        if named and not re.fullmatch(NAME, name):
            raise DataError(f"{where}: {name[:40]!r} cannot be an argument's name of a model's forward")
        kind, column = _typed(array(one, f"{where}, input {name}"), f"{where}, input {name}")
        column = column if rows else column[None]
        if not column.ndim:
            raise DataError(f"{where}, input {name} is one number; it must have a row for each sample")
        columns.append(column)
        parts.append(Input(name, kind, column.shape[1:]))
        if len(column) != len(columns[0]):
            raise DataError(f"{where}, input {name} has {len(column)} samples, and {items[0][0]} {len(columns[0])}")
        if column.ndim - 1 > MAX_DIMENSIONS or 0 in column.shape[1:]:
            raise DataError(f"{where}, input {name} has the shape {column.shape[1:]} in a sample, which no model takes")
    made = _rows(columns, Inputs(parts, named))
    return cast(Packed, made if rows else made[0])


def inputs_in(about: Mapping[str, Any]) -> Inputs | None:
    """Return the inputs of a model that a client has written; None if it takes a single one."""
    text = about["input-shape"]
    return inputs_of(text) if isinstance(text, str) else None


def fitting(samples: Any, inputs: Inputs) -> Packed:
    """Pack samples for a model of these inputs; whole numbers may be of any type, and stand for floats."""
    if isinstance(samples, Packed) and samples.inputs == inputs:
        return samples
    wanted = "a dict" if inputs.named else "a tuple"
    if isinstance(samples, Mapping) != inputs.named or not isinstance(samples, (Mapping, tuple, list)):
        raise DataError(f"samples are {article(samples)}; the model takes {wanted} of {inputs}")
    names = [part.name for part in inputs.parts]
    items = {str(key): one for key, one in (samples.items() if isinstance(samples, Mapping) else enumerate(samples))}
    if other := difference([*items], names):
        raise DataError(f"inputs are {other}; the model takes {wanted} of {inputs}")
    columns = []
    for part in inputs.parts:
        values = array(items[part.name], f"input {part.name}")
        fits = values.dtype.kind in {FLOAT: "fiu", TRUTH: "b"}.get(part.kind, "iu")
        if part.kind == SMALL and fits and values.size:
            fits = values.min() >= -(2**15) and values.max() < 2**15
        if not fits or not values.size or values.shape[1:] != part.shape:
            raise DataError(f"input {part.name} is {values.dtype} {values.shape}; the model takes {wanted} of {inputs}")
        columns.append(_typed(values.astype(np.float64) if part.kind == FLOAT else values, f"input {part.name}")[1])
        if len(columns[-1]) != len(columns[0]):
            raise DataError(f"input {part.name} has {len(columns[-1])} samples, and {names[0]} {len(columns[0])}")
        if part.kind == FLOAT and np.isnan(columns[-1]).any():
            raise DataError(f"input {part.name} holds a value that is not finite (NaN)")
    return _rows([column.astype(part.kind) for part, column in zip(inputs.parts, columns)], inputs)


def _rows(columns: list[np.ndarray], inputs: Inputs) -> Packed:
    made = inputs.packed(columns).view(Packed)
    made.inputs = inputs
    return made


def _typed(values: np.ndarray, where: str) -> tuple[str, np.ndarray]:
    """Return the type in which an input is packed, and the input in it; whoever reads data looks for NaN."""
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
        if np.isinf(values).any():
            raise DataError(f"{where} holds a value that is not finite (infinity)")
        return FLOAT, values
    if values.dtype.kind == "b":
        return TRUTH, values
    if values.dtype.kind not in "iu":
        raise DataError(f"{where} is {values.dtype}: inputs are floats, whole numbers or booleans")
    if values.dtype == np.uint64 and values.size and values.max() >= 2**63:
        raise DataError(f"{where} holds {values.max()}: whole numbers must be below 2⁶³")
    return (SMALL, values) if np.can_cast(values.dtype, SMALL) else (WHOLE, values.astype(np.int64))


def joined(arrays: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """Return a file's arrays with ``x_image`` and ``x_meta`` packed as ``x``, and so on for ``x_train``."""
    together = {part: packed(samples, f"{where}: {part}") for part, samples in _grouped(arrays).items()}
    return {**arrays, **together}


def given_in(arrays: Mapping[str, np.ndarray], where: str) -> Any:
    """Return the inputs that a file has as ``x_image`` and so on, or as ``x_test_image``, for :func:`fitting`."""
    groups = _grouped(arrays)
    part = next((part for part in ("x", "x_test") if part in groups), None)
    if part is None:
        raise DataError(f"{where}: has no arrays x_… or x_test_…, one for each input")
    return groups[part]


def _grouped(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the inputs of each part of a data set: a tuple, if their names are the places from 0."""
    groups: dict[str, Any] = {}
    for key, values in arrays.items():
        if (match := _KEY.fullmatch(key)) and key not in ("x_train", "x_test", "x_val"):
            groups.setdefault(match[1], {})[match[2]] = values
    for part, each in groups.items():
        places = [str(place) for place in range(len(each))]
        groups[part] = tuple(each[place] for place in places) if each.keys() == {*places} else each
    return groups
