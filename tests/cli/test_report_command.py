"""`fedpfl report`, and every way to use it wrongly."""

from __future__ import annotations

import json
import shutil

import pytest
from in_process import call_fedpfl as fedpfl
from support import simulate


def document(page):
    return json.loads(page.read_text().split('id="document">')[1].split("</script>")[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return simulate(folder, 2, method="fedavg", num_server_rounds=1, local_epochs=1).path


def test_a_page_and_its_plots(run, tmp_path):
    page, plots = tmp_path / "new" / "report.html", tmp_path / "plots"
    done = fedpfl("report", run, "-o", page, "--plots", plots, "--format", "png")
    assert done.exit_code == 0, done.output
    assert f"wrote {page}" in done.stderr
    whole = page.read_text()
    assert "<title>fedavg on digits (auto, α 0.5)</title>" in whole
    names = sorted(path.name for path in plots.iterdir())
    assert len(names) == sum(len(section["figures"]) for section in document(page)["sections"])
    assert (plots / "accuracy-of-the-clients.png").read_bytes().startswith(b"\x89PNG")
    style = ["--style", "figure.figsize=3,2", "--style", "font.size=7", "--style", "grayscale", "--titles"]
    assert fedpfl("report", run, run, "-o", page, "--plots", plots, *style).exit_code == 0
    assert page.read_text() == whole, "named twice it counts once, and neither plots nor their style change the page"
    drawn = (plots / "personalised-accuracy-over-rounds.svg").read_text()
    assert 'width="216pt" height="144pt"' in drawn and ">Personalised accuracy over rounds<" in drawn


def test_the_runs_of_a_sweep_by_its_name(run, tmp_path):
    root, page = tmp_path / "experiments", tmp_path / "report.html"
    shutil.copytree(run, root / "runs" / "one")
    (root / "tables" / "sweeps" / "mine").mkdir(parents=True)
    (root / "tables" / "sweeps" / "mine" / "runs.json").write_text('{"one": [], "two": []}')
    done = fedpfl("report", "--sweep", "mine", "--output-dir", root, "-o", page)
    assert done.exit_code == 0, done.output
    assert "note: 1 of 2 runs of mine have finished; the others are left out" in done.stderr
    assert "<title>fedavg on digits (auto, α 0.5)</title>" in page.read_text()
    wrong = fedpfl("report", "--sweep", "yours", "--output-dir", root, "-o", page)
    assert wrong.exit_code == 2 and "there is no such sweep" in wrong.stderr and "there are: mine" in wrong.stderr
    (root / "runs" / "one" / "summary.md").unlink()
    none = fedpfl("report", "--sweep", "mine", "--output-dir", root, "-o", page)
    assert none.exit_code == 2 and "sweep = 'mine': none of its runs has finished" in none.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no such run"),
        (["RUN", "--format", "gif"], "must be one of svg, pdf, png"),
        (["RUN", "-o", "/proc/report.html"], "cannot be written"),
        (["RUN", "--style", "font.size=7"], "style = 'font.size=7': does nothing without --plots FOLDER"),
        (["RUN", "--plots", "x", "--style", "font.size=big"], "matplotlib refuses it: Key font.size: Could not conv"),
        ([], "must be the name of at least one run; or give an experiment by --experiment, a sweep by --sweep"),
    ],
)
def test_wrong_use_is_one_line(run, arguments, message):
    done = fedpfl("report", *(run if argument == "RUN" else argument for argument in arguments))
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output
