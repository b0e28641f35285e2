"""The data sets of clients as one, in which each client owns its samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

import numpy as np

from ...core.errors import DataError
from ...core.metrics import CLASSES, MASKS, NEXT_TOKEN, TARGETS
from ...core.samples import IGNORED
from ..dataset import Dataset, numbered
from ..named_columns import common_order, places
from .reading_helpers import RGB, coloured

# Of clients' data sets, as many as are worth reading.
MAX_REMARKS = 3


def joined(
    name: str, data_sets: Sequence[Dataset], where: Sequence[str], called: Sequence[str], client_names: tuple[str, ...]
) -> Dataset:
    """Join what clients have: features and classes by their names, grey images with those of colours.

    ``where`` is what an error calls the data of each, and ``called`` what it calls those of another one beside it.
    """
    if any(data.is_image and data.x_train.shape[3] == RGB for data in data_sets):
        data_sets = [_in_colour(data) for data in data_sets]
    usual, wanted = common_order([data.feature_names for data in data_sets])
    data_sets = [_with_columns(wanted, data, place, called[usual]) for place, data in zip(where, data_sets)]
    _require_alike(data_sets, where, called)
    names = _class_names(data_sets)
    data_sets = [
        replace(
            data, y_train=_renumbered(data, data.y_train, names), y_test=_renumbered(data, data.y_test, names),
            num_classes=len(names), class_names=names,
        )
        for data in data_sets
    ]  # fmt: skip
    first = data_sets[0]

    def of_all(part: str) -> Any:
        arrays = [getattr(data, part) for data in data_sets]
        return None if arrays[0] is None else np.concatenate(arrays)

    def owners(part: str) -> Any:
        counts = [len(getattr(data, part)) for data in data_sets if getattr(data, part) is not None]
        return np.repeat(np.arange(len(data_sets)), counts) if counts else None

    groups = None
    if all(data.groups is not None for data in data_sets):
        # Each client's data count their own groups from 0.
        counts = np.cumsum([0, *(int(data.groups.max()) + 1 for data in data_sets if data.groups is not None)])
        halves = [
            np.split(data.groups + before, [len(data.y_train)])
            for data, before in zip(data_sets, counts)
            if data.groups is not None
        ]
        groups = np.concatenate([half for part in zip(*halves) for half in part])
    remarks = [f"{whose}: {said}" for whose, data in zip(called, data_sets) for said in data.remarks]
    if (more := len(remarks) - MAX_REMARKS) > 0:
        remarks[MAX_REMARKS:] = [f"and {more} more remarks on other clients' data"]
    return Dataset.of(
        name, of_all("x_train"), of_all("y_train"), of_all("x_test"), of_all("y_test"), owners("y_train"),
        owners("y_test"), len(names), names, first.vocabulary, client_names=client_names,
        feature_names=first.feature_names, validation=of_all("validation"),
        overlap=max(data.overlap for data in data_sets), groups=groups, remarks=tuple(remarks),
    )  # fmt: skip


def _require_alike(data_sets: Sequence[Dataset], where: Sequence[str], called: Sequence[str]) -> None:
    """Refuse a client whose samples, parts or labels are of another kind than the first one's."""
    first, name = data_sets[0], called[0]
    for data, place, its_name in zip(data_sets, where, called):
        if _samples(data) != _samples(first):
            raise DataError(f"{place}: its samples are {_shape(data)}, those of {name} {_shape(first)}")
        for part, word in (("x_test", "test set"), ("validation", "validation part")):
            lacks, has = getattr(data, part) is None, getattr(first, part) is None
            if lacks != has:
                raise DataError(
                    f"{place if lacks else where[0]}: has no {word}, but {name if lacks else its_name} has one"
                )
        for kind in (_labels, lambda data: "numbers" if data.unnamed else "names"):
            if kind(data) != kind(first):
                raise DataError(f"{place}: its labels are {kind(data)}, unlike those of {name}")


def _samples(data: Dataset) -> Any:
    return data.x_train.shape[1:], data.x_train.dtype.kind, data.vocabulary


def _shape(data: Dataset) -> str:
    return f"{data.x_train.dtype} {'×'.join(map(str, data.x_train.shape[1:]))}"


def _labels(data: Dataset) -> str:
    targets = f"{data.num_classes} numbers" if data.num_classes > 1 else "numbers with decimals"
    return {MASKS: "masks", NEXT_TOKEN: "tokens", TARGETS: targets, CLASSES: "classes"}[data.label_kind]


def _with_columns(names: tuple[str, ...], data: Dataset, where: str, whose: str) -> Dataset:
    """Bring the columns of one client into an order, by their names."""
    if data.feature_names == names:
        return data
    if not data.feature_names or not names:
        which = "has names" if data.feature_names else "has no names"
        raise DataError(f"{where}: {which} for its features, unlike {whose}: whether they are the same is unknown")
    order = places(data.feature_names, names, where, whose)
    x_test = None if data.x_test is None else np.take(data.x_test, order, axis=1)
    return replace(data, x_train=np.take(data.x_train, order, axis=1), x_test=x_test, feature_names=names)


def _in_colour(data: Dataset) -> Dataset:
    """Return grey images as RGB."""
    if not data.is_image:
        return data
    return replace(data, x_train=coloured(data.x_train), x_test=None if data.x_test is None else coloured(data.x_test))


def _class_names(data_sets: Sequence[Dataset]) -> tuple[str, ...]:
    """Return the classes of all clients: their numbers, or their names, sorted unless all have the same ones."""
    if data_sets[0].unnamed:
        return numbered(max(data.num_classes for data in data_sets))
    if all(data.class_names == data_sets[0].class_names for data in data_sets):
        return data_sets[0].class_names
    return tuple(sorted({name for data in data_sets for name in data.class_names}))


def _renumbered(data: Dataset, y: Any, names: tuple[str, ...]) -> Any:
    """Return labels by their places among the classes of all clients; targets as they are."""
    if y is None or data.class_names == names or data.label_kind in (TARGETS, NEXT_TOKEN):
        return y
    place = {name: number for number, name in enumerate(names)}
    numbers = np.arange(max(IGNORED + 1, data.num_classes))
    numbers[: data.num_classes] = [place[name] for name in data.class_names]
    renumbered: np.ndarray = numbers[y].astype(y.dtype)
    return renumbered
