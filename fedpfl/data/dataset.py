"""A data set in memory, before it is divided."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core.errors import DataError
from ..core.metrics import CLASSES, MASKS, NEXT_TOKEN, TARGETS
from ..core.samples import IGNORED, IGNORED_TOKEN, MAX_CLASSES
from .arrays import array
from .named_columns import names_in_frame, places


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, before it is divided: a plain record, which :meth:`of` makes and checks.

    Parameters
    ----------
    name : str
        Name for messages and titles.
    x_train, x_test : ndarray
        Images: uint8, samples × height × width × channels. Texts: tokens 0 … ``vocabulary`` − 1 as whole numbers,
        samples × length. Other data: float32, samples × features or samples × channels × length. ``x_test``
        is None where there is no test set.
    y_train, y_test : ndarray of int64 or of str, shape (n,), of float32, shape (n, k), or of uint8, n × height × width
        Class numbers 0 … C−1, or names of classes; or targets, k numbers for each sample; or masks, a class number for
        each pixel of an image, 255 where a pixel does not count; or, for ``loss = "next-token"``, int32, samples ×
        length, the tokens of x again, −100 where one is not to be predicted.
    client_train, client_test : ndarray of int64, optional
        The natural owner of each sample, numbered from 0.
    num_classes : int
        C; by default the number of ``class_names``, or else the largest label + 1. Of targets k, of tokens the
        vocabulary.
    class_names : tuple of str
        One name for each class, in their order; by default the numbers, or the names among the labels, sorted.
    client_names : tuple of str
        One name for each owner, where they have names.
    vocabulary : int
        Number of different tokens of texts; 0 for data that are no texts.
    feature_names : tuple of str
        One name for each feature or channel, where they have names.
    remarks : tuple of str
        What a run says of the data before round 1.
    validation : ndarray of bool, shape (len(x_train),), optional
        Which samples of ``x_train`` are for validation and not trained on, in place of ``validation-fraction``; such
        data need a test set.
    overlap : int
        How many samples after one share rows or characters with it, where samples are cut from one series or text:
        ``split = "time"`` trains on none that shares some with a test sample.
    groups : ndarray of int64, optional
        For each sample of the training set, then of the test set, what it is of, such as a patient: tests and
        validation samples are cut off by whole groups.
    drawn : bool
        Whether samples were drawn from the seed of the run; set by who made it so.

    Raises
    ------
    DataError
        Labels are not of these kinds, or not below ``num_classes``; or ``overlap`` is no whole number from 0.

    Examples
    --------
    >>> import fedpfl
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> features, labels = rng.normal(size=(200, 6)).astype(np.float32), rng.integers(3, size=200)
    >>> data = fedpfl.Dataset.of("mine", features, labels, class_names=("sit", "stand", "walk"))
    >>> data.input_shape, data.num_classes
    ((6,), 3)
    >>> run = fedpfl.run(method="local", data=data, model="mlp", num_clients=2, num_server_rounds=1, quiet=True)
    >>> run.summary["rounds"]
    1
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    client_train: np.ndarray | None = None
    client_test: np.ndarray | None = None
    num_classes: int = 0
    class_names: tuple[str, ...] = ()
    vocabulary: int = 0
    client_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    validation: np.ndarray | None = None
    overlap: int = 0
    groups: np.ndarray | None = None
    drawn: bool = False

    @classmethod
    def of(
        cls, name: str, x_train: Any, y_train: Any, x_test: Any = None, y_test: Any = None, client_train: Any = None,
        client_test: Any = None, num_classes: int = 0, class_names: tuple[str, ...] = (), vocabulary: int = 0,
        client_names: tuple[str, ...] = (), feature_names: tuple[str, ...] = (), remarks: tuple[str, ...] = (),
        validation: Any = None, overlap: int = 0, groups: Any = None, drawn: bool = False,
    ) -> Dataset:  # fmt: skip
        """Make a data set of arrays, or of what arrays can be made of, with what follows from them.

        Columns of DataFrames go by their names, and names as labels get numbers.
        """
        if not isinstance(overlap, (int, np.integer)) or isinstance(overlap, bool) or overlap < 0:
            raise DataError(f"{name}: overlap is {overlap!r}, must be a whole number from 0")
        if columns := names_in_frame(x_train):
            if test := names_in_frame(x_test):
                x_test = x_test.iloc[:, places(test, columns, f"{name}: x_test", "x_train")]
            feature_names = feature_names or tuple(columns)
        arrays = {
            "x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test, "client_train": client_train,
            "client_test": client_test, "validation": validation, "groups": groups,
        }  # fmt: skip
        arrays = {key: None if values is None else array(values, f"{name}: {key}") for key, values in arrays.items()}
        held, labels = arrays["validation"], [arrays[key] for key in ("y_train", "y_test") if arrays[key] is not None]
        if held is not None and (held.shape != (len(labels[0]),) or held.dtype != bool or len(labels) < 2):
            raise DataError(f"{name}: validation must be bool, one for each of x_train, next to a test set")
        groups = arrays["groups"]
        if groups is not None and (groups.dtype.kind not in "iu" or groups.shape != (sum(map(len, labels)),)):
            raise DataError(f"{name}: groups must be whole numbers, one for each sample, of the training set first")
        if any(y.dtype.kind in "US" for y in labels):
            labels, class_names = _numbered_names(name, labels, class_names)
            arrays.update(zip(("y_train", "y_test"), labels))
        more: dict[str, Any] = {
            "vocabulary": vocabulary, "client_names": client_names, "feature_names": feature_names, "remarks": remarks,
            "overlap": overlap, "drawn": drawn,
        }  # fmt: skip
        made = cls(name, **arrays, **more)
        num_classes, class_names = made._classes(num_classes, class_names)
        # A model may know more tokens than those that a tokenizer gives.
        vocabulary = num_classes if made.label_kind == NEXT_TOKEN else vocabulary
        return replace(made, num_classes=num_classes, class_names=class_names, vocabulary=vocabulary)

    def _classes(self, num_classes: int, class_names: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        """Count and name the classes; ``DataError`` for labels that are none of them."""
        if self.y_train.dtype.kind == "f":
            count = self.y_train.shape[1] if self.y_train.ndim > 1 else 1
            return count, class_names or numbered(count)
        labels = {part: y for part, y in (("y_train", self.y_train), ("y_test", self.y_test)) if y is not None}
        if self.label_kind == NEXT_TOKEN:
            if 0 < num_classes < self.vocabulary:
                raise DataError(f"{self.name}: has {self.vocabulary} tokens, num-classes is {num_classes}")
            count = num_classes or self.vocabulary
            return count, class_names or numbered(count)
        of_pixels = self.label_kind == MASKS
        counted = {part: y[y != IGNORED] if of_pixels else y for part, y in labels.items()}
        tops = {part: int(y.max()) if y.size else -1 for part, y in counted.items()}
        if of_pixels and self.y_train.shape[1:] != self.input_shape[1:]:
            shapes = f"masks of {self.y_train.shape[1:]} do not fit inputs of {self.input_shape}"
            raise DataError(f"{self.name}: {shapes} (channels, height, width)")
        count = num_classes or len(class_names) or max(tops.values()) + 1
        if class_names and len(class_names) != count:
            raise DataError(f"{self.name}: has names for {len(class_names)} classes, num-classes is {count}")
        if twice := [name for name, number in Counter(class_names).items() if number > 1]:
            raise DataError(f"{self.name}: two classes are called {twice[0][:40]!r}: classes need different names")
        for part, top in tops.items():
            if top >= (limit := min(count, MAX_CLASSES)):
                raise DataError(f"{self.name}: {part} has label {top}: labels must be 0 … {limit - 1}")
        if count > MAX_CLASSES:
            raise DataError(f"{self.name}: {count} classes are more than {MAX_CLASSES}")
        return count, class_names or numbered(count)

    @property
    def countable(self) -> np.ndarray:
        """Whether a sample of the training set, then of the test set, has a label, a pixel or a token that counts."""
        labels = [y for y in (self.y_train, self.y_test) if y is not None]
        if self.label_kind == NEXT_TOKEN:
            return np.concatenate([(y[:, 1:] != IGNORED_TOKEN).any(1) for y in labels])
        if self.label_kind == MASKS:
            return np.concatenate([(y != IGNORED).any((1, 2)) for y in labels])
        return np.ones(sum(map(len, labels)), bool)

    @property
    def label_kind(self) -> str:
        """What the labels are, by the setting ``loss`` that is for them; of several labels that of targets."""
        if self.y_train.ndim == 3:
            return MASKS
        if self.vocabulary and self.y_train.dtype.kind == "i" and self.y_train.shape == self.x_train.shape:
            return NEXT_TOKEN
        return TARGETS if self.y_train.dtype.kind == "f" or self.y_train.ndim > 1 else CLASSES

    @property
    def has_targets(self) -> bool:
        """Tell whether samples have numbers as targets, masks or tokens, instead of a class."""
        return self.label_kind != CLASSES

    @property
    def unnamed(self) -> bool:
        """Tell whether the classes have no names but their numbers."""
        return self.class_names == numbered(self.num_classes)

    @property
    def missing(self) -> list[int]:
        """The classes without a sample; empty for targets."""
        if self.has_targets:
            return []
        counts = sum(np.bincount(y, minlength=self.num_classes) for y in (self.y_train, self.y_test) if y is not None)
        return np.flatnonzero(np.asarray(counts) == 0).tolist()

    @property
    def is_image(self) -> bool:
        """Tell whether the samples are images (uint8)."""
        return self.x_train.dtype == np.uint8 and not self.vocabulary

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as models see it.

        (channels, height, width), (channels, length), (features,) or, of a text, (length,).
        """
        shape = self.x_train.shape[1:]
        return (shape[2], shape[0], shape[1]) if self.is_image else tuple(shape)


def contents(data: Dataset) -> str:
    """Return a hash of the samples of a data set as they were read, of their names and of their owners.

    Of samples that are read when they are needed some of the inputs count, and all labels.
    """
    about = (data.num_classes, data.class_names, data.client_names, data.feature_names, data.vocabulary)
    digest = hashlib.sha256(repr((about, data.overlap)).encode(errors="surrogatepass"))
    for name in ("x_train", "y_train", "x_test", "y_test", "client_train", "client_test", "validation", "groups"):
        array: Any = getattr(data, name)
        if array is None:
            continue
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        if isinstance(array, np.ndarray):
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        else:
            digest.update(array.digest)
    return digest.hexdigest()[:16]


def numbered(n: int) -> tuple[str, ...]:
    """Return the names of n classes that have none: their numbers."""
    return tuple(str(c) for c in range(n))


def _numbered_names(
    name: str, labels: list[np.ndarray], names: tuple[str, ...]
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Put numbers in the place of labels that are names; return these as well."""
    if any(y.dtype.kind not in "US" for y in labels):
        raise DataError(f"{name}: some labels are names and others numbers")
    texts = [np.char.decode(y, "utf-8", "replace") if y.dtype.kind == "S" else y for y in labels]
    different, places = np.unique(np.concatenate([y.reshape(-1) for y in texts]), return_inverse=True)
    every = different.tolist()
    # As in tables: digits that are names of classes go by these.
    if not {*names} & {*every} and all(word.isdecimal() and len(word) < 19 for word in every):
        numbers = different.astype(np.int64)
    else:
        names = names or tuple(every)
        if unknown := [word for word in every if word not in names]:
            raise DataError(f"{name}: the label {unknown[0][:40]!r} is none of the classes {', '.join(names)}")
        numbers = np.array([names.index(word) for word in every], np.int64)
    pieces = np.split(numbers[places.reshape(-1)], np.cumsum([y.size for y in texts])[:-1])
    return [piece.reshape(y.shape) for piece, y in zip(pieces, labels)], names
