"""The division of data that have a test set, or a validation part, of their own."""

from __future__ import annotations

from typing import Callable

import numpy as np

from ..core.errors import DataError
from ..core.rng import generator
from .dataset import Dataset
from .natural import natural_clients, only_tested, require_owners
from .partitioners import Pool, Share, all_owners, deal_by_class, proportional, top_up
from .settings import DataSettings


def shares(
    data: Dataset, settings: DataSettings, num_clients: int, seed: int, deal: Callable[..., list[np.ndarray]]
) -> list[Share]:
    """Divide the training set, which ``deal`` does, and the test set as each client's share of the classes is.

    For ``natural`` a client gets its owner's test samples, if the data name their owners.
    """
    n_train, owners = len(data.y_train), all_owners(data)
    assert data.y_test is not None
    if settings.partitioner != "natural" or owners is None or data.client_test is None:
        train = deal()
        labels = [data.y_train[mine] for mine in train]
        test = [n_train + mine for mine in _matching(data.y_test, labels, data, seed)]
        return [Share(*both) for both in zip(train, test)]
    only = only_tested(owners[:n_train], data.client_test, settings)
    learnt = owners[:n_train] if data.validation is None else owners[:n_train][~data.validation]
    there = natural_clients(learnt, None, data.overlap, settings)
    if only:
        require_owners(num_clients, there + len(only), settings)
    train = deal(there if only else num_clients)
    found = [Share(mine, n_train + np.flatnonzero(data.client_test == owners[mine[0]])) for mine in train]
    found += [Share(np.arange(0), n_train + np.sort(mine)) for mine in only]
    return sorted(found, key=lambda share: int(owners[np.concatenate(share)[0]]))[:num_clients]


def with_validation(shares: list[Share], data: Dataset, settings: DataSettings, seed: int) -> list[Share]:
    """Give the clients the samples for validation, among their training samples: their owners' or of their classes."""
    assert data.validation is not None
    held, owners = np.flatnonzero(data.validation), all_owners(data)
    if settings.partitioner == "natural" and owners is not None:
        more = [held[owners[held] == owners[np.concatenate(share)[0]]] for share in shares]
    else:
        labels = [data.y_train[share.train] for share in shares]
        more = [held[mine] for mine in _matching(data.y_train[held], labels, data, seed, "validation")]
    return [Share(np.sort(np.concatenate([share.train, mine])), share.test) for share, mine in zip(shares, more)]


def _matching(
    y_test: np.ndarray, labels: list[np.ndarray], data: Dataset, seed: int, part: str = "test"
) -> list[np.ndarray]:
    """Divide a test or validation set so that each client has its mix of training classes, and at least one sample."""
    counts = np.stack([np.bincount(mine, minlength=data.num_classes) for mine in labels], axis=1)
    total = counts.sum(axis=1, keepdims=True)
    test_sizes = np.bincount(y_test, minlength=data.num_classes)
    # Test samples of a class that no client trains on are not used.
    known = test_sizes * (total[:, 0] > 0)
    if known.sum() < len(labels):
        raise DataError(
            f"{data.name}: {int(known.sum())} {part} samples cannot be divided among {len(labels)} clients: use "
            'split = "mixed" or fewer clients'
        )
    dealt = top_up(proportional(known, counts / np.maximum(total, 1)), 1, counts)
    classes = Pool(y_test, data.num_classes).by_class(generator(seed, f"matching {part} samples"))
    return [np.sort(mine) for mine in deal_by_class(classes, dealt)]
