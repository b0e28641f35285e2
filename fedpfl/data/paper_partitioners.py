"""Further divisions, most of them of particular papers; :mod:`fedpfl.data.partitioners` has the usual ones."""

from __future__ import annotations

import numpy as np

from ..core.errors import ConfigError, DataError
from ..core.rng import generator
from .partitioners import Pool, deal_by_class, proportional, top_up
from .registry import partitioner
from .settings import DataSettings

# The five domains of CIFAR-100 by the numbers of their classes (Factorized-FL, appendix C, table of the permutations,
# where the names of a domain's classes stand in another order than their numbers).
DOMAINS = (
    ("Household Objects", (5, 20, 22, 25, 39, 40, 84, 86, 87, 94)),
    ("Fruits & Foods", (0, 9, 10, 16, 28, 51, 53, 57, 61, 83)),
    ("Trees & Flowers", (47, 52, 54, 56, 59, 62, 70, 82, 92, 96)),
    ("Transport", (8, 13, 41, 48, 58, 69, 81, 85, 89, 90)),
    ("Animals", (3, 34, 42, 43, 63, 64, 66, 75, 88, 97)),
)
CIFAR100_CLASSES = 100


@partitioner("dirichlet-client", draws=True)
def dirichlet_client(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[np.ndarray]:
    """Let every client draw a class mix q ~ Dir(α), then a fixed number of samples by q (FedDecomp, section 4.1).

    Of class c a client gets ⌊n·q_c + ½⌋ different samples, or the whole class if it is smaller. Where these numbers sum
    to more than n, the client's list is cut off after n samples in the order of the classes, as in the authors' code;
    where they sum to less, the client ends just under n. So n = ``train_samples`` (``test_samples``) is never exceeded.
    Clients draw from the full pool: two of them can have the same sample. A client's draw does not depend on the number
    of clients.
    """
    classes = pool.by_class()
    sizes = np.array([len(members) for members in classes])
    wanted = settings.test_samples if pool.part == "test" else settings.train_samples
    shares = []
    for client in range(num_clients):
        mix = generator(seed, "class mix", client).dirichlet(np.full(pool.num_classes, settings.dirichlet_alpha))
        rng = generator(seed, "samples", client, pool.part)
        up_to_here = np.minimum((wanted * mix + 0.5).astype(np.int64), sizes).cumsum()
        takes = np.diff(np.minimum(up_to_here, wanted), prepend=0)
        drawn = [rng.choice(members, take, replace=False) for members, take in zip(classes, takes) if take]
        shares.append(np.concatenate(drawn) if drawn else np.empty(0, np.int64))
    return shares


@partitioner("dirichlet-classes")
def dirichlet_classes(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[np.ndarray]:
    """Give every client S classes (``classes_per_client``), and cut each class in proportions drawn from Dir(α).

    The classes are chosen as ``pathological`` chooses them. Clients that lack ``min_samples`` get samples of their own
    classes from the client that has most of these.
    """
    rng = generator(seed, "partition")
    has = np.stack([np.bincount(pool.labels[mine], minlength=pool.num_classes) > 0
                    for mine in pathological(pool, num_clients, settings, seed)], axis=1)  # fmt: skip
    sizes = np.bincount(pool.labels, minlength=pool.num_classes)
    counts = np.zeros_like(has, np.int64)
    for label, size in enumerate(sizes):
        members = np.flatnonzero(has[label])
        if len(members):
            mix = rng.dirichlet(np.full(len(members), settings.dirichlet_alpha))
            counts[label, members] = proportional(np.array([size]), mix[None])[0]
    for client in np.flatnonzero(counts.sum(axis=0) < settings.min_samples):
        classes = np.flatnonzero(has[:, client])
        while counts[:, client].sum() < settings.min_samples:
            spare = np.where(counts.sum(axis=0) > settings.min_samples, counts[classes], 0)
            if not spare.any():
                raise DataError(f"the classes of client {client} have too few samples for min-samples = "
                                f"{settings.min_samples}: use a smaller one or fewer clients")  # fmt: skip
            place, donor = np.unravel_index(int(spare.argmax()), spare.shape)
            counts[classes[place], [client, donor]] += (1, -1)
    return deal_by_class(pool.by_class(rng), counts)


@partitioner("dirichlet-equal")
def dirichlet_equal(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[np.ndarray]:
    """Let every client draw a class mix q ~ Dir(α), and give all the same number of samples (± 1), none twice.

    The clients draw one sample after the other in turn, by q over the classes that have samples left.
    """
    rng = generator(seed, "partition")
    left = np.bincount(pool.labels, minlength=pool.num_classes)
    mix = rng.dirichlet(np.full(pool.num_classes, settings.dirichlet_alpha), size=num_clients)
    counts = np.zeros((pool.num_classes, num_clients), np.int64)
    for turn in range(len(pool.labels)):
        client = turn % num_clients
        shares = mix[client] * (left > 0)
        shares = np.cumsum(shares if shares.sum() > 0 else left)
        chosen = int(np.searchsorted(shares, rng.random() * shares[-1], side="right"))
        counts[chosen, client] += 1
        left[chosen] -= 1
    return deal_by_class(pool.by_class(rng), counts)


@partitioner("dirichlet-sizes")
def dirichlet_sizes(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[np.ndarray]:
    """Shuffle the samples and cut them in proportions drawn from Dir(α): sizes differ, mixes of classes do not.

    Clients that lack ``min_samples`` get samples of the largest one.
    """
    rng = generator(seed, "partition")
    n, least = len(pool.labels), settings.min_samples
    if n < least * num_clients:
        raise DataError(f"{n} samples cannot give {num_clients} clients {least} each (min-samples)")
    mix = rng.dirichlet(np.full(num_clients, settings.dirichlet_alpha))[None]
    counts = top_up(proportional(np.array([n]), mix), least, np.zeros((1, num_clients), np.int64))
    return np.split(rng.permutation(n), np.cumsum(counts[0])[:-1])


@partitioner("pathological")
def pathological(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[np.ndarray]:
    """Give every client exactly S classes (``classes_per_client``), each class cut into equal shards (FedFac).

    1. Of the N·S shards every class gets ⌊N·S/C⌋ or one more (which ones is random), but never more than it has samples
       or there are clients.
    2. One client after the other takes a shard of the S classes with the most shards left, ties in random order. That
       never runs out: it is the one rule under which N clients always find S different classes.
    3. The clients are shuffled, the samples of each class too, and handed out.

    All classes are used if N·S ≥ C; otherwise the samples of C − N·S classes, drawn at random, are left out.
    """
    rng = generator(seed, "partition")
    each = settings.classes_per_client
    sizes = np.bincount(pool.labels, minlength=pool.num_classes)
    present = int((sizes > 0).sum())
    if each > present:
        raise ConfigError("classes-per-client", each, f"must be at most {present}, the number of classes in the data")
    limit = np.minimum(sizes, num_clients)
    if limit.sum() < num_clients * each:
        raise DataError(
            f"the data have samples for {int(limit.sum())} shards, {num_clients} clients with {each} classes each need "
            f"{num_clients * each}: use fewer clients or a smaller classes-per-client"
        )
    shards = np.zeros(pool.num_classes, np.int64)
    while shards.sum() < num_clients * each:
        room = rng.permutation(np.flatnonzero(shards < limit))
        shards[room[: num_clients * each - shards.sum()]] += 1
    has = np.zeros((pool.num_classes, num_clients), np.int64)
    left = shards.copy()
    for client in rng.permutation(num_clients):
        chosen = np.lexsort((rng.random(pool.num_classes), left))[-each:]
        left[chosen] -= 1
        has[chosen, client] = 1
    classes = pool.by_class(rng)
    counts = np.zeros_like(has)
    for label in np.flatnonzero(shards):
        pieces = np.array_split(classes[label], shards[label])
        counts[label, has[label] > 0] = rng.permutation([len(piece) for piece in pieces])
    return deal_by_class(classes, counts)


def _domain(client: int, num_clients: int) -> tuple[int, ...]:
    return DOMAINS[client * len(DOMAINS) // num_clients][1]


@partitioner("domains", tasks=_domain)
def domains(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[np.ndarray]:
    """Give CIFAR-100's five domains of ten classes to a fifth of the clients each (Factorized-FL, appendix B.2).

    The first fifth of the clients gets Household Objects, then come Fruits & Foods, Trees & Flowers, Transport and
    Animals. The samples of a domain are shuffled and cut into equal shares: 1,500 each with 20 clients, of which
    ``test-fraction = 0.2`` leaves 1,200 for training.
    """
    if pool.num_classes != CIFAR100_CLASSES:
        raise ConfigError("partitioner", "domains", f"needs the 100 classes of CIFAR-100, not {pool.num_classes}")
    if num_clients % len(DOMAINS):
        raise ConfigError("num-clients", num_clients, 'must be a multiple of 5 for partitioner = "domains"')
    shares = []
    for number, (_, classes) in enumerate(DOMAINS):
        members = np.flatnonzero(np.isin(pool.labels, classes))
        shuffled = generator(seed, "domain", number).permutation(members)
        shares += np.array_split(shuffled, num_clients // len(DOMAINS))
    return shares
