"""The files of experiments: what a cell's settings are, and what a mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from grids import FILE, write

from fedpfl.core.errors import ConfigError
from fedpfl.study.experiment import ExperimentGrid
from fedpfl.study.experiment_file import load
from fedpfl.study.run_store import Store

ROWS = '[rows]\n"FedAvg" = { method = "fedavg" }\n"Local" = { method = "local" }'
METRICS = 'metrics = ["personalised-best", "gigabytes"]'
CELL = '[cells."FedAvg"."B"]\nlearning-rate = 0.5'
COLUMNS = '[columns]\n"A" = { dirichlet-alpha = 0.1 }\n"B" = { dirichlet-alpha = 1.0 }'


def settings(path: Path, row: str, column: str, scale: str = "paper") -> dict:
    return next(dict(c.settings) for c in load(path).cells(scale) if (c.row, c.column) == (row, column))


def test_the_later_of_two_settings_wins(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert settings(path, "FedAvg", "A") == {
        "dataset": "digits", "num-clients": 4, "learning-rate": 0.1, "batch-size": 32, "method": "fedavg",
        "dirichlet-alpha": 0.1,
    }  # fmt: skip
    assert settings(path, "FedAvg", "B")["learning-rate"] == 0.5
    smoke = settings(path, "FedAvg", "A", "smoke")
    assert (smoke["num-server-rounds"], smoke["batch-size"]) == (2, 7)
    assert settings(path, "FedAvg", "B", "smoke")["batch-size"] == 32
    one = next(c for c in load(path).cells("paper", {"learning-rate": 9.0}) if c.column == "B")
    assert one.settings["learning-rate"] == 9.0


def test_cells_that_are_not_covered_or_not_of_the_scale_are_not_run_and_missing_values_are_none(tmp_path: Path) -> None:
    experiment = load(write(tmp_path))
    assert [(c.row, c.column) for c in experiment.cells("paper")] == [("FedAvg", "A"), ("Local", "A"), ("FedAvg", "B")]
    assert {c.column for c in experiment.cells("small")} == {"A"}
    assert [experiment.scale(name).seeds for name in ("smoke", "small", "paper")] == [1, 2, 3]
    assert experiment.paper_values["personalised-best"] == {
        "FedAvg": ("60.39 ± 1.46", 61.5), "Local": ("81.91 ± 3.09", None),
    }  # fmt: skip
    with pytest.raises(ConfigError, match="must be one of smoke, small, paper"):
        experiment.cells("huge")


def test_a_column_may_have_a_base_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, FILE.replace("{ dirichlet-alpha = 1.0 }", '{ base = "other.toml", dirichlet-alpha = 1.0 }'))
    (tmp_path / "other.toml").write_text('dataset = "mnist"\nnum-clients = 8\n')
    got = settings(path, "FedAvg", "B")
    assert (got["dataset"], got["num-clients"], "batch-size" in got) == ("mnist", 8, False)


def test_a_scale_takes_what_several_files_share(tmp_path: Path) -> None:
    text = FILE.replace('remarks = "Small."', 'like = "shared.toml"\nremarks = "And more."')
    (tmp_path / "shared.toml").write_text('remarks = "Shared."\n[settings]\nnum-server-rounds = 9\nmomentum = 0.5\n')
    path = write(tmp_path, text)
    assert load(path).scale("smoke").remarks == "Shared. And more."
    got = settings(path, "FedAvg", "A", "smoke")
    assert (got["momentum"], got["num-server-rounds"]) == (0.5, 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "A table"', "", "title = None: table.toml: must be given"),
        ('title = "A table"', 'title = "A table"\ncolour = 1', "must be one of the keys "),
        ('"Local" = { method = "local" }', '"Local" = 3', "Local = 3: table.toml: rows: must be of type dict"),
        ('"B" = { dirichlet-alpha = 1.0 }', '"B" = [1.0]', "columns: must be of type dict"),
        ('"B" = { dirichlet-alpha = 1.0 }', '"B" = { generate = [3] }', "columns.B.generate: must be of type str"),
        ('"B" = { dirichlet-alpha = 1.0 }', '"B" = { generate = ["no.py"] }', "B.generate = 'no.py': there is no such"),
        ('column."A" = { batch-size = 7 }', 'generate."A" = ["no.py"]', "smoke.generate.A = 'no.py': there is no such"),
        (METRICS, "metrics = []", "metrics = []: table.toml: needs at least one"),
        (ROWS, "[rows]", "rows = {}: table.toml: needs at least one"),
        (COLUMNS, "[columns]", "columns = {}: table.toml: needs at least one"),
        (CELL, '[cells."FedAvg"]\n"B" = 3', "cells.FedAvg: must be of type dict"),
        ('rows = ["Local"]', "rows = [[3]]", "not-covered: rows: must be of type str"),
        ('"gigabytes"]', '"kilojoules"]', "metrics = 'kilojoules': must be one of personalised-best"),
        ('rows = ["Local"]', 'rows = ["Ditto"]', "not-covered: rows: must be one of FedAvg, Local"),
        ("[scale.smoke]", '[[no-number]]\nmetrics = ["x"]\nreason = "y"\n[scale.smoke]', "no-number: metrics: must be"),
        ("[scale.smoke]", "[[no-number]]\n[scale.smoke]", "no-number: must be given"),
        ('reason = "there is no such data"', "", "not-covered: must be given"),
        ('[cells."FedAvg"."B"]', '[cells."FedAvg"."C"]', "must be one of A, B"),
        ('columns = ["A"]', 'columns = ["C"]', "scale.small.columns: must be one of A, B"),
        ('remarks = "Larger."', "", "scale.small: must list what differs from the paper"),
        ('missing = "the paper does not say"', "", "must give the reason why the paper has no value"),
        ('["60.39 ± 1.46", 61.5]', '["60.39 ± 1.46"]', "needs a value for each of the 2 columns"),
        ('"Local" = ["81.91 ± 3.09", "–"]', "", "paper-values.personalised-best: must be one of FedAvg"),
        ("[rows]", '[analyses]\nfairness = "column"\n[rows]', "needs of = 'all' or 'column'"),
        ("[scale.small]", "[scale.large]", "scale = 'large'"),
        ("seeds = 3", "seeds = = 3", "is not valid TOML"),
        ('base = "base.toml"', 'base = "none.toml"', "cannot be read (No such file or directory)"),
        ('"60.39 ± 1.46"', "true", "FedAvg = True: table.toml: paper-values.personalised-best: must be a text"),
        ('"gigabytes"]', '"rounds-to:accuracy=nan"]', "metrics = 'rounds-to:accuracy=nan': must be one of"),
        ('"gigabytes"]', '"seconds-to:=0.5"]', "metrics = 'seconds-to:=0.5': must be one of"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in FILE
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, FILE.replace(old, new)))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


LOCAL, OF_A = '"Local" = { method = "local" }', '"A" = { dirichlet-alpha = 0.1 }'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('method = "local" }', 'method = "local", fedprox-mu = 0.1 }', "rows.Local: is a setting of"),
        (CELL, f"{CELL}\nfedprox-mu = 0.1", "cells.FedAvg.B: is a setting of fedprox"),
        (LOCAL, '"Local" = { method = ["local"] }', "method = ['local']: must be a text in quotes"),
        (LOCAL, '"Local" = { method = "local", choose = { fedprox-mu = [1] } }', "rows.Local.choose: is a setting"),
        (LOCAL, '"Local" = { method = "local", choose = { learning-rate = [1] } }', "needs validation-fraction"),
        (OF_A, '"A" = { fedprox-mu = 0.1 }', "fedprox-mu = 0.1: columns.A: is a setting of fedprox, and the method is"),
        (OF_A, '"A" = { choose = { fedprox-mu = [0.1] } }', "columns.A.choose: is a setting of fedprox"),
        ('column."A" = { batch-size = 7 }', 'column."A" = { fedprox-mu = 0.1 }', "scale.smoke.column.A: is a setting"),
        ("evaluate-every = 1 }", "evaluate-every = 1, fedprox-mu = 0.1 }", "scale.smoke.settings: is a setting of"),
        ("[rows]", "[choose]\nfedprox-mu = [0.1, 1.0]\n[rows]", "choose: is a setting of fedprox"),
        (OF_A, '"A" = { clients = [0, 4] }', "clients = 4: columns.A: must be from 0 to 3, a client of the run"),
        (OF_A, '"A" = { clients = [-1] }', "clients = -1: columns.A: must be from 0 to 3"),
        ('"gigabytes"]', '"new-clients:tune"]', "metrics = 'new-clients:tune': the mode must be one of local-train, "),
        ('"gigabytes"]', '"new-clients:fine-tune"]', "new-clients = 0.0: must be above 0 for a metric new"),
    ],
)  # fmt: skip
def test_what_would_change_nothing_or_fail_at_the_end_is_refused_before_the_first_run(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in FILE
    with pytest.raises(ConfigError) as error:
        ExperimentGrid(load(write(tmp_path, FILE.replace(old, new))), "smoke", Store(tmp_path / "runs"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_method_without_a_model_for_new_clients_needs_no_number(tmp_path: Path) -> None:
    text = FILE.replace('"gigabytes"]', '"new-clients:fine-tune"]').replace(
        "paper = ", "settings = { new-clients = 0.25 }\npaper = "
    )
    text = text.replace('method = "local"', 'method = "fedamp"')
    with pytest.raises(ConfigError, match="method = 'fedamp': makes a model for each client and has none for new ones"):
        ExperimentGrid(load(write(tmp_path, text)), "smoke", Store(tmp_path / "runs"))
    without = '[[no-number]]\nrows = ["Local"]\nmetrics = ["new-clients:fine-tune"]\nreason = "none"\n[scale.smoke]'
    cells = ExperimentGrid(load(write(tmp_path, text.replace("[scale.smoke]", without))), "smoke", Store(tmp_path)).runs
    assert {row: run.modes for (row, _, _), run in cells.items()} == {"FedAvg": ("fine-tune",), "Local": ()}


def test_a_setting_of_one_method_is_chosen_for_it_alone(tmp_path: Path) -> None:
    text = FILE.replace("[rows]", "[choose]\nfedprox-mu = [0.1, 1.0]\nmomentum = [0.5]\n[rows]", 1)
    path = write(tmp_path, text.replace('method = "local"', 'method = "fedprox"'))
    number = {(cell.row, cell.column): len(cell.choices) for cell in load(path).cells("smoke")}
    assert number == {("FedAvg", "A"): 1, ("FedAvg", "B"): 1, ("Local", "A"): 2}


def test_a_row_chooses_where_the_file_does_not(tmp_path: Path) -> None:
    row = '"Local" = { method = "local", choose = { momentum = [0.5, 0.9] } }'
    cells = load(write(tmp_path, FILE.replace(LOCAL, row))).cells("smoke")
    assert {cell.row: len(cell.choices) for cell in cells} == {"FedAvg": 0, "Local": 2}
