"""Dividing a data set among clients.

A partitioner gets the labels of a pool of samples and returns, for each client, the positions of its samples. To add
one, write one function::

    @partitioner("my-way")
    def my_way(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> List[np.ndarray]:
        '''One sentence for the documentation.'''

Everything here is plain NumPy and follows from the seed alone, so that every process works out the same division
without being told.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, NamedTuple, Sequence

import numpy as np

from ..core.errors import ConfigError, DataError, printable
from ..core.metrics import IN_WORDS, TARGETS
from ..core.rng import generator
from .dataset import Dataset
from .registry import AUTO, PARTITIONERS, PartitionerEntry, is_flower, is_own, partitioner
from .settings import DataSettings

# Draws of the class-wise Dirichlet before samples are moved, and the share of samples that may be moved.
TRIES, MOVABLE = 100, 0.05
# Factorized-FL numbers the classes of client i with this seed + i (appendix B.1).
LABEL_SEED = 1234
# Owners that a remark names.
MAX_NAMED = 10


@dataclass(frozen=True)
class Pool:
    """The samples that a partitioner divides, known by their labels (int64).

    ``owners`` has the natural client of each sample, −1 for nobody; ``part`` tells which samples these are: ``train``,
    ``test`` or ``all``; ``overlap`` is the data set's.
    """

    labels: np.ndarray
    num_classes: int
    owners: np.ndarray | None = None
    part: str = "all"
    overlap: int = 0

    def by_class(self, rng: np.random.Generator | None = None) -> list[np.ndarray]:
        """Return the positions of each class's samples, shuffled if ``rng`` is given."""
        order = np.argsort(self.labels, kind="stable")
        ends = np.cumsum(np.bincount(self.labels, minlength=self.num_classes))[:-1]
        classes = np.split(order, ends)
        return classes if rng is None else [rng.permutation(members) for members in classes]


class Share(NamedTuple):
    """One client's samples: ascending positions in the training set followed by the test set."""

    train: np.ndarray
    test: np.ndarray


# -- partitioners ------------------------------------------------------------------------------------------------------


@partitioner("iid")
def iid(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[np.ndarray]:
    """Shuffle the samples and give every client the same number (± 1)."""
    return np.array_split(generator(seed, "partition").permutation(len(pool.labels)), num_clients)


@partitioner("dirichlet")
def dirichlet(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[np.ndarray]:
    """Cut each class among the clients in proportions drawn from Dir(α) (FedReG, Factorized-FL and most others).

    All proportions are drawn again, up to 100 times, until every client has ``min_samples``. With many clients or a
    small α no draw may do that; then the draw that lacks the fewest samples is completed: a client with too few gets
    samples of the classes that it has most of, from the client that has most of that class. At most 5 % of the samples
    are moved this way; a federation that needs more is refused.
    """
    rng = generator(seed, "partition")
    sizes = np.bincount(pool.labels, minlength=pool.num_classes)
    counts = _dirichlet_counts(sizes, num_clients, settings, rng)
    if counts is None:
        fits = num_clients  # look for a number that works with this very seed
        while counts is None and fits > 1:
            fits = int(fits * 0.9)
            counts = _dirichlet_counts(sizes, fits, settings, generator(seed, "partition"))
        advice = "more samples" if counts is None else f"{fits} clients"
        raise DataError(
            f"{len(pool.labels)} samples cannot give {num_clients} clients {settings.min_samples} each (min-samples) "
            f"with dirichlet-alpha {settings.dirichlet_alpha:g}: use {advice}, a larger "
            "dirichlet-alpha or a smaller min-samples"
        )
    return deal_by_class(pool.by_class(rng), counts)


def _dirichlet_counts(
    sizes: np.ndarray, num_clients: int, settings: DataSettings, rng: np.random.Generator
) -> np.ndarray | None:
    """Draw how many samples of each class (rows) each client (columns) gets; None if the data do not suffice."""
    least, total = settings.min_samples, int(sizes.sum())
    best, best_lack = np.empty(0, np.int64), total + 1
    if total < least * num_clients:
        return None
    for _ in range(TRIES):
        mix = rng.dirichlet(np.full(num_clients, settings.dirichlet_alpha), size=len(sizes))
        counts = proportional(sizes, mix)
        lack = int(np.maximum(least - counts.sum(axis=0), 0).sum())
        if lack < best_lack:
            best, best_lack = counts, lack
        if lack == 0:
            break
    return top_up(best, least, best) if best_lack <= MOVABLE * total else None


def proportional(sizes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Cut ``sizes[c]`` samples at the cumulated ``shares[c]``; rows of the result sum to ``sizes``."""
    cuts = (np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
    cuts = np.minimum(cuts, sizes[:, None])
    cuts[:, -1] = sizes  # the sum of the shares may fall short of one by a rounding error
    return np.diff(cuts, axis=1, prepend=0)


def top_up(counts: np.ndarray, least: int, liking: np.ndarray) -> np.ndarray:
    """Move samples, one at a time, until every client (column) has ``least``.

    A client takes from the class that it has most of in ``liking``, and from whoever has most of that class.
    """
    counts = counts.copy()
    sizes = counts.sum(axis=0)
    for client in np.flatnonzero(sizes < least):
        while sizes[client] < least:
            spare = np.where(sizes > least, counts, 0)
            taste = np.where(spare.any(axis=1), liking[:, client] + 1, 0)
            chosen = np.lexsort((spare.sum(axis=1), taste))[-1]
            donor = spare[chosen].argmax()
            counts[chosen, [client, donor]] += (1, -1)
            sizes[[client, donor]] += (1, -1)
    return counts


def deal_by_class(classes: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Hand out each class's positions, ``counts[c, i]`` of class c to client i; the rest is not used."""
    pieces = [np.split(members[: row.sum()], np.cumsum(row)[:-1]) for members, row in zip(classes, counts)]
    return [np.concatenate(mine) for mine in zip(*pieces)]


@partitioner("natural")
def natural(pool: Pool, num_clients: int, settings: DataSettings, seed: int) -> list[np.ndarray]:
    """Give every client the samples of one person, device or writer, as the data set says (its array ``client``).

    Owners with fewer than ``min_samples`` samples are left out; of the others the first ``num_clients`` are taken.
    """
    if pool.owners is None:
        raise ConfigError(
            "partitioner", "natural", "needs data that name the owner of each sample (an array client in an npz file)"
        )
    everybody = _by_owner(pool.owners)
    enough = [mine for mine, fits in zip(everybody, _have_enough(everybody, pool.overlap, settings)) if fits]
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


def _have_enough(everybody: Sequence[np.ndarray], overlap: int, settings: DataSettings) -> list[bool]:
    """Tell of each owner whether enough of its samples count: a cut by time leaves out those that overlap."""
    sizes = [*map(len, everybody)]
    counts = kept(sizes, overlap, settings) if settings.split == "time" else sizes
    return [count >= settings.min_samples for count in counts]


def _apart(overlap: int, settings: DataSettings) -> str:
    """Return the words of errors and remarks for samples that do not overlap; nothing where all samples count."""
    return " in parts that do not overlap" if settings.split == "time" and overlap else ""


def _by_owner(owners: np.ndarray) -> list[np.ndarray]:
    """Return the positions of each owner's samples, by the owner's number; samples without an owner are left out."""
    order = np.argsort(owners, kind="stable")
    order = order[owners[order] >= 0]
    return np.split(order, np.flatnonzero(np.diff(owners[order])) + 1) if len(order) else []


def natural_clients(train: np.ndarray, test: np.ndarray | None, overlap: int, settings: DataSettings) -> int:
    """Return the number of owners that can be clients: those with at least ``min_samples`` that count.

    ``train`` and ``test`` have the owner of each sample; ``test`` counts with ``split = "mixed"``.
    """
    separate = test is not None and settings.split == "given"
    counted = train if test is None or separate else np.concatenate([train, test])
    enough = sum(_have_enough(_by_owner(counted), overlap, settings))
    return enough + len(only_tested(train, test, settings) if separate and test is not None else ())


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
    everybody = _by_owner(counted)
    fits = _have_enough(everybody, data.overlap, settings)
    few = [int(counted[mine[0]]) for mine, enough in zip(everybody, fits) if not enough]
    if not few:
        return []
    names = [printable(data.client_names[owner], 40) if data.client_names else str(owner) for owner in few[:MAX_NAMED]]
    shown = ", ".join(names) + (", …" if len(few) > MAX_NAMED else "")
    have = "has" if len(few) == 1 else "have"
    samples = f"samples{_apart(data.overlap, settings)}"
    return [f"{data.name}: {len(few)} of {len(everybody)} owners {have} fewer than min-samples = "
            f"{settings.min_samples} {samples} and {'is' if len(few) == 1 else 'are'} left out: {shown}"]  # fmt: skip


# -- from a data set to shares -----------------------------------------------------------------------------------------


def partition(data: Dataset, settings: DataSettings, num_clients: int, seed: int) -> list[Share]:
    """Divide a data set among clients, each with training and test samples; the same seed makes the same shares.

    With ``split = "mixed"`` the pool of all samples is divided and each share cut at random by ``test_fraction``
    (``dirichlet-client`` draws from a pool that is cut once for all clients, so that no client is tested with what
    another one learns from). With ``split = "given"`` the training set is divided, and of each class of the test set a
    client gets the share that it has of the class's training samples; for ``natural``, its owner's test samples if the
    data name their owners.
    """
    settings = without_auto(settings, data.client_train is not None, data.y_test is not None)
    _check(data, settings, num_clients, seed)
    if data.has_targets:
        data = _as_one_class(data, settings)
    chosen = _entry(settings)
    separate = settings.split == "given"
    y_test = data.y_test if data.y_test is not None else np.empty(0, np.int64)
    labels, owners = np.concatenate([data.y_train, y_test]), all_owners(data)
    n_train, everything = len(data.y_train), np.arange(len(labels))

    held = np.flatnonzero(data.validation) if data.validation is not None else everything[:0]
    learnt = np.setdiff1d(everything[:n_train], held)

    def deal(positions: np.ndarray, which: str, clients: int = num_clients) -> list[np.ndarray]:
        theirs = None if owners is None else owners[positions]
        pool = Pool(labels[positions], data.num_classes, theirs, which, data.overlap)
        return [positions[np.sort(mine)] for mine in chosen.deal(pool, clients, settings, seed)]

    if chosen.cuts:
        dealt = chosen.deal(Pool(labels, data.num_classes, owners), num_clients, settings, seed)
        shares = [Share(*(np.sort(part) for part in both)) for both in dealt]
    elif chosen.draws:
        cut = Share(learnt, everything[n_train:])
        cut = (
            cut
            if separate
            else cut_share(everything, settings, seed, labels=labels, overlap=data.overlap, groups=data.groups)
        )
        shares = [Share(*both) for both in zip(deal(cut.train, "train"), deal(cut.test, "test"))]
    elif separate:
        shares = _with_test_set(data, settings, num_clients, seed, partial(deal, learnt, "train"))
    else:
        dealt = deal(everything, "all")
        shares = [
            cut_share(mine, settings, seed, i, labels[mine], data.overlap, data.groups) for i, mine in enumerate(dealt)
        ]
    if len(held):
        shares = _with_validation(shares, data, settings, seed)
    _check_shares(shares, settings, data)
    return shares


def _with_test_set(
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
    shares = [Share(mine, n_train + np.flatnonzero(data.client_test == owners[mine[0]])) for mine in train]
    shares += [Share(np.arange(0), n_train + np.sort(mine)) for mine in only]
    return sorted(shares, key=lambda share: int(owners[np.concatenate(share)[0]]))[:num_clients]


def _with_validation(shares: list[Share], data: Dataset, settings: DataSettings, seed: int) -> list[Share]:
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
    used = test_sizes * (total[:, 0] > 0)
    if used.sum() < len(labels):
        usable = f" of classes that a client trains on, of {len(y_test)}," * (int(used.sum()) < len(y_test))
        raise DataError(
            f"{data.name}: {int(used.sum())} {part} samples{usable} cannot be divided among {len(labels)} clients: use "
            'split = "mixed" or fewer clients'
        )
    dealt = top_up(proportional(used, counts / np.maximum(total, 1)), 1, counts)
    classes = Pool(y_test, data.num_classes).by_class(generator(seed, f"matching {part} samples"))
    return [np.sort(mine) for mine in deal_by_class(classes, dealt)]


def _entry(settings: DataSettings) -> PartitionerEntry:
    if is_flower(settings.partitioner):
        from fedpfl.data.flower_datasets import deal

        return PartitionerEntry(deal, draws=False, cuts=False, tasks=None)
    return PARTITIONERS[settings.partitioner]


def without_auto(settings: DataSettings, owned: bool, tested: bool) -> DataSettings:
    """Put a partitioner and a kind of split in the place of ``auto``.

    ``owned``: the data say who owns a sample. ``tested``: they have a test set, which nobody trains on if it is a
    user's.
    """
    if settings.partitioner == AUTO:
        settings = replace(settings, partitioner="natural" if owned else "dirichlet")
    if settings.split == AUTO:
        keeps = tested and is_own(settings.dataset) and not _entry(settings).cuts
        settings = replace(settings, split="given" if keeps else "mixed")
    return settings


def cut_share(
    positions: np.ndarray, settings: DataSettings, seed: int, client: int = 0, labels: np.ndarray | None = None,
    overlap: int = 0, groups: np.ndarray | None = None,
) -> Share:  # fmt: skip
    """Cut one client's samples into training and test samples by ``test_fraction``, at least one of each.

    ``split = "stratified"`` uses the samples' ``labels``, and ``split = "time"`` the data set's ``overlap``.
    """
    return Share(*_cut(positions, "test", settings, seed, client, labels, overlap, groups))


def cut_validation(
    positions: np.ndarray, settings: DataSettings, seed: int, client: int, labels: np.ndarray | None = None,
    overlap: int = 0, groups: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Cut ``validation_fraction`` of a client's training samples off; return both parts, ascending.

    At least one sample stays on either side; of a single one none is taken.
    """
    return _cut(positions, "validation", settings, seed, client, labels, overlap, groups)


def held_out(n: int, share: float) -> int:
    """Return the number of samples that a share of n is, at least one and not all."""
    return min(max(int(n * share + 0.5), 1), max(n - 1, 0)) if share else 0


def _cut(
    positions: np.ndarray, what: str, settings: DataSettings, seed: int, client: int, labels: np.ndarray | None,
    overlap: int, groups: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Cut a client's samples for tests or validation off, as ``split`` says: at random, by class, or the last ones."""
    n, share = len(positions), settings.test_fraction if what == "test" else settings.validation_fraction
    if not (count := held_out(n, share)):
        return positions, positions[:0]
    if settings.split == "time":
        # Windows that share rows with the first one that is cut off belong to neither part.
        apart = first_apart(n, count, overlap, settings, client, what)
        return positions[:apart], positions[n - count :]
    rng = generator(seed, f"{what} split", client)
    if groups is not None:
        off = _whole_groups(groups[positions], count, rng, f"client {client}", what)
        return positions[~off], positions[off]
    order = rng.permutation(n)
    if settings.split == "stratified" and labels is not None and labels.ndim == 1:
        order = order[np.argsort(labels[order], kind="stable")]
        drawn = ((np.arange(count) + rng.random()) * n / count).astype(np.int64)  # evenly over the sorted classes
        order = np.concatenate([order[drawn], np.delete(order, drawn)])
    return positions[np.sort(order[count:])], positions[np.sort(order[:count])]


def _whole_groups(groups: np.ndarray, count: int, rng: np.random.Generator, whose: str, what: str) -> np.ndarray:
    """Choose whole groups of about so many samples, at least one group and not all."""
    numbers = np.unique(groups, return_inverse=True)[1].reshape(-1)
    order = rng.permutation(int(numbers.max()) + 1)
    if len(order) < 2:
        raise DataError(f"{whose} has samples of one group alone (group-column): none can be cut off for {what}")
    sizes = np.bincount(numbers)[order].cumsum()[:-1]
    return np.isin(numbers, order[: int(np.abs(sizes - count).argmin()) + 1])


def task_of(settings: DataSettings, client: int, num_clients: int) -> np.ndarray | None:
    """Return the classes that ``client`` has to tell apart, in its order; None where they are those of the data set."""
    tasks = _entry(settings).tasks
    return None if tasks is None else np.array(tasks(client, num_clients), np.int64)


def all_owners(data: Dataset) -> np.ndarray | None:
    """Return the owner of each sample, of the training set followed by the test set; −1 for nobody."""
    if data.client_train is None:
        return None
    owners = np.full(len(data.y_train) + (0 if data.y_test is None else len(data.y_test)), -1, np.int64)
    owners[: len(data.client_train)] = data.client_train
    if data.client_test is not None:
        owners[len(data.client_train) :] = data.client_test
    return owners


def _as_one_class(data: Dataset, settings: DataSettings) -> Dataset:
    """Return data that have no classes as if all samples were of one, for partitioners that do not look at them."""
    if settings.partitioner not in ("iid", "natural", "dirichlet-sizes"):
        has = IN_WORDS[data.label_kind]
        message = f"divides by classes, but {data.name} has {has}: use iid, natural or dirichlet-sizes"
        if data.label_kind == TARGETS and not settings.targets:
            message += "; labels of classes are whole numbers or names"
        raise ConfigError("partitioner", settings.partitioner, message)
    test = None if data.y_test is None else np.zeros(len(data.y_test), np.int64)
    return replace(data, y_train=np.zeros(len(data.y_train), np.int64), y_test=test, num_classes=1, class_names=())


def _check(data: Dataset, settings: DataSettings, num_clients: int, seed: int) -> None:
    if num_clients < 1:
        raise ConfigError("num-clients", num_clients, "must be at least 1")
    if seed < 0:
        raise ConfigError("seed", seed, "must be at least 0")
    if settings.partitioner not in PARTITIONERS and not is_flower(settings.partitioner):
        raise ConfigError("partitioner", settings.partitioner, "must be one of " + ", ".join(PARTITIONERS))
    if settings.split == "time" and data.y_test is not None:
        message = f'cuts the last samples of each client off for tests, but {data.name} has a test set: use "given"'
        raise ConfigError("split", "time", message)
    if settings.split == "given" and data.y_test is None:
        raise ConfigError("split", "given", f'{data.name} has no separate test set, use "mixed"')
    if settings.split != "mixed" and _entry(settings).cuts:
        message = f'must be "mixed" for partitioner = "{settings.partitioner}", which cuts one pool of samples itself'
        raise ConfigError("split", settings.split, message)
    if settings.split != "given" and data.validation is not None:
        message = f'must be "given" for {data.name}, which has a validation part next to its test set'
        raise ConfigError("split", settings.split, message)
    if data.groups is not None and (settings.partitioner != "natural" or settings.split in ("stratified", "time")):
        if settings.partitioner != "natural":
            message = "must be natural with group-column: others give samples of one group to several clients"
            raise ConfigError("partitioner", settings.partitioner, message)
        raise ConfigError("split", settings.split, 'must be "mixed" or "given" with group-column')
    if data.groups is not None and settings.split == "given":
        training, test = np.split(data.groups, [len(data.y_train)])
        twice = len(np.intersect1d(training, test))
    else:
        twice = 0
    if twice:
        raise DataError(f"{data.name}: {twice} groups (group-column) are in the training and in the test set")


def _check_shares(shares: list[Share], settings: DataSettings, data: Dataset) -> None:
    separate = settings.split == "given"
    if separate and settings.partitioner == "natural" and data.client_test is not None:
        for part, what in enumerate(("trains", "is tested")):
            if not any(len(share[part]) for share in shares):
                raise DataError(f"{data.name}: no client {what}: none of them has samples for it")
        return  # owners may have samples of one part alone
    sizes = [len(share.train) + (0 if separate else len(share.test)) for share in shares]
    smallest = int(np.argmin(sizes))
    if sizes[smallest] < settings.min_samples:
        what = "training samples" if separate else "samples"
        raise DataError(
            f"{data.name}: client {smallest} of {len(shares)} would have {sizes[smallest]} {what}, min-samples is "
            f"{settings.min_samples}: use fewer clients or a smaller min-samples"
        )
    for client, share in enumerate(shares):
        if not len(share.train) or not len(share.test):
            kind = "training" if not len(share.train) else "test"
            raise DataError(f'{data.name}: client {client} would have no {kind} samples: use split = "mixed"')


# -- samples that are cut from one series or text, and share rows or characters with the next ones ---------------------


def overlap_of(length: int, step: int) -> int:
    """Return the number of samples after one that overlap with it, of ``length`` rows every ``step`` rows."""
    return max(0, -(-length // step) - 1)


def first_apart(n: int, count: int, overlap: int, settings: DataSettings, client: int, what: str) -> int:
    """Return the number of the first of a client's n samples that share nothing with the last ``count``.

    ``what`` is the purpose of the last ones: ``test`` or ``validation``.
    """
    if n - count <= overlap:
        mine, smaller = ("training samples", "a smaller validation-fraction, ") if what != "test" else ("samples", "")
        raise DataError(
            f'split = "time": client {client} has {n} {mine}, of which the last {count} are cut off for {what} and all '
            f"others overlap with these: use {smaller}{larger_step(settings, ', ')}fewer clients or longer series"
        )
    return n - count - overlap


def larger_step(settings: DataSettings, end: str) -> str:
    """Return an error's advice to let samples overlap less; nothing where ``window-step`` is not set."""
    return f"a larger window-step (now {settings.window_step}){end}" if settings.window_step else ""


def kept(sizes: Sequence[int], overlap: int, settings: DataSettings) -> list[int]:
    """Return the number of each owner's samples that a cut by time keeps; 0 where it leaves none to train on."""

    def of_owner(left: int) -> int:
        count = left - overlap
        for share in (settings.test_fraction, settings.validation_fraction):
            off = held_out(left, share)
            left -= off + overlap if off else 0
        return count if left > 0 else 0

    return [of_owner(size) for size in sizes]


def overlap_remark(data: Dataset) -> str:
    """Return a line on overlapping samples that are divided into training and test at random."""
    samples, parts = ("texts", "characters") if data.vocabulary else ("windows", "rows")
    if data.y_test is not None:
        way = 'split = "given"'
    else:
        way = 'split = "time" or ' + ("a larger window-step" if data.vocabulary else "a column split")
    return (
        f"{data.name}: {samples} overlap, so test {samples} share {parts} with training {samples}; {way} keeps them "
        "apart"
    )


def label_permutation(client: int, num_classes: int) -> np.ndarray:
    """Return the numbering of the classes that Factorized-FL gives to client ``client``, counted from 0 (appendix B.1).

    y becomes ``result[y]``, the list 0 … C−1 shuffled by Python's generator with seed 1234 + ``client``.
    """
    order = list(range(num_classes))
    random.Random(LABEL_SEED + client).shuffle(order)
    return np.array(order, np.int64)
