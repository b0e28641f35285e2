"""`fedpfl report --experiment`: the tables against the paper, and the runs that are finished."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import PROGRAM, Browser
from grids import FILE, write
from in_process import InProcess
from PIL import Image
from typer.testing import CliRunner

from fedpfl.cli import app


def test_the_paper_s_numbers_stand_beside_the_measured_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpfl.study.execution.Process", InProcess)
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
    assert '"svg"' not in before
    fedpfl("experiment", "run", str(file), "-q")
    fedpfl("report", "--experiment", str(file), "-o", str(page))
    after = page.read_text()
    assert "3 of 3 runs are finished" in after
    assert "81.91 ± 3.09" in after
    assert "Accuracy of the clients" in after
    assert after.count('"svg"') > 5


PHONE = 390
WIDTH = "document.documentElement.scrollWidth"


@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (apt-get install chromium)")
@pytest.mark.xdist_group("chromium")
def test_the_page_of_an_experiment_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpfl.study.execution.Process", InProcess)
    analyses = "[analyses]\nattack = { of = 'all', clients = 1, images = 2, iterations = 2 }\n[rows]"
    file, page, picture = (
        write(tmp_path, FILE.replace("[rows]", analyses)),
        tmp_path / "report.html",
        tmp_path / "a.png",
    )
    for command in (["experiment", "run", str(file), "-q"], ["report", "--experiment", str(file), "-o", str(page)]):
        settings = ["--seeds", "1", "--output-dir", str(tmp_path / "runs"), "-c", "local-epochs=1"]
        done = CliRunner().invoke(app, [*command, *settings], prog_name="fedpfl")
        assert done.exit_code == 0, done.output
    with Browser(tmp_path / "profile") as browser:
        for width, height in ((1280, 800), (PHONE, 844)):
            assert browser.open(page, width, height) == []
            assert browser.evaluate(WIDTH) <= width
            browser.picture(picture)
            with Image.open(picture) as seen:
                assert width - 20 < seen.width <= width, "without a scroll bar"
                assert seen.height > 3 * height, "all of the page, not only what is in view"
                assert len(seen.convert("RGB").getcolors(1 << 24)) > 500, "plots and images"
        titles = "[...document.querySelectorAll('h2')].map(head => head.textContent)"
        assert browser.evaluate(titles) == ["Against the paper", "A", "B", "Further analyses"]
        assert "81.91 ± 3.09" in browser.evaluate("document.querySelector('table').textContent")
        assert browser.evaluate("document.querySelectorAll('svg image').length") >= 8, "recovered images"
        names = "[...document.querySelectorAll('table th[scope=row]')].map(cell => cell.textContent)"
        assert not [name for name in browser.evaluate(names) if "-digits-" in name], "runs are called by their rows"
