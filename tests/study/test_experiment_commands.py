"""`fedpfl experiment` and `fedpfl sweep`, with runs that end at once; and one table for real."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from grids import FILE, Fake, write
from in_process import InProcess
from in_process import call_fedpfl as fedpfl
from waiting import wait_until

import fedpfl as package
from fedpfl.cli.stored_runs import show
from fedpfl.core.errors import DamagedFile

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    monkeypatch.setattr("fedpfl.study.execution.Process", fake)
    return fake


def test_an_experiment_is_run_and_its_tables_left(fake: Fake, tmp_path: Path) -> None:
    done = fedpfl("experiment", "run", write(tmp_path), "--seeds", 2)
    assert done.exit_code == 0, done.output
    assert "| FedAvg | 51.50 ± 0.71 | 60.39 ± 1.46 | 51.50 ± 0.71 | 61.5 |" in done.stdout
    assert "| Local | 4.000 ± 0.000 | – |" in done.stdout and "over seeds 1, 2" in done.stdout
    assert "(6/6)" in done.stderr
    assert "about" in done.stderr  # how long the rest takes
    left = tmp_path / ".fedpfl" / "experiments" / "tables" / "table" / "smoke"
    assert {path.name for path in left.iterdir()} == {"table.md", "table.tex", "table.csv", "table-2.csv"}
    assert "60.39 ± 1.46" in (left / "table.md").read_text()
    assert len(fake.started) == 6
    assert fedpfl("experiment", "run", tmp_path / "table.toml", "--seeds", 2, "-q").stdout == done.stdout
    assert len(fake.started) == 6


def test_values_are_drawn_over_the_numbers_in_the_names(fake: Fake, tmp_path: Path, monkeypatch) -> None:
    text = (
        FILE.replace('"A"', '"α 0.1, few"').replace('"B"', '"α 1, few"').replace("seeds = 3", 'seeds = 3\nx = "α"', 1)
    )
    path, left = write(tmp_path, text), tmp_path / ".fedpfl/experiments/tables/table/smoke"
    assert fedpfl("experiment", "run", path, "--seeds", 2, "-q").exit_code == 0
    name = "a-table-personalised-accuracy-mean-over-clients-best-round"
    rows = list(csv.reader(io.StringIO((left / f"{name}.csv").read_text())))[1:]
    assert [row[:2] for row in rows if row[0] == "FedAvg, few"] == [["FedAvg, few", "0.1"], ["FedAvg, few", "1.0"]]
    assert [row[:3] for row in rows if row[0] == "Local, few, published"] == [["Local, few, published", "0.1", "81.91"]]
    assert "<svg" in (left / f"{name}.svg").read_text()
    monkeypatch.setattr("fedpfl.api.comparisons.can_draw", lambda: False)
    assert "but not drawn: pip install matplotlib" in fedpfl("experiment", "run", path, "--seeds", 2, "-q").stderr


@pytest.mark.parametrize(
    ("published", "drawn"),
    [("1e-05", 1e-05), ('"1e-3 (0.1)"', 1e-3), ('"−5.5 %"', -5.5), ('"1,234"', None), ('"< 3"', None), ("61", 61.0)],
)
def test_a_paper_s_number_is_drawn_as_it_is_or_not_at_all(fake: Fake, tmp_path: Path, published, drawn) -> None:
    text = FILE.replace('"A"', '"v 1.2.3"').replace('"B"', '"v 2"').replace("seeds = 3", 'seeds = 3\nx = "v"', 1)
    path, left = write(tmp_path, text.replace("61.5]", f"{published}]")), tmp_path / "out/tables/table/smoke"
    assert fedpfl("experiment", "run", path, "-q", "--output-dir", tmp_path / "out").exit_code == 0
    name = "a-table-personalised-accuracy-mean-over-clients-best-round"
    rows = list(csv.reader(io.StringIO((left / f"{name}.csv").read_text())))[1:]
    assert [float(row[2]) for row in rows if row[0] == "FedAvg, published"] == ([] if drawn is None else [drawn])
    assert {row[1] for row in rows} == {"2.0"}, "1.2.3 is no number"


def test_nothing_is_relative_to_zero(fake: Fake, tmp_path: Path) -> None:
    fake.accuracy["local"] = -0.01
    path = write(tmp_path, FILE.replace("seeds = 3", 'seeds = 3\nrelative-to = "Local"', 1))
    done = fedpfl("experiment", "run", path)
    assert done.exit_code == 0 and "These runs have no such number: FedAvg, A; Local, A; FedAvg, B." in done.stdout


def test_a_failure_shows_in_the_table_and_in_the_exit_code(fake: Fake, tmp_path: Path) -> None:
    fake.fail["local"] = "no memory"
    done = fedpfl("experiment", "run", write(tmp_path))
    assert done.exit_code == 1
    assert "| Local | failed | 81.91 ± 3.09 | – | – |" in done.stdout
    assert "Failed: Local, A, seed 1: no memory." in done.stdout
    assert "error: 1 of 3 runs did not finish" in done.stderr
    assert "(3/3)" in done.stderr  # no rounds are left


def test_formats(fake: Fake, tmp_path: Path) -> None:
    path = write(tmp_path)
    fedpfl("experiment", "run", path)
    rows = list(csv.reader(io.StringIO(fedpfl("experiment", "table", path, "--format", "csv").stdout)))
    assert rows[0][:4] == ["", "A (smoke scale)", "A (smoke scale) std", "A (smoke scale) n"]
    assert r"\begin{table}" in fedpfl("experiment", "table", path, "--format", "latex").stdout
    assert "must be one of markdown, csv, latex" in fedpfl("experiment", "table", path, "--format", "pdf").stderr


def test_settings_from_outside_win_and_are_told(fake: Fake, tmp_path: Path) -> None:
    path = write(tmp_path)
    text = fedpfl("experiment", "run", path, "-c", "learning-rate=0.7").stdout
    assert "Set besides: learning-rate = 0.7." in text
    assert "not run yet" in fedpfl("experiment", "table", path).stdout
    assert "seed = 5: cannot be set here; use --seeds" in fedpfl("experiment", "run", path, "-c", "seed=5").stderr


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    done = fedpfl("experiment", "run", "none-of-that")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "feddecomp-table-3" in done.stderr
    broken = write(tmp_path, FILE.replace("learning-rate = 0.5", "learning-rat = 0.5"))
    assert "did you mean learning-rate" in fedpfl("experiment", "run", broken).stderr
    assert "must be one of smoke, small, paper" in fedpfl("experiment", "run", broken, "--scale", "big").stderr


def test_the_list_has_every_file() -> None:
    shown = fedpfl("experiment", "list").stdout
    for path in (ROOT / "experiments").glob("*/*.toml"):
        assert path.stem in shown


def test_a_sweep(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('method = "fedprox"\nnum-server-rounds = 1\n')
    command = ["sweep", "-c", "base.toml", "--grid", "learning-rate=0.01,0.05", "--grid"]
    done = fedpfl(*command, "fedprox-mu=0.1,1", "--seeds", 2, "--name", "mine", "--format", "csv")
    assert done.exit_code == 0, done.output
    left = tmp_path / ".fedpfl/experiments/tables/sweeps/mine"
    each, merged = ((left / name).read_text() for name in ("table.csv", "table-2.csv"))
    assert done.stdout == f"{each}\n{merged}"
    assert sorted(row["seed"] for row in csv.DictReader(io.StringIO(each))) == ["1"] * 4 + ["2"] * 4
    rows = list(csv.DictReader(io.StringIO(merged)))
    assert len(rows) == 4
    assert {row["runs done"] for row in rows} == {"2/2"}
    assert len(fake.started) == 8
    # Other settings would take the place of these tables; more values of the same keep what there is.
    other = fedpfl(*command, "fedprox-mu=0.1,1", "-c", "batch-size=7", "--seeds", 2, "--name", "mine")
    assert (other.exit_code, "has the tables of another sweep; give another name" in other.stderr) == (2, True)
    assert len(fake.started) == 8, "it is refused before anything is run"
    assert (left / "table.csv").read_text() == each
    assert fedpfl(*command, "fedprox-mu=0.1,1,2", "--seeds", 2, "--name", "mine").exit_code == 0
    (left / "runs.json").unlink()
    assert "but no list of their runs" in fedpfl(*command, "fedprox-mu=1", "--name", "mine").stderr
    assert "must be a folder's name, without /" in fedpfl(*command, "fedprox-mu=1", "--name", "a/b").stderr


def test_seeds_alone_are_a_sweep(fake: Fake) -> None:
    done = fedpfl("sweep", "-c", "num-server-rounds=1", "--seeds", 3, "--name", "three")
    assert done.exit_code == 0, done.output
    assert len(fake.started) == 3 and "Sweep three: 3 seeds, each point" in done.stdout and "| 3/3 |" in done.stdout
    assert "report: fedpfl report --sweep three\n" in done.stderr
    assert "several seeds (--seeds)" in fedpfl("sweep").stderr


def test_methods_are_compared_by_one_command(fake: Fake, tmp_path: Path) -> None:
    command = ["compare", "fedavg", "fedper", "-c", "num-server-rounds=1 dirichlet-alpha=0.1", "-q"]
    done = fedpfl(*command, "--seeds", 2)
    assert done.exit_code == 0, done.output
    assert len(fake.started) == 4
    assert "**fedavg, fedper on digits (dirichlet, α 0.1, 10 clients)**" in done.stdout
    assert "No difference is statistically significant" in done.stdout
    name = re.search(r"report: fedpfl report --sweep (fedavg-fedper-[0-9a-f]{6})\n", done.stderr)[1]
    left = tmp_path / ".fedpfl/experiments/tables/sweeps" / name
    assert f"wrote {left}/table.md" in done.stderr and len(json.loads((left / "runs.json").read_text())) == 4
    assert f"--sweep {name}" in fedpfl(*command, "--seeds", 3).stderr, "more seeds keep the name"
    assert len(fake.started) == 6
    other = fedpfl(*command, "-c", "batch-size=7", "--output-dir", tmp_path / "my runs")
    assert f"--sweep {name}" not in other.stderr
    assert f" --output-dir '{tmp_path}/my runs'\n" in other.stderr
    moved = (tmp_path / "my runs" / "runs").iterdir()
    assert "(finished)" in fedpfl("show", next(moved).name, "--output-dir", tmp_path / "my runs").stdout
    listed = fedpfl("show").stdout
    assert name in listed and "6/6" in listed
    assert (left / "table.md").read_text().strip() in fedpfl("show", name).stdout
    one, *_ = json.loads((left / "runs.json").read_text())
    assert f"{one} (finished)" in fedpfl("show", one).stdout


def test_a_comparison_says_which_clients_were_missing_in_tests_and_how_many_threads_computed(fake: Fake) -> None:
    """What a failed client lacks is in no mean, which may be higher without it."""

    def shown() -> str:
        command = ["compare", "fedavg", "fedper", "-c", "num-server-rounds=1", "--seeds", 1, "-q"]
        return " ".join(fedpfl(*command).stdout.split())

    assert "clients failed" not in shown() and "threads" not in shown()
    (run,) = Path(".fedpfl/experiments/runs").glob("fedper-*")
    line = json.loads((run / "metrics.jsonl").read_text())
    (run / "metrics.jsonl").write_text(json.dumps({**line, "failed": {"0": "its loss is no number"}}) + "\n")
    assert "clients failed" not in shown(), "it failed in training and was tested"
    (run / "metrics.jsonl").write_text(json.dumps({**line, "failed": {"999": "its loss is no number"}}) + "\n")
    said = "clients failed or were absent, and not tested: fedper (`fedpfl report` lists them)."
    assert said in shown()
    for folder in run.parent.iterdir():
        task = json.loads((folder / "task.json").read_text())
        (folder / "task.json").write_text(json.dumps({**task, "threads": [1, 4 if folder == run else 1]}))
    remark = "Clients of these runs computed with different numbers of threads, so their bits may differ. "
    assert f"{remark}fedavg, seed 1: 1; fedper, seed 1: 1, 4." in shown()


def test_a_comparison_s_tables_are_shown_in_every_format_and_drawn_on_a_terminal(fake, tmp_path, monkeypatch, capsys):
    place = ["--output-dir", "mine"]
    assert fedpfl("compare", "fedavg", "fedper", "--seeds", 1, "-q", "--name", "both", *place).exit_code == 0
    latex = fedpfl("show", "both", *place, "--format", "latex").stdout
    assert latex.count(r"\begin{table}") + latex.count(r"\begin{table*}") >= 2 and r"\label{tab:differences}" in latex
    csv_text = fedpfl("show", "both", *place, "--format", "csv").stdout
    assert csv_text.startswith("method,") and "\nhigher,lower," in csv_text
    assert "format = 'word'" in fedpfl("show", "both", "--format", "word").stderr
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    show("both", Path("mine"), "")
    drawn = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    written = tmp_path / "mine" / "tables" / "sweeps" / "both" / "table.md"
    head, _, tables = drawn.partition("\n")
    assert "both/table.md: Made on 20" in head and "|" not in tables and "fedper" in tables
    assert max(map(len, tables.splitlines())) <= 80 and "(--format csv)" in " ".join(tables.split())
    written.write_text(written.read_text().replace(" | ", " ", 1))
    with pytest.raises(DamagedFile, match="a row has"):
        show("both", Path("mine"), "")


def test_methods_are_compared_by_any_metric(fake: Fake, elsewhere: Path) -> None:
    fake.accuracy = {"fedper": 0.4}
    command = ["compare", "fedavg", "fedper", "--seeds", 2, "-q", "-c", 'metrics="f1-macro"', "--by", "auroc"]
    done = fedpfl(*command, "--format", "csv")
    assert done.exit_code == 0, done.output
    first, differences = (list(csv.DictReader(io.StringIO(text))) for text in done.stdout.split("\n\n"))
    # By accuracy FedAvg is better, by AUROC FedPer.
    assert [(row["method"], float(row["auroc"])) for row in first] == [("fedper", 0.585), ("fedavg", 0.485)]
    assert [differences[0]["higher"], differences[0]["lower"]] == ["fedper", "fedavg"]
    (run, *_) = (elsewhere / ".fedpfl/experiments/runs").iterdir()
    values = tomllib.loads((run / "config.toml").read_text())
    assert (values["choose-by"], values["metrics"]) == ("auroc", "f1-macro,auroc")


def test_a_target_has_its_costs_in_a_table(fake: Fake, elsewhere: Path) -> None:
    fake.accuracy = {"fedper": 0.2, "fedavg": 0.4}
    command = ["compare", "fedavg", "fedper", "--seeds", 2, "-q", "--target", 0.3, "--format", "csv"]
    done = fedpfl(*command)
    assert done.exit_code == 0, done.output
    _, costs, _ = (list(csv.DictReader(io.StringIO(text))) for text in done.stdout.split("\n\n"))
    assert [(row["method"], row["reached"]) for row in costs] == [("fedavg", "2/2"), ("fedper", "0/2")]
    assert float(costs[0]["rounds"]) >= 1 and not costs[1]["MB"]


def test_each_method_is_tuned_on_validation_before_its_seeds_are_run(fake: Fake, tmp_path: Path) -> None:
    fake.accuracy = {"fedper": 0.7}
    command = ["compare", "fedavg", "fedper", "fedprox", "-c", "num-server-rounds=1", "-q", "--name", "tuned"]
    command += ["--tune", "learning-rate=0.1,0.3,0.2", "--tune", "fedprox-mu=0.1,1", "--on", "num-clients=4"]
    done = fedpfl(*command, "--on", 'num-clients=4 dataset="mnist"', "--seeds", 3)
    assert done.exit_code == 0, done.output
    # On each data set 3 + 3 + 6 trials, whose seed is the first of the three.
    assert len(fake.started) == 2 * (3 + 3 + 6 + 2 * 3)
    table, differences, other, ranks, *_ = done.stdout.split("\n\n**")
    chosen = "learning-rate 0.3 | 72.0 ± 1.0 | 69.5 | 74.5 | 62.0 ± 1.0 |"
    assert f"| fedper | num-clients 4, dataset mnist | {chosen}" in table
    assert "| fedprox | num-clients 4 | learning-rate 0.3, fedprox-mu 0.1 | 52.0 ± 1.0 |" in table
    assert "with seed 1 on the validation samples, among learning-rate 0.1, 0.3, 0.2; fedprox-mu 0.1, 1." in table
    assert "; a wider range may be better: fedavg on num-clients 4: learning-rate 0.3; fedper on" in table
    assert "| fedper | fedavg | 20.00 | 6 | 6 | 0 | 0.0" in differences
    assert "| fedavg | fedprox | 0.00 | 6 | 0 | 6 | 1 | 1 | no |" in differences
    assert "Differences, num-clients 4, dataset mnist" in other
    assert "| fedper | 1.00 |" in ranks and "| fedavg | 2.50 |" in ranks and "critical difference" in ranks
    again = fedpfl(*command, "--on", 'num-clients=4 dataset="mnist"', "--seeds", 3)
    assert again.stdout == done.stdout and len(fake.started) == 36, "nothing is run again"
    left = tmp_path / ".fedpfl/experiments/tables/sweeps/tuned"
    assert len(json.loads((left / "runs.json").read_text())) == 18, "trials have no part in the report"


def test_a_method_that_fails_has_a_line_that_says_why(fake: Fake) -> None:
    fake.fail = {"fedper": "no memory"}
    done = fedpfl("compare", "fedavg", "fedper", "--tune", "momentum=0.5,0.9", "--seeds", 1, "-q")
    assert done.exit_code == 1
    assert "| fedper | – | – |" in done.stdout and "| 0/1 |" in done.stdout
    assert "Failed: fedper, momentum 0.5; fedper, momentum 0.9: no memory." in done.stdout


def test_one_method_is_varied_on_data_sets_with_names(fake: Fake) -> None:
    data = ["--on", "Few: dirichlet-alpha=0.1", "--on", "Many: dirichlet-alpha=0.5"]
    done = fedpfl("compare", "fedavg", "--vary", "momentum=0.5,0.9", *data, "--seeds", 1, "-q", "--name", "one")
    assert done.exit_code == 0, done.output
    assert "| method | Few | Many |" in done.stdout
    folder = Path(re.search(r"wrote (\S+)/table.md", done.stderr)[1])
    written = tomllib.loads((folder / "comparison.toml").read_text())["on"]
    assert [column["name"] for column in written] == ["Few", "Many"]
    latex = (folder / "table.tex").read_text()
    assert r"\textbf{" in latex and "dirichlet-alpha & all & 0.1 (Few), 0.5 (Many)" in latex


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["fedavg"], "methods = ['fedavg']: a comparison needs two methods or more"),
        (["fedavg", "FedAvg"], "a comparison needs two methods or more"),
        (["fedavg", "fedavgg"], "fedavgg"),
        (["fedavg", "fedper", "-c", "ditto-pull=1"], "is a setting of ditto, and the method is fedavg or fedper"),
        (["fedavg", "fedper", "--name", "a/b"], "must be a folder's name, without /"),
        (["fedavg", "fedper", "--tune", "learning-rate"], "tune = 'learning-rate': must be key=value"),
        (["fedavg", "fedper", "--tune", "learning-rte=1"], "did you mean learning-rate"),
        (["fedavg", "fedper", "--tune", "seed=1,2"], "tune = 'seed': is the same for all methods and cannot be tuned"),
        (["fedavg", "fedper", "--tune", "ditto-pull=1"], "ditto-pull = [1]: is a setting of ditto, and the method"),
        (["fedavg", "fedper", "--tune", "momentum=0,0.5", "-c", "validation-fraction=0"], "needs validation-fraction"),
        (["fedavg", "fedper", "--format", "word"], "format = 'word': must be one of markdown, csv, latex"),
        (["fedavg", "fedper", "--target", "nan"], "Invalid value for '--target': nan is not a finite number"),
        (["fedavg", "fedper", "--by", "aurok"], "must be one of accuracy"),
        (["local", "fedavg", "--vary", "ditto-pull=1"], "ditto-pull = [1]: is a setting of ditto"),
        (["local", "fedavg", "--vary", "seed=1,2"], "vary = 'seed': is the same for all methods and cannot be varied"),
        (["local", "ditto", "--vary", "ditto-pull=1", "--tune", "ditto-pull=1"], "can be tuned or varied, not both"),
        (["local", "fedavg", "-c", "dataset=npz num-clients=2", "--on", "data=lost.npz", "--on", "data=no.npz"],
         "no.npz': nor this one"),
        ("methods = 3", "methods = 3: bad.toml: must be a list"),
        ("methods = [3]", "methods = [3]: bad.toml: must be a list of methods"),
        ("round = 3", "round = 3: bad.toml: must be one of the keys methods, seeds"),
        ("target = nan", "target = nan: bad.toml: must be a finite number"),
        ("seeds = 0", "seeds = 0: bad.toml: must be at least 1"),
        ("[tune]\nlearning-rate = 3", "learning-rate = 3: bad.toml: tune: must be a list of values"),
        ("methods =", "is not valid TOML"),
    ],
)  # fmt: skip
def test_a_comparison_that_cannot_be_is_one_line(fake: Fake, asked: list[str] | str, message: str) -> None:
    """What is asked for by arguments, or by the text of a file."""
    if isinstance(asked, str):
        Path("bad.toml").write_text(asked)
        asked = ["bad.toml"]
    done = fedpfl("compare", *asked)
    assert done.exit_code == 2 and message in done.stderr and done.stderr.count("\n") == 1 and not fake.started


def test_the_functions_return_what_the_commands_print(fake: Fake, tmp_path: Path) -> None:
    path, few = write(tmp_path), {"num_server_rounds": 1, "num_clients": 2}
    arguments = ["-c", "num-server-rounds=1 num-clients=2", "-q"]
    for command, function, *call in (
        (["experiment", "run", path, "--row", "Local", "-q"], package.experiment, path, {"rows": ["Local"]}),
        (["sweep", "--grid", "momentum=0.1,0.5", *arguments], package.sweep, {"momentum": [0.1, 0.5]}, few),
        (["compare", "fedavg,local", "--seeds", 2, *arguments], package.compare, "fedavg, local", {"seeds": 2, **few}),
    ):
        result = function(call[0], quiet=True, **call[1])
        started = len(fake.started)
        assert fedpfl(*command).stdout == "\n".join(table.markdown() for table in result.tables)
        assert len(fake.started) == started, "the command finds the function's runs"
        assert not result.failed and len(result.runs) >= 1


def test_the_functions_refuse_what_the_commands_refuse(fake: Fake) -> None:
    for call in (
        lambda: package.compare("fedavg,fedper", ditto_pull=1.0),
        lambda: package.sweep({"momentum": [0.1]}, ditto_pull=1.0, method="fedavg"),
        lambda: package.experiment("feddecomp-table-1", ditto_pull=1.0),
    ):
        with pytest.raises(package.ConfigError, match=r"ditto-pull = 1\.0: is a setting of ditto, and the method is"):
            call()
    for executor, federation in (("slurm", None), ("local", "bench"), ("flower", None)):
        with pytest.raises(package.ConfigError, match=r"executor|federation"):
            package.sweep({"momentum": [0.1]}, executor=executor, federation=federation)
    assert not fake.started


def test_where_runs_failed_the_error_has_what_the_others_recorded(fake: Fake) -> None:
    fake.fail = {"local": "no memory"}
    with pytest.raises(package.FedpflError, match="no memory") as error:
        package.compare("fedavg,local", seeds=1, num_server_rounds=1, quiet=True)
    assert [run.settings["method"] for run in error.value.result.runs] == ["fedavg"]


SECONDS = 400  # a busy machine takes its time

REAL = """\
title = "Real"
paper = "Nobody, Nothing, 2024"
metrics = ["personalised-best"]
seeds = 1
[settings]
num-server-rounds = 3
local-epochs = 1
num-clients = 2
[rows]
"FedAvg" = { method = "fedavg" }
[columns]
"good" = { dataset = "npz", data = "{generated}/made.npz", generate = ["make.py", "--samples", "60"] }
"bad" = { dataset = "npz", data = "{generated}/made.npz", generate = ["make.py", "--samples", "none"] }
[scale.smoke]
remarks = "All."
[scale.small]
remarks = "All."
[paper-values]
missing = "there is none"
"""

# The column that fails waits for the interruption, or everything might be over before.
MAKE = """\
import argparse, numpy, pathlib, sys, time
if "none" in sys.argv:
    deadline = time.monotonic() + 600
    while not pathlib.Path(__file__).with_name("interrupted").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
parser = argparse.ArgumentParser()
for name, kind in (("samples", int), ("seed", int), ("write", pathlib.Path)):
    parser.add_argument(f"--{name}", type=kind)
options = parser.parse_args()
y = numpy.arange(options.samples) % 2
options.write.mkdir(parents=True)
x = numpy.random.default_rng(options.seed).integers(0, 120, (len(y), 8, 8, 1)) + 120 * y[:, None, None, None]
numpy.savez(options.write / "made.npz", x=x.astype("uint8"), y=y)
"""


def test_runs_with_callbacks_make_their_data_too(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text(REAL)
    (tmp_path / "make.py").write_text(MAKE)
    (tmp_path / "interrupted").touch()

    class Counted(package.Listener):
        rounds = 0

        def round_ended(self, rule, done, state) -> bool:
            Counted.rounds += 1
            return False

    made = package.experiment(tmp_path / "real.toml", output_dir=tmp_path / "out", callbacks=[Counted()], quiet=True)
    assert Counted.rounds == 3 and len(made.runs) == 1
    (reason,) = made.failed.values()
    assert reason.startswith("make.py: ") and reason.endswith("argument --samples: invalid int value: 'none'")


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_for_real_with_an_interruption_and_a_failure(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text(REAL)
    (tmp_path / "make.py").write_text(MAKE)
    code = "from fedpfl.cli import main; main()"
    arguments = ["experiment", "run", "real.toml", "--output-dir", "out"]
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        checkpoints = "out/runs/*/checkpoint/round-000001.safetensors"
        wait_until(lambda: list(tmp_path.glob(checkpoints)), lambda: child.poll() is None)
    finally:
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=SECONDS)
    (tmp_path / "interrupted").touch()
    assert (child.returncode, err.splitlines()[-1]) == (130, "interrupted; the same command continues from here")

    done = fedpfl(*arguments)
    assert done.exit_code == 1, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("| FedAvg"))
    assert re.fullmatch(r"\| FedAvg \| \d+\.\d\d \| failed \|", line)
    assert "argument --samples: invalid int value: 'none'" in done.stdout
    (folder,) = (path for path in tmp_path.glob("out/runs/fedavg-npz-*") if (path / "summary.md").is_file())
    assert re.findall(r'"round": (\d+)', (folder / "metrics.jsonl").read_text()) == ["1", "2", "3"]


def test_experiments_are_found_in_folders_under_one_name_each(tmp_path: Path) -> None:
    text = FILE.replace('base = "base.toml"\n', "")
    for name in ("one/scales/shared", "scales/shared", "one/first", "second"):
        path = tmp_path / "experiments" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if "shared" in name else text)
    done = fedpfl("experiment", "list")
    assert [word for word in ("first", "second", "shared") if word in done.output] == ["first", "second"]
    (tmp_path / "experiments" / "one" / "second.toml").write_text(text)
    done = fedpfl("experiment", "run", "first")
    assert done.exit_code == 2
    assert "is the name of experiments/one/second.toml and of experiments/second.toml" in done.stderr


SMALL_COMPARISON = (
    'dataset="digits" model="mlp" num-clients=3 num-server-rounds=1 local-epochs=1 partition-seed=1 choose-by="loss"'
)


def test_a_comparison_varies_a_setting_and_runs_again_from_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedpfl.study.execution.Process", InProcess)

    def compare(*arguments):
        done = fedpfl("compare", *arguments, "--quiet", "--format", "csv")
        assert done.exit_code == 0, done.output
        return done.stdout

    first = compare("local,fedavg", "ditto", "--vary", "ditto-pull=0.1,1", "--seeds", "1", "-c", SMALL_COMPARISON,
                    "--name", "one", "--output-dir", "out")  # fmt: skip
    rows = [line.split(",")[0] for line in first.split("\n\n")[0].splitlines()]
    assert {"local", "fedavg", "ditto ditto-pull 0.1", "ditto ditto-pull 1"} <= {*rows}
    assert "ditto ditto-pull 0.1,ditto ditto-pull 1" in first or "ditto ditto-pull 1,ditto ditto-pull 0.1" in first
    file = tmp_path / "out/tables/sweeps/one/comparison.toml"
    assert tomllib.loads(file.read_text())["vary"] == {"ditto-pull": [0.1, 1]}
    runs = {path.name for path in (tmp_path / "out/runs").iterdir()}
    assert compare(str(file), "--name", "two", "--output-dir", "out").splitlines()[1:] == first.splitlines()[1:]
    assert {path.name for path in (tmp_path / "out/runs").iterdir()} == runs
    again = tmp_path / "out/tables/sweeps/two/comparison.toml"
    assert again.read_text() == file.read_text()


def test_a_bundle_is_the_comparison_with_its_files_and_code(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpfl.study.execution.Process", InProcess)
    (tmp_path / "work" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    x, y = np.random.default_rng(0).random((40, 6), dtype=np.float32), np.arange(40) % 2
    np.savez("data/mine.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    Path("helper.py").write_text("from torch import nn\n")
    net = "from helper import nn\n\ndef net(input_shape, num_classes):\n    return nn.Linear(6, num_classes)\n"
    Path("nets.py").write_text(net)
    settings = "dataset=npz data=data/mine.npz model=nets:net num-clients=2 num-server-rounds=1"
    arguments = ["compare", "local", "fedavg", "--seeds", "1", "-q", "-c", settings]
    home = ["--output-dir", str(tmp_path / "out")]

    def run(*arguments):
        return fedpfl(*arguments, *home)

    first = run(*arguments, "--bundle", "../away")
    assert first.exit_code == 0, first.output
    away = tmp_path / "away"
    files = {path.relative_to(away).as_posix() for path in away.rglob("*") if path.is_file()}
    assert files == {"comparison.toml", "files/mine.npz", "helper.py", "nets.py"}
    assert str(tmp_path) not in (away / "comparison.toml").read_text()
    assert run(*arguments, "--bundle", "../away").exit_code == 2
    told = run("compare", str(away / "comparison.toml"))
    assert told.exit_code == 2 and "is part of a bundle; run it in the bundle's folder: cd" in told.stderr
    shutil.move("data", "elsewhere")
    monkeypatch.chdir(away)
    again = run("compare", "comparison.toml", "-q")
    assert again.exit_code == 0 and again.stdout.splitlines()[1:] == first.stdout.splitlines()[1:]
    assert len([*(tmp_path / "out" / "runs").iterdir()]) == 2  # found again: a run is what its files hold
    Path("helper.py").write_text("from torch import nn  # mine\n")
    Path("files/mine.npz").unlink()
    told = run("compare", "comparison.toml")
    assert told.exit_code == 2
    assert "files/mine.npz is not there; helper.py has changed (copy the whole bundle again)" in told.stderr
