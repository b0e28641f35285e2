"""Numbers of analyses that are kept beside a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpfl.results.run_folder import RunFolder
from fedpfl.study.analysis import ANALYSES
from fedpfl.study.analysis.cache import cached

# Beside the tables that need them.
MaskingOptions = ANALYSES["masking"].function.__globals__["MaskingOptions"]


def test_numbers_are_computed_once_for_each_run_and_options(tmp_path: Path) -> None:
    run, calls = RunFolder(tmp_path / "run", cache=tmp_path / "beside"), []
    run.path.mkdir()
    (run.path / "metrics.jsonl").write_text("first")

    def compute() -> dict[str, np.ndarray]:
        calls.append(1)
        return {"psnr": np.array([len(calls) + 0.5])}

    def number(run: RunFolder, draws: int = 3) -> float:
        return float(cached(run, "masking", MaskingOptions(draws), compute)["psnr"][0])

    assert [number(run), number(run)] == [1.5, 1.5]
    assert number(run, draws=4) == 2.5
    assert number(run) == 1.5
    (run.path / "metrics.jsonl").write_text("run again")
    assert number(run) == 3.5
    for file in (tmp_path / "beside").glob("*.safetensors"):
        file.write_bytes(b"damaged")
    assert [number(run), number(run)] == [4.5, 4.5]
    assert [number(RunFolder(run.path)), number(RunFolder(run.path))] == [5.5, 6.5], "nowhere to keep it"
