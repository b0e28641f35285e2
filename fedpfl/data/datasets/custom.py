"""Data sets by name, those included that users bring as Python code or as arrays."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Sequence

import numpy as np

from ...core import custom
from ...core.errors import ConfigError, DataError
from ..dataset import Dataset
from ..registry import AUTO, DATASETS, DatasetInfo, Loader
from ..settings import DataSettings
from .npz import labels_of, samples_of

# What a client of a list has: samples that are still to be cut, or those to train on and those to test with.
PAIR, FOUR = ("x", "y"), ("x_train", "y_train", "x_test", "y_test")


def entry(name: str) -> tuple[DatasetInfo, Loader]:
    """Return what is registered under a name, or the custom data set that it refers to; else raise ``ConfigError``."""
    if name in DATASETS and name not in custom.entry_point_names("dataset"):
        return DATASETS[name]
    found = custom.find("dataset", name, DATASETS)
    about = (getattr(found, "__doc__", None) or "").strip().partition("\n")[0]
    words = {"size": "any", "classes": "any", "shape": "any", "source": name}
    info = DatasetInfo(custom.short_name(name), about, **words, download=False, owned=True, own=True)
    return info, CustomLoader(name, found)


class CustomLoader:
    """Makes a data set of a user's object; equal only to a loader of the same object.

    The ``source`` is a function that returns a :class:`Dataset`, a data set, or a list of each client's arrays.
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
    if isinstance(source, (list, tuple)):
        return _of_clients(name, source, settings.min_samples)
    allowed = f"must make a fedpfl.Dataset or a list of each client's ({', '.join(FOUR)})"
    raise ConfigError("dataset", loader.name, f"makes {custom.article(source)}, and {allowed}")


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


def _of_clients(name: str, clients: Sequence[Any], least: int) -> Dataset:
    """Lay the arrays of clients end to end."""
    if not clients:
        raise DataError(f"{name}: the list of clients is empty")
    names: tuple[str, ...] = FOUR
    columns: list[list[np.ndarray]] = []
    for number, client in enumerate(clients):
        where = f"{name}: client {number}"
        if not isinstance(client, (list, tuple)) or len(client) not in (len(PAIR), len(FOUR)):
            raise DataError(f"{where} is {custom.article(client)}; it must be ({', '.join(FOUR)}), or (x, y) to be cut")
        names = PAIR if len(client) == len(PAIR) else FOUR
        if columns and len(client) != len(columns[0]):
            raise DataError(f"{where} has {len(client)} arrays, and client 0 has {len(columns[0])}")
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
        if len(arrays[0]) < least:
            raise DataError(f"{where} has {len(arrays[0])} {'' if names == PAIR else 'training '}samples, "
                            f"min-samples is {least}")  # fmt: skip
        columns.append(arrays)
    joined = [np.concatenate(list(column)) for column in zip(*columns)]
    owners = [np.repeat(np.arange(len(columns)), [len(client[at]) for client in columns]) for at in (0, len(names) - 1)]
    if names == PAIR:
        return Dataset(name, joined[0], joined[1], client_train=owners[0])
    x_train, y_train, x_test, y_test = joined
    return Dataset(name, x_train, y_train, x_test, y_test, client_train=owners[0], client_test=owners[1], split="given")


def _array(given: Any, where: str) -> np.ndarray:
    """Return what is an array, or can be made one without a guess, such as a tensor on the CPU."""
    try:
        found = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where} is {custom.article(given)} that NumPy makes no array of: {error}") from error
    if found.dtype == object:
        raise DataError(f"{where} is {custom.article(given)} that NumPy makes no array of numbers of")
    return found
