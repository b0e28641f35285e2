"""Tables of samples: a row for each, columns of numbers, one with the label, perhaps one with the client."""

from __future__ import annotations

from pathlib import Path

from ..dataset import Dataset
from ..registry import dataset
from ..settings import DataSettings
from .columns import read_files, table_parts, to_dataset
from .npz import require_no_gaps
from .reading_helpers import own_path


def read_table(path: Path, settings: DataSettings, num_classes: int | None = None, alone: bool = False) -> Dataset:
    """Read a table of samples, a file or a folder with parts.

    ``num_classes`` is given where the table may lack the highest classes. ``alone``: others number the same classes
    without seeing this table, so names are refused without ``class-names``.
    """
    return to_dataset(
        read_files(path, settings), path.stem, settings, num_classes, alone, remarks=table_parts(path).remarks
    )


@dataset(
    "table",
    description="your own table",
    shape="features",
    source="the .csv or .parquet file named by `data`, or a folder with train and test: columns of numbers, label, "
    "optionally client and split",
    owned=True,
    from_path=True,
)
def _table(settings: DataSettings) -> Dataset:
    path = own_path(settings, "a table")
    return require_no_gaps(read_table(path, settings, settings.num_classes or None), path, settings)
