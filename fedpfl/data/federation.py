"""The samples of each client of a federation."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Hashable, Iterable, Sequence, cast

import numpy as np

from ..core import references
from ..core.errors import ConfigError, DataError, printable
from ..core.pixels import HALF, fits_channels, scale
from ..core.samples import CACHE_BYTES, Samples, SamplesCache
from .dataset import Dataset, contents
from .partitioners import (
    Share,
    all_owners,
    cut_share,
    cut_validation,
    label_permutation,
    natural_clients,
    partition,
    task_of,
    without_auto,
)
from .reading import load_once, owners, state_of_files
from .registry import AUTO
from .settings import DataSettings

if TYPE_CHECKING:
    import torch


# The setting `standardize` that changes nothing, and the place of what all clients have in common.
NONE, ALL = "none", -1

# How inputs are brought to what models take.
PIXELS, TOKENS, AS_IT_IS = "pixels", "tokens", "none"


def require_possible_alone(settings: DataSettings) -> None:
    """Raise ``ConfigError`` for settings that need the data of all clients, where each holds its own."""
    if settings.test_on == "all":
        raise ConfigError("test-on", "all", "must be own or server where clients hold their own data")
    if settings.standardize == "all":
        message = "needs the data of all clients, and this device has its own; use client"
        raise ConfigError("standardize", "all", message)


class FederatedData:
    """A data set divided among ``num_clients`` clients; ``settings.num_clients`` is ignored, and ``seed`` decides all.

    ``remarks`` is what users should know of the data before round 1.
    """

    name: str  # of the data set
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]  # of features or channels, where they have names
    has_no_class_names: bool  # classes, or targets, are known by their numbers alone
    is_image: bool
    vocabulary: int  # number of different tokens of texts; 0 for data that are no texts
    input_shape: tuple[int, ...]  # (channels, height, width), (channels, length), (features,) or (length,)
    label_kind: str  # what the labels are, by the setting ``loss`` that is for them
    has_targets: bool  # samples have numbers as targets, masks or tokens, instead of a class
    drawn: bool  # the samples themselves were drawn from the run's seed
    remarks: list[str]

    def __init__(self, settings: DataSettings, num_clients: int, seed: int, cache_bytes: int = CACHE_BYTES) -> None:
        data = load_once(settings, seed)
        if settings.test_on == "server":
            if settings.split == "given":
                raise ConfigError("split", "given", 'must be "mixed" with test-on = "server", which keeps the test set')
            data = _without_tests(data)
        settings = without_auto(settings, data.client_train is not None, data.y_test is not None)
        if settings.division_file:
            shares = _shares_of_file(data, settings, num_clients)
        else:
            shares = partition(data, settings, num_clients, settings.partition_seed or seed)
        self._set_up(data, shares, range(num_clients), settings, seed)
        self._cache = SamplesCache(cache_bytes)
        if not settings.division_file:
            self._tasks[:] = [task_of(settings, client, num_clients) for client in range(num_clients)]
        from fedpfl.data.remarks import remarks

        self.remarks += remarks(data, settings, shares)

    @classmethod
    def of_client(cls, data: Dataset, settings: DataSettings, client: int, seed: int, where: str = "") -> FederatedData:
        """Return one client's data as a federation of its own (number 0)."""
        require_possible_alone(settings)
        if settings.split == "given" and data.y_test is None:
            raise ConfigError("split", "given", f'{where or data.name} has no separate test set, use "mixed"')
        n, of_cut = len(data.y_train), settings.partition_seed or seed
        if data.y_test is None:
            share = cut_share(np.arange(n), settings, of_cut, client, data.y_train, data.overlap, data.groups)
        else:
            share = Share(np.arange(n), np.arange(n, n + len(data.y_test)))
        if n < settings.min_samples:
            raise DataError(f"{where or data.name}: has {n} samples, min-samples is {settings.min_samples}")
        self = cls.__new__(cls)
        self._set_up(data, [share], [client], settings, seed)
        return self

    def _set_up(
        self, data: Dataset, shares: list[Share], numbers: Sequence[int], settings: DataSettings, seed: int
    ) -> None:
        if data.has_targets and settings.permute_labels:
            raise ConfigError(
                "permute-labels", True, f"must be false for {data.name}, which has targets and no classes"
            )
        if data.has_targets and settings.split == "stratified":
            message = f'must be "mixed" for {data.name}, which has targets and no classes of which each has its share'
            raise ConfigError("split", "stratified", message)
        if settings.normalize != HALF and not (
            data.is_image and fits_channels(settings.normalize, data.input_shape[0])
        ):
            message = f"must be {HALF} for {data.name}, which holds no images of three channels"
            raise ConfigError("normalize", settings.normalize, message)
        if not isinstance(data.x_train, np.ndarray):
            from fedpfl.data.datasets.lazy import require_unchanged

            require_unchanged(data, settings)
        self._data, self._shares, self._numbers = data, shares, numbers
        self.name, self.class_names, self.feature_names = data.name, data.class_names, data.feature_names
        self.has_no_class_names, self.is_image, self.vocabulary = data.unnamed, data.is_image, data.vocabulary
        self.input_shape, self.label_kind = data.input_shape, data.label_kind
        self.has_targets, self.drawn = data.has_targets, data.drawn
        # They have names of files, and travel.
        if data.validation is not None and settings.validation_fraction:
            data = replace(data, remarks=(*data.remarks, "its validation part takes the place of validation-fraction"))
        self.remarks = [printable(f"{data.name}: {remark}", 300) for remark in data.remarks]
        self._normalize, self._test_on_all = settings.normalize, settings.test_on == "all"
        # Each client scales with its own numbers, also test samples that are another client's.
        from fedpfl.data.scaling import has_gaps

        gaps = settings.fills_gaps and has_gaps(data)
        self._inputs_differ = settings.standardize == "client" or gaps
        in_memory = isinstance(data.x_train, np.ndarray)
        self._fills = settings.fills_gaps and in_memory and not data.is_image and not data.vocabulary
        self._permute = settings.permute_labels
        self._standardize = settings.standardize
        self._scalings: dict[int, Any] = {}
        if self._standardize != NONE and (data.is_image or data.vocabulary):
            what = "texts" if data.vocabulary else "images"
            message = f"must be none for {data.name}, whose samples are {what}"
            raise ConfigError("standardize", self._standardize, message)
        self._cut = [self._with_validation(share.train, settings, seed, i) for i, share in zip(numbers, shares)]
        counts = data.countable
        for number, (mine, _) in zip(numbers, self._cut):
            if data.num_classes and len(mine) and not counts[mine].any():
                what = f"has no {'token to predict' if data.vocabulary else 'pixel that counts'}"
                hint = "; a prompt that fills the tokenizer's max_length leaves no room for its answer"
                hint = hint if data.vocabulary and settings.tokenizer else ""
                raise DataError(f"{data.name}: client {number} {what} in any of its {len(mine)} training samples{hint}")
        self._cache = SamplesCache()
        self._tasks: list[np.ndarray | None] = [None] * len(shares)
        self._natural = settings.partitioner == "natural" and not settings.division_file

    def _with_validation(
        self, mine: np.ndarray, settings: DataSettings, seed: int, client: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a client's samples for training, and those for validation: of the data's own part, or cut off."""
        data = self._data
        if data.validation is not None:
            held = data.validation[mine]
            return mine[~held], mine[held]
        labels = _take(data.y_train, data.y_test, mine) if settings.split == "stratified" else None
        return cut_validation(mine, settings, seed, client, labels, data.overlap, data.groups)

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self._shares)

    @cached_property
    def num_classes(self) -> int:
        """Number of classes that a client has to tell apart, whether or not it has samples of all of them."""
        return max(self._data.num_classes if task is None else len(task) for task in self._tasks)

    def class_names_of(self, i: int) -> tuple[str, ...]:
        """Return the names of the classes that client ``i`` tells apart, in its own numbering."""
        return tuple(names_of_classes(self.classes_of(i).tolist(), self.class_names))

    def classes_of(self, i: int) -> np.ndarray:
        """Return the classes that client ``i`` tells apart, in its own numbering: −1 − number for none."""
        task = self._tasks[self._index(i)]
        classes = np.arange(self._data.num_classes) if task is None else np.asarray(task)
        classes = np.concatenate([classes, -1 - np.arange(len(classes), self.num_classes)])
        return classes[np.argsort(self._permutation(i))] if self._permute else classes

    @property
    def client_names(self) -> tuple[str, ...]:
        """Name of each client, where the data name their owners and each is a client; else nothing.

        An owner's number is a name where it is not the client's: some numbers occur nowhere, or are left out.
        """
        data = self._data
        if not self._natural or data.client_train is None:
            return ()
        of_samples = cast(np.ndarray, all_owners(data))
        owners = [int(of_samples[np.concatenate(share)[0]]) for share in self._shares]
        if data.client_names:
            return tuple(data.client_names[owner] for owner in owners)
        return () if owners == [*range(len(owners))] else tuple(map(str, owners))

    @property
    def inputs(self) -> str:
        """The normalisation of inputs."""
        return TOKENS if self.vocabulary else PIXELS if self.is_image else AS_IT_IS

    def require_shares(self) -> None:
        """Raise ``DataError`` unless targets are labels that a sample has or has not: 0, 1, or between them."""
        for part, y in (("training", self._data.y_train), ("test", self._data.y_test)):
            if y is not None and len(wrong := np.argwhere((y < 0) | (y > 1))):
                value = y[tuple(wrong[0])]
                allowed = "with loss = multi-label a label is 0 or 1; numbers to predict take mse"
                raise DataError(
                    f"{self.name}: label {wrong[0][1]} of {part} sample {wrong[0][0]} is {value:g}: {allowed}"
                )

    def share(self, i: int) -> Share:
        """Return the positions of client ``i``'s samples in the training set followed by the test set."""
        return self._shares[self._index(i)]

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of all clients' positions: equal where two processes divide a data set in the same way."""
        crc = 0
        for positions in (part for share in self._shares for part in share):
            crc = zlib.crc32(positions.astype("<i8").tobytes(), zlib.crc32(str(len(positions)).encode(), crc))
        return crc

    @cached_property
    def contents(self) -> str:
        """Hash of all samples as they were read: with the division it says what each client was given."""
        return contents(self._data)

    def division(self) -> dict[str, np.ndarray]:
        """Return who has each sample, as a file of a division has it; ``DataError`` if a sample is in two shares."""
        from fedpfl.data.division_file import division_arrays

        return division_arrays(self._shares, _samples(self._data))

    @property
    def reads_later(self) -> bool:
        """Whether samples are read, by whatever code, when a batch needs them."""
        return not isinstance(self._data.x_train, np.ndarray)

    def sizes(self, i: int) -> tuple[int, int]:
        """Return (training samples, test samples) of client ``i`` without preparing its data."""
        return len(self._part(i, "train")), len(self._part(i, "test"))

    def labels(self, i: int) -> np.ndarray:
        """Return the training labels of client ``i`` (int64), or its targets, without preparing its data."""
        return self._labels(self._part(i, "train"), i)

    def train(self, i: int) -> Samples:
        """Return the training samples of client ``i``, cached; ``DataError`` if there is no such client."""
        return self._prepared(i, "train")

    def forget(self) -> None:
        """Forget the prepared samples; the next request prepares them anew."""
        self._cache.clear()

    def validation(self, i: int) -> Samples:
        """Return the samples of client ``i`` that ``validation-fraction`` sets aside, as :meth:`train` does."""
        return self._prepared(i, "validation")

    def test(self, i: int) -> Samples:
        """Return the samples that client ``i`` is tested on, as :meth:`train` does; see ``test-on``."""
        if not self._test_on_all or self._inputs_differ:
            return self._prepared(i, "test")
        import torch

        # Kept once for all of these clients, whose numberings of the classes may differ.
        x = self._prepared(self._first_alike[self._index(i)], "test").x
        return Samples(x, torch.from_numpy(self._labels(self._part(i, "test"), i)))

    def arrays(self, i: int) -> dict[str, np.ndarray]:
        """Return the samples of client ``i`` as they were read, by the names of arrays in an npz file.

        ``x_train`` includes what ``validation-fraction`` sets aside: a device sets the same ones aside, unless that
        depends on groups or on windows that overlap, of which the file says nothing. Labels are not permuted; the
        file's reader does that. ``DataError`` for images of floats, which no file may have.
        """
        if len(self.input_shape) == 3 and not self.is_image:
            raise DataError(f"{self.name}: files have images of uint8, and these are of {self._data.x_train.dtype}")
        arrays: dict[str, np.ndarray] = {}
        parts = {"train": self.share(i).train, "test": self.share(i).test}
        data, cut = self._data, len(self._part(i, "validation"))
        if data.validation is not None or (cut and (data.groups is not None or data.overlap)):
            parts.update({"train": self._part(i, "train"), "val": self._part(i, "validation")})
        for part, positions in parts.items():
            rows = _take(self._data.x_train, self._data.x_test, positions)
            arrays.update({f"x_{part}": rows, f"y_{part}": self._own_labels(positions, i)})
        if all(task is None for task in self._tasks):
            arrays["classes"] = np.array(self.class_names)
        if self.vocabulary:
            arrays["vocabulary"] = np.array(self.vocabulary)
        return arrays

    def _part(self, i: int, part: str) -> np.ndarray:
        share, (train, validation) = self.share(i), self._cut[self._index(i)]
        if part == "test" and self._test_on_all:
            return self._all_tests[self._first_alike[self._index(i)]]
        return {"train": train, "validation": validation, "test": share.test}[part]

    @cached_property
    def _first_alike(self) -> list[int]:
        """For each client the first one that tells the same classes apart."""
        first: dict[bytes | None, int] = {}
        return [first.setdefault(None if task is None else task.tobytes(), i) for i, task in enumerate(self._tasks)]

    @cached_property
    def _all_tests(self) -> dict[int, np.ndarray]:
        """Positions of the test samples of all clients that tell the same classes apart, by the first of them."""
        tests: dict[int, list[np.ndarray]] = {}
        for first, share in zip(self._first_alike, self._shares):
            tests.setdefault(first, []).append(share.test)
        return {first: np.unique(np.concatenate(of_all)) for first, of_all in tests.items()}

    def _prepared(self, i: int, part: str) -> Samples:
        if self.reads_later:
            from fedpfl.data.datasets.lazy import samples_at

            positions = self._part(i, part)
            return samples_at(positions, partial(self._inputs, i=i), self._labels(positions, i))

        def prepare() -> Samples:
            import torch

            positions = self._part(i, part)
            return Samples(self._inputs(positions, i), torch.from_numpy(self._labels(positions, i)))

        # Training and test samples are kept apart: a process that tests all clients trains only a few of them.
        return self._cache.get((i, part), prepare)

    def _index(self, i: int) -> int:
        if not 0 <= i < len(self._shares):
            raise DataError(f"client {i}: the data are divided among {len(self._shares)} clients, numbered from 0")
        return i

    def _labels(self, positions: np.ndarray, i: int) -> np.ndarray:
        y = self._own_labels(positions, i)
        return self._permutation(i)[y] if self._permute else y

    def _permutation(self, i: int) -> np.ndarray:
        return label_permutation(self._numbers[i], self.num_classes)

    def _own_labels(self, positions: np.ndarray, i: int) -> np.ndarray:
        y = _take(self._data.y_train, self._data.y_test, positions)
        task = self._tasks[i]
        if task is not None:
            places = np.empty(self._data.num_classes, np.int64)
            places[task] = np.arange(len(task))
            y = places[y]
        return y

    def scaling(self, i: int) -> Any:
        """Return the ``Scaling`` that brings client ``i``'s features to mean 0 and deviation 1; None if they stay."""
        if self._standardize == NONE:
            return None
        whose = ALL if self._standardize == "all" else self._index(i)
        if whose not in self._scalings:
            clients = range(self.num_clients) if whose == ALL else [whose]
            self._scalings[whose] = self._measured(clients)
        return self._scalings[whose]

    def preparation(self, i: int) -> dict[str, np.ndarray]:
        """Return the numbers that scale client ``i``'s samples for its model: ``fill``, mean and deviation."""
        from fedpfl.data.scaling import FILL

        scaling = self.scaling(i)
        numbers = {} if scaling is None else dict(scaling._asdict())
        numbers.update({FILL: self._measured([i]).mean} if self._fills else {})
        return {key: values for key, values in numbers.items() if values.size}

    def _measured(self, clients: Iterable[int]) -> Any:
        positions = np.unique(np.concatenate([self._part(client, "train") for client in clients]))
        taken = _take(self._data.x_train, self._data.x_test, positions)
        from fedpfl.data.scaling import Scaling

        return Scaling.of(taken)

    def _inputs(self, positions: np.ndarray, i: int) -> torch.Tensor:
        import torch

        taken = _take(self._data.x_train, self._data.x_test, positions)
        if not self.is_image and not self.vocabulary:
            # There are gaps only if they are to be filled.
            taken = self._measured([i]).filled(taken) if np.isnan(taken).any() else taken
            scaling = self.scaling(i)
            return torch.from_numpy(taken if scaling is None else scaling.applied(taken))
        raw = torch.from_numpy(taken)
        if self.vocabulary:
            return raw.to(torch.int64)
        # n × H × W × C in memory is exactly what channels_last means, so this only renames the axes.
        return scale(raw.permute(0, 3, 1, 2), self._normalize)


def names_of_classes(classes: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return the names of what :meth:`FederatedData.classes_of` returns."""
    return [names[c] if c >= 0 else str(-1 - c) for c in classes]


def partition_counts(data: FederatedData) -> np.ndarray:
    """Count each client's training samples by class, in its own numbering: int64, shape (clients, classes).

    Samples with targets are of one class.
    """
    if data.has_targets:
        return np.array([[len(data.labels(i))] for i in range(data.num_clients)])
    return np.stack([np.bincount(data.labels(i), minlength=data.num_classes) for i in range(data.num_clients)])


def default_clients(settings: DataSettings, seed: int = 0) -> int | None:
    """Return the number of clients of natural data or a division file; None where the data are divided."""
    if settings.division_file:
        return len(_shares_of_file(load_once(settings, seed), settings))
    if settings.partitioner not in (AUTO, "natural"):
        return None
    owned = owners(settings, seed)
    if owned is None:
        return None
    return int(natural_clients(*owned, without_auto(settings, True, owned[1] is not None)))


def with_partitioner(settings: DataSettings, seed: int = 0) -> DataSettings:
    """Return the settings with the partitioner that ``auto`` means for these data; errors as above."""
    if settings.partitioner != AUTO:
        return settings
    return replace(settings, partitioner="dirichlet" if owners(settings, seed) is None else "natural")


def _shares_of_file(data: Dataset, settings: DataSettings, num_clients: int | None = None) -> list[Share]:
    from fedpfl.data.division_file import read_division

    read = read_division
    shares: list[Share] = read(Path(settings.division_file).expanduser(), _samples(data))
    if num_clients not in (None, len(shares)):
        message = f"must be {len(shares)}, the number of clients in {settings.division_file}"
        raise ConfigError("num-clients", num_clients, message)
    return shares


def _without_tests(data: Dataset) -> Dataset:
    """Return the data that are divided where the test set stays at the server."""
    if data.y_test is None or data.validation is not None:
        has = "no test set" if data.y_test is None else "a validation part, which is divided with its test set"
        raise ConfigError("test-on", "server", f"{data.name} has {has}")
    groups = None if data.groups is None else data.groups[: len(data.y_train)]
    return replace(data, x_test=None, y_test=None, client_test=None, groups=groups)


def _samples(data: Dataset) -> int:
    return len(data.y_train) + (0 if data.y_test is None else len(data.y_test))


def _take(first: np.ndarray, second: np.ndarray | None, positions: np.ndarray) -> np.ndarray:
    """Copy rows of two arrays that are thought of as one; joining them would double the data set's memory."""
    if not isinstance(first, np.ndarray):  # samples are read when they are needed, in any order
        return cast(np.ndarray, first.rows(second, positions))
    inside = int(np.searchsorted(positions, len(first)))
    out = np.empty((len(positions), *first.shape[1:]), first.dtype)
    np.take(first, positions[:inside], axis=0, out=out[:inside], mode="clip")  # "raise" would copy once more
    if second is not None:
        np.take(second, positions[inside:] - len(first), axis=0, out=out[inside:], mode="clip")
    return out


def federated_data(settings: DataSettings, num_clients: int, seed: int) -> FederatedData:
    """Return the federation with these settings, which a process makes only once while files are the same."""
    return _federated_data(settings, num_clients, seed, (source_of(settings, seed), state_of_files(settings)))


@lru_cache(maxsize=2)
def _federated_data(settings: DataSettings, num_clients: int, seed: int, source: Hashable) -> FederatedData:
    return FederatedData(settings, num_clients, seed)


def source_of(settings: DataSettings, seed: int = 0) -> Hashable:
    """Return a key of the user's data that differs between two data sets of one name."""
    return id(load_once(settings, seed)) if references.is_custom("dataset", settings.dataset) else None
