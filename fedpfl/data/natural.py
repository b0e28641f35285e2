"""Clients that are the persons, devices or writers whose samples the data have."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from ..core.errors import ConfigError, DataError, printable
from .dataset import Dataset
from .overlap import kept, larger_step
from .partitioners import Pool
from .registry import partitioner
from .settings import DataSettings

# Owners that a remark names.
MAX_NAMED = 10


@partitioner("natural")
def natural(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[np.ndarray]:
    """Give every client the samples of one person, device or writer, as the data set says (its array ``client``).

    Owners with fewer than ``min_samples`` samples are left out, and of the others the first ``num_clients`` are
    taken in the order of their numbers or names.
    """
    if pool.owners is None:
        raise ConfigError(
            "partitioner", "natural", "needs data that name the owner of each sample (an array client in an npz file)"
        )
    everybody = _by_owner(pool.owners)
    counts = _counts([*map(len, everybody)], pool.overlap, settings)
    enough = [mine for mine, count in zip(everybody, counts) if count >= settings.min_samples]
    apart = _apart(pool.overlap, settings)
    if not enough:
        most = max(map(len, everybody), default=0)
        use = larger_step(settings, " or ") if apart else ""
        raise DataError(
            f"none of the {len(everybody)} owners of the samples has min-samples = {settings.min_samples} samples"
            f"{apart}; the largest has {most}: use {use}a smaller min-samples"
        )
    require_owners(num_clients, len(enough), settings, apart)
    return enough[:num_clients]


def require_owners(num_clients: int, there: int, settings: DataSettings, apart: str = "") -> None:
    """Refuse more clients than there are owners with enough samples."""
    if num_clients > there:
        raise ConfigError(
            "num-clients",
            num_clients,
            f"must be at most {there}, the number of natural clients with at least {settings.min_samples} "
            f"samples{apart} (min-samples)",
        )


def _counts(sizes: Sequence[int], overlap: int, settings: DataSettings) -> Sequence[int]:
    """Return how many samples of each owner count: a cut by time leaves out those that overlap."""
    return kept(sizes, overlap, settings) if settings.split == "time" else sizes


def _apart(overlap: int, settings: DataSettings) -> str:
    """Return the words of errors and remarks for samples that do not overlap; nothing where all samples count."""
    return " in parts that do not overlap" if settings.split == "time" and overlap else ""


def _by_owner(owners: np.ndarray) -> list[np.ndarray]:
    """Return the positions of each owner's samples, by the owner's number; samples without an owner are left out."""
    order = np.argsort(owners, kind="stable")
    order = order[owners[order] >= 0]
    return np.split(order, np.flatnonzero(np.diff(owners[order])) + 1) if len(order) else []


def natural_clients(train: np.ndarray, test: np.ndarray | None, overlap: int, settings: DataSettings) -> int:
    """Return how many owners can be clients: those with at least ``min_samples`` samples that count.

    ``train`` and ``test`` have the owner of each sample; ``test`` counts with ``split = "mixed"``. ``overlap`` is the
    data set's.
    """
    given = test is not None and settings.split == "given"
    counted = train if test is None or given else np.concatenate([train, test])
    counts = _counts([*map(len, _by_owner(counted))], overlap, settings)
    found = sum(count >= settings.min_samples for count in counts)
    return found + len(only_tested(train, test, settings) if given and test is not None else ())


def only_tested(train: np.ndarray, test: np.ndarray, settings: DataSettings) -> list[np.ndarray]:
    """Return the positions in the test set of each owner that has ``min_samples`` there and no training sample."""
    mine = [places for places in _by_owner(test) if len(places) >= settings.min_samples]
    trained = set(np.unique(train).tolist())
    return [places for places in mine if int(test[places[0]]) not in trained]


def left_out(data: Dataset, settings: DataSettings) -> list[str]:
    """Return a line on the owners that have too few samples to be clients, by their names; nothing if all are."""
    if data.client_train is None:
        return []
    pooled = data.client_test is not None and settings.split != "given"
    counted = np.concatenate([data.client_train, data.client_test]) if pooled else data.client_train
    counts = np.bincount(counted[counted >= 0])
    enough = np.array(_counts(counts.tolist(), data.overlap, settings)) >= settings.min_samples
    few = np.flatnonzero((counts > 0) & ~enough).tolist()
    if not few:
        return []
    names = [printable(data.client_names[owner], 40) if data.client_names else str(owner) for owner in few[:MAX_NAMED]]
    shown = ", ".join(names) + (", …" if len(few) > MAX_NAMED else "")
    have = "has" if len(few) == 1 else "have"
    samples = f"samples{_apart(data.overlap, settings)}"
    return [f"{data.name}: {len(few)} of {int((counts > 0).sum())} owners {have} fewer than min-samples = "
            f"{settings.min_samples} {samples} and {'is' if len(few) == 1 else 'are'} left out: {shown}"]  # fmt: skip
