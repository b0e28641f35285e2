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
from .npy import UNREADABLE
from .partitioners import Share

_KINDS = {"client": ("iu", "whole numbers"), "test": ("b", "bool")}


def read_division(path: Path, samples: int) -> list[Share]:
    """Return the shares that a file gives to clients 0, 1, …, of ``samples``, the training and test set together."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
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
