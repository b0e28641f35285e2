"""The hash of a data set's content: two that are read alike have the same one, wherever they lie."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from .dataset import Dataset

ARRAYS = ("x_train", "y_train", "x_test", "y_test", "client_train", "client_test", "validation")


def contents(data: Dataset) -> str:
    """Return a hash of the samples of a data set as they were read, of their names and of their owners.

    Of samples that are read when they are needed some of the inputs count, and all labels.
    """
    about = (data.num_classes, data.class_names, data.client_names, data.feature_names, data.vocabulary)
    digest = hashlib.sha256(repr((about, data.overlap)).encode(errors="surrogatepass"))
    for name in ARRAYS:
        array: Any = getattr(data, name)
        if array is None:
            continue
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        if isinstance(array, np.ndarray):
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        else:
            digest.update(array.digest)
    return digest.hexdigest()[:16]
