"""A division in a file, so that it can be published and used by others.

The file is an npz archive with one entry for each sample of the training set, followed by those of the test set:
``client``, a whole number from 0 or −1 for nobody, and ``test``, whether the client is tested with the sample.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Sequence

import numpy as np
from numpy.lib import format as npy

from ..core.errors import DataError, words_of
from .partitioners import Share

_KINDS = {"client": ("iu", "whole numbers"), "test": ("b", "bool")}


def read_division(path: Path, samples: int) -> list[Share]:
    """Return the shares that a file gives to clients 0, 1, …, of ``samples``, the training and test set together."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    from .npy import UNREADABLE

    if path.suffix == ".pkl":
        return _of_fl_bench(path, samples)
    try:
        with zipfile.ZipFile(path) as archive:
            client, test = (_array(archive, key, path, samples) for key in _KINDS)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path}: not an npz file (fedpfl partition --export writes one)") from error
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read: {words_of(error)}") from error
    for place in (int(client.argmin()), int(client.argmax())):
        if not -1 <= client[place] < samples // 2:  # each client needs two
            message = f"must be -1, for nobody, or 0 … {samples // 2 - 1}"
            raise DataError(f"{path}: client[{place}] is {client[place]}: {message}")
    client = client.astype(np.int64)
    count = int(client.max()) + 1
    if not count:
        raise DataError(f"{path}: no sample belongs to a client")
    for part, name in ((False, "training"), (True, "test")):
        sizes = np.bincount(client[(client >= 0) & (test == part)], minlength=count)
        if not sizes.all():
            raise DataError(f"{path}: client {int(sizes.argmin())} of {count} has no {name} samples")
    order = np.argsort(client, kind="stable")
    starts = np.searchsorted(client[order], np.arange(count))
    return [Share(mine[~test[mine]], mine[test[mine]]) for mine in np.split(order, starts)[1:]]


def _of_fl_bench(path: Path, samples: int) -> list[Share]:
    """Return the shares of FL-bench's ``partition.pkl``: for each client the positions of train and test (and val).

    FL-bench numbers the training set before the test set, too. Nothing in it is run.
    """
    from .datasets.pickled_arrays import MAX_BYTES, read_restricted

    with path.open("rb") as file:
        content = read_restricted(file.read(MAX_BYTES + 1), path)
    listed = content.get("data_indices") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise DataError(f"{path}: has no data_indices with train and test of each client, as FL-bench's partition.pkl")
    if not listed:
        raise DataError(f"{path}: data_indices lists no client")
    shares, assigned = [], np.zeros(samples, bool)
    for client, one in enumerate(listed):
        parts = []
        for names in (("train", "val"), ("test",)):
            try:
                arrays = [np.asarray([] if one.get(name) is None else one[name]) for name in names]
            except ValueError as error:  # lists of different lengths
                raise DataError(f"{path}: client {client}: positions must be one list: {words_of(error)}") from error
            mine = np.concatenate([array.reshape(-1) for array in arrays if array.size] or [np.empty(0, np.int64)])
            if mine.dtype.kind not in "iu" or (len(mine) and not 0 <= mine.min() <= mine.max() < samples):
                raise DataError(
                    f"{path}: client {client}: positions must be whole numbers below {samples}, the samples"
                )
            if not len(mine):
                raise DataError(f"{path}: client {client} of {len(listed)} has no {names[0]} samples")
            if assigned[mine].any() or len(np.unique(mine)) < len(mine):
                raise DataError(f"{path}: client {client} has samples that are listed twice")
            assigned[mine] = True
            parts.append(np.sort(mine.astype(np.int64)))
        shares.append(Share(*parts))
    return shares


def division_arrays(shares: Sequence[Share], samples: int) -> dict[str, np.ndarray]:
    """Return the arrays of a file; ``DataError`` if a sample belongs to several clients."""
    mine = [np.concatenate(share) for share in shares]
    assigned = np.concatenate(mine)
    if len(np.unique(assigned)) < len(assigned):
        raise DataError("the division cannot be written to a file: some samples belong to several clients")
    client = np.full(samples, -1, np.min_scalar_type(-len(shares)))
    client[assigned] = np.repeat(np.arange(len(shares)), [len(positions) for positions in mine])
    test = np.zeros(samples, bool)
    test[np.concatenate([share.test for share in shares])] = True
    return {"client": client, "test": test}


def _array(archive: zipfile.ZipFile, key: str, path: Path, samples: int) -> np.ndarray:
    """Return an array whose header fits; what the header promises is checked before anything is read."""
    if f"{key}.npy" not in archive.namelist():
        raise DataError(f"{path}: no array {key} (fedpfl partition --export writes such files)")
    with archive.open(f"{key}.npy") as file:
        if (version := npy.read_magic(file)) != (1, 0):  # whose header has at most 64 KiB
            message = f"is in version {version[0]} of NumPy's format; only version 1 is read, which numpy.savez writes"
            raise DataError(f"{path}: {key} {message}")
        shape, _, dtype = npy.read_array_header_1_0(file)
        kinds, expected = _KINDS[key]
        if dtype.kind not in kinds:
            raise DataError(f"{path}: {key} holds {dtype}, it must hold {expected}")
        if shape != (samples,):
            raise DataError(f"{path}: {key} has shape {shape}, the data set has {samples} samples")
        content = file.read(samples * dtype.itemsize + 1)
    if len(content) != samples * dtype.itemsize:
        raise DataError(f"{path}: {key} is truncated or has more than its {samples} entries")
    return np.frombuffer(content, dtype)
