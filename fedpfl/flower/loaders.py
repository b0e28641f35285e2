"""Loaders of Flower's apps: batches that are dictionaries, their size, transforms that draw at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Subset, default_collate

from ..core.errors import ConfigError
from ..data.datasets.lazy import Lazy, has_places
from ..data.datasets.torch_samples import TAKEN_APART, drawn, shared_states


class Pairs:
    """Samples (x, y) of a data set whose samples are dictionaries."""

    def __init__(self, samples: Any, keys: tuple[str, str]) -> None:
        self._samples, self._keys = samples, keys

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        sample = self._samples[place]
        return sample[self._keys[0]], sample[self._keys[1]]


def batches_of(data: Any) -> dict[str, Any]:
    """Return the settings that a DataLoader says: the size of its batches, and what becomes of the last one."""
    loader = data[0] if isinstance(data, tuple) and data else data
    batches = loader.batch_sampler if isinstance(loader, DataLoader) else None
    size = getattr(batches, "batch_size", None)  # a sampler of the user's may have none
    if type(size) is not int:
        return {}
    return {"batch-size": size, "last-batch": "drop" if getattr(batches, "drop_last", False) else "keep"}


def read(source: Any, keys: Sequence[str], said: dict[str, None]) -> Any:
    """Return a loader or data set as one of pairs (x, y) whose random transforms draw anew in each epoch.

    What users should know of it becomes a key of ``said``.
    """
    if isinstance(source, DataLoader):
        samples = _samples_of(source, said)
        if samples is None:
            return _batches(source, keys, said)
        source = samples
    elif not has_places(source):
        return source
    first = source[0] if len(source) else None
    if isinstance(first, Mapping):
        source = Pairs(source, _keys(first, keys))
    return Lazy(source) if len(source) and _draws(source) else source


def _samples_of(loader: DataLoader[Any], said: dict[str, None]) -> Any:
    """Return a loader's data set, or the part that its sampler draws; None where batches have to be read."""
    data = loader.dataset
    if not has_places(data) or loader.batch_size is None or loader.collate_fn is not default_collate:
        return None
    places = drawn(loader, loader.sampler, "data", said)
    return data if places == [*range(len(data))] else Subset(data, places)  # type: ignore[arg-type]


def _batches(loader: DataLoader[Any], keys: Sequence[str], said: dict[str, None]) -> Any:
    """Return arrays (x, y) of batches that are dictionaries; a loader of others as it is."""
    xs, ys = [], []
    for batch in loader:
        if not isinstance(batch, Mapping):
            return loader
        x, y = _keys(batch, keys)
        xs.append(np.asarray(batch[x]))
        ys.append(np.asarray(batch[y]))
    said[TAKEN_APART] = None
    return (np.concatenate(xs), np.concatenate(ys)) if xs else loader


def _keys(sample: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, str]:
    """Return the entries of a sample that are x and y: the two named ones, or the only two, with the label last."""
    entries = tuple(keys) or tuple(sample)
    if len(entries) != 2 or not set(entries) <= set(sample):
        raise ConfigError("keys", tuple(keys), f"must name x and y among the entries of a sample: {', '.join(sample)}")
    if not keys and np.ndim(sample[entries[0]]) < np.ndim(sample[entries[1]]):
        entries = entries[::-1]
    return entries[0], entries[1]


def _draws(samples: Any) -> bool:
    """Return whether a sample is another one each time that it is read."""
    before = shared_states()
    first, again = samples[0], samples[0]
    return bool(shared_states() != before) or not _same(first, again)


def _same(first: Any, again: Any) -> bool:
    if isinstance(first, Mapping):
        return all(_same(value, again[key]) for key, value in first.items())
    if isinstance(first, (tuple, list)):
        return all(map(_same, first, again))
    return bool(np.array_equal(np.asarray(first), np.asarray(again)))
