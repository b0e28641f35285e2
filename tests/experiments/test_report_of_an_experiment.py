"""`fedpfl report --experiment`: the tables against the paper, and the runs that are finished."""

from __future__ import annotations

from pathlib import Path

import pytest
from grids import write
from in_process import InProcess
from typer.testing import CliRunner

from fedpfl.cli import app


def test_the_paper_s_numbers_stand_beside_the_measured_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpfl.experiments.grid.Process", InProcess)
    file, page, root = write(tmp_path), tmp_path / "report.html", tmp_path / "runs"
    settings = ["--seeds", "1", "--output-dir", str(root), "-c", "local-epochs=1"]

    def fedpfl(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, *settings], prog_name="fedpfl")
        assert done.exit_code == 0, done.output
        return done.stdout

    fedpfl("report", "--experiment", str(file), "-o", str(page))
    before = page.read_text()
    assert "<title>A table</title>" in before
    assert "0 of 3 runs are finished" in before
    assert "81.91 ± 3.09" in before
    assert "<svg" not in before
    fedpfl("experiment", "run", str(file), "-q")
    fedpfl("report", "--experiment", str(file), "-o", str(page))
    after = page.read_text()
    assert "3 of 3 runs are finished" in after
    assert "81.91 ± 3.09" in after
    assert "Accuracy of the clients" in after
    assert after.count("<svg") > 5
