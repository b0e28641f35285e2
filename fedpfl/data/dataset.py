"""A data set in memory, before it is divided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import custom
from ..core.errors import DataError, words_of
from ..core.samples import IGNORED, MAX_CLASSES


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, before it is divided.

    Parameters
    ----------
    name : str
        Name for messages and titles.
    x_train, x_test : ndarray
        Images: uint8, samples × height × width × channels. Texts: tokens 0 … ``vocabulary`` − 1 as whole numbers,
        samples × length. Other data: float32, samples × features or samples × channels × length. A tuple or dict of
        arrays where a model of your own takes several inputs. ``x_test`` is None where there is no test set.
    y_train, y_test : ndarray of int64 or of str, shape (n,), of float32, shape (n, k), or of uint8, n × height × width
        Class numbers 0 … C−1, or names of classes; or targets, k numbers for each sample; or masks, a class number for
        each pixel of an image, 255 where a pixel does not count.
    client_train, client_test : ndarray of int64, optional
        The natural owner of each sample, numbered from 0.
    num_classes : int
        C; by default the number of ``class_names``, or else the largest label + 1. Of targets k.
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
    inputs : Inputs, optional
        What lies where in a row of ``x_train``, if there are several inputs; set by the data set itself.
    overlap : int
        How many samples after one share rows or characters with it, where samples are cut from one series or text:
        ``split = "time"`` trains on none that shares some with a test sample.

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
    >>> data = fedpfl.Dataset("mine", features, labels, class_names=("sit", "stand", "walk"))
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
    inputs: Any = None
    overlap: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.overlap, (int, np.integer)) or isinstance(self.overlap, bool) or self.overlap < 0:
            raise DataError(f"{self.name}: overlap is {self.overlap!r}, must be a whole number from 0")
        if any(isinstance(x, (tuple, dict)) for x in (self.x_train, self.x_test)):
            from fedpfl.data.packing import pack

            pack(self)
        if hasattr(self.x_train, "columns"):
            from fedpfl.data.datasets.columns import align

            align(self)
        self._set("inputs", getattr(self.x_train, "inputs", None) or self.inputs)
        for field in ("x_train", "y_train", "x_test", "y_test", "client_train", "client_test", "validation"):
            if getattr(self, field) is not None:
                self._set(field, array(getattr(self, field), f"{self.name}: {field}"))
        if self.validation is not None and (
            self.validation.shape != (len(self.y_train),) or self.validation.dtype != bool or self.y_test is None
        ):
            raise DataError(f"{self.name}: validation must be bool, one for each of x_train, next to a test set")
        if self.y_train.dtype.kind in "US" or (self.y_test is not None and self.y_test.dtype.kind in "US"):
            from fedpfl.data.datasets.categories import number_names

            number_names(self)
        if self.y_train.dtype.kind == "f":
            self._set("num_classes", self.y_train.shape[1] if self.y_train.ndim > 1 else 1)
            self._set("class_names", self.class_names or numbered(self.num_classes))
            return
        counted = {part: y[y != IGNORED] if self.has_masks else y for part, y in self._labels().items()}
        tops = {part: int(y.max()) if y.size else -1 for part, y in counted.items()}
        if self.has_masks and self.y_train.shape[1:] != self.input_shape[1:]:
            shapes = f"masks of {self.y_train.shape[1:]} do not fit inputs of {self.input_shape}"
            raise DataError(f"{self.name}: {shapes} (channels, height, width)")
        count = self.num_classes or len(self.class_names) or max(tops.values()) + 1
        if self.class_names and len(self.class_names) != count:
            raise DataError(f"{self.name}: has names for {len(self.class_names)} classes, num-classes is {count}")
        for part, top in tops.items():
            if top >= (allowed := min(count, MAX_CLASSES)):
                raise DataError(f"{self.name}: {part} has label {top}: labels must be 0 … {allowed - 1}")
        if count > MAX_CLASSES:
            raise DataError(f"{self.name}: {count} classes are more than {MAX_CLASSES}")
        self._set("num_classes", count)
        self._set("class_names", self.class_names or numbered(count))

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _labels(self) -> dict[str, np.ndarray]:
        return {part: y for part, y in (("y_train", self.y_train), ("y_test", self.y_test)) if y is not None}

    @property
    def has_targets(self) -> bool:
        """Whether samples have numbers as targets, or masks, instead of a class."""
        return self.y_train.dtype.kind == "f" or self.has_masks

    @property
    def has_masks(self) -> bool:
        """Whether samples have a class for each pixel."""
        return self.y_train.ndim == 3

    @property
    def unnamed(self) -> bool:
        """Whether the classes have no names but their numbers."""
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
        """Whether the samples are images (uint8)."""
        return self.x_train.dtype == np.uint8 and not self.vocabulary

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as models see it.

        (channels, height, width), (channels, length), (features,) or, of a text, (length,).
        """
        shape = self.x_train.shape[1:]
        return self.inputs or ((shape[2], shape[0], shape[1]) if self.is_image else tuple(shape))


def numbered(n: int) -> tuple[str, ...]:
    """Return the names of n classes that have none: their numbers."""
    return tuple(str(c) for c in range(n))


def array(given: object, where: str) -> np.ndarray:
    """Return what is an array, or can be made one without a guess, such as a tensor on the CPU or a list of words.

    ``where`` is what a ``DataError`` calls it.
    """
    what = f"{where} is {custom.article(given)}"
    if getattr(given, "read_later", False) is True:  # of fedpfl.Lazy
        return given  # type: ignore[return-value]
    if hasattr(given, "toarray"):
        raise DataError(f"{what}, a sparse matrix; give its .toarray()")
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise DataError(f"{what} with masked values; give its .filled(…)")
    try:
        found = np.asarray(given)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        words = words_of(error, 200)
        raise DataError(f"{what} that NumPy cannot make an array of: {words}") from error
    if found.dtype == object and found.size and all(isinstance(one, str) for one in found.reshape(-1).tolist()):
        return found.astype(str)
    if found.dtype == object:
        raise DataError(f"{what} that NumPy cannot make an array of numbers of")
    return found
