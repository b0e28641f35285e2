"""Data in the forms in which users hand them over."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from fedpfl.setup.objects import as_setting


@pytest.fixture
def handed_over():
    """Return a function that gives the settings by which a Python object is a run's data set."""
    with ExitStack() as stack:
        yield lambda thing: {"dataset": stack.enter_context(as_setting("dataset", thing))}


@pytest.fixture
def table_as(tmp_path, handed_over):
    """Return a function that hands a DataFrame over in a form, and gives the settings of the run."""

    def table(form, frame):
        if form == "csv":
            frame.to_csv(tmp_path / "a.csv", index=False)
        elif form == "parquet":
            pytest.importorskip("pyarrow")
            frame.to_parquet(tmp_path / "a.parquet", index=False)
        elif form == "frame":
            return handed_over(frame)
        else:
            made = pytest.importorskip("datasets").Dataset.from_pandas(frame)
            if form == "huggingface":
                return handed_over(made)
            made.save_to_disk(tmp_path / "a")
            return {"dataset": "huggingface", "data": str(tmp_path / "a")}
        return {"dataset": "table", "data": str(tmp_path / f"a.{form}")}

    return table
