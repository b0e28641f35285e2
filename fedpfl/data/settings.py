"""The settings that say which data the clients get."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..core import custom
from ..core.settings import Value, items, setting
from .pixels import HALF, NORMALIZATIONS
from .registry import AUTO, PARTITIONERS, dataset_names

# Settings that only some partitioners, or one kind of split, use. "auto" may be any of the first two.
_OF_PARTITIONERS = {
    "dirichlet-alpha": (AUTO, "dirichlet", "dirichlet-client", "pfllib-dirichlet"),
    "classes-per-client": ("pathological", "pfllib-pathological"),
    "train-samples": ("dirichlet-client",),
    "test-samples": ("dirichlet-client",),
}
_OF_SPLITS = {"test-fraction": "mixed"}
# What a division file replaces.
_OF_DIVIDING = ("partitioner", "split", "partition-seed", *_OF_PARTITIONERS, *_OF_SPLITS)
# Settings that only some kinds of a user's own data use.
_TABLES = ("table", "series", "huggingface", "clients")
_SERIES = ("series", "clients")
_OF_DATASETS = {
    "text-step": ("shakespeare",),
    "impute": ("table", "series", "clients"),
    "image-size": ("image-folder", "huggingface", "clients"),
    "num-classes": ("npz", *_TABLES),
    "label-column": _TABLES,
    "client-column": _TABLES,
    "split-column": _TABLES,
    "ignore-columns": _TABLES,
    "class-names": _TABLES,
    "window-column": _SERIES,
    "window-length": _SERIES,
    "window-step": _SERIES,
}
# What decides how a data set is read, before it is divided.
READING = ("dataset", "data", "data-dir", *_OF_DATASETS)
# Where the data lie; the number of clients, which may be left to the nodes; what is made of the samples.
_NEVER = ("data-dir", "num-clients", "normalize", "test-on")


@dataclass(frozen=True)
class DataSettings:
    """Which data set, and how it is divided among the clients (the doc string of a field is its documentation)."""

    dataset: str = setting(
        "digits",
        "Data set; `fedpfl datasets` lists them: `npz`, `image-folder`, `table`, `series`, `huggingface` and `clients` "
        "read your own.",
        choices=dataset_names,
        open_to={custom.FORM: custom.is_reference},
    )
    data: str = setting(
        "",
        'Path of your own data: the file or the folder for dataset = "npz" and the others that read your own; a data '
        "set of your own gets it, too.",
    )
    data_dir: str = setting(
        "~/.fedpfl/data",
        "Folder in which data sets are looked for (as torchvision stores them, or as `<name>.npz`) "
        "and into which they are downloaded.",
    )
    normalize: str = setting(
        HALF,
        "How pixels of images are scaled: to −1 … 1 (half), or by mean and deviation of each of three channels "
        "(cifar-100: 0.507, 0.487, 0.441 and 0.267, 0.256, 0.276, as FedDecomp's authors do for CIFAR-100 and Tiny "
        "ImageNet).",
        choices=tuple(NORMALIZATIONS),
    )
    standardize: str = setting(
        "none",
        "Bring each feature or channel to mean 0 and deviation 1: by the client's own training samples (client), or by "
        "those of all clients (all), for which these two numbers of each feature would leave the clients of a real "
        "federation. Not for images and texts.",
        choices=("none", "client", "all"),
    )
    impute: str = setting(
        "refuse",
        "What happens to empty cells among the features of tables and series: they are an error (refuse), or become "
        "the mean of the client's own training samples, 0 where it has none (mean).",
        choices=("refuse", "mean"),
    )
    image_size: int = setting(
        0,
        "Pixels of a side to which images of folders and of Hugging Face data sets are brought: the largest square in "
        "the middle is scaled. 0: they must have one size.",
        minimum=0,
        maximum=4096,
    )
    text_step: int = setting(
        80,
        "Characters between the starts of two samples, if running text is cut into samples of 80 characters "
        "(shakespeare.json). LEAF uses 1, with which training and test samples overlap.",
        minimum=1,
    )
    label_column: str = setting("label", "Column of a table that has the label.")
    client_column: str = setting(
        "client", "Column of a table that says who owns a row; a table need not have the default one."
    )
    split_column: str = setting(
        "split", "Column of a table that says train or test; a table need not have the default one."
    )
    ignore_columns: str = setting(
        "", "Columns of a table that are not features, separated by commas, such as row numbers and remarks."
    )
    class_names: str = setting(
        "",
        "Names of the classes of a table in their order, separated by commas; empty: the labels' own, sorted. Devices "
        "that hold their own tables with names as labels need it.",
    )
    window_column: str = setting(
        "window",
        "Column of a series that says to which window a row belongs; a table need not have the default one.",
    )
    window_length: int = setting(
        0, "Rows of a window, if a series has no window column; 0: it must have one.", minimum=0
    )
    window_step: int = setting(
        0,
        "Rows from the start of a window to that of the next; 0: window-length. With fewer, windows overlap, and those "
        "for training and for testing may share rows.",
        minimum=0,
    )
    num_clients: int = setting(
        0,
        "Number of clients among which the data are divided; 0 means one for each node, which for `fedpfl run` are all "
        "natural clients of the data, or 10.",
        minimum=0,
    )
    num_classes: int = setting(
        0,
        "Number of classes, for devices that hold their own data and may lack the highest ones, and for a file of "
        "your own in which some have no samples; 0: the data say.",
        minimum=0,
    )
    partitioner: str = setting(
        AUTO,
        "How the data are divided among the clients; auto is natural where the data say who owns a sample, else "
        "dirichlet.",
        choices=lambda: (AUTO, *PARTITIONERS),
    )
    division_file: str = setting(
        "",
        "File that says which client has each sample, instead of a partitioner; `fedpfl partition --export FILE.npz` "
        "writes one. The partitioner, split and what belongs to them are then not used.",
    )
    partition_seed: int = setting(
        0, "Seed of the division, so that runs with several seeds have the same clients; 0: the run's.", minimum=0
    )
    dirichlet_alpha: float = setting(
        0.3, "Concentration α of the Dirichlet partitioners: the smaller, the more the clients differ.", above=0
    )
    classes_per_client: int = setting(
        2, "Number of distinct classes of every client, for the pathological partitioners.", minimum=1
    )
    train_samples: int = setting(
        500, 'Training samples of every client, for partitioner = "dirichlet-client".', minimum=1
    )
    test_samples: int = setting(100, 'Test samples of every client, for partitioner = "dirichlet-client".', minimum=1)
    split: str = setting(
        "mixed",
        'Where test samples come from: "mixed" pools the training and the test set, divides the pool among the '
        'clients and cuts each client\'s share by test-fraction; "given" divides the training set and gives each '
        "client test samples of the same classes from the test set.",
        choices=("mixed", "given"),
    )
    test_fraction: float = setting(
        0.25, 'Share of a client\'s samples that are for testing (split = "mixed"); below 1.', above=0, maximum=0.99
    )
    test_on: str = setting(
        "own",
        "What a client is tested on: its own test samples, or those of all clients that tell the same classes apart, "
        "in its own numbering of them (all, as Factorized-FL does). Devices with data of their own have the first.",
        choices=("own", "all"),
    )
    validation_fraction: float = setting(
        0.0,
        "Share of each client's training samples that no method trains on: personalised models are also measured on "
        "them (validation in metrics.jsonl), to choose settings by; 0: none.",
        minimum=0,
        maximum=0.9,
    )
    min_samples: int = setting(
        10,
        'Fewest samples of a client: training and test together with split = "mixed", training alone with '
        'split = "given".',
        minimum=2,
    )
    permute_labels: bool = setting(
        False,
        "Give every client its own numbering of the classes, as in the label-heterogeneous runs of Factorized-FL.",
    )

    def division(self) -> dict[str, Value]:
        """Return what decides which samples clients get, without what this partitioner or split does not look at."""

        def counts(key: str) -> bool:
            if self.division_file and key in _OF_DIVIDING:
                return False
            of_partitioner = self.partitioner in _OF_PARTITIONERS.get(key, (self.partitioner,))
            of_split = _OF_SPLITS.get(key, self.split) == self.split
            return of_partitioner and of_split and self.dataset in _OF_DATASETS.get(key, (self.dataset,))

        return {key: value for key, value in items(self) if key not in _NEVER and counts(key)}


def in_words(settings: DataSettings) -> str:
    """Return the partitioner and what it goes by, for titles: ``dirichlet, α 0.1``; or the name of the file."""
    if settings.division_file:
        return Path(settings.division_file).name
    signs = {"dirichlet-alpha": "α", "classes-per-client": "S"}
    division = settings.division()
    return ", ".join([settings.partitioner, *(f"{signs[key]} {division[key]:g}" for key in signs if key in division)])
