"""Records of runs, and the pages that are made of them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from fedpfl.results.run_folder import RunFolder
from fedpfl.setup.config import Config
from fedpfl.study.analysis import ANALYSES
from fedpfl.study.description import load

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import run_records as records  # noqa: E402

GRIDS = sorted(records.RECORDS.glob("grids/*.json"))
ATTACKS = sorted(records.RECORDS.glob("attacks/*.json"))
FIGURES = sorted(records.RECORDS.glob("figures/*.json"))
RANKINGS = sorted(records.RECORDS.glob("leaderboard/*.json"))
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
        words = shlex.split(record["command"])
        assert words[:3] == ["fedpfl", "experiment", "run"], path
        experiment, options = words[3], dict(zip(words[4::2], words[5::2], strict=True))
        more = {"num-server-rounds": int(options["-c"].removeprefix("num-server-rounds="))}
        cells = load(records.EXPERIMENTS[experiment]).cells(options["--scale"], more)
        (cell,) = [one for one in cells if (one.row, one.column) == (options["--row"], options["--column"])]
        expected = Config.parse({**cell.settings, "seed": record["seed"]}).flat()
        defaults = Config.parse({"method": expected["method"]}).flat()
        recorded = {**defaults, **record["settings"], "seed": record["seed"]}
        assert {key: value for key, value in recorded.items() if value != expected[key]} == {}, path


def test_the_record_of_attacks_has_each_attack_and_defence_with_each_seed():
    for path in ATTACKS:
        record = json.loads(text_of(path))
        assert {"command", "commit", "processor", "versions", "seeds", "values"} == set(record) - {"kept"}, path
        assert len(record["values"]) == 13, path
        for attack, cells in record["values"].items():
            weights = attack == "no attack" or attack.startswith("false counts")
            assert len(cells) == (7 if weights else 6), path
            assert {len(values) for values in cells.values()} == {record["seeds"]}, path


def test_each_method_under_attack_has_a_record():
    assert len(ATTACKS) == 6


def test_the_record_of_an_experiment_has_its_rows_and_columns():
    for path in GRIDS:
        text = text_of(path)
        record = json.loads(text)
        assert len(text) < 20_000, path
        # Older ones have no tables of analyses; `kept` names what an earlier commit ran.
        some = {"command", "commit", "processor", "versions", "seeds", "values", "curves"}
        assert some == record.keys() - {"tables", "kept"}, path
        assert all(len(commit) == 40 and cells for commit, cells in record.get("kept", {}).items()), path
        _, _, _, name, _, scale, *more = shlex.split(record["command"])
        options = list(zip(more[::2], more[1::2], strict=True))
        assert [value for option, value in options if option == "--seeds"] in ([], [str(record["seeds"])]), path
        columns = {value for option, value in options if option == "--column"}
        assert len(options) - len(columns) <= 1, path
        assert path.stem == f"{name}-{scale}", path
        cells = {(cell.row, cell.column) for cell in load(records.EXPERIMENTS[name]).cells(scale)}
        assert columns <= {column for _, column in cells}, path
        for rows in [*record["values"].values(), *record["curves"].values()]:
            assert {(row, column) for row, found in rows.items() for column in found} == cells, path


def test_the_record_of_a_leaderboard_s_column_has_the_rows_of_its_command():
    for path in RANKINGS:
        record = json.loads(text_of(path))
        assert {"command", "commit", "processor", "versions", "seeds", "table", "remarks"} == set(record), path
        words = shlex.split(record["command"])
        assert words[:7] == ["fedpfl", "experiment", "run", "leaderboard", "--scale", "small", "--column"], path
        experiment = load(records.EXPERIMENTS["leaderboard"]).only("small", words[9::2], words[7:8])
        head, *rows = record["table"]
        # A method that came later has a row and no record yet.
        assert {name for name, *_ in rows} <= {*experiment.scale("small").rows}, path
        assert len({name for name, *_ in rows}) == len(rows) > 40, path
        assert {len(cells) for cells in rows} == {len(head)}, path


def test_the_record_of_a_script_names_its_command():
    for path in FIGURES:
        record = json.loads(text_of(path))
        assert {"command", "processor", "versions", "values"} == record.keys() - {"commit"}, path
        # Programs of the gallery are recorded one by one.
        assert "commit" in record or all("commit" in value for value in record["values"].values()), path
        words = shlex.split(record["command"])
        assert (
            (ROOT / words[1]).is_file()
            or (words[:3] == ["fedpfl", "experiment", "run"] and words[3] in records.EXPERIMENTS)
            or (words[:2] == ["fedpfl", "analyse"] and words[2] in ANALYSES)
        )


def test_the_page_on_data_says_the_memory_that_was_measured():
    found = json.loads(text_of(records.RECORDS / "figures" / "larger-than-memory.json"))["values"]
    (said,) = re.findall(r"With [\d.]+ GB of images [^)]*\)", " ".join(text_of(ROOT / "docs/how-to/data.md").split()))
    assert said.startswith(
        f"With {found['GB']} GB of images no process took more than {found['peak of one process, MiB']} MiB"
    )
    assert f"all three {found['peak of all, MiB']} MiB" in said and found["workers"] == 2
    assert f"{found['images']:,} images" in said and f"{found['rounds']} rounds in {found['seconds']} s" in said


# By page: the sections whose tables were measured before there were records, and why they stay.
BY_HAND = {
    "results/performance.md": {
        "Results": "times on a machine that does nothing else",
        "Rounds over real SuperNodes": "times on a machine that does nothing else",
        "Ten million devices, on paper": "computed",
    },
    "contributing/bridge.md": {"Limits": "bounds of the code"},
    "how-to/virtual-time.md": {"The keys": "settings", "How fast a device is": "times of a board's stand-in"},
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
        found = set()
        for section in records._BLOCK.sub("", text_of(path)).split("\n## ")[1:]:
            cells = [cell for line in section.splitlines() if line.startswith("|") for cell in line.split("|")]
            if sum(bool(NUMBER.fullmatch(cell)) for cell in cells) >= 4:
                found.add(section.partition("\n")[0])
        assert found == set(BY_HAND.get(page, ())), page


def test_the_page_on_gpus_has_the_numbers_of_its_records():
    said = " ".join(text_of(records.DOCS / "how-to" / "gpu.md").split())
    parts = records.one("figures/gpu-works")["values"]["parts"]
    ratios = [
        parts[f"{work} | pfl-research"]["median"] / parts[f"{work} | fedpfl, one batch"]["median"]
        for work in ("heavy: fedavg-cnn", "light: mlp", "resnet8")
    ]
    assert "One batch is {:.0f}, {:.0f} and {:.1f} times as fast as pfl-research".format(*ratios) in said
    parts = records.one("figures/gpu-methods")["values"]["parts"]
    grown = [parts[f"growth | light: mlp | {number}"]["seconds"] for number in (10, 100, 1000)]
    assert "light clients take {:.2f}, {:.2f} and {:.2f} s.".format(*grown) in said
    prices = [part["median"] for name, part in parts.items() if name.startswith("price | ")]
    assert "takes {:.1f} s with FedAvg and {:.1f} s with FedDecomp for PFLlib's".format(*prices[:2]) in said
    assert "partition, {:.1f} s and {:.1f} s for FedDecomp's table 1".format(*prices[2:]) in said
    found = {name: part for name, part in parts.items() if name.startswith("method | ")}
    assert len(found) == 42 and {part["batch"]["accuracy"] - part["cpu"]["accuracy"] for part in found.values()} == {0}
    differ = {
        name.removeprefix("method | "): round(160 * abs(part["alone"]["accuracy"] - part["cpu"]["accuracy"]))
        for name, part in found.items() if part["alone"]["accuracy"] != part["cpu"]["accuracy"]
    }  # fmt: skip
    assert differ == {"fedreg": 1, "fedrep": 1}


def test_verdicts_are_counted_from_the_papers_pages(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    page = tmp_path / "results" / "p.md"
    head = ["", "| claim | verdict | tried |", "|---|---|---|"]
    main = ["reproduced at small scale", "in part: with one of two networks"]
    others = ["not run", "not run", "contradicted at small scale", "by construction"]
    lines = ["# P: results", "", "## Claims", "", "### Main claims", *head, *(f"| c | {of} | t |" for of in main)]
    more = ["### Other claims", *head, *(f"| c | {of} | t |" for of in others), "", "## Next", "| a | b | c |"]
    page.write_text("\n".join([*lines, "", *more]))
    monkeypatch.setattr(records, "DOCS", tmp_path)
    assert records.verdicts(tmp_path, ["p"]).splitlines()[2:] == [
        "| [P](p.md): main claims | 2 | 1 | 1 |  |  |  |  |  |",
        "| [P](p.md): other claims | 4 |  |  |  | 1 |  | 1 | 2 |",
    ]
    page.write_text("\n".join([*lines, "| c | perhaps | t |"]))
    with pytest.raises(ValueError, match="p: a verdict begins with none of"):
        records.verdicts(tmp_path, ["p"])


@pytest.fixture
def some(tmp_path) -> Path:
    """Return a folder of records of which one can be changed."""
    made = {
        row: {
            "row": row, "column": "Dir(0.1)", "rounds": rounds, "cpu_seconds": 100.0, "command": f"run {row}",
            "commit": "c" * 40, "processor": "P", "versions": {"torch": "2"}, "best": {"weighted": best, "round": 45},
            "curves": {"round": [45, 50], "weighted": [best, best - 1]},
        }
        for row, best, rounds in (
            ("FedAvg", 85.0, 50), ("FedPer", 97.0, 50), ("FedRep", 96.0, 50), ("MOON", 80.0, 50), ("GPFL", 10.0, 2)
        )
    }  # fmt: skip
    for row, record in made.items():
        records.write(f"pfllib-fashion-mnist/{row}", record, tmp_path)
    return tmp_path


def test_a_table_has_published_and_own_values(some):
    lines = records.published(some, ["pfllib-fashion-mnist", "Dir(0.1)"]).splitlines()
    assert "| FedAvg | 85.85 ± 0.19 | 85.00 | -0.85 | 50 |" in lines
    assert "| MOON | – | 80.00 |  | 50 |" in lines
    assert not [line for line in lines if line.startswith(("| GPFL", "| Ditto"))]
    said, _, missing = lines[-1].partition(" Not run, or for fewer than 20 rounds: ")
    assert {"GPFL", "Ditto"} <= {*missing.rstrip(".").split(", ")}
    assert said == (
        "Within 0.5 points of the published value (1.5 for one model for all): 2 of the 3 rows that have run. "
        "Kendall's τ of the two orders, here after 50 rounds each, is 0.33. Not within: FedRep."
    )


def test_the_order_of_rows_is_that_after_equally_many_rounds(some):
    path = some / "pfllib-fashion-mnist" / "FedPer.json"
    record = json.loads(text_of(path))
    record |= {"rounds": 100, "curves": {"round": [50, 100], "weighted": [95.0, 97.0]}}
    path.write_text(json.dumps(record), encoding="utf-8")
    text = records.published(some, ["pfllib-fashion-mnist", "Dir(0.1)"])
    assert "Kendall's τ of the two orders, here after 50 rounds each, is 1.00." in text


def test_a_page_that_says_anything_else_is_found(some):
    page = 'A\n\n<!-- table published pfllib-fashion-mnist "Dir(0.1)" -->\n<!-- end -->\n\nB\n'
    text = records.filled(page, some)
    assert text.startswith("A\n\n<!-- table published")
    assert text.endswith("<!-- end -->\n\nB\n")
    assert records.filled(text, some) == text
    assert records.filled(text.replace("85.00", "85.01"), some) == text
    path = some / "pfllib-fashion-mnist" / "FedAvg.json"
    path.write_text(text_of(path).replace("85.0", "85.5"), encoding="utf-8")
    assert records.filled(text, some) != text


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
    found = records.record(folder, about)
    assert found["curves"]["round"] == [5, 10, 11, 12]
    assert found["best"] == {"round": 11, "weighted": 61.0, "mean": 51.0, "worst tenth": 20.0, "global": None}
    assert found["settings"] == {"method": "fedper", "momentum": 0.5}
    assert (found["rounds"], found["seed"], found["megabytes"]) == (12, 3, 36.0)
    path = records.write("group/name", found, tmp_path)
    assert records.read("group", tmp_path) == [found]
    assert '"round": [5, 10, 11, 12],' in text_of(path)
    shutil.rmtree(folder.path)


def test_a_table_of_a_script_s_numbers(tmp_path):
    values = {"a": {"x": [1.0, 2.0], "y": [3.0]}, "b": {"x": [4.0], "y": [5.0]}}
    records.write("figures/s", {"values": values}, tmp_path)
    lines = records.measured(tmp_path, ["s"]).splitlines()
    assert lines == ["|  | x | y |", "| --- | ---: | ---: |", "| a | 1.50 ± 0.71 | 3.00 |", "| b | 4.00 | 5.00 |"]


def test_the_leaderboard(tmp_path):
    command = "fedpfl experiment run leaderboard --scale small --column"
    about = {"processor": "P", "commit": "c" * 40, "versions": {"torch": "2"}}
    local = "Compared with Local (p): {}; 2 others do not differ significantly."
    remarks = [local.format("FedPer is lower"), "Failed: Local, HAR by person, seed 2: why: more."]
    made = {
        "HAR by person": (["90.0 ± 1.0", "80.0", "85.0"], remarks),
        "CIFAR-10, Dir(0.5)": (["40.0", "50.0", "60.0"], [local.format("Local, FedPer are higher")]),
    }
    for number, (name, (values, said)) in enumerate(made.items()):
        rows = sorted(zip(("FedAvg", "Local", "FedPer"), values, strict=True), key=lambda of: of[1], reverse=True)
        rates = {"Local": "0.03", "FedPer": "0.01", "FedAvg": "0.03"}
        table = [["", "mean", "MB", "s", "chosen"],
                 *([label, value, f"{4 - number}.0 ± 0.1", "1 ± 0", f"learning-rate {rates[label]}"]
                   for label, value in rows)]  # fmt: skip
        found = {"command": f"{command} '{name}'", "table": table, "remarks": said, **about}
        records.write(f"leaderboard/{number}", found, tmp_path)
    gradients = {"FedAvg": {"two epochs": [2.0]}, "Local": {"two epochs": [2.0]}, "FedPer": {"two epochs": [7.0]}}
    records.write("grids/methods-work-small", {"values": {"detail:gradients": gradients}}, tmp_path)
    text = records.ranking(tmp_path, [])
    assert text.splitlines()[:5] == [
        "| method | mean rank | ranks | HAR by person | CIFAR-10, Dir(0.5) | gradients | seconds | traffic |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| [FedPer](../methods/fedper.md) | 1.5 | 1 to 2 | 85.0 ▼ | 60.0 ▲ † | 3.5 | 1 | 1 |",
        "| [FedAvg](../methods/fedavg.md) | 2.0 | 1 to 3 | 90.0 ± 1.0 † | 40.0 | 1 | 1 | 1 |",
        "| [Local](../methods/local.md) | 2.5 | 2 to 3 | 80.0 † | 50.0 ▲ | 1 | 1 | 1 |",
    ]
    assert "\nDiverged, or ended by `update-norm-limit`: HAR by person: Local, seed 2.\n" in text
    assert "(leaderboard-har-by-person.svg)" in text
    assert records.column(tmp_path, ["HAR by person"]).splitlines()[2:4] == [
        "| FedAvg | 90.0 ± 1.0 | 4.0 ± 0.1 | 1 ± 0 | learning-rate 0.03 |",
        "| FedPer | 85.0 | 4.0 ± 0.1 | 1 ± 0 | learning-rate 0.01 |",
    ]  # fmt: skip
    path, drawn = records.picture("HAR by person", records.leaderboard(tmp_path)["HAR by person"])
    assert path.name == "leaderboard-har-by-person.svg"
    assert drawn.index("FedAvg</text>") < drawn.index("Local</text>")


def test_methods_with_the_same_accuracies_share_a_rank():
    head = ["", "mean", "over Local", "worst tenth", "MB"]
    table = [
        head,
        ["a", "9", "1", "5", "1"],
        ["b", "8", "0", "4", "1"],
        ["c", "8", "0", "4", "2"],
        ["d", "8", "0", "3", "1"],
    ]
    assert records.ranks(table) == {"a": 1, "b": 2.5, "c": 2.5, "d": 4}


def test_a_long_table_is_a_file_next_to_its_page(tmp_path, monkeypatch):
    for name in ("records", "results"):
        (tmp_path / name).mkdir()
    records.write("figures/s", {"values": {"a, b": {"x": [1.0, 2.0]}}}, tmp_path / "records")
    page = tmp_path / "results" / "p.md"
    page.write_text("<!-- file t.csv measured s -->\n\n[All of it](t.csv)\n")
    monkeypatch.setattr(records, "DOCS", tmp_path)
    monkeypatch.setattr(records, "RECORDS", tmp_path / "records")
    assert records.files() == {tmp_path / "results" / "t.csv": ',x\n"a, b",1.50 ± 0.71\n'}


def test_files_next_to_pages_say_what_their_records_say():
    expected = records.files()
    assert set(expected) == set(records.DOCS.rglob("*.csv"))
    for path, text in expected.items():
        assert text_of(path) == text, "python docs/tools/run_records.py writes it"
        assert any(f"]({path.name})" in text_of(page) for page in path.parent.glob("*.md")), f"no link to {path.name}"


def test_a_record_keeps_what_an_earlier_one_has_more_of():
    head = ["run", "n"]
    before = {
        "commit": "c" * 40, "values": {"m": {"A": {"x": [1.0, 2.0]}, "B": {"x": [3.0, 4.0]}}},
        "curves": {"l": {"A": {"x": [[1.0], [2.0]]}}},
        "tables": {"T, x": [head, ["A", "1"], ["B", "2"]], "all": [head, ["A, x", "5"]]},
    }  # fmt: skip
    values = {"m": {"A": {"x": [9.0]}, "B": {"x": [5.0, 6.0]}, "C": {"x": [7.0], "y": []}}}
    curves = {"l": {"A": {"x": []}, "C": {"x": [[7.0]]}}}
    tables = {"T, x": [head, ["A", "9"], ["B", "8"], ["C", "7"]], "new": [head, ["C", "6"]]}
    assert records._keep(before, values, curves, tables) == {"kept": {"c" * 40: ["A, x"]}}
    assert values["m"] == {"A": {"x": [1.0, 2.0]}, "B": {"x": [5.0, 6.0]}, "C": {"x": [7.0], "y": []}}
    assert curves["l"] == {"A": {"x": [[1.0], [2.0]]}, "C": {"x": [[7.0]]}}
    assert tables == {
        "T, x": [head, ["A", "1"], ["B", "8"], ["C", "7"]], "all": [head, ["A, x", "5"]], "new": [head, ["C", "6"]],
    }  # fmt: skip


@pytest.mark.parametrize(("column", "found"), records.leaderboard().items())
def test_a_picture_of_the_leaderboard_shows_the_methods_of_its_record_in_their_order(column, found):
    path, drawn = records.picture(column, found)
    # The lines between differ with matplotlib's version.
    names = re.compile(r">([^<>]+)</text>")
    assert names.findall(text_of(path)) == names.findall(drawn)


def test_a_table_of_another_program_s_rounds(some):
    values = {"FedPer": {"45": [96.5], "50": [96.25], "s a round": [30.0]}, "FedRep": {"45": [95.75]}}
    records.write("figures/p", {"values": values}, some)
    lines = records.programs(some, ["pfllib-fashion-mnist", "Dir(0.1)", "p"]).splitlines()
    assert lines[0] == "|  | round 45 | round 50 | difference |"
    assert lines[2:] == ["| FedPer | 96.50 / 97.00 | 96.25 / 96.00 | -0.25 |", "| FedRep | 95.75 / 96.00 |  | +0.25 |"]


def test_a_table_of_an_experiment_s_runs(tmp_path):
    values = {"m": {"A": {"x": [1.0, 2.0, 3.0], "y": [4.0]}, "B": {"x": [5.0]}, "C": {"x": []}}}
    runs = {"c": {"A": {"x": [[0.5, 1.0], [0.75, 0.75]], "y": []}}}
    records.write("grids/e-small", {"values": values, "curves": runs}, tmp_path)
    lines = records.grids(tmp_path, ["e", "small", "m"]).splitlines()
    assert lines == ["|  | x | y |", "| --- | ---: | ---: |", "| A | 2.00 ± 1.00 | 4.00 |", "| B | 5.00 | – |"]
    lines = records.curves(tmp_path, ["e", "small", "c"]).splitlines()[2:]
    assert lines == ["| A, x | 0.50 | 0.75 | 0.88 |", "| A, y | not run |  |  |"]
    records.write("grids/a-small", {"tables": {"T, y": [["run", "0"], ["A", "1.50 ± 0.50"]]}}, tmp_path)
    assert records.analysis(tmp_path, ["a", "small", "T, y"]).splitlines()[2:] == ["| A | 1.50 ± 0.50 |"]
    records.write("grids/a-small", {"tables": {"T": [["run", "m", "n", "o"], ["A", "1", "2", "3"]]}}, tmp_path)
    lines = records.analysis(tmp_path, ["a", "small", "T", "o", "m"]).splitlines()
    assert lines == ["| run | o | m |", "| --- | ---: | ---: |", "| A | 3 | 1 |"]
    lines = records.rounds(tmp_path, ["e", "small", "c", "10", "20"]).splitlines()[2:]
    assert lines == ["| x: A | 62.50 ± 17.68 | 87.50 ± 17.68 |", "| y: A | not run |  |"]
