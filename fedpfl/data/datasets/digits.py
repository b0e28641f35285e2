"""scikit-learn's digits."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from ..dataset import Dataset
from ..registry import dataset
from ..settings import DataSettings
from .reading_helpers import need


@dataset(
    "digits",
    description="handwritten digits, small enough for a first try",
    size="1,797",
    classes="10",
    shape="8×8×1",
    source="part of scikit-learn (Alpaydin and Kaynak 1998)",
)
def _digits(settings: DataSettings) -> Dataset:
    # Importing scikit-learn takes seconds in every process, its file of 65 numbers a line a few hundredths.
    spec = importlib.util.find_spec("sklearn")
    table = Path(spec.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if spec else Path()
    if table.is_file():
        rows = np.loadtxt(table, delimiter=",")
        values, labels = rows[:, :64].reshape(-1, 8, 8), rows[:, 64]
    else:
        bunch = need("sklearn.datasets", "scikit-learn", 'dataset = "digits"').load_digits()
        values, labels = bunch.images, bunch.target
    # 17 grey levels 0 … 16 spread over 0 … 255: still 17 different values, so nothing is lost.
    pixels = np.rint(values * (255 / 16)).astype(np.uint8)[..., None]
    return Dataset.of("digits", pixels, labels.astype(np.int64), num_classes=10)
