"""`fedpfl report --experiment`: the tables against the paper, and the runs that are finished."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import PROGRAM, Browser
from grids import FILE, write
from in_process import InProcess, call_fedpfl
from PIL import Image

pytestmark = pytest.mark.xdist_group("chromium")

ANALYSES = "[analyses]\nattack = { of = 'all', clients = 1, images = 2, iterations = 2 }\n[rows]"
PHONE = 390
WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The text of the report before any run, and the file of the one after all runs."""
    folder = tmp_path_factory.mktemp("report")
    file, page = write(folder, FILE.replace("[rows]", ANALYSES)), folder / "report.html"
    settings = ["--seeds", "1", "--output-dir", str(folder / "runs"), "-c", 'local-epochs=1 model="mlp"']
    report, texts = ["report", "--experiment", str(file), "-o", str(page)], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpfl.study.execution.Process", InProcess)
        for command in (report, ["experiment", "run", str(file), "-q"], report):
            done = call_fedpfl(*command, *settings)
            assert done.exit_code == 0, done.output
            texts.append(page.read_text())
    return texts[0], page


def test_the_paper_s_numbers_stand_beside_the_measured_ones(pages: tuple[str, Path]) -> None:
    before, after = pages[0], pages[1].read_text()
    assert "<title>A table</title>" in before
    assert "0 of 3 runs are finished" in before and '"svg"' not in before
    assert "3 of 3 runs are finished" in after and "Accuracy of the clients" in after and after.count('"svg"') > 5
    assert "81.91 ± 3.09" in before and "81.91 ± 3.09" in after


@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (apt-get install chromium)")
def test_the_page_of_an_experiment_in_a_browser(pages: tuple[str, Path], tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    with Browser(tmp_path / "profile") as browser:
        for width, height in ((1280, 800), (PHONE, 844)):
            assert browser.open(pages[1], width, height) == []
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
