"""Experiments that choose settings for each cell and rank their rows, and the page with the command of every cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from grids import Fake, Silent
from in_process import call_fedpfl as fedpfl

from fedpfl.core.errors import ConfigError
from fedpfl.results.tables import Spread
from fedpfl.study.analysis.figure import Points
from fedpfl.study.execution import Execution
from fedpfl.study.experiment import ExperimentGrid
from fedpfl.study.experiment_file import load
from fedpfl.study.paper_tables import figures, rankings, tables
from fedpfl.study.run_store import Store

FILE = """\
title = "A board"
paper = "Nobody"
metrics = ["personalised-chosen", "megabytes"]
seeds = 3
[settings]
dataset = "digits"
num-clients = 4
num-server-rounds = 2
validation-fraction = 0.2
[choose]
learning-rate = [0.1, 0.2]
[ranking]
baseline = "Local"
over = "megabytes"
[rows]
"FedAvg" = { method = "fedavg" }
"Local" = { method = "local" }
"FedProx" = { method = "fedprox", choose = { fedprox-mu = [0.5, 0.7, 0.9] } }
[columns]
"A" = { dirichlet-alpha = 0.1 }
"B b" = { dirichlet-alpha = 1.0 }
[scale.smoke]
remarks = "Small."
seeds = 2
[scale.small]
remarks = "Larger."
choose = {}
[paper-values]
missing = "none"
"""
ACCURACY = {"fedavg": 0.4, "local": 0.5, "fedprox": 0.6}


@pytest.fixture
def board(tmp_path: Path) -> Path:
    path = tmp_path / "board.toml"
    path.write_text(FILE)
    return path


def measured(path: Path, scale: str = "smoke", **options: object) -> ExperimentGrid:
    return ExperimentGrid(load(path), scale, Store(path.parent / "out"), **options)


def play(path: Path, fake: Fake, **options: object) -> ExperimentGrid:
    """Run both halves, as the command does, and return what there is then."""
    for _ in range(2):
        of = measured(path, **options)
        Execution(of.planned(), of.store, fake).run(Silent())
    return measured(path, **options)


def test_values_are_tried_with_the_first_seed_and_the_best_is_run_with_the_others(board: Path) -> None:
    before = measured(board)
    assert (len(before.planned()), before.runs) == (2 * (2 + 2 + 3), {})
    assert {run.settings["seed"] for run in before.planned()} == {1}
    fake = Fake()
    after = play(board, fake)
    assert after.chosen["FedAvg", "A"] == {"learning-rate": 0.2}, "the best on the validation samples"
    assert after.chosen["FedProx", "A"] == {"fedprox-mu": 0.5}, "the first of equally good ones"
    assert len(fake.started) == len(set(fake.started)) == 14 + 6, "the chosen trial is the run of the first seed"
    assert {key[2] for key in after.runs} == {1, 2}
    assert after.runs["FedAvg", "A", 2].settings["learning-rate"] == 0.2
    assert after.values("personalised-chosen", "FedAvg", "A") == pytest.approx([0.51, 0.52])


def test_nothing_is_chosen_while_a_trial_is_open(board: Path) -> None:
    of = measured(board)
    Execution([run for run in of.planned() if run.settings["learning-rate"] != 0.1], of.store, Fake()).run(Silent())
    after = measured(board)
    assert set(after.chosen) == {("FedProx", "A"), ("FedProx", "B b")}
    assert rankings(after)[0].table.rows[1][1] == "not run yet"


def test_rows_with_numbers_of_some_seeds_alone_are_named(board: Path) -> None:
    of = measured(board)
    Execution(of.planned(), of.store, Fake()).run(Silent())
    chosen = measured(board)
    later = [run for run in chosen.planned() if run.settings["seed"] == 2 and run.settings["method"] == "local"]
    Execution(later, of.store, Fake()).run(Silent())
    after = measured(board)
    assert [remark for remark in rankings(after)[0].remarks if "seed:" in remark] == ["Only 1 seed: FedAvg, FedProx."]
    assert not any("seed:" in remark for ranking in rankings(play(board, Fake())) for remark in ranking.remarks)


def test_a_value_that_fails_is_not_chosen_and_a_cell_of_which_all_do_has_failed(board: Path) -> None:
    of = play(board, Fake(fail={"fedavg 0.2": "diverged", "local": "no memory"}))
    assert ("FedAvg", "A") not in of.chosen, "a candidate that failed is tried again first"
    of.choose(final=True)
    assert of.chosen["FedAvg", "A"] == {"learning-rate": 0.1}
    assert ("Local", "A") not in of.chosen
    ranked = {row[0]: row for row in rankings(of)[0].table.rows}
    assert ranked["Local"][1] == "failed"
    assert isinstance(ranked["FedAvg"][1], Spread)
    assert "Failed: FedAvg, A, learning-rate 0.2: diverged." in rankings(of)[0].table.note
    assert "B b" not in rankings(of)[0].table.note
    wanted = {run.name for run in of.wanted()}
    assert any(run.name in wanted for choice, run in of.trials["FedAvg", "A"] if choice["learning-rate"] == 0.2)
    assert all(run.name in wanted for _, run in of.trials["Local", "A"])


def test_what_is_given_is_not_chosen(board: Path) -> None:
    of = measured(board, more={"learning-rate": 0.3})
    assert set(of.trials) == {("FedProx", "A"), ("FedProx", "B b")}
    assert of.runs["Local", "A", 1].settings["learning-rate"] == 0.3
    assert not measured(board, "small").trials, "a scale can leave the choice out"


def test_a_choice_needs_samples_for_validation(board: Path) -> None:
    board.write_text(FILE.replace("validation-fraction = 0.2\n", ""))
    with pytest.raises(ConfigError, match=r"choose = \['learning-rate'\]: needs validation-fraction above 0"):
        measured(board)


def test_a_ranking_has_the_best_first_and_says_what_is_below_the_baseline(board: Path) -> None:
    of = play(board, Fake(accuracy=ACCURACY))
    first, second = tables(of)
    assert first.title == "A board: A (smoke scale)"
    assert list(first.columns) == ["", "mean over clients, %", "over Local", "MB", "chosen"]
    assert [row[0] for row in first.rows] == ["FedProx", "Local", "FedAvg"]
    assert [row[4] for row in first.rows] == ["fedprox-mu 0.5", "learning-rate 0.2", "learning-rate 0.2"]
    above, none, below = (row[2] for row in first.rows)
    assert none is None
    assert (above.mean, above.std, above.n) == (pytest.approx(10), pytest.approx(0), 2), "seed by seed"
    assert below.mean == pytest.approx(-10)
    assert first.rows[0][3].mean == pytest.approx(4000)
    assert "Below Local on these data: FedAvg." in first.note
    assert "Chosen for FedProx with seed 1 on the validation samples, among fedprox-mu 0.5; " in first.note
    assert "Chosen for each other row with seed 1 on the validation samples, among learning-rate 0.1; " in first.note
    assert second.title == "A board: B b (smoke scale)"
    even = play(board, Fake(), more={"dirichlet-alpha": 0.7})
    assert "None of the others is below Local on these data." in tables(even)[0].note


def test_accuracy_is_drawn_over_bytes(board: Path) -> None:
    drawn = figures(play(board, Fake(accuracy=ACCURACY)))
    assert [(type(figure), figure.log_x) for figure in drawn] == [(Points, True)] * 2
    assert drawn[0].x_label == "traffic both ways, evaluations included, MB"
    assert drawn[0].y_label == "mean over clients, %"
    assert list(drawn[0].series) == ["FedProx", "Local", "FedAvg"], "as in the table, the best first"
    assert drawn[0].series["FedAvg"] == ([pytest.approx(4000)], [pytest.approx(41.5)])
    assert not figures(measured(board, more={"learning-rate": 0.9, "dirichlet-alpha": 0.4}))


def choices(path: Path, scale: str, row: str, column: str) -> list[dict]:
    cells = {(cell.row, cell.column): cell.choices for cell in load(path).cells(scale)}
    return [*cells[row, column]]


def test_whose_values_count(board: Path) -> None:
    text = FILE.replace('"B b" = { ', '"B b" = { choose = { batch-size = [5] }, ')
    board.write_text(text)
    assert choices(board, "smoke", "FedAvg", "A") == [{"learning-rate": 0.1}, {"learning-rate": 0.2}]
    assert choices(board, "smoke", "FedAvg", "B b") == [{"batch-size": 5}]
    assert len(choices(board, "smoke", "FedProx", "B b")) == 3, "the row's before the column's"
    assert choices(board, "small", "FedProx", "B b") == [], "this scale chooses nothing"
    board.write_text(text.replace("choose = {}", "choose = { learning-rate = [0.3] }"))
    assert choices(board, "small", "FedAvg", "B b") == [{"learning-rate": 0.3}], "the scale's before the column's"


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('method = "fedavg" }', 'method = "fedavg", learning-rate = 0.3 }', "rows.FedAvg"),
        ("dirichlet-alpha = 0.1 }", "dirichlet-alpha = 0.1, learning-rate = 0.3 }", "columns.A"),
        ('remarks = "Small."', 'remarks = "Small."\nrow.FedAvg = { learning-rate = 0.3 }', "scale.smoke.row.FedAvg"),
        ("[scale.smoke]", '[cells.FedAvg]\n"B b" = { learning-rate = 0.3 }\n[scale.smoke]', "cells.FedAvg.B b"),
    ],
)
def test_a_line_may_not_set_what_is_chosen_for_it(board: Path, old: str, new: str, place: str) -> None:
    board.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError, match=rf"learning-rate = 0\.3: {place}: is also in the row's choose; remove it"):
        load(board).cells("smoke")
    cells = {(cell.row, cell.column): cell.settings for cell in load(board).cells("small")}
    if not place.startswith("scale"):
        assert cells["FedAvg", "B b" if "B" in place else "A"]["learning-rate"] == 0.3, "nothing is chosen there"
    board.write_text(FILE.replace(old, new).replace('"fedavg"', '"fedavg", choose = {}'))
    if "columns" not in place:
        assert [cell.choices for cell in load(board).cells("smoke") if cell.row == "FedAvg"] == [(), ()]


def test_some_rows_and_columns(board: Path) -> None:
    only = load(board).only("smoke", ["FedAvg"], ["B b"])
    assert [(cell.row, cell.column) for cell in only.cells("smoke")] == [("FedAvg", "B b")]
    assert list(rankings(ExperimentGrid(only, "smoke", Store(board.parent)))[0].table.columns) == [
        "", "mean over clients, %", "MB", "chosen"
    ]  # fmt: skip
    for rows, columns, message in (
        (["Ditto"], [], "row = 'Ditto': must be one of FedAvg"),
        ([], ["C"], "column = 'C'"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(board).only("smoke", rows, columns)
    board.write_text(FILE.replace('remarks = "Larger."', 'remarks = "Larger."\nrows = ["Local"]'))
    with pytest.raises(ConfigError, match=r"row = 'FedAvg': must be one of Local \(scale small\)"):
        load(board).only("small", ["FedAvg"], [])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("learning-rate = [0.1, 0.2]", "learning-rate = 0.1", "choose: must be of type list"),
        ("learning-rate = [0.1, 0.2]", "learning-rate = []", "choose: needs at least one value"),
        ("fedprox-mu = [0.5, 0.7, 0.9]", "fedprox-mu = []", "rows.FedProx.choose: needs at least one value"),
        ("alpha = 0.1 }", "alpha = 0.1, choose = { seed = [] } }", "columns.A.choose: needs at least one value"),
        ("choose = {}", "choose = { seed = [] }", "scale.small.choose: needs at least one value"),
        ('baseline = "Local"', 'baseline = "Nobody"', "ranking.baseline: must be one of FedAvg"),
        ('over = "megabytes"', 'over = "seconds"', "ranking.over: must be one of personalised-chosen"),
        ('over = "megabytes"', "", "over = None: board.toml: ranking: must be given"),
        ('over = "megabytes"', "over = 3", "ranking: must be of type str"),
    ],
)
def test_a_mistake_is_one_line(board: Path, old: str, new: str, message: str) -> None:
    board.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError) as error:
        load(board)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_one_command_runs_it_and_parts_of_it(board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    fake = Fake(accuracy=ACCURACY, fail={"local 0.1": "diverged"})
    monkeypatch.setattr("fedpfl.study.execution.Process", fake)
    done = fedpfl("experiment", "run", board, "-q")
    assert done.exit_code == 1, "a candidate failed: it is named, and tried again by the next call"
    assert "learning-rate 0.2 (failed: learning-rate 0.1)" in done.stdout
    assert "| FedProx | 61.5 ± 0.7 | 10.0 ± 0.0 | 4000.0 ± 0.0 | fedprox-mu 0.5 |" in done.stdout
    assert len(fake.started) == 20
    left = tmp_path / ".fedpfl/experiments/tables/board/smoke"
    assert {path.name for path in left.glob("table*")} == {"table.md", "table.tex", "table.csv", "table-2.csv"}
    assert "<svg" in (left / "a-board-b-b-smoke-scale.svg").read_text()
    before = (left / "table.md").read_text()

    assert "Below Local on these data: FedAvg." in before
    for best in ("FedProx", "Local"):
        assert f"Compared with {best} (Wilcoxon over clients, p < 0.05 after Holm's correction): 2 others" in before

    count = len(fake.started)
    for row, column in (("FedProx", "A"), ("FedAvg", "B b"), ("Local", "B b")):
        part = fedpfl("experiment", "run", board, "--row", row, "--column", column, "-q")
        assert part.exit_code == (row == "Local"), part.output
        assert f"| {row} | " in part.stdout
    assert len(fake.started) == count + 1, "only the value that failed is tried again"
    assert (left / "table.md").read_text() == before, "the tables of a part are not left in place of the whole"


def test_the_command_of_a_part_alone_makes_what_the_whole_has(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedpfl.study.execution.Process", Fake(accuracy=ACCURACY))
    part = fedpfl("experiment", "run", board, "--row", "FedAvg", "--column", "B b", "--output-dir", "own", "-q")
    whole = fedpfl("experiment", "run", board, "--output-dir", "whole", "-q")
    assert (part.exit_code, whole.exit_code) == (0, 0)
    (line,) = (line for line in part.stdout.splitlines() if line.startswith("| FedAvg"))
    assert line == "| FedAvg | 41.5 ± 0.7 | 4000.0 ± 0.0 | learning-rate 0.2 |"
    assert {path.name for path in (tmp_path / "own/runs").iterdir()} < {
        path.name for path in (tmp_path / "whole/runs").iterdir()
    }


def test_a_ranking_by_an_error_begins_with_the_lowest(board: Path) -> None:
    text = FILE.replace('"personalised-chosen", "megabytes"', '"chosen:mae", "megabytes"')
    text = text.replace("[settings]\n", '[settings]\nloss = "mse"\nmetrics = "mae"\npartitioner = "iid"\n')
    text = text.replace('"A" = { dirichlet-alpha = 0.1 }', '"A" = { batch-size = 8 }')
    board.write_text(text.replace('"B b" = { dirichlet-alpha = 1.0 }\n', ""))
    (ranked,) = rankings(play(board, Fake(accuracy=ACCURACY)))
    assert [row[0] for row in ranked.table.rows] == ["FedProx", "Local", "FedAvg"]
    assert r"FedProx & \textbf{" in ranked.table.latex()
