"""Data sets and partitioners by name; the files that register them are imported when a name is asked for."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Sequence

from ..core import references
from ..core.registry import Registry


class DatasetInfo(NamedTuple):
    """One row of ``fedpfl datasets``."""

    name: str
    description: str
    size: str
    classes: str
    shape: str
    source: str
    download: bool
    owned: bool
    from_path: bool


# Makes a data set of the settings of the data.
Loader = Callable[[Any], Any]
DATASETS: Registry[tuple[DatasetInfo, Loader]] = Registry(
    "data set",
    sort=False,
    files=[
        ("fedpfl.data.datasets.npz", "npz"),
        ("fedpfl.data.datasets.folder", "image-folder"),
        ("fedpfl.data.datasets.table", "table series"),
        ("fedpfl.data.datasets.huggingface", "huggingface"),
        ("fedpfl.data.datasets.client_files", "clients"),
        ("fedpfl.data.datasets.digits", "digits"),
        ("fedpfl.data.datasets.published", "mnist fashion-mnist emnist cifar10 cifar100 svhn"),
        ("fedpfl.data.datasets.folder", "tiny-imagenet"),
        ("fedpfl.data.datasets.text", "shakespeare ag-news"),
    ],
)


def dataset(
    name: str,
    *,
    description: str,
    shape: str,
    source: str,
    size: str = "any",
    classes: str = "any",
    download: bool = False,
    owned: bool = False,
    from_path: bool = False,
) -> Callable[[Loader], Loader]:
    """Register a loader under ``name``; the words are shown by ``fedpfl datasets``.

    Parameters
    ----------
    name : str
        The value of the setting ``dataset``.
    description, shape, source, size, classes : str
        What it is, height×width×channels, where it comes from, samples (training + test), number of classes.
    download : bool
        Whether files have to be fetched before it can be used.
    owned : bool
        Whether it may say who owns a sample.
    from_path : bool
        Whether it is read from the path in the setting ``data``.
    """
    info = DatasetInfo(name, description, size, classes, shape, source, download, owned, from_path)
    return DATASETS.add(name, lambda loader: (info, loader))


def dataset_names() -> list[str]:
    """Return the names of all data sets: those that read a user's own data first, those of installed packages last."""
    return [*DATASETS, *(name for name in references.entry_point_names("dataset") if name not in DATASETS)]


def table() -> list[DatasetInfo]:
    """Return the description of every data set, in the order of :func:`dataset_names`."""
    return [DATASETS[name][0] for name in dataset_names()]


def is_own(name: str) -> bool:
    """Tell a user's own data from published data sets."""
    return references.is_custom("dataset", name) or DATASETS[name][0].from_path


# Chooses among the partitioners, or the kinds of split, by the data.
AUTO = "auto"
# Begins the name of a partitioner of flwr-datasets, and what errors call its form.
FLOWER, FLOWER_FORM = "flwr:", "flwr:NAME(OPTION=VALUE, …) for one of flwr-datasets"


def is_flower(text: str) -> bool:
    """Tell whether a partitioner is one of ``flwr-datasets``."""
    return text.startswith(FLOWER)


# (samples to divide, number of clients, settings, seed) → the positions of each client's samples, or its training and
# its test samples.
Partitioner = Callable[[Any, int, Any, int], List[Any]]
# (client, number of clients) → the classes that are this client's task, in the order in which it numbers them.
Tasks = Callable[[int, int], Sequence[int]]


class PartitionerEntry(NamedTuple):
    """The entry of a partitioner; see :func:`partitioner`."""

    deal: Partitioner
    draws: bool
    cuts: bool
    tasks: Tasks | None


PARTITIONERS: Registry[PartitionerEntry] = Registry(
    "partitioner",
    sort=False,
    files=[
        ("fedpfl.data.partitioners", "iid dirichlet"),
        (
            "fedpfl.data.paper_partitioners",
            "dirichlet-client dirichlet-classes dirichlet-equal dirichlet-sizes pathological",
        ),
        ("fedpfl.data.partitioners", "natural"),
        ("fedpfl.data.paper_partitioners", "domains"),
        ("fedpfl.data.pfllib", "pfllib-dirichlet pfllib-pathological"),
    ],
)


def partitioner(
    name: str, *, draws: bool = False, cuts: bool = False, tasks: Tasks | None = None
) -> Callable[[Partitioner], Partitioner]:
    """Register a partitioner.

    Parameters
    ----------
    name : str
        The value of the setting ``partitioner``.
    draws : bool
        The partitioner draws training and test samples by itself: it is called once with the training and once with
        the test samples instead of once with all.
    cuts : bool
        The partitioner cuts each client's samples into training and test samples by itself and returns both.
    tasks : callable, optional
        Tells which classes each client has to tell apart, where these are not all classes of the data set. The client's
        labels are then their places in that list.
    """
    return PARTITIONERS.add(name, lambda deal: PartitionerEntry(deal, draws, cuts, tasks))
