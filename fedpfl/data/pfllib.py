"""PFLlib's divisions, sample by sample, so that runs can be compared with published numbers.

Both draw from NumPy's legacy generator, as PFLlib does, and not from :mod:`fedpfl.core.rng`. ``partition-seed`` 1, 20
clients and ``min-samples`` 40 give the clients of its published tables. They pool the training and the test set and cut
each client's share themselves, so ``split`` must be "mixed".
"""

from __future__ import annotations

import math

import numpy as np

from ..core.errors import ConfigError, DataError
from .partitioners import Pool, Share
from .registry import partitioner
from .settings import DataSettings

TRIES = 1000


@partitioner("pfllib-dirichlet", cuts=True)
def pfllib_dirichlet(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[Share]:
    """Cut each class in proportions drawn from Dir(α); clients with their even share of all samples get no more.

    The classes are cut in order. When a class is cut, clients that have n/N samples by then get none of it. All is
    drawn again until every client has ``min_samples``.
    """
    rng = np.random.RandomState(seed)
    enough = len(pool.labels) / num_clients
    for _ in range(TRIES):
        clients = [np.empty(0, np.int64)] * num_clients
        for members in pool.by_class():
            rng.shuffle(members)
            mix = rng.dirichlet(np.full(num_clients, settings.dirichlet_alpha))
            mix = mix * [len(mine) < enough for mine in clients]
            if not mix.sum() > 0:
                if not len(members):
                    continue  # of a class without samples nobody lacks any
                break  # every proportion that counts is 0: the next draw
            cuts = (np.cumsum(mix / mix.sum()) * len(members)).astype(np.int64)[:-1]
            clients = [np.concatenate(both) for both in zip(clients, np.split(members, cuts))]
        else:
            if min(map(len, clients)) >= settings.min_samples:
                return _cut(clients, settings, rng)
    raise DataError(
        f"{TRIES} draws left one of {num_clients} clients with less than {settings.min_samples} samples (min-samples), "
        "or nobody to take a class: use fewer clients, a larger dirichlet-alpha or a smaller min-samples"
    )


@partitioner("pfllib-pathological", cuts=True)
def pfllib_pathological(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[Share]:
    """Give each class, in shares of random size, to the first clients that have fewer than S classes.

    A class has ⌈N·S/C⌉ clients. All but the last of them draw a whole number of samples between a tenth of an even
    share and an even share; the last one gets the others. The samples of a class are handed out in their order.
    """
    rng = np.random.RandomState(seed)
    each, classes = settings.classes_per_client, pool.by_class()
    clients: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for members in classes:
        chosen = [mine for mine in clients if len(mine) < each][: math.ceil(num_clients / len(classes) * each)]
        if not chosen:
            break
        even = len(members) / len(chosen)
        low, high = int(max(even / 10, settings.min_samples / len(classes))), int(even)
        if low >= high:
            raise DataError(
                f"a class of {len(members)} samples is too small for {len(chosen)} clients: use fewer clients or a "
                "smaller classes-per-client"
            )
        sizes = rng.randint(low, high, len(chosen) - 1)
        for mine, piece in zip(chosen, np.split(members, np.cumsum(sizes))):
            mine.append(piece)
    for client, mine in enumerate(clients):
        if len(mine) < each:
            message = f"leaves client {client} of {num_clients} with {len(mine)} of the {len(classes)} classes"
            raise ConfigError("classes-per-client", each, message)
    return _cut([np.concatenate(mine) for mine in clients], settings, rng)


def _cut(clients: list[np.ndarray], settings: DataSettings, rng: np.random.RandomState) -> list[Share]:
    """Draw each client's test samples, one client after the other."""
    shares = []
    for mine in clients:
        tests = len(mine) - int((1 - settings.test_fraction) * len(mine))
        order = rng.permutation(len(mine))
        shares.append(Share(mine[order[tests:]], mine[order[:tests]]))
    return shares
