"""The cells of an experiment for a number of rounds, one after another; a later call adds rounds to the same runs.

    python benchmarks/stages.py pfllib-fashion-mnist --column 'Dir(0.1)' --rounds 50 --output FOLDER
    python benchmarks/stages.py pfllib-fashion-mnist --column 'Dir(0.1)' --rounds 100 --output FOLDER

A cell has the settings of the experiment's scale and seed 1, but for the number of rounds, so that the second call goes
on after round 50, as the first one does after it was ended. The runs lie in FOLDER/runs, the clients' arrays in
FOLDER/state. FOLDER/cost/RUN.jsonl has a line for each time a run went on: from which round to which, and the seconds
of processor time that took.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

from common import BenchmarkError, count, data_dir, main, note

from fedpfl.cli.experiment import read
from fedpfl.core.files import write_atomically
from fedpfl.core.stored import to_toml
from fedpfl.results.run_folder import RunFolder
from fedpfl.study.description import SCALES, Cell

PROGRAM = (sys.executable, "-P", "-c", "from fedpfl.cli import main; main()")


def measure(options: argparse.Namespace) -> None:
    """Bring every cell to the wanted number of rounds."""
    experiment = read(options.experiment).only(options.scale, options.row, options.column)
    cells = {(cell.row, cell.column): cell for cell in experiment.cells(options.scale)}
    rows = options.row or dict.fromkeys(row for row, _ in cells)
    failed = []
    for cell in (cells[row, column] for column in options.column for row in rows if (row, column) in cells):
        if not advance(cell, options):
            failed.append(f"{cell.row}, {cell.column}")
    if failed:
        raise BenchmarkError(f"did not finish: {'; '.join(failed)}")


def advance(cell: Cell, options: argparse.Namespace) -> bool:
    """Train a cell's run up to the wanted round; return whether it got there."""
    name = slug(f"{options.experiment}-{cell.column}-{cell.row}-{options.seed}")
    root = options.output.expanduser().absolute()
    run = RunFolder(root / "runs" / name)
    done = rounds(run)
    if done >= options.rounds:
        return True
    note(f"{cell.row}, {cell.column}: rounds {done + 1} to {options.rounds}")
    settings = {
        **cell.settings, "data-dir": data_dir(options.data_dir), "seed": options.seed, "threads": 1,
        "num-server-rounds": options.rounds, "output-dir": str(root / "runs"), "state-dir": str(root / "state"),
    }  # fmt: skip
    for folder in ("runs", "settings", "cost"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    file = root / "settings" / f"{name}.toml"
    write_atomically(file, to_toml(settings).encode())
    if done:
        words = ["--resume", str(run.path), "-c", f"num-server-rounds={options.rounds}"]
    else:
        if run.path.exists():
            run.path.rename(run.path.with_name(f"{name}-without-a-round-{os.getpid()}"))
        words = ["-c", str(file), "-c", f"run-name='{name}'"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = subprocess.run([*PROGRAM, "run", "--quiet", "--workers", "0", *words], cwd=root).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with (root / "cost" / f"{name}.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps({"from": done, "to": rounds(run), "cpu_seconds": round(seconds, 1)}) + "\n")
    return code == 0


def rounds(run: RunFolder) -> int:
    """Return how many rounds of a run are done."""
    lines = run.metrics()
    return int(lines[-1]["round"]) if lines else 0


def slug(text: str) -> str:
    """Return a name for a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="stages.py", description=__doc__.partition("\n")[0])
    parser.add_argument("experiment", help="its name, or its file")
    parser.add_argument("--scale", default=SCALES[1], choices=SCALES, help="whose settings (%(default)s)")
    parser.add_argument("--column", action="append", required=True, help="this column; may be repeated")
    parser.add_argument("--row", action="append", default=[], help="only this row; may be repeated, in this order")
    parser.add_argument("--rounds", type=count, required=True, help="how many rounds each cell has in the end")
    parser.add_argument("--seed", type=count, default=1, help="the runs' seed (%(default)s)")
    parser.add_argument("--data-dir", default="~/.fedpfl/data", help="where the data lie (%(default)s)")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where everything goes")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
