"""Samples that Python objects give one by one or in batches: torch's data sets and loaders, and others like them."""

from __future__ import annotations

import random
import sys
from functools import partial
from itertools import islice
from operator import getitem
from typing import Any, Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...core import references
from ...core.errors import DataError
from ..arrays import array, asked, attribute
from ..dataset import numbered
from ..settings import DataSettings
from .folder import MAX_BYTES, pixels_of
from .lazy import Lazy, LazyArray, has_places, torch_data
from .npz import labels_beside, labels_of, samples_of, vocabulary_of

# Samples, or a sampler's draws, of what may have no end.
MAX_ENDLESS = 2**20
# Samples that are read a second time.
COMPARED = 3
# Labels that are compared with those that the samples have.
LABELS_COMPARED = 8
AT_RANDOM = (
    "samples are drawn at random as they are read (random transforms?). Each was read once, before round 1, so all "
    "epochs and tests see the same values; the setting augmentation draws again in each epoch"
)
ANOTHER_GENERATOR = f"{AT_RANDOM}. They draw from their own generator, which the seed does not reach"
TAKEN_APART = "batches were made once by collate_fn, before round 1, and taken apart again"
NOT_THE_LOADERS = "batches have batch-size samples, and not the loader's {}"
LAZILY = "fedpfl.Lazy(…) around the Dataset reads samples when they are needed"
_END = object()


def is_samples(thing: object) -> bool:
    """Tell whether an object is a torch Dataset or DataLoader, or has samples by their numbers as a Dataset has."""
    torch = torch_data()
    return has_places(thing) or (torch is not None and isinstance(thing, (torch.Dataset, torch.DataLoader)))


def class_names(source: Any, where: str) -> tuple[str, ...]:
    """Find the names that a data set, or the one inside a Subset, ConcatDataset, DataLoader or Lazy, has for labels.

    They are its ``classes`` or ``class_to_idx``, as in torchvision, unless a ``target_transform`` changes the labels;
    ``DataError`` where these two say something else.
    """
    if isinstance(source, Lazy):
        return class_names(source.samples, where)
    classes, numbers = attribute(source, "classes"), attribute(source, "class_to_idx")
    classes = classes.tolist() if attribute(classes, "tolist") else classes
    classes = classes if isinstance(classes, (list, tuple)) else ()
    if not classes and isinstance(numbers, Mapping) and {*map(str, numbers.values())} == {*numbered(len(numbers))}:
        classes = sorted(numbers, key=numbers.__getitem__)
    if classes and all(isinstance(name, str) for name in classes):
        for number, name in enumerate(classes) if isinstance(numbers, Mapping) else ():
            if numbers.get(name, number) != number:
                differ = f"{name!r} is class {number} by its classes and {numbers[name]} by its class_to_idx"
                raise DataError(f"{where}: {differ}: list classes in the order of their numbers")
        return () if attribute(source, "target_transform") else tuple(classes)
    inside = attribute(source, "datasets")
    inside = inside if isinstance(inside, (list, tuple)) and inside else [attribute(source, "dataset")]
    if any(one is None or one is source for one in inside):
        return ()
    first, *others = (class_names(one, where) for one in inside)
    if any(names != first for names in others):
        raise DataError(f"{where}: joins data sets whose numbers mean different classes: give names as labels")
    return first


def read_samples(source: Any, where: str, said: dict[str, None], settings: DataSettings) -> tuple[Any, np.ndarray]:
    """Return the samples, and the labels or targets, of a torch Dataset or DataLoader or of what works like one.

    A DataLoader's sampler or batch sampler draws once, and a ``collate_fn`` of the user's makes the batches that are
    read. What users should know of it becomes a key of ``said``. For a tokenizer texts stay as they are.
    """
    reading = _Reading(where, said)
    if isinstance(source, Lazy):
        return reading.lazily(source, settings)
    reading.read(source)
    if not reading.xs:
        raise DataError(f"{where}: has no samples")
    x, y = np.concatenate(reading.xs), np.concatenate(reading.ys)
    if not settings.tokenizer or x.dtype.kind != "U":
        x = samples_of(x, f"{where}: x", vocabulary_of(x, settings), planes=True, gaps=settings.fills_gaps)
    return x, labels_beside(x, y, f"{where}: y", settings)


class _Reading:
    """The samples of one object as far as they are read."""

    def __init__(self, where: str, said: dict[str, None]) -> None:
        self.xs: list[np.ndarray] = []
        self.ys: list[np.ndarray] = []
        self._where, self._said = where, said
        self._asked = partial(asked, where)
        self._bytes, self._count = 0, 0

    def read(self, source: Any) -> None:
        """Read all samples."""
        torch = torch_data()
        if torch is not None and isinstance(source, torch.DataLoader):
            self._read_loader(source, torch)
        elif torch is not None and isinstance(source, torch.IterableDataset):
            self._read_stream(_each(self._where, source))
        else:
            self._read_places(source, range(self._asked("its length", len, source)))

    def lazily(self, source: Lazy, settings: DataSettings) -> tuple[Any, np.ndarray]:
        """Return samples that are read when they are needed, and their labels: given, or read now."""
        count = self._asked("its length", len, source)
        if not count:
            raise DataError(f"{self._where}: has no samples")
        first = self._sample(source, 0)
        from fedpfl.data.datasets.tokens import of_array as _of_array

        of_array: Any = _of_array if settings.tokenizer else None

        def checked(place: int) -> tuple[np.ndarray, np.ndarray]:
            """Return a sample as one alone, which is like the first one."""
            x, y = self._sample(source, place)
            self._require_alike((x[None], y[None]), (first[0][None], first[1][None]), place)
            where = f"{self._where}: x of sample {place}"
            if settings.tokenizer:
                return of_array(x[None], settings.tokenizer, where, self._said)[0], y
            return samples_of(x[None], where, planes=True)[0], y

        if source.labels is None:
            labels = np.stack([checked(place)[1] for place in range(count)])
        else:
            labels = array(source.labels, f"{self._where}: labels")
            self._compare(source, labels, count)
        rows = LazyArray([(count, lambda place: checked(place)[0])], checked(0)[0])
        return rows, labels_of(labels, count, f"{self._where}: y", names=True, targets=settings.targets)

    def _compare(self, source: Lazy, labels: np.ndarray, count: int) -> None:
        """Tell if labels that are numbers are not those that the data set gives with some of its samples."""
        if len(labels) != count or labels.dtype.kind not in "iu":
            return
        places = range(0, count, max(1, count // LABELS_COMPARED))[:LABELS_COMPARED]
        pairs = [(self._sample(source, place)[1], labels[place]) for place in places]
        if other := sum(y.dtype.kind in "iu" and not np.array_equal(y, label) for y, label in pairs):
            told = f"{other} of {len(places)} labels that were compared are not those of the data set's samples"
            self._said[f"{told}; the labels that Lazy is given count: are they in another order?"] = None

    def _read_places(self, data: Any, places: Sequence[Any]) -> None:
        """Read a data set's samples at these places, one by one; notice where that is not the same each time."""
        before = shared_states()
        for number, place in enumerate(places):
            x, y = self._sample(data, place)
            if len(places) * x.nbytes > MAX_BYTES:
                raise DataError(f"{self._where}: {len(places)} samples like sample {place} need more than "
                                f"{MAX_BYTES >> 30} GiB; {LAZILY}")  # fmt: skip
            self._add(x[None], y[None], number)
        if shared_states() != before:
            self._said[AT_RANDOM] = None
            return
        for number in {*range(0, len(places), max(1, len(places) // COMPARED))}:
            again = self._sample(data, places[number])
            if not all(map(np.array_equal, again, (self.xs[number][0], self.ys[number][0]))):
                self._said[ANOTHER_GENERATOR] = None

    def _read_stream(self, items: Iterator[Any]) -> None:
        before = shared_states()
        for number, item in enumerate(items):
            x, y = self._pair(item, f"sample {number}")
            self._add(x[None], y[None], number)
        if shared_states() != before:
            self._said[AT_RANDOM] = None

    def _read_batches(self, batches: Iterable[Any], alone: bool = False) -> None:
        """Read batches; ``alone``: samples may be there instead of them."""
        for number, batch in enumerate(batches):
            x, y = self._pair(batch, f"batch {number}")
            if alone and not (x.ndim > 1 and y.ndim and len(x) == len(y) > 1):
                x, y = x[None], y[None]
            if not (x.ndim and y.ndim) or len(x) != len(y):
                raise DataError(f"{self._where}: batch {number} has x of shape {x.shape} and y of shape {y.shape}: "
                                "both must have a row for each sample")  # fmt: skip
            self._add(x, y, self._count)

    def _read_loader(self, loader: Any, torch: Any) -> None:
        data, collate, size = loader.dataset, loader.collate_fn, loader.batch_size
        custom_collate = not any(collate is usual for usual in (torch.default_collate, torch.default_convert))
        if size not in (None, 1):
            self._said[NOT_THE_LOADERS.format(size)] = None
        if custom_collate:
            self._said[TAKEN_APART] = None

        def collated(items: Any) -> Any:
            return self._asked("collate_fn", collate, items)

        if type(loader).__iter__ is not torch.DataLoader.__iter__:
            self._read_batches(_each(self._where, loader))
        elif isinstance(data, torch.IterableDataset):
            items = _each(self._where, data)
            if custom_collate and size is not None:
                self._read_batches(map(collated, iter(lambda: list(islice(items, size)), [])))
            elif size is None:
                self._read_batches(map(collated, items) if custom_collate else items, alone=True)
            else:
                self._read_stream(items)
        elif size is None and loader.batch_sampler is None:
            places = drawn(loader, loader.sampler, self._where, self._said)
            items = (self._asked(f"sample {place}", getitem, data, place) for place in places)
            self._read_batches(map(collated, items) if custom_collate else items, alone=not _are_lists(places))
        else:
            if size is None:
                groups = [list(group) for group in drawn(loader, loader.batch_sampler, self._where, self._said)]
            else:
                places = drawn(loader, loader.sampler, self._where, self._said)
                groups = [places[start : start + size] for start in range(0, len(places), size)]
                if loader.drop_last and len(places) % size:
                    self._said["drop_last leaves no sample out: fedpfl makes the batches"] = None
            if custom_collate:
                lists = ([self._asked(f"sample {index}", getitem, data, index) for index in group] for group in groups)
                self._read_batches(map(collated, lists))
            else:
                self._read_places(data, [place for group in groups for place in group])

    def _sample(self, data: Any, place: Any) -> tuple[np.ndarray, np.ndarray]:
        return self._pair(self._asked(f"sample {place}", getitem, data, place), f"sample {place}")

    def _pair(self, item: Any, what: str) -> tuple[np.ndarray, np.ndarray]:
        """Return x and y of a sample, or of a batch."""
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            gives = references.article(item)
            if isinstance(item, (tuple, list)):
                gives += f" of {len(item)}"
            elif isinstance(item, Mapping):
                gives = f"a dict of {', '.join(map(str, item))}"
            raise DataError(f"{self._where}: {what} is {gives}; it must be a pair (x, y), input and label")
        where, y = f"{self._where}: x of {what}", array(item[1], f"{self._where}: y of {what}")
        x = item[0]
        if _is_image(x):  # of a palette an array would hold the places of colours, not these
            x = self._asked(f"x of {what}", pixels_of, x, where, where, self._said)
        # Copies, because a data set may fill one buffer again for each sample.
        return np.array(array(x, where)), np.array(y)

    def _add(self, x: np.ndarray, y: np.ndarray, number: int) -> None:
        if self.xs:
            self._require_alike((x, y), (self.xs[0], self.ys[0]), number)
        self._count += len(x)
        self._bytes += x.nbytes
        if self._bytes > MAX_BYTES:
            raise DataError(f"{self._where}: its samples need more than {MAX_BYTES >> 30} GiB; {LAZILY}")
        self.xs.append(x)
        self.ys.append(y)

    def _require_alike(self, sample: Sequence[np.ndarray], first: Sequence[np.ndarray], number: int) -> None:
        """Refuse samples of another shape or kind than the first ones."""
        for word, now, before in zip("xy", sample, first):
            if now.shape[1:] != before.shape[1:]:
                resize = ": resize all to one size" if word == "x" else ""
                if word == "x" and now.dtype == before.dtype == np.uint8 and now.shape[1:3] == before.shape[1:3]:
                    resize = ': grey and colour images need .convert("RGB")'
                raise DataError(f"{self._where}: {word} of sample {number} has the shape {now.shape[1:]}, and of "
                                f"sample 0 {before.shape[1:]}{resize}")  # fmt: skip
            if _kind(now) != _kind(before):
                raise DataError(
                    f"{self._where}: {word} of sample {number} is {now.dtype}, and of sample 0 {before.dtype}"
                )


def drawn(loader: Any, sampler: Any, where: str, said: dict[str, None]) -> list[Any]:
    """Return the draws of a loader's sampler, once; its generators are as before, so that another run draws the same.

    What users should know of it becomes a key of ``said``.
    """
    torch: Any = torch_data()
    length = asked(where, "its length", len, loader.dataset)
    kind = type(sampler)
    # Its source may be shorter than the data set.
    every = kind is torch.SequentialSampler and asked(where, "its sampler's length", len, sampler) == length
    if every or (kind is torch.RandomSampler and not sampler.replacement and sampler.num_samples == length):
        return list(range(length))  # each sample once; the order is fedpfl's
    said[f"its samples are those that its {kind.__name__} drew once, before round 1, for all epochs"] = None
    parts = (loader, sampler, getattr(sampler, "sampler", None))
    states = [
        (value, value.get_state()) for part in parts for value in getattr(part, "__dict__", {}).values()
        if isinstance(value, sys.modules["torch"].Generator)
    ]  # fmt: skip
    draws = list(_each(where, sampler, max(MAX_ENDLESS, 10 * length)))
    for generator, state in states:
        generator.set_state(state)
    repeated = _repeated(draws)
    if repeated:
        said[f"draws that repeat a sample, maybe in training and in test: {repeated}; give a test set"] = None
    return draws


def _each(where: str, things: Any, limit: int = MAX_ENDLESS) -> Iterator[Any]:
    """Yield what an object gives when it is iterated over; of what may have no end so many at most."""
    kind = references.article(things)
    items = asked(where, f"its iteration ({kind})", iter, things)
    for _ in range(limit):
        item = asked(where, f"its iteration ({kind})", next, items, _END)
        if item is _END:
            return
        yield item
    raise DataError(f"{where}: {kind} gives more than {limit} samples; give a Dataset with a length")


def _is_image(thing: object) -> bool:
    """Tell whether an object is an image of Pillow, without importing it."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(thing, pillow.Image)


def _repeated(draws: list[Any]) -> int:
    """Count the draws of a sampler, or of its batches, of samples that were drawn before."""
    plain = [draw.tolist() if hasattr(draw, "tolist") else draw for draw in draws]
    places = [place for draw in plain for place in (draw if isinstance(draw, list) else [draw])]
    hashable = [place for place in places if isinstance(place, Hashable)]
    return len(hashable) - len(set(hashable))


def _are_lists(places: list[Any]) -> bool:
    return bool(places) and hasattr(places[0], "__len__")


def _kind(values: np.ndarray) -> str:
    """Return the kind of values: those of one kind fit into one type."""
    kind = values.dtype.kind
    return "bytes" if values.dtype == np.uint8 and values.ndim > 1 else "whole" if kind in "iub" else kind


def shared_states() -> list[Any]:
    """Return the states of the generators that all code of a process shares: Python's, NumPy's and torch's."""
    import torch

    numpy: Any = np.random.get_state(legacy=False)
    state = {**numpy, "state": [numpy["state"]["key"].tolist(), numpy["state"]["pos"]]}
    return [random.getstate(), state, torch.get_rng_state().tolist()]
