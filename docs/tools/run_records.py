"""Records of runs, and the tables that pages make of them: no number in a page is written by hand.

``docs/records/GROUP/NAME.json`` is a run in a few kB: its settings, its accuracies at every fifth round, its processor
and versions. ``docs/records/grids/EXPERIMENT-SCALE.json`` has what the runs of an experiment measured, by row, column
and seed; ``docs/records/leaderboard/NAME.json`` has a column of the leaderboard, with the methods as their papers
configure them, ``docs/records/leaderboard-equal-work/NAME.json`` one with as many gradients as FedAvg's. A page has, on
separate lines,

    <!-- table published pfllib-fashion-mnist "Dir(0.1)" -->
    <!-- end -->

and between them what the function of that name makes of the records. A long table is a file next to the page:
``<!-- file NAME.csv published … -->`` and somewhere on the page a link. ``python docs/tools/run_records.py``, which
``make docs`` runs, writes all of them, and ``tests/docs/test_records.py`` fails where a page or a CSV file differs from
its records.

    python docs/tools/run_records.py add RUN NAME --row FedAvg --column 'Dir(0.1)' --command 'fedpfl …' --commit HASH
    python docs/tools/run_records.py grid fedfac-figure-6 --scale paper --output-dir FOLDER --commit HASH
    python docs/tools/run_records.py ranking 'HAR by person' NAME --output-dir FOLDER --commit HASH
    python docs/tools/run_records.py ranking 'HAR by person' NAME … --row FedFac    # measured again
    python docs/tools/run_records.py attacks attacks.jsonl --commit HASH
    python docs/tools/run_records.py figures factorized-fl numbers.json --command 'python …' --commit HASH
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import platform
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from fedpfl.core.files import write_atomically
from fedpfl.core.frozen import frozen
from fedpfl.launch.shipped import experiments
from fedpfl.results.history import worst_tenth
from fedpfl.results.run_folder import RunFolder
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.study import run_numbers
from fedpfl.study.analysis.figure import Points, file_name
from fedpfl.study.experiment import ExperimentGrid
from fedpfl.study.experiment_file import load
from fedpfl.study.grid import Place
from fedpfl.study.paper_tables import analysed, rankings
from fedpfl.study.report.draw import Pen
from fedpfl.study.run_store import Store

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RECORDS = DOCS / "records"
EXPERIMENTS = experiments(ROOT / "experiments")
LEADERBOARD = EXPERIMENTS["leaderboard"]
EQUAL = "leaderboard-equal-work"
EVERY = 5
WIDTH = 120  # of a line of a page, in characters
# A run with fewer rounds says what a round costs and nothing else.
MIN_ROUNDS = 20
PACKAGES = ("torch", "numpy", "flwr")
# What numbers do not depend on, and what names a place on the machine.
_LEFT_OUT = {"output-dir", "state-dir", "data-dir", "run-name", "resume", "threads", "seed", "data"}
_BLOCK = re.compile(r"(<!-- table ([^>]*?) -->).*?(<!-- end -->)", re.DOTALL)
_FILE = re.compile(r"^<!-- file (.*?) -->$", re.MULTILINE)

Record = dict[str, Any]


# -- records -----------------------------------------------------------------------------------------------------------


def record(folder: RunFolder, about: Mapping[str, Any]) -> Record:
    """Return the record of a run.

    Parameters
    ----------
    folder : RunFolder
        The run.
    about : mapping
        What its folder does not have: ``row`` and ``column`` of an experiment, ``command``, ``commit``,
        ``cpu_seconds``.
    """
    config, lines = folder.config(), folder.metrics()
    defaults = Config.parse({"method": config["method"]}).flat()
    settings = {"method": config["method"]}
    settings |= {key: value for key, value in config.items() if key not in _LEFT_OUT and value != defaults.get(key)}
    tested = [line for line in lines if line.get("personalised")]
    curves: dict[str, list[float | None]] = {"round": [line["round"] for line in tested]}
    for name, curve in CURVES.items():
        curves[name] = [_percent(curve(line)) for line in tested]
    best = max(range(len(tested)), key=lambda place: tested[place]["personalised"]["weighted"])
    also = (best, len(tested) - 1)
    shown = [place for place, line in enumerate(tested) if line["round"] % EVERY == 0 or place in also]
    return {
        **about,
        "seed": config["seed"],
        "rounds": lines[-1]["round"],
        "settings": settings,
        "division": folder.task().get("division"),
        "best": {name: values[best] for name, values in curves.items()},
        "curves": {name: [values[place] for place in shown] for name, values in curves.items()},
        "megabytes": round(sum(line["bytes_up"] + line["bytes_down"] for line in lines) / 1e6, 1),
        **machine(),
    }


def grid(
    name: str, scale: str, output: Path, commit: str,
    seeds: int | None = None, columns: Sequence[str] = (), before: Record | None = None,
) -> Record:  # fmt: skip
    """Return the record of an experiment's finished runs.

    Parameters
    ----------
    name, scale : str
        The experiment, and a scale of it.
    output : Path
        The folder of its runs, ``--output-dir`` of ``fedpfl experiment run``.
    commit : str
        The commit of the code that ran.
    seeds : int, optional
        ``--seeds`` of the command.
    columns : sequence of str, optional
        Each ``--column`` of the command; other columns have no numbers, though another experiment may have run some
        of their cells.
    before : dict, optional
        An earlier record of the experiment, whose cells stay where the folder has no finished run.
    """
    experiment = load(EXPERIMENTS[name])
    measured = ExperimentGrid(experiment, scale, Store(output), seeds)
    if columns:
        measured.runs = {place: run for place, run in measured.runs.items() if place[1] in columns}
    values: dict[str, dict[str, dict[str, list[float]]]] = {}
    for metric in experiment.metrics:
        factor = 100 if run_numbers.find(metric).share else 1
        for row, column in product(measured.extent.rows, measured.extent.columns):
            if (row, column) not in measured.cells:
                continue
            numbers = [round(factor * value, 4) for value in measured.values(metric, row, column)]
            values.setdefault(metric, {}).setdefault(row, {})[column] = numbers
    curves = {curve: _curves(measured, curve) for curve in experiment.curves}
    tables = {
        made.title: [list(made.columns), *map(made.texts, made.rows)]
        for made in analysed(measured).tables
        # Tables by client are long if there are several cells, and no page has them.
        if made.columns[0] != "client" or len(measured.runs) <= len(measured.seeds)
    }
    on = machine()
    kept = _keep(before, values, curves, tables, on["processor"]) if before else {}
    command = ["fedpfl", "experiment", "run", name, "--scale", scale, *(("--seeds", str(seeds)) if seeds else ())]
    return {
        "command": shlex.join([*command, *chain.from_iterable(("--column", column) for column in columns)]),
        "commit": commit, **kept, "seeds": len(measured.seeds), "values": values, "curves": curves, "tables": tables,
        **on,
    }  # fmt: skip


def _keep(
    before: Record, values: Record, curves: Record, tables: Record, processor: str
) -> dict[str, dict[str, list[str]]]:
    """Fill cells with fewer runs than in an earlier record from it.

    Returns their names by the commit that ran them, as ``kept``, and those that ran on another processor by it, as
    ``elsewhere``.
    """
    kept: set[Place] = set()
    for numbers, old in ((values, before["values"]), (curves, before["curves"])):
        for name, rows in numbers.items():
            for row, cells in rows.items():
                for column, numbers_now in cells.items():
                    numbers_before = old.get(name, {}).get(row, {}).get(column)
                    if len(numbers_now) < len(numbers_before or ()):
                        cells[column] = numbers_before
                        kept.add((row, column))
    for title, rows in before.get("tables", {}).items():
        lines = {row[0]: row for row in rows}
        for line in tables.get(title, ()):
            if not any(_is_about(title, line[0], *cell) for cell in kept):
                lines[line[0]] = line
        tables[title] = list(lines.values())
    cells = sorted(map(", ".join, kept))
    commits = _by(cells, before.get("kept", {}), before["commit"])
    processors = _by(cells, before.get("elsewhere", {}), before["processor"])
    processors.pop(processor, None)
    return {name: by for name, by in (("kept", commits), ("elsewhere", processors)) if by}


def _by(cells: Sequence[str], named: Mapping[str, Sequence[str]], other: str) -> dict[str, list[str]]:
    """Return cells by the key under which an earlier record names them, or by what it says of all others."""
    keys = {cell: key for key, names in named.items() for cell in names}
    by: dict[str, list[str]] = {}
    for cell in cells:
        by.setdefault(keys.get(cell, other), []).append(cell)
    return by


def _is_about(title: str, line: str, row: str, column: str) -> bool:
    """Return whether a line of a table of analyses, of one column or of all, is about a cell."""
    return line == f"{row}, {column}" or (line == row and title.endswith(f", {column}"))


def ranked(name: str, column: str, output: Path, commit: str) -> Record:
    """Return the record of a column of a leaderboard: its table and remarks, from finished runs.

    Parameters
    ----------
    name : str
        The leaderboard's experiment.
    column : str
        The column.
    output : Path
        The folder of its runs, ``--output-dir`` of ``fedpfl experiment run``.
    commit : str
        The commit of the code that ran.
    """
    experiment = load(EXPERIMENTS[name]).only("small", (), [column])
    measured = ExperimentGrid(experiment, "small", Store(output))
    measured.choose(final=True)  # among the candidates that did not fail
    (column_ranking,) = rankings(measured)
    command_line = ["fedpfl", "experiment", "run", name, "--scale", "small", "--column", column]
    return {
        "command": shlex.join(command_line), "commit": commit, "seeds": len(measured.seeds),
        "table": [list(column_ranking.table.columns), *map(column_ranking.table.texts, column_ranking.table.rows)],
        "remarks": list(column_ranking.remarks), **machine(),
    }  # fmt: skip


def measured_again(before: Record, later: Record, rows: Sequence[str]) -> Record:
    """Return a record with some rows of a later one, with their commit, machine, Local there and difference to it."""
    head, against = before["table"][0], against_local(later)
    by_name = {row[0]: dict(zip(later["table"][0], row, strict=True)) for row in later["table"][1:]}
    table = [row for row in before["table"][1:] if row[0] not in rows]
    table += [[by_name[row].get(name, "–") for name in head] for row in rows]
    remarks = [said for said in before["remarks"] if not _is_of(said, rows)]
    remarks += [said for said in later["remarks"] if _is_of(said, rows)]
    about = {"Local": by_name["Local"][head[1]], **{key: later[key] for key in ("commit", "processor", "versions")}}
    again = {row: {"against Local": against.get(row, ""), **about} for row in rows}
    table.sort(key=lambda row: -float(_mean(row[1])) if row[1][0].isdigit() else 0.0)
    return {**before, "table": [head, *table], "remarks": remarks, "again": {**before.get("again", {}), **again}}


def elsewhere(record: Record) -> dict[str, Record]:
    """Return the entries of the rows that were measured on another type of processor."""
    again = record.get("again", {})
    return {row: there for row, there in again.items() if there["processor"] != record["processor"]}


def _is_of(said: str, rows: Sequence[str]) -> bool:
    """Tell whether a remark is about runs of some rows alone that failed."""
    match = re.match(r"Failed: ([^,]*), |Only \d+ seeds?: ([^;,]*)\.$", said)
    return match is not None and (match[1] or match[2]) in rows


def attacks(path: Path, commit: str) -> dict[str, Record]:
    """Return the records of ``benchmarks/attacks.py`` by method: each seed's accuracy, None where a run ended early."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    about = {"command": "python benchmarks/attacks.py", "commit": commit, "seeds": max(line["seed"] for line in lines)}
    records: dict[str, Record] = {}
    for line in sorted(lines, key=lambda line: line["seed"]):
        record = records.setdefault(line["method"], {**about, "values": {}, **machine()})
        attack = f"{line['attack']}, {line['liars']} of 10" if line["liars"] else line["attack"]
        cell = record["values"].setdefault(attack, {}).setdefault(line["defence"], [])
        cell.append(_percent(line["accuracy"]))
    return records


def _curves(measured: ExperimentGrid, curve: str) -> dict[str, dict[str, list[list[float]]]]:
    """Return a curve of each seed's run, by row and column; rounds without a value are left out."""
    _, number = run_numbers.find_curve(curve)
    by_row: dict[str, dict[str, list[list[float]]]] = {}
    for row, column in measured.cells:
        runs = [folder for folder in measured.finished(column) if folder.row == row]
        values = [folder.history().curve(number).values() for folder in runs]
        by_row.setdefault(row, {})[column] = [[round(value, 4) for value in of_run] for of_run in values]
    return by_row


def environment(home: Path | str) -> dict[str, str]:
    """Return the environment in which a page's programs run: this checkout and Python, one thread, another home."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def machine() -> Record:
    """Return the processor, and the versions of what computes."""
    packages = {name: version(name) for name in PACKAGES}
    return {"processor": _processor(), "versions": {"python": platform.python_version(), **packages}}


CURVES: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "weighted": lambda line: line["personalised"]["weighted"],
    "mean": lambda line: line["personalised"]["accuracy"],
    "worst tenth": lambda line: worst_tenth(list(line["personalised"]["each"].values())),
    "global": lambda line: line["global"]["accuracy"] if line.get("global") else None,
}


def write(name: str, content: Record, records: Path = RECORDS) -> Path:
    """Write a record under ``GROUP/NAME``, a curve on a line."""
    path = records / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda match: "[" + re.sub(r",\s+", ", ", match.group(1)) + "]", text)
    write_atomically(path, (text + "\n").encode())
    return path


def read(group: str, records: Path = RECORDS) -> list[Record]:
    """Return the records of a group, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((records / group).glob("*.json"))]


def as_configured(records: Path = RECORDS, group: str = "leaderboard") -> dict[str, Record]:
    """Return the records of a leaderboard by column, in the order of its file: the methods as papers configure them."""
    by_column = {shlex.split(record["command"])[-1]: record for record in read(group, records)}
    return {column: by_column[column] for column in load(LEADERBOARD).columns if column in by_column}


def leaderboard(records: Path = RECORDS) -> dict[str, Record]:
    """Return the leaderboard by column, best row first: at equal work the methods that compute more than FedAvg."""
    configured, equal = as_configured(records), as_configured(records, EQUAL)
    for column, record in equal.items():
        more = [row[0] for row in record["table"][1:] if row[0] not in ("Local", "FedAvg")]
        configured[column] = measured_again(configured[column], record, more)
    return configured


def one(name: str, records: Path = RECORDS) -> Record:
    """Return the record ``GROUP/NAME``."""
    record: Record = json.loads((records / f"{name}.json").read_text(encoding="utf-8"))
    return record


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    # Processors of one name add in another order if their instructions differ.
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


# -- tables ------------------------------------------------------------------------------------------------------------

# By the word after "table": (records, the other words) → Markdown.
Maker = Callable[[Path, Sequence[str]], str]
TABLES: dict[str, Maker] = {}


def table(make: Maker) -> Maker:
    """Register a function that makes a table, under its name."""
    TABLES[make.__name__] = make
    return make


@table
def published(records: Path, arguments: Sequence[str]) -> str:
    """Return a column of an experiment next to the published values: ``EXPERIMENT COLUMN``."""
    name, column = arguments
    experiment = load(EXPERIMENTS[name])
    place, values = list(experiment.columns).index(column), experiment.paper_values["weighted-best"]
    records_by_row = {of_row["row"]: of_row for of_row in read(name, records) if of_row["column"] == column}
    counts = {row: of_row for row, of_row in records_by_row.items() if of_row["rounds"] >= MIN_ROUNDS}
    rows, pairs, order = [], {}, {}
    equal = min((of_row["rounds"] for of_row in counts.values()), default=0)
    for row in (row for row in experiment.rows if row in counts):
        theirs, of_row = values[row][place], counts[row]
        best = of_row["best"]["weighted"]
        if theirs:
            pairs[row] = float(str(theirs).split()[0]), best
            order[row] = pairs[row][0], _best_until(of_row["curves"], equal)
        apart = f"{best - pairs[row][0]:+.2f}" if theirs else ""
        rows.append([row, str(theirs or "–"), f"{best:.2f}", apart, str(of_row["rounds"])])
    missing = ", ".join(row for row in experiment.rows if row not in counts)
    text = agreement(pairs, order, equal)
    text += f" Not run, or for fewer than {MIN_ROUNDS} rounds: {missing}." if missing else ""
    return f"{markdown(['', 'published', 'here', 'difference', 'rounds'], rows)}\n\n{text}"


def _best_until(curves: Mapping[str, Sequence[float]], last: int) -> float:
    """Return the best accuracy of the tests up to a round."""
    pairs = zip(curves["round"], curves["weighted"], strict=True)
    return max(accuracy for round_number, accuracy in pairs if round_number <= last)


Pairs = Mapping[str, tuple[float, float]]


def agreement(pairs: Pairs, order: Pairs, rounds: int) -> str:
    """Return how many rows are within the goal, and Kendall's τ of the orders after equally many rounds."""
    if len(pairs) < 2:
        return "Too few rows have run to be compared."
    from scipy.stats import kendalltau

    theirs, ours = zip(*order.values(), strict=True)
    near = [row for row, (a, b) in pairs.items() if abs(a - b) <= (1.5 if row in ONE_MODEL else 0.5)]
    far = ", ".join(row for row in pairs if row not in near)
    text = (
        f"Within 0.5 points of the published value (1.5 for one model for all): {len(near)} of the {len(pairs)} rows "
        f"that have run. Kendall's τ of the two orders, here after {rounds} rounds each, is "
        f"{kendalltau(theirs, ours).statistic:.2f}."
    )
    return text + (f" Not within: {far}." if far else "")


ONE_MODEL = ("FedAvg", "FedProx")


@table
def grids(records: Path, arguments: Sequence[str]) -> str:
    """Return a metric of an experiment, mean ± deviation over the seeds or a dash: ``EXPERIMENT SCALE METRIC``.

    Rows and columns without any number are left out. Cells that ran on another processor than the others have a mark.
    """
    name, scale, metric = arguments
    record = one(f"grids/{name}-{scale}", records)
    cells_by_row = record["values"][metric]
    cells_by_row = {row: cells for row, cells in cells_by_row.items() if any(cells.values())}
    longest = max(cells_by_row.values(), key=len)
    columns = dict.fromkeys(column for cells in (longest, *cells_by_row.values()) for column in cells)
    columns = [column for column in columns if any(cells.get(column) for cells in cells_by_row.values())]
    elsewhere = {cell for cells in record.get("elsewhere", {}).values() for cell in cells}
    rows = [
        [row, *(_spread(cells.get(column, [])) + " ‡" * (f"{row}, {column}" in elsewhere) for column in columns)]
        for row, cells in cells_by_row.items()
    ]
    return markdown(["", *columns], rows)


@table
def curves(records: Path, arguments: Sequence[str]) -> str:
    """Return the least, the mean and the last value of a curve, over all seeds: ``EXPERIMENT SCALE CURVE``."""
    name, scale, curve = arguments
    cells_by_row = one(f"grids/{name}-{scale}", records)["curves"][curve]
    rows = []
    for row, cells in cells_by_row.items():
        for column, runs in cells.items():
            numbers = [number for run in runs for number in run]
            shown = [min(numbers), fmean(numbers), fmean(run[-1] for run in runs)] if numbers else []
            rows.append([f"{row}, {column}", *([f"{number:.2f}" for number in shown] or ["not run", "", ""])])
    return markdown(["", "minimum over rounds", "mean over rounds", "last round"], rows)


@table
def analysis(records: Path, arguments: Sequence[str]) -> str:
    """Return a table of an experiment's analyses, or some of its columns: ``EXPERIMENT SCALE TITLE [COLUMN …]``."""
    name, scale, title, *columns = arguments
    head, *rows = one(f"grids/{name}-{scale}", records)["tables"][title]
    shown = [0, *map(head.index, columns)] if columns else range(len(head))
    chosen = [[line[place] for place in shown] for line in (head, *rows)]
    return markdown(chosen[0], chosen[1:])


@table
def epochs(records: Path, arguments: Sequence[str]) -> str:
    """Return a number of some epochs, a row for each kind of data: ``RECORD NUMBER EPOCH …``."""
    name, number, *shown = arguments
    values_by_kind = one(f"figures/{name}", records)["values"]
    rows = [
        [kind, *(f"{values[number][int(epoch) - 1]:g}" for epoch in shown)] for kind, values in values_by_kind.items()
    ]
    return markdown(["second client", *(f"epoch {epoch}" for epoch in shown)], rows)


@table
def measured(records: Path, arguments: Sequence[str]) -> str:
    """Return what a script measured, mean ± deviation where it has several values: ``RECORD``."""
    cells_by_row = one(f"figures/{arguments[0]}", records)["values"]
    heads = [head for head in next(iter(cells_by_row.values())) if head != "commit"]
    return markdown(
        ["", *heads], [[row, *(_spread(cells[head]) for head in heads)] for row, cells in cells_by_row.items()]
    )


@table
def works(records: Path, arguments: Sequence[str]) -> str:
    """Return the seconds a round of each work of ``benchmarks/gpu.py``, a row for each way to do it: ``RECORD``."""
    parts = one(f"figures/{arguments[0]}", records)["values"]["parts"]
    names_of_works, ways = (list(dict.fromkeys(part.split(" | ")[place] for part in parts)) for place in (0, 1))
    rows = [
        [way, *(f"{parts[f'{work} | {way}']['median']:.3f}" for work in names_of_works)]
        for way in ways
        if way != "idle"
    ]
    idle = ["the card is idle", *(f"{100 * parts[f'{work} | idle']['idle share']:.0f} %" for work in names_of_works)]
    return markdown(["", *names_of_works], [*rows, idle])


@table
def programs(records: Path, arguments: Sequence[str]) -> str:
    """Return another program's accuracies and a column's records after as many rounds: ``EXPERIMENT COLUMN RECORD``."""
    name, column, script = arguments
    theirs = one(f"figures/{script}", records)["values"]
    ours = {of_run["row"]: of_run["curves"] for of_run in read(name, records) if of_run["column"] == column}
    shown = sorted({int(number) for values in theirs.values() for number in values if number.isdecimal()})
    rows = []
    for row, values in theirs.items():
        here = dict(zip(ours[row]["round"], ours[row]["weighted"], strict=True))
        pairs = {number: (values[str(number)][0], here[number]) for number in shown if str(number) in values}
        cells = [f"{pairs[number][0]:.2f} / {pairs[number][1]:.2f}" if number in pairs else "" for number in shown]
        other, here_last = pairs[max(pairs)]
        rows.append([row, *cells, f"{here_last - other:+.2f}"])
    return markdown(["", *(f"round {number}" for number in shown), "difference"], rows)


@table
def rounds(records: Path, arguments: Sequence[str]) -> str:
    """Return a curve, mean ± deviation over the seeds in each tested round: ``EXPERIMENT SCALE CURVE ROUND …``."""
    name, scale, curve, *numbers = arguments
    cells_by_row = one(f"grids/{name}-{scale}", records)["curves"][curve]
    rows = []
    columns = dict.fromkeys(column for cells in cells_by_row.values() for column in cells)
    for column in columns:
        for row, runs in ((row, cells[column]) for row, cells in cells_by_row.items() if column in cells):
            spreads = [_spread([100 * value for value in values]) for values in zip(*runs, strict=True)] or ["not run"]
            rows.append([f"{column}: {row}" if len(columns) > 1 else row, *spreads])
            rows[-1] += [""] * (len(numbers) - len(spreads))
    return markdown(["", *(f"round {number}" for number in numbers)], rows)


def ranks(table: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the rank of each row of a column of the leaderboard; rows with the same accuracies share one."""
    rows = table[1:]
    alike = [row[1:ACCURACIES] for row in rows]
    return {row[0]: fmean(rank for rank, same in enumerate(alike, 1) if same == row[1:ACCURACIES]) for row in rows}


# After the method: mean, difference to Local, and worst tenth.
ACCURACIES = 4
# By what a test over the clients says: the mark where a test with the three seeds as blocks agrees, and where not.
MARKS = {"higher": (" ▲", " △"), "lower": (" ▼", " ▽")}
# |t| of a paired test over three seeds at p = 0.05, both sides: two degrees of freedom.
T_OF_SEEDS = 4.303


@table
def ranking(records: Path, arguments: Sequence[str]) -> str:
    """Return the leaderboard: each method's mean on each data set, best mean rank first, and which runs failed."""
    records_by_column = leaderboard(records)
    work = one("grids/methods-work-small", records)["values"]["detail:gradients"]
    methods = {label: row.settings["method"] for label, row in load(LEADERBOARD).rows.items()}
    means: dict[str, dict[str, str]] = {}
    for column, of_column in records_by_column.items():
        for label, mean, *_ in of_column["table"][1:]:
            means.setdefault(label, {})[column] = mean
    places = {column: ranks(of_column["table"]) for column, of_column in records_by_column.items()}
    mean_rank = {label: fmean(places[column][label] for column in of_row) for label, of_row in means.items()}
    against = {column: against_local(of_column) for column, of_column in records_by_column.items()}
    equal = {row[0] for record in as_configured(records, EQUAL).values() for row in record["table"][1:]}
    work = {label: work["FedAvg" if label in equal else label] for label in work}
    last = list(records_by_column.values())[-1]
    head, *rows = last["table"]
    sent = {row[0]: float(_mean(row[head.index("MB")])) for row in rows}
    seconds = {row[0]: float(_mean(row[head.index("s")])) for row in rows if row[0] not in last.get("again", {})}
    costs = {label: _first(gradients) for label, gradients in work.items()}, seconds, sent
    at_edge = {column: edges(column, of_column["table"]) for column, of_column in records_by_column.items()}

    rates = {column: _chosen(of_column["table"]) for column, of_column in records_by_column.items()}
    by_seeds = {column: over_seeds(of_column["table"]) for column, of_column in records_by_column.items()}

    def cell(label: str, column: str) -> str:
        both, clients = MARKS.get(against[column].get(label, ""), ("", ""))
        marks = (both if label in by_seeds[column] else clients) + " †" * (label in at_edge[column])
        record = records_by_column[column]
        marks += " ‡" * (label in elsewhere(record))
        return f"{means[label].get(column, '–')}{marks}"

    local_there = ", ".join(
        sorted({f"{there['Local']} on {column}" for there in elsewhere(of_column).values()}).pop()
        for column, of_column in records_by_column.items()
        if elsewhere(of_column)
    )
    lines = []
    for label, rank in sorted(mean_rank.items(), key=lambda pair: pair[1]):
        among = [places[column][label] for column in means[label]]
        lines.append([
            f"[{label}](../methods/{methods[label]}.md)", f"{rank:.1f}", f"{min(among):.0f} to {max(among):.0f}",
            *(cell(label, column) for column in records_by_column),
            *(f"{cost[label] / cost['FedAvg']:.2g}" if label in cost else "–" for cost in costs),
            " / ".join(rates[column].get(label, "–") for column in records_by_column),
        ])  # fmt: skip
    failed = [
        f"{column}: {'; '.join(named)}" for column, of_column in records_by_column.items()
        if (named := [remark.split(": ")[1].replace(f", {column}", "") for remark in of_column["remarks"]
                      if remark.startswith("Failed: ")])
    ]  # fmt: skip
    said = [
        "Mean ± standard deviation over seeds 1, 2, 3. ▲, ▼: significantly better or worse than Local, both over the "
        "clients and with the seeds as blocks; △, ▽: over the clients alone ([tests](#how-it-was-measured)). "
        "†: the rate chosen is the largest or the smallest of those tried, so another might be better. "
        f"‡: on another type of processor, where Local has {local_there}. *Gradients*, "
        "*seconds* and *traffic*: a client's in a round, of training on a busy machine, and both ways, relative to "
        "FedAvg's; the last two on CIFAR-10. –: measured while other work ran. *Rates*: the chosen ones (of Per-FedAvg "
        "β), in the order of the columns."
    ]
    said += [f"Diverged, or ended by `update-norm-limit`: {'. '.join(failed)}."] if failed else []
    later = ", ".join(f"[{label}](../methods/{method}.md)" for label, method in methods.items() if label not in means)
    said += [f"Not measured yet: {later}."] if later else []
    pictures = [f"![{column}: accuracy and traffic of each method]({_picture(column)})" for column in records_by_column]
    heads = ["method", "mean rank", "ranks", *records_by_column, "gradients", "seconds", "traffic", "rates"]
    return "\n\n".join([markdown(heads, lines), *map(wrapped, said), *pictures])


@table
def configured(records: Path, arguments: Sequence[str]) -> str:
    """Return the rows that compute more than FedAvg: their gradients as papers configure them, and both accuracies."""
    equal, before = as_configured(records, EQUAL), as_configured(records)
    work = one("grids/methods-work-small", records)["values"]["detail:gradients"]
    means = {
        name: {column: {row[0]: row[1] for row in record["table"][1:]} for column, record in of.items()}
        for name, of in (("equal", equal), ("before", before))
    }
    more = sorted({row for rows in means["equal"].values() for row in rows}, key=lambda row: (-_first(work[row]), row))
    lines = [
        [row, f"{_first(work[row]) / _first(work['FedAvg']):.2g}"]
        + [f"{means['equal'][column].get(row, '–')} / {means['before'][column][row]}" for column in equal]
        for row in more
        if row not in ("Local", "FedAvg")
    ]
    return markdown(["method", "gradients", *equal], lines)


@table
def column(records: Path, arguments: Sequence[str]) -> str:
    """Return all numbers of a column of the leaderboard: ``COLUMN``."""
    head, *lines = leaderboard(records)[arguments[0]]["table"]
    return markdown(["method", *head[1:]], lines)


def edges(column: str, table: Sequence[Sequence[str]]) -> set[str]:
    """Return the rows of a column of the leaderboard whose chosen value is the first or last of those tried."""
    experiment, head = load(LEADERBOARD), table[0]
    if "chosen" not in head:
        return set()
    rows_at_edge = set()
    for row in table[1:]:
        key, _, value = row[head.index("chosen")].partition(" ")
        places = experiment.choose, experiment.columns[column].choose, experiment.rows[row[0]].choose
        tried = next(choose[key] for choose in reversed(places) if choose and key in choose)
        if float(value.split()[0]) in (min(tried), max(tried)):
            rows_at_edge.add(row[0])
    return rows_at_edge


def _chosen(table: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return the value of the chosen setting of each row of a column of the leaderboard."""
    place = table[0].index("chosen")
    return {row[0]: row[place].partition(" (failed")[0].rpartition(" ")[2] for row in table[1:]}


def over_seeds(table: Sequence[Sequence[str]]) -> set[str]:
    """Return the rows of a column of the leaderboard whose difference to Local is significant over the three seeds.

    The seeds are the blocks of a paired t-test, since the clients of a run share a model; there is no correction.
    """
    head, *rows = table
    rows_apart = set()
    for row in rows:
        mean, _, deviation = row[head.index("over Local")].partition(" ± ")
        if deviation and abs(float(mean)) * 3**0.5 > T_OF_SEEDS * float(deviation):
            rows_apart.add(row[0])
    return rows_apart


def _first(cells: Mapping[str, Sequence[float]]) -> float:
    return next(iter(cells.values()))[0]


def against_local(record: Record) -> dict[str, str]:
    """Return which rows are significantly "higher" or "lower" than Local, as a column of the leaderboard remarks."""
    kinds_by_row: dict[str, str] = {}
    for text in (remark for remark in record["remarks"] if remark.startswith("Compared with Local")):
        for part in text.partition("): ")[2].rstrip(".").split("; "):
            names, _, kind = part.partition(" are " if " are " in part else " is ")
            if kind in MARKS:
                kinds_by_row |= dict.fromkeys(names.split(", "), kind)
    return kinds_by_row | {row: again["against Local"] for row, again in record.get("again", {}).items()}


def files() -> dict[Path, str]:
    """Return the tables that pages link to, by their CSV files."""
    texts = {}
    for page in pages():
        for text in _FILE.findall(page.read_text(encoding="utf-8")):
            name, made, *arguments = shlex.split(text)
            texts[page.parent / name] = _csv(TABLES[made](RECORDS, arguments))
    return texts


def wrapped(text: str) -> str:
    """Return a paragraph in lines of the pages' width."""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _csv(text: str) -> str:
    """Return the lines of a table in Markdown as CSV."""
    made = io.StringIO()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines if not line.startswith("| --- ")]
    csv.writer(made, lineterminator="\n").writerows([[cell.strip() for cell in row] for row in rows])
    return made.getvalue()


@table
def attacked(records: Path, arguments: Sequence[str]) -> str:
    """Return honest clients' accuracy under attacks with each defence or some: ``METHOD``, or ``all``, ``[DEFENCE …]``.

    ``all`` is the mean over the methods.
    """
    paths = sorted((records / "attacks").glob("*.json" if arguments[0] == "all" else f"{arguments[0]}.json"))
    chosen = [json.loads(path.read_text(encoding="utf-8"))["values"] for path in paths]
    first = chosen[0]
    defences = arguments[1:] or list(dict.fromkeys(defence for cells in first.values() for defence in cells))
    rows = []
    for attack in first:
        cells = (
            [value for values_of in chosen for value in values_of[attack].get(defence, [])] for defence in defences
        )
        rows.append([attack, *map(_outcome, cells)])
    return markdown(["", *defences], rows)


def _outcome(values: Sequence[float | None]) -> str:
    """Return the mean of runs that ended well, and how many did not."""
    well = [value for value in values if value is not None]
    lost = f" ({len(values) - len(well)} of {len(values)} end)" if len(well) < len(values) else ""
    return f"{fmean(well):.1f}{lost}" if well else "ends" if values else ""


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


# Columns of the table of claims: how their verdicts begin.
VERDICTS = ("reproduced", "in part", "not reproduced", "contradicted", "undecided", "by construction", "not run")


@table
def verdicts(records: Path, arguments: Sequence[str]) -> str:
    """Return how many claims of each paper have which verdict, from the papers' pages: ``PAGE …``.

    A page's first section has the main claims and the others, each below a heading of its own.
    """
    rows: dict[str, list[list[str]]] = {}
    for name in arguments:
        title, _, text = (DOCS / "results" / f"{name}.md").read_text(encoding="utf-8").partition("\n")
        for part in text.split("\n## ")[1].split("\n### ")[1:]:
            claims = re.findall(r"^\| .* \| (.*?) \| .* \|$", part, re.MULTILINE)[1:]
            counts = [sum(verdict.startswith(start) for verdict in claims) for start in VERDICTS]
            if sum(counts) != len(claims):
                raise ValueError(f"{name}: a verdict begins with none of {', '.join(VERDICTS)}")
            kind = part.partition("\n")[0]
            link = f"[{title[2:].partition(':')[0]}]({name}.md): {kind.lower()}"
            rows.setdefault(kind, []).append([link, str(len(claims)), *(str(count or "") for count in counts)])
    return markdown(["", "claims", *VERDICTS], [row for lines in rows.values() for row in lines])


@table
def support(records: Path, arguments: Sequence[str]) -> str:
    """Return which method trained with what, as ``docs/tools/support_matrix.py`` tried it."""
    tried = one("figures/support", records)["values"]
    rows = [
        [f"[{name}](../methods/{name}.md)", *("" if reason else "●" for reason in tried[name].values())]
        for name in sorted(tried)
    ]
    return markdown(["method", *next(iter(tried.values()))], rows)


@table
def support_reasons(records: Path, arguments: Sequence[str]) -> str:
    """Return with which words each combination was refused."""
    tried = one("figures/support", records)["values"]
    rows = [[name, what, reason] for name in sorted(tried) for what, reason in tried[name].items() if reason]
    return markdown(["method", "with", "refused"], rows)


@table
def memory(records: Path, arguments: Sequence[str]) -> str:
    """Return the memory that training a language model with Adam takes, counted: ``EXPERIMENT LENGTH TOKENS``."""
    name, length, tokens = arguments
    experiment = load(EXPERIMENTS[name])
    shared = {key: experiment.settings[key] for key in ("model", "loss", "trainable")}
    whole = ("FedAvg of the whole model", {**shared, "method": "fedavg", "trainable": "all"})
    rows = [whole, *((label, {**shared, **row.settings}) for label, row in experiment.rows.items())]
    cells = []
    for label, settings in rows:
        config = Config.parse({key: settings[key] for key in ("method", "model", "loss", "trainable")})
        model, sharing = assemble(config, (int(length),), int(tokens), vocabulary=int(tokens))
        trained = sum(array.numel() for array in model.parameters() if array.requires_grad)
        held = trained + sum({id(array): array.numel() for _, array in frozen(model)}.values())
        values = held, trained, held + 3 * trained, 2 * sharing.layout.size  # of 4 bytes; the last ones both ways
        numbers = [4 * value / 1e6 for value in values]
        cells.append([label, *(f"{number:.3f}" for number in numbers)])
    return markdown(["", "model, MB", "trained, MB", "with gradients and Adam, MB", "a round, MB"], cells)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns but the first are aligned to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# -- pictures ----------------------------------------------------------------------------------------------------------


def picture(column: str, of_column: Record) -> tuple[Path, str]:
    """Return the file of a column's picture, and the SVG: the accuracy of each row over its traffic."""
    head, *rows = of_column["table"]
    accuracy, traffic = head[1], head.index("MB")
    series = {row[0]: ([float(_mean(row[traffic]))], [float(_mean(row[1]))]) for row in rows}
    figure = Points(column, run_numbers.find("megabytes").heading, accuracy, series, log_x=True)
    return DOCS / "results" / _picture(column), Pen(list(load(LEADERBOARD).rows)).svg(figure)


def _picture(column: str) -> str:
    return f"leaderboard-{file_name(column)}.svg"


def _mean(text: str) -> str:
    """Return the number in front of its deviation."""
    return text.partition(" ")[0]


# -- pages -------------------------------------------------------------------------------------------------------------


def filled(text: str, records: Path = RECORDS) -> str:
    """Return a page whose tables are those of the records."""

    def fill(block: re.Match[str]) -> str:
        start, directive, end = block.groups()
        name, *others = shlex.split(directive)
        return f"{start}\n\n{TABLES[name](records, others)}\n\n{end}"

    return _BLOCK.sub(fill, text)


def pages() -> list[Path]:
    """Return the pages that have something made of records."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
    return [path for path, text in texts.items() if _BLOCK.search(text) or _FILE.search(text)]


def main() -> None:
    """Write all tables, or a record."""
    parser = argparse.ArgumentParser(prog="run_records.py", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="verb")
    add = commands.add_parser("add", help="write the record of a run")
    add.add_argument("run", type=Path, help="its folder")
    add.add_argument("name", help="GROUP/NAME of the record")
    for key in ("row", "column", "command", "commit"):
        add.add_argument(f"--{key}", required=True)
    add.add_argument("--cpu-seconds", type=float, required=True, help="of processor time that it took")
    whole = commands.add_parser("grid", help="write the record of an experiment's runs")
    whole.add_argument("name", help="the experiment")
    whole.add_argument("--scale", required=True)
    whole.add_argument("--output-dir", type=Path, required=True, help="the folder of its runs")
    whole.add_argument("--commit", required=True)
    whole.add_argument("--seeds", type=int, help="of the command; by default the scale's")
    whole.add_argument("--column", action="append", default=[], help="of the command; by default all of the scale")
    whole.add_argument("--add", action="store_true", help="keep the record's cells that have no run in the folder")
    attack = commands.add_parser("attacks", help="write the record of benchmarks/attacks.py")
    attack.add_argument("file", type=Path, help="its file of records")
    attack.add_argument("--commit", required=True)
    column = commands.add_parser("ranking", help="write the record of a column of a leaderboard")
    column.add_argument("--experiment", choices=["leaderboard", EQUAL], default="leaderboard")
    column.add_argument("--row", action="append", default=[], help="measured again: keep the others of the record")
    column.add_argument("column", help="its name")
    column.add_argument("name", help="name of the record")
    column.add_argument("--output-dir", type=Path, required=True, help="the folder of its runs")
    column.add_argument("--commit", required=True)
    figures = commands.add_parser("figures", help="write the record of a script's numbers")
    figures.add_argument("name", help="name of the record")
    figures.add_argument("file", type=Path, help="the script's JSON file: numbers by kind and name")
    figures.add_argument("--command", required=True)
    figures.add_argument("--commit", required=True)
    options = parser.parse_args()
    if options.verb == "figures":
        values = json.loads(options.file.read_text(encoding="utf-8"))
        made = {"command": options.command, "commit": options.commit, "values": values, **machine()}
        print(f"wrote {write(f'figures/{options.name}', made).relative_to(ROOT)}")
        return
    if options.verb == "ranking":
        content = ranked(options.experiment, options.column, options.output_dir, options.commit)
        place = f"{options.experiment}/{options.name}"
        if options.row:
            content = measured_again(one(place), content, options.row)
        print(f"wrote {write(place, content).relative_to(ROOT)}")
        return
    if options.verb == "attacks":
        for method, content in attacks(options.file, options.commit).items():
            print(f"wrote {write(f'attacks/{method}', content).relative_to(ROOT)}")
        return
    if options.verb == "grid":
        place = f"grids/{options.name}-{options.scale}"
        before = one(place) if options.add else None
        content = grid(
            options.name, options.scale, options.output_dir, options.commit, options.seeds, options.column, before
        )
        print(f"wrote {write(place, content).relative_to(ROOT)}")
        return
    if options.verb == "add":
        about = {key: getattr(options, key) for key in ("row", "column", "command", "commit", "cpu_seconds")}
        print(f"wrote {write(options.name, record(RunFolder(options.run), about)).relative_to(ROOT)}")
        return
    texts = {path: filled(path.read_text(encoding="utf-8")) for path in pages()}
    texts |= dict(picture(column, content) for column, content in leaderboard().items())
    texts |= files()
    for path, text in texts.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, text.encode())
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
