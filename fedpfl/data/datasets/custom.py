"""Data sets by name, those included that users bring as Python code or as arrays."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np

from ...core import custom
from ...core.errors import ConfigError, DataError, in_one_line
from ..dataset import Dataset
from ..registry import AUTO, DATASETS, DatasetInfo, Loader
from ..settings import DataSettings
from .columns import FileSamples, read_frame, to_dataset
from .npz import labels_of, samples_of

# What a client has: samples that are still to be cut, or those to train on and those to test with.
PAIR, FOUR = ("x", "y"), ("x_train", "y_train", "x_test", "y_test")


def entry(name: str) -> tuple[DatasetInfo, Loader]:
    """Return what is registered under a name, or the custom data set that it refers to; else raise ``ConfigError``."""
    if name in DATASETS and name not in custom.entry_point_names("dataset"):
        return DATASETS[name]
    found = custom.find("dataset", name, DATASETS)
    about = (getattr(found, "__doc__", None) or "").strip().partition("\n")[0]
    info = DatasetInfo(custom.short_name(name), about, "any", "any", "any", name, download=False, owned=True, own=True)
    return info, CustomLoader(name, found)


class CustomLoader:
    """Makes a data set of a user's object; equal only to a loader of the same object.

    The ``source`` is a :class:`Dataset`, a pandas DataFrame, a torch Dataset or DataLoader, a tuple or dict of arrays,
    or what each client has, as a list or as a mapping by the clients' names; or a function that returns one of these.
    """

    def __init__(self, name: str, source: Any) -> None:
        self.name, self.source = name, source

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CustomLoader) and self.source is other.source

    def __hash__(self) -> int:
        return id(self.source)

    def __call__(self, settings: DataSettings) -> Dataset:
        """Make the data set, or raise a ``FedpflError``.

        A function gets ``settings`` and, from the setting ``data``, ``path`` if it takes arguments of these names.
        """
        # However the samples are divided, they are the same: the function need not be called again.
        return _made(self, replace(settings, partitioner=AUTO, num_clients=0))


@lru_cache(maxsize=2)
def _made(loader: CustomLoader, settings: DataSettings) -> Dataset:
    name, source = custom.short_name(loader.name), loader.source
    if callable(source):
        offered = {"settings": settings, "path": settings.data}
        source = custom.call("dataset", loader.name, source, offered)
    if isinstance(source, Dataset):
        return _checked(source)
    if _is_frame(source):
        return _of_frame(name, source, settings)
    if _is_samples(source):
        return Dataset(name, *_pair(source, name))
    if _is_arrays(source):
        return replace(_of_clients(name, [source], settings), client_train=None, client_test=None, split="")
    if isinstance(source, Mapping):
        return _of_clients(name, list(source.values()), settings, tuple(map(str, source)))
    if isinstance(source, (list, tuple)):
        return _of_clients(name, source, settings)
    allowed = (
        f"returns {custom.article(source)}; it must return a fedpfl.Dataset, a DataFrame, a torch Dataset or "
        f"DataLoader, or a list or dict of what each client has: ({', '.join(FOUR)}) or any of these"
    )
    raise ConfigError("dataset", loader.name, allowed)


def _is_frame(thing: object) -> bool:
    """Return whether an object is a pandas DataFrame, without importing pandas."""
    return type(thing).__name__ == "DataFrame" and hasattr(thing, "iloc")


def _is_arrays(thing: object) -> bool:
    """Return whether an object is the arrays of one data set, as a tuple or a dict: x and y, of a test set as well."""
    if isinstance(thing, Mapping):
        return thing.keys() in (set(PAIR), set(FOUR))
    parts = thing if isinstance(thing, tuple) and len(thing) in (len(PAIR), len(FOUR)) else ()
    return bool(parts) and not _is_frame(parts[1]) and all(hasattr(part, "__array__") for part in parts)


def _is_samples(thing: object) -> bool:
    """Return whether an object is a torch Dataset or DataLoader: it gives (x, y) one by one, or has one that does."""
    if isinstance(thing, (list, tuple, str, bytes)) or hasattr(thing, "keys") or hasattr(thing, "__array__"):
        return False
    return hasattr(thing, "dataset") or (hasattr(thing, "__getitem__") and hasattr(thing, "__len__"))


def _of_frame(name: str, frame: Any, settings: DataSettings) -> Dataset:
    table = read_frame(frame, name, settings)
    part = FileSamples(Path(name), table.values, table.words, table.row)
    return to_dataset([part], name, settings, settings.num_classes or None, alone=False)


def _pair(samples: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples and labels of a torch Dataset, or of that of a DataLoader, in their order."""
    source = getattr(samples, "dataset", samples)
    xs, ys = [], []
    for at in range(len(source)):
        try:
            x, y = source[at]
        except (TypeError, ValueError) as error:
            raise DataError(f"{where}: sample {at} is not a pair of x and y: {in_one_line(error)}") from error
        xs.append(_array(x, f"{where}: x of sample {at}"))
        ys.append(_array(y, f"{where}: y of sample {at}"))
        if xs[-1].shape != xs[0].shape:
            raise DataError(
                f"{where}: sample {at} has the shape {xs[-1].shape}, and sample 0 {xs[0].shape}: resize all to one size"
            )
    if not xs:
        raise DataError(f"{where}: has no samples")
    x, y = np.stack(xs), np.stack(ys)
    return samples_of(x, f"{where}: x", planes=True), labels_of(y, len(x), f"{where}: y")


def _arrays_of(client: Any, where: str) -> tuple[Any, ...]:
    """Return what a client has as (x, y), or as training and test samples."""
    if isinstance(client, Mapping):
        for names in (FOUR, PAIR):
            if client.keys() == set(names):
                return tuple(client[name] for name in names)
        has = ", ".join(map(str, client)) or "nothing"
        raise DataError(f"{where} has {has}; it must have {', '.join(FOUR)}, or x, y")
    if _is_samples(client):
        return _pair(client, where)
    if isinstance(client, (list, tuple)) and len(client) == len(PAIR) and all(map(_is_samples, client)):
        return (*_pair(client[0], f"{where}, training"), *_pair(client[1], f"{where}, test"))
    if isinstance(client, (list, tuple)) and len(client) in (len(PAIR), len(FOUR)):
        return tuple(client)
    raise DataError(f"{where} is {custom.article(client)}; it must be ({', '.join(FOUR)}), or (x, y) to be cut")


def _checked(data: Dataset) -> Dataset:
    """Bring a data set's arrays into the inner layout."""
    found: dict[str, Any] = {}
    for part in ("train", "test"):
        x, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
        if (x is None) != (y is None):
            raise DataError(f"{data.name}: has {'y' if x is None else 'x'}_{part} without the other one")
        if x is None:
            continue
        where = f"{data.name}: {{}}_{part}"
        found[f"x_{part}"] = samples_of(_array(x, where.format("x")), where.format("x"), data.vocabulary, True)
        found[f"y_{part}"] = labels_of(_array(y, where.format("y")), len(x), where.format("y"))
        if found[f"y_{part}"].max() >= data.num_classes:
            top = found[f"y_{part}"].max()
            raise DataError(f"{where.format('y')} has label {top}: labels must be 0 … {data.num_classes - 1}")
        owners = getattr(data, f"client_{part}")
        if owners is not None:
            found[f"client_{part}"] = labels_of(_array(owners, "client"), len(x), f"{data.name}: client_{part}")
    if found["x_train"].shape[1:] != found.get("x_test", found["x_train"]).shape[1:]:
        raise DataError(f"{data.name}: x_train and x_test must hold samples of one shape")
    return replace(data, **found)


def _of_clients(name: str, clients: Sequence[Any], settings: DataSettings, known: tuple[str, ...] = ()) -> Dataset:
    """Lay the arrays of clients end to end."""
    if not clients:
        raise DataError(f"{name}: the list of clients is empty")
    if all(map(_is_frame, clients)):
        return _of_frames(name, clients, settings, known)
    names: tuple[str, ...] = FOUR
    columns: list[list[np.ndarray]] = []
    for number, given in enumerate(clients):
        where = f"{name}: client {known[number] if known else number}"
        client = _arrays_of(given, where)
        names = PAIR if len(client) == len(PAIR) else FOUR
        if columns and len(client) != len(columns[0]):
            raise DataError(f"{where} has {len(client)} arrays, and the first client has {len(columns[0])}")
        arrays = [_array(array, f"{where}: {word}") for word, array in zip(names, client)]
        for at in range(0, len(arrays), 2):
            arrays[at] = samples_of(arrays[at], f"{where}: {names[at]}", planes=True)
            arrays[at + 1] = labels_of(arrays[at + 1], len(arrays[at]), f"{where}: {names[at + 1]}")
            first = columns[0][0] if columns else arrays[0]
            if (arrays[at].dtype, arrays[at].shape[1:]) != (first.dtype, first.shape[1:]):
                raise DataError(
                    f"{where}: {names[at]} has samples of {arrays[at].dtype} {arrays[at].shape[1:]}, and "
                    f"{first.dtype} {first.shape[1:]} come before: all samples must be alike"
                )
        if len(arrays[0]) < settings.min_samples:
            raise DataError(f"{where} has {len(arrays[0])} {'' if names == PAIR else 'training '}samples, "
                            f"min-samples is {settings.min_samples}")  # fmt: skip
        columns.append(arrays)
    joined = [np.concatenate(list(column)) for column in zip(*columns)]
    owners = [np.repeat(np.arange(len(columns)), [len(client[at]) for client in columns]) for at in (0, len(names) - 1)]
    if names == PAIR:
        return Dataset(name, joined[0], joined[1], client_train=owners[0], client_names=known)
    x_train, y_train, x_test, y_test = joined
    return Dataset(
        name, x_train, y_train, x_test, y_test, client_train=owners[0], client_test=owners[1], split="given",
        client_names=known,
    )  # fmt: skip


def _of_frames(name: str, frames: Sequence[Any], settings: DataSettings, known: tuple[str, ...]) -> Dataset:
    """Lay the DataFrames of clients end to end, with a column that says whose each row is."""
    first = frames[0]
    for number, frame in enumerate(frames):
        if list(frame.columns) != list(first.columns):
            raise DataError(f"{name}: client {known[number] if known else number} has other columns than the first one")
    column = settings.client_column or "client"
    whose = known or tuple(map(str, range(len(frames))))
    table = [frame.assign(**{column: one}) for frame, one in zip(frames, whose)]
    import pandas

    return _of_frame(name, pandas.concat(table, ignore_index=True), replace(settings, client_column=column))


def _array(given: Any, where: str) -> np.ndarray:
    """Return what is an array, or can be made one without a guess, such as a tensor on the CPU."""
    try:
        found = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where} is {custom.article(given)} that NumPy cannot make an array of: {error}") from error
    if found.dtype == object:
        raise DataError(f"{where} is {custom.article(given)} that NumPy cannot make an array of numbers of")
    return found
