"""A data set in memory, before it is divided."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, before it is divided.

    Parameters
    ----------
    name : str
        Name for messages and titles.
    x_train, x_test : ndarray
        Images: uint8, samples × height × width × channels. Texts: tokens 0 … ``vocabulary`` − 1 as whole numbers,
        samples × length. Other data: float32, samples × features or samples × channels × length. ``x_test`` is None
        where there is no test set.
    y_train, y_test : ndarray of int64, shape (n,), or of float32, shape (n, k)
        Class numbers 0 … C−1; or targets, k numbers for each sample.
    client_train, client_test : ndarray of int64, optional
        The natural owner of each sample, numbered from 0.
    num_classes : int
        C; by default the number of ``class_names``, or else the largest label + 1. Of targets k.
    class_names : tuple of str
        One name for each class; the numbers by default.
    client_names : tuple of str
        One name for each owner, where they have names.
    vocabulary : int
        Number of different tokens of texts; 0 for data that are no texts.
    split : {"", "given"}
        ``given``: whatever the setting ``split`` says, clients are tested with their own part of ``x_test``.

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
    split: str = ""
    client_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.has_targets:
            object.__setattr__(self, "num_classes", self.y_train.shape[1])
            object.__setattr__(self, "class_names", self.class_names or numbered(self.num_classes))
            return
        top = max(int(y.max(initial=-1)) for y in (self.y_train, self.y_test) if y is not None)
        count = self.num_classes or len(self.class_names) or top + 1
        object.__setattr__(self, "num_classes", count)
        object.__setattr__(self, "class_names", self.class_names or numbered(count))

    @property
    def has_targets(self) -> bool:
        """Whether samples have numbers as targets instead of a class."""
        return self.y_train.dtype.kind == "f"

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
        return (shape[2], shape[0], shape[1]) if self.is_image else tuple(shape)


def numbered(n: int) -> tuple[str, ...]:
    """Return the names of n classes that have none: their numbers."""
    return tuple(str(c) for c in range(n))
