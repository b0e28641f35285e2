"""The settings that say which data the clients get."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Mapping

from ..core import references
from ..core.errors import ConfigError
from ..core.metrics import CLASSES, MASKS, NEXT_TOKEN, TARGETS, labels_of
from ..core.pixels import HALF, NORMALIZATIONS
from ..core.settings import Value, acts, by_key, items, parse, setting
from .registry import AUTO, FLOWER_FORM, PARTITIONERS, dataset_names, is_flower

# Partitioners and kinds of a user's own data that use the same settings; "auto" may be dirichlet.
_DIRICHLET = (
    AUTO,
    "dirichlet",
    "dirichlet-client",
    "dirichlet-classes",
    "dirichlet-equal",
    "dirichlet-sizes",
    "pfllib-dirichlet",
)
_TABLES = ("table", "series", "huggingface", "clients", references.FORM)
_SERIES = ("series", "clients", references.FORM)


@dataclass(frozen=True)
class DataSettings:
    """The data set and its division among the clients (the doc string of a field is its documentation)."""

    # Whether the loss is one of numbers: whole numbers as labels are targets then, and no classes.
    targets: ClassVar[bool] = False
    # Whether the loss is that of the next token: labels are texts, or their tokens.
    tokens: ClassVar[bool] = False

    dataset: str = setting(
        "digits",
        "Data set; `fedpfl datasets` lists all. The first six read your own data.",
        choices=dataset_names,
        open_to={references.FORM: references.is_reference},
        tags="own code source loop",
    )
    data: str = setting("", "Path of your own data.", tags="place file free source loop", form="a file or folder")
    data_dir: str = setting(
        "~/.fedpfl/data",
        "Place of data sets, in torchvision's layout or as `<name>.npz`, and of downloads.",
        tags="place free idle source apart loop",
        form="a folder",
    )
    normalize: str = setting(
        HALF,
        "Scaling of image pixels. half: to −1 … 1. The others: by each channel's mean and standard deviation in "
        "that data set.",
        choices=tuple(NORMALIZATIONS),
        tags="apart",
    )
    standardize: str = setting(
        "none",
        "Scale each feature or channel to mean 0 and standard deviation 1, measured on the client's own training "
        "samples (client) or on all clients' (all). Not for images and texts.",
        choices=("none", "client", "all"),
    )
    impute: str = setting(
        "refuse",
        "Empty cells, and NaN of arrays. refuse: an error. mean: the mean of the client's own training samples, "
        "or 0 if it has none.",
        choices=("refuse", "mean"),
        only={"dataset": ("npz", *_TABLES)},
    )
    image_size: int = setting(
        0,
        "Side length in pixels to which the largest central square of images from folders and Hugging Face is "
        "resized. 0: no resizing; all images need one size.",
        minimum=0,
        maximum=4096,
        only={"dataset": ("image-folder", "huggingface", "clients", references.FORM)},
        tags="columns",
    )
    tokenizer: str = setting(
        "",
        "Makes numbers of the texts in a table's only feature column, or in an npz file.",
        tags="place file code",
        only={"dataset": ("npz", *_TABLES)},
        form="a tokenizer.json of Hugging Face, or MODULE:NAME",
    )
    label_column: str = setting(
        "label",
        "Table column with the label; with a loss of numbers, several between commas.",
        only={"dataset": _TABLES},
        form="a column",
        tags="columns",
    )
    client_column: str = setting(
        "client",
        "Table column with the owner of each row. A table may lack the default column.",
        only={"dataset": _TABLES},
        form="a column",
        tags="columns",
    )
    time_column: str = setting(
        "",
        "Table column with the time of each row, as numbers or in ISO 8601. It orders each client's rows and is no "
        "feature.",
        only={"dataset": _TABLES},
        form="a column",
        tags="columns",
    )
    group_column: str = setting(
        "",
        "Table column such as the patient: a client's rows with one value are all in training, in validation or in "
        "tests.",
        only={"dataset": _TABLES},
        form="a column",
        tags="columns",
    )
    ignore_columns: str = setting(
        "", "Table columns that are not features.", only={"dataset": _TABLES}, form="a list of columns", tags="columns"
    )
    category_columns: str = setting(
        "",
        "Table columns of words; each word becomes a feature, 0 or 1. With a list, mode=on|off, all other words are "
        "one feature more.",
        only={"dataset": _TABLES},
        form="a list of columns, such as mode,colour=red|blue",
        tags="columns",
    )
    class_names: str = setting(
        "",
        "Class names of a table, in order. Empty: the labels found, sorted.",
        only={"dataset": _TABLES},
        form="a list of names",
    )
    window_length: int = setting(
        0,
        "Rows per window for a series without a window column. 0: the column is required.",
        minimum=0,
        only={"dataset": _SERIES},
        tags="columns",
    )
    window_step: int = setting(
        0,
        "Rows between the starts of windows, or characters of shakespeare.json. 0: window-length, or 80. With "
        "smaller steps windows overlap.",
        minimum=0,
        only={"dataset": (*_SERIES, "shakespeare")},
        tags="columns",
    )
    num_clients: int = setting(
        0,
        "Number of clients. 0: one per node; in `fedpfl run`, the natural clients of the data, or 10.",
        minimum=0,
        tags="own repeat apart built",
    )
    num_classes: int = setting(
        0,
        "Number of classes, for data that may lack some. 0: inferred from the data.",
        minimum=0,
        only={"dataset": ("npz", *_TABLES)},
    )
    partitioner: str = setting(
        AUTO,
        "How data are divided among clients. auto: natural if the data name the owner of each sample, otherwise "
        "dirichlet.",
        choices=lambda: (AUTO, *PARTITIONERS),
        open_to={FLOWER_FORM: is_flower},
        tags="division loop",
    )
    division_file: str = setting(
        "",
        "Assigns each sample to a client, in place of the partitioner and the split.",
        tags="place file free loop",
        form="a file of `fedpfl partition --export FILE.npz`, or FL-bench's partition.pkl",
    )
    partition_seed: int = setting(
        0,
        "Seed for dividing the data. 0: each run's seed divides them, so runs with two seeds have other clients. "
        "Above 0 the clients stay the same.",
        minimum=0,
        tags="division",
    )
    dirichlet_alpha: float = setting(
        0.3,
        "Concentration α of the Dirichlet partitioners. The smaller it is, the more clients differ.",
        above=0,
        only={"partitioner": _DIRICHLET},
        tags="division",
    )
    classes_per_client: int = setting(
        2,
        "Number of distinct classes per client, for the pathological partitioners.",
        minimum=1,
        only={"partitioner": ("pathological", "dirichlet-classes", "pfllib-pathological")},
        tags="division",
    )
    train_samples: int = setting(
        500,
        'Training samples per client, for partitioner = "dirichlet-client".',
        minimum=1,
        only={"partitioner": ("dirichlet-client",)},
        tags="division",
    )
    test_samples: int = setting(
        100,
        'Test samples per client, for partitioner = "dirichlet-client".',
        minimum=1,
        only={"partitioner": ("dirichlet-client",)},
        tags="division",
    )
    split: str = setting(
        AUTO,
        "Choice of test samples. auto: given for your own data with a test set, otherwise mixed. mixed: divide the "
        "pooled training and test sets, and hold out test-fraction of each client's samples. given: divide the "
        "training set; a client's test samples are its own, or of the same classes, from the test set. stratified: as "
        "mixed, with a client's share of each class. time: a client's last samples.",
        choices=(AUTO, "mixed", "given", "stratified", "time"),
        tags="division",
    )
    test_fraction: float = setting(
        0.25,
        "Share of a client's samples used for testing, unless split = given; below 1.",
        above=0,
        maximum=0.99,
        only={"split": (AUTO, "mixed", "stratified", "time")},
        tags="division",
    )
    test_on: str = setting(
        "own",
        "Samples on which a client is tested. own: its test samples. all: those of all clients with the same "
        "classes; not for devices that hold their own data. server: the server tests the global model on the test "
        "set, and clients are tested with samples of the training set.",
        choices=("own", "all", "server"),
        tags="apart changes whole",
    )
    validation_fraction: float = setting(
        0.0,
        "Share of each client's training samples held out to choose rounds and settings. 0: none. A validation part "
        "of the data takes its place.",
        minimum=0,
        maximum=0.9,
    )
    min_samples: int = setting(
        10,
        'Minimum number of samples per client, with split = "given" of training samples alone.',
        minimum=2,
    )
    permute_labels: bool = setting(
        False, "Give each client its own numbering of the classes, as in Factorized-FL.", tags="changes"
    )

    @staticmethod
    def of(values: Mapping[str, Any]) -> DataSettings:
        """Return the settings in a flat mapping of all keys, with what its ``loss`` says of the labels."""
        labels = labels_of(str(values.get("loss", CLASSES)))
        kinds = {CLASSES: DataSettings, MASKS: DataSettings, NEXT_TOKEN: TokenSettings}
        settings = parse(kinds.get(labels, TargetSettings), values)
        if settings.class_names and labels == TARGETS:
            raise ConfigError("class-names", settings.class_names, f'must be empty with loss = "{TARGETS}": no classes')
        return settings

    @property
    def fills_gaps(self) -> bool:
        """Tell whether features may be NaN."""
        return self.impute == "mean"

    def division(self) -> dict[str, Value]:
        """Return the settings that decide the division among clients, without those that have no effect on it."""
        values, replaced = dict(items(self)), "division" if self.division_file else "apart"
        return {
            key: values[key]
            for key, field in by_key(type(self)).items()
            if acts(field, values) and not {"apart", replaced} & {*field.metadata["tags"]}
        }

    def read(self) -> DataSettings:
        """Return the settings that decide how the data set is read, before it is divided; the rest at its defaults."""
        fields = by_key(type(self)).items()
        reading = {
            key for key, field in fields if "source" in field.metadata["tags"] or "dataset" in field.metadata["only"]
        }
        return parse(type(self), {key: value for key, value in items(self) if key in reading})


class TargetSettings(DataSettings):
    """The same for a loss of numbers."""

    targets = True


class TokenSettings(DataSettings):
    """The same for the loss of the next token."""

    tokens = True


def in_words(settings: DataSettings) -> str:
    """Return the partitioner and what it goes by, for titles: ``dirichlet, α 0.1``; or the name of the file."""
    if settings.division_file:
        return Path(settings.division_file).name
    signs = {"dirichlet-alpha": "α", "classes-per-client": "S"}
    division = settings.division()
    return ", ".join([settings.partitioner, *(f"{signs[key]} {division[key]:g}" for key in signs if key in division)])
