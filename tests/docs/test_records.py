"""Records of runs, and the pages that are made of them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpfl.methods import methods
from fedpfl.results.run_folder import RunFolder
from fedpfl.setup.config import Config
from fedpfl.study.analysis import ANALYSES
from fedpfl.study.experiment_file import load

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import run_records as records  # noqa: E402

GRIDS = sorted(records.RECORDS.glob("grids/*.json"))
ATTACKS = sorted(records.RECORDS.glob("attacks/*.json"))
FIGURES = sorted(records.RECORDS.glob("figures/*.json"))
RANKINGS = sorted(records.RECORDS.glob("leaderboard*/*.json"))
OUTPUTS = sorted(records.RECORDS.glob("outputs/*.json"))
FILES = sorted(set(records.RECORDS.rglob("*.json")) - {*GRIDS, *ATTACKS, *FIGURES, *RANKINGS, *OUTPUTS})
PAGES = records.pages()


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_a_page_says_what_its_records_say():
    for page in PAGES:
        text = text_of(page)
        assert records.filled(text) == text, f"{page}: python docs/tools/run_records.py writes it"


def test_a_record_is_small_and_says_what_it_ran_with():
    for path in FILES:
        text = text_of(path)
        record = json.loads(text)
        assert len(text) < 10_000, path
        assert {"command", "commit", "seed", "processor", "versions", "settings", "curves", "best"} <= set(record), path
        assert len(record["commit"]) == 40, path
        places = [str(value) for value in record["settings"].values() if str(value).startswith(("/", "~"))]
        assert not places, path
        assert len({len(values) for values in record["curves"].values()}) == 1, path


def test_a_record_of_outputs_is_small_and_says_what_it_ran_with():
    for path in OUTPUTS:
        text = text_of(path)
        assert len(text) < 30_000, path
        assert {"processor", "versions", "outputs"} == set(json.loads(text)), path
        assert not [folder for folder in ("root", "home", "tmp") if f"/{folder}/" in text], path
        assert not re.search(r"(?<![\w.~])/\S*/site-packages/", text), path


def test_the_command_of_a_record_runs_these_settings():
    for path in FILES:
        record = json.loads(text_of(path))
        command = shlex.split(record["command"])
        assert command[:3] == ["fedpfl", "experiment", "run"], path
        experiment, options = command[3], dict(zip(command[4::2], command[5::2], strict=True))
        more = {"num-server-rounds": int(options["-c"].removeprefix("num-server-rounds="))}
        cells = load(records.EXPERIMENTS[experiment]).cells(options["--scale"], more)
        (cell,) = [one for one in cells if (one.row, one.column) == (options["--row"], options["--column"])]
        expected = Config.parse({**cell.settings, "seed": record["seed"]}).flat()
        defaults = Config.parse({"method": expected["method"]}).flat()
        recorded = {**defaults, **record["settings"], "seed": record["seed"]}
        assert {key: value for key, value in recorded.items() if value != expected[key]} == {}, path


def test_the_record_of_an_experiment_has_its_rows_and_columns():
    for path in GRIDS:
        text = text_of(path)
        record = json.loads(text)
        assert len(text) < 20_000, path
        # Older ones have no tables of analyses; `kept` names what an earlier commit ran.
        some = {"command", "commit", "processor", "versions", "seeds", "values", "curves"}
        assert some == record.keys() - {"tables", "kept", "elsewhere"}, path
        assert all(len(commit) == 40 and cells for commit, cells in record.get("kept", {}).items()), path
        # `elsewhere` names the cells of another processor, by it.
        assert record["processor"] not in record.get("elsewhere", {}), path
        kept = {cell for cells in record.get("kept", {}).values() for cell in cells}
        assert {cell for cells in record.get("elsewhere", {}).values() for cell in cells} <= kept, path
        _, _, _, name, _, scale, *more = shlex.split(record["command"])
        options = list(zip(more[::2], more[1::2], strict=True))
        assert [value for option, value in options if option == "--seeds"] in ([], [str(record["seeds"])]), path
        columns = {value for option, value in options if option == "--column"}
        assert len(options) - len(columns) <= 1, path
        assert path.stem == f"{name}-{scale}", path
        cells = {(cell.row, cell.column) for cell in load(records.EXPERIMENTS[name]).cells(scale)}
        assert columns <= {column for _, column in cells}, path
        for rows in [*record["values"].values(), *record["curves"].values()]:
            assert {(row, column) for row, values in rows.items() for column in values} == cells, path


def test_the_record_of_a_leaderboard_s_column_has_the_rows_of_its_command():
    for path in RANKINGS:
        record = json.loads(text_of(path))
        machine = {"commit", "processor", "versions"}
        assert {"command", "seeds", "table", "remarks", *machine} == record.keys() - {"again"}, path
        for again in record.get("again", {}).values():
            assert {"against Local", *machine} == again.keys() - {"Local"}, path
            assert again["processor"] == record["processor"] or "Local" in again, path
        command = shlex.split(record["command"])
        assert command[:3] + command[4:7] == ["fedpfl", "experiment", "run", "--scale", "small", "--column"], path
        experiment = load(records.EXPERIMENTS[command[3]]).only("small", command[9::2], command[7:8])
        head, *rows = record["table"]
        # A method that came later has a row and no record yet.
        assert {name for name, *_ in rows} <= {*experiment.scale("small").rows}, path
        assert {"Local", "FedAvg"} < {name for name, *_ in rows}, path
        assert len({name for name, *_ in rows}) == len(rows), path
        assert {len(cells) for cells in rows} == {len(head)}, path


def test_the_record_of_a_script_names_its_command():
    for path in FIGURES:
        record = json.loads(text_of(path))
        assert {"command", "processor", "versions", "values"} == record.keys() - {"commit"}, path
        # Programs of the gallery are recorded one by one.
        assert "commit" in record or all("commit" in value for value in record["values"].values()), path
        command = shlex.split(record["command"])
        assert (
            (ROOT / command[1]).is_file()
            or (command[:3] == ["fedpfl", "experiment", "run"] and command[3] in records.EXPERIMENTS)
            or (command[:2] == ["fedpfl", "analyse"] and command[2] in ANALYSES)
            or (command[:2] == ["fedpfl", "compare"] and command[2] in methods())
        )


def test_the_page_on_data_says_the_memory_that_was_measured():
    values = json.loads(text_of(records.RECORDS / "figures" / "larger-than-memory.json"))["values"]
    (said,) = re.findall(r"With [\d.]+ GB of images [^)]*\)", " ".join(text_of(ROOT / "docs/how-to/data.md").split()))
    assert said.startswith(
        f"With {values['GB']} GB of images no process took more than {values['peak of one process, MiB']} MiB"
    )
    assert f"all three {values['peak of all, MiB']} MiB" in said and values["workers"] == 2
    assert f"{values['images']:,} images" in said and f"{values['rounds']} rounds in {values['seconds']} s" in said


# By page: the sections whose tables were measured before there were records, and why they stay.
BY_HAND = {
    "results/performance.md": {"Ten million devices, on paper": "computed"},
    "contributing/bridge.md": {"Limits": "bounds of the code"},
}  # fmt: skip
# Tables of settings, and of the leaderboard's numbers once more.
NOT_MEASURED = (
    "reference/api.md", "reference/configuration.md", "how-to/data.md", "how-to/partition.md", "devices/deployment.md",
    "methods/",
)  # fmt: skip
NUMBER = re.compile(r"\W*\d[\d,]*\.?\d*(?: ?(?:±|%|/|\().*)?\W*")


def test_tables_without_a_record_are_the_known_ones():
    for page in [
        name
        for path in sorted(records.DOCS.rglob("*.md"))
        if not (name := path.relative_to(records.DOCS).as_posix()).startswith(NOT_MEASURED)
    ]:
        path = records.DOCS / page
        titles = set()
        for section in records._BLOCK.sub("", text_of(path)).split("\n## ")[1:]:
            cells = [cell for line in section.splitlines() if line.startswith("|") for cell in line.split("|")]
            if sum(bool(NUMBER.fullmatch(cell)) for cell in cells) >= 4:
                titles.add(section.partition("\n")[0])
        assert titles == set(BY_HAND.get(page, ())), page


def test_the_page_on_gpus_has_the_numbers_of_its_records():
    said = " ".join(text_of(records.DOCS / "how-to" / "gpu.md").split())
    parts = records.one("figures/gpu-works")["values"]["parts"]
    works = ("heavy: fedavg-cnn", "light: mlp", "resnet8")

    def times(one, other):
        return [parts[f"{work} | {one}"]["median"] / parts[f"{work} | {other}"]["median"] for work in works]

    ratios = times("pfl-research", "fedpfl, one batch")
    same = times("pfl-research", "fedpfl, one batch, float32")
    assert (
        "One batch is {:.0f}, {:.0f} and {:.1f} times as fast as pfl-research in one process; in float32, as "
        "pfl-research computed, {:.0f}, {:.0f} and {:.1f} times"
    ).format(*ratios, *same) in said
    by_hand = times("fedpfl, one batch", "stacked by hand, CUDA graphs")[1]
    assert f"with light clients fedpfl takes {by_hand:.0f} times as long" in said
    parts = records.one("figures/gpu-methods")["values"]["parts"]
    by_method = {name: part for name, part in parts.items() if name.startswith("method | ")}
    assert len(by_method) == 42 and {
        part["batch"]["accuracy"] - part["cpu"]["accuracy"] for part in by_method.values()
    } == {0}
    differ = {
        name.removeprefix("method | "): round(160 * abs(part["alone"]["accuracy"] - part["cpu"]["accuracy"]))
        for name, part in by_method.items() if part["alone"]["accuracy"] != part["cpu"]["accuracy"]
    }  # fmt: skip
    assert differ == {"fedreg": 1, "fedrep": 1}
    low = [part["cpu"]["accuracy"] for part in by_method.values() if part["cpu"]["accuracy"] < 0.25]
    assert f"{min(low):.0%} to {max(low):.0%}" == "11% to 24%" and len(low) == 9


def test_a_record_of_a_run(tmp_path):
    settings = {"method": "fedper", "output-dir": str(tmp_path), "run-name": "r", "momentum": 0.5, "seed": 3}
    folder = RunFolder.create(Config.parse(settings))
    with (folder.path / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for number in range(1, 13):
            share = 0.5 + number / 100 if number < 12 else 0.4
            tested = {"weighted": share, "accuracy": share - 0.1, "each": {"0": share, "1": 0.2}}
            line = {"round": number, "personalised": tested, "bytes_up": 1_000_000, "bytes_down": 2_000_000}
            file.write(json.dumps(line) + "\n")
    about = {"row": "A", "column": "B", "command": "c", "commit": "d", "cpu_seconds": 6.0}
    record = records.record(folder, about)
    assert record["curves"]["round"] == [5, 10, 11, 12]
    assert record["best"] == {"round": 11, "weighted": 61.0, "mean": 51.0, "worst tenth": 20.0, "global": None}
    assert record["settings"] == {"method": "fedper", "momentum": 0.5}
    assert (record["rounds"], record["seed"], record["megabytes"]) == (12, 3, 36.0)
    path = records.write("group/name", record, tmp_path)
    assert records.read("group", tmp_path) == [record]
    assert '"round": [5, 10, 11, 12],' in text_of(path)
    shutil.rmtree(folder.path)


def test_files_next_to_pages_say_what_their_records_say():
    expected = records.files()
    assert set(expected) == set(records.DOCS.rglob("*.csv"))
    for path, text in expected.items():
        assert text_of(path) == text, "python docs/tools/run_records.py writes it"
        assert any(f"]({path.name})" in text_of(page) for page in path.parent.glob("*.md")), f"no link to {path.name}"


def test_a_record_keeps_what_an_earlier_one_has_more_of():
    head = ["run", "n"]
    before = {
        "commit": "c" * 40, "processor": "P", "values": {"m": {"A": {"x": [1.0, 2.0]}, "B": {"x": [3.0, 4.0]}}},
        "curves": {"l": {"A": {"x": [[1.0], [2.0]]}}},
        "tables": {"T, x": [head, ["A", "1"], ["B", "2"]], "all": [head, ["A, x", "5"]]},
    }  # fmt: skip
    values = {"m": {"A": {"x": [9.0]}, "B": {"x": [5.0, 6.0]}, "C": {"x": [7.0], "y": []}}}
    curves = {"l": {"A": {"x": []}, "C": {"x": [[7.0]]}}}
    tables = {"T, x": [head, ["A", "9"], ["B", "8"], ["C", "7"]], "new": [head, ["C", "6"]]}
    kept = {"kept": {"c" * 40: ["A, x"]}, "elsewhere": {"P": ["A, x"]}}
    assert records._keep(before, values, curves, tables, "Q") == kept
    assert values["m"] == {"A": {"x": [1.0, 2.0]}, "B": {"x": [5.0, 6.0]}, "C": {"x": [7.0], "y": []}}
    assert curves["l"] == {"A": {"x": [[1.0], [2.0]]}, "C": {"x": [[7.0]]}}
    assert tables == {
        "T, x": [head, ["A", "1"], ["B", "8"], ["C", "7"]], "all": [head, ["A, x", "5"]], "new": [head, ["C", "6"]],
    }  # fmt: skip
    # What is kept twice has the commit and the processor of its runs, and none of its own processor is elsewhere.
    twice = {**before, **kept, "commit": "d" * 40, "processor": "Q"}
    values = {"m": {"A": {"x": []}, "B": {"x": []}}}
    again = records._keep(twice, values, {}, {}, "Q")
    assert again == {"kept": {"c" * 40: ["A, x"], "d" * 40: ["B, x"]}, "elsewhere": {"P": ["A, x"]}}
    assert "elsewhere" not in records._keep(before, {"m": {"A": {"x": []}}}, {}, {}, "P")


def test_readme_and_start_page_count_as_the_leaderboard():
    column = records.leaderboard()["CIFAR-10, Dir(0.5)"]
    better = {row for row, kind in records.against_local(column).items() if kind == "higher"}
    both = better & records.over_seeds(column["table"])
    said = (
        f"{len(better)} methods are significantly better than Local over the clients, {len(both)} of them also with "
        "the seeds as blocks."
    )
    for page in ("README.md", "docs/index.md"):
        assert said in " ".join(text_of(ROOT / page).split()), page
    assert f"{len(better)} of them significantly" in " ".join(text_of(records.DOCS / "results/leaderboard.md").split())


def test_seeds_as_blocks_decide_by_the_three_differences_to_local():
    from scipy.stats import ttest_rel

    head, local = ["", "mean", "over Local"], [50.0, 52.0, 51.0]
    others = {"A": [55.0, 56.8, 56.1], "B": [55.0, 53.0, 51.5], "C": [45.1, 47.0, 45.9], "D": [50.0, 52.0, 51.0]}
    rows, expected = [["Local", "51.0 ± 1.0", "–"]], set()
    for name, accuracies in others.items():
        apart = [one - other for one, other in zip(accuracies, local, strict=True)]
        rows.append([name, "x", f"{np.mean(apart)} ± {np.std(apart, ddof=1)}"])
        if any(apart) and ttest_rel(accuracies, local).pvalue < 0.05:
            expected.add(name)
    assert records.over_seeds([head, *rows]) == expected == {"A", "C"}


@pytest.mark.parametrize(("column", "shown"), records.leaderboard().items())
def test_a_picture_of_the_leaderboard_shows_the_methods_of_its_record_in_their_order(column, shown):
    path, drawn = records.picture(column, shown)
    # The lines between differ with matplotlib's version.
    names = re.compile(r">([^<>]+)</text>")
    assert names.findall(text_of(path)) == names.findall(drawn)
