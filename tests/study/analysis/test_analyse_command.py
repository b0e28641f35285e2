"""`fedpfl analyse`: tables on standard output, figures' data in a folder, mistakes in one line."""

from __future__ import annotations

import pytest
from in_process import call_fedpfl

from fedpfl.study.analysis import ANALYSES


def call(*args):
    return call_fedpfl("analyse", *map(str, args))


def test_without_a_name_all_are_listed():
    result = call()
    assert result.exit_code == 0
    assert all(name in result.stdout for name in ANALYSES)


def test_tables_are_printed_and_figures_written(make_run, tested, tmp_path):
    run = make_run("local", [tested(0.25, 0.75)])
    result = call("fairness", run.path, "--format", "csv", "-o", tmp_path / "out")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].startswith("local,50.0,,1,25.0")
    assert (tmp_path / "out" / "fairness-fairness.csv").read_text().splitlines()[1] == "local,50.0,25.0,75.0"


def test_a_run_that_is_given_twice_is_no_repetition(make_run, tested):
    run = make_run("local", [tested(0.25, 0.75)])
    assert "note: local: mean and deviation are over 2 runs of 1 seed" in call("fairness", run.path, run.path).stderr


def test_the_runs_of_a_comparison_by_its_name(make_run, tested, tmp_path):
    run = make_run("local", [tested(0.25, 0.75)])
    (run.path / "summary.md").write_text("done")
    root = tmp_path / "experiments"
    (root / "runs").mkdir(parents=True)
    run.path.rename(root / "runs" / "one")
    (root / "tables" / "sweeps" / "mine").mkdir(parents=True)
    (root / "tables" / "sweeps" / "mine" / "runs.json").write_text('{"one": []}')
    done = call("per-client", "--sweep", "mine", "--output-dir", root, "--format", "csv")
    assert done.stdout.splitlines()[:3] == ["client,local", "0,25.0", "1,75.0"]
    wrong = call("per-client", "--sweep", "yours", "--output-dir", root)
    assert wrong.exit_code == 2 and "there are: mine" in wrong.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nonsense", "."), "analysis = 'nonsense': must be one of"),
        (("fairness",), "needs at least one run"),
        (("fairness", "no-such-run"), "there is no such run"),
        (("fairness", "RUN", "--format", "pdf"), "format = 'pdf': must be one of markdown"),
        (("fairness", "RUN", "-o", "RUN/config.toml"), "config.toml': cannot be written"),
        (("fairness", "RUN", "-O", "colour=1"), "colour = 1: is not an option of this analysis"),
    ],
)
def test_mistakes_are_one_line(make_run, tested, args, message):
    run = make_run("local", [tested(0.5)])
    result = call(*(arg.replace("RUN", str(run.path)) for arg in args))
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert message in result.stderr
