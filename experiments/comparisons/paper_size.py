"""Run papers' tables at their own size on a GPU, most wanted first, until a budget of seconds is spent.

    python experiments/comparisons/paper_size.py FOLDER --budget 840 --record paper-size.json

A later call with the same FOLDER continues: finished runs are skipped, and the run that the budget ended goes on where
it stopped. FOLDER stays small enough to be carried to a machine that is lent for a quarter of an hour: finished runs
keep their numbers alone, and an interrupted run is deleted if FOLDER would have more than ``--keep`` MiB (40 clients'
own ResNet-8 have 200). A later call begins it again, so the budget must suffice for one such run.

The record has each finished run's number, rounds and seconds of training, and says of the others why they are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedpfl.core.errors import FedpflError
from fedpfl.core.files import write_atomically
from fedpfl.study.experiment import ExperimentGrid, read
from fedpfl.study.run_store import State, Store

FIRST = ("FedAvg", "Local", "FedPer", "FedDecomp", "FedDecomp, equations", "FedRoD")
# Experiments in the order of what matters, and the rows that come first in them.
WANTED = (("feddecomp-table-1", FIRST), ("fedfac-table-2", ()), ("pfllib-fashion-mnist", ()))
FEDPFL = (sys.executable, "-P", "-c", "from fedpfl.cli import main; main()")
MIB = 2**20
# What an interrupted run needs to write its state.
TO_STOP = 20.0
# What a finished run keeps.
NUMBERS = {"config.toml", "task.json", "metrics.jsonl", "summary.md"}


class Part(NamedTuple):
    """A cell of an experiment with one seed."""

    experiment: str
    row: str
    column: str
    seed: int

    @property
    def label(self) -> str:
        """Its name in the record."""
        return f"{self.experiment}: {self.row}, {self.column}, seed {self.seed}"


def parts(scale: str, seeds: int) -> list[Part]:
    """Return all parts: an experiment's first rows before its others, one seed of all of them before the next."""
    ordered = []
    for name, first in WANTED:
        experiment = read(name)
        cells = [(cell.row, cell.column) for cell in experiment.cells(scale)]
        cells.sort(key=lambda cell: cell[0] not in first)  # stable: else in the order of the table
        ordered += [Part(name, row, column, seed) for seed in range(1, seeds + 1) for row, column in cells]
    return ordered


def grid(part: Part, options: argparse.Namespace) -> ExperimentGrid:
    """Return the part's cell with its seeds up to the part's."""
    experiment = read(part.experiment).only(options.scale, [part.row], [part.column])
    return ExperimentGrid(experiment, options.scale, Store(options.folder), part.seed, {"device": options.device})


def run(part: Part, options: argparse.Namespace, seconds: float) -> str:
    """Run a part for some seconds at most; return the last line of its errors, if it failed."""
    command = [
        *FEDPFL, "experiment", "run", part.experiment, "--scale", options.scale, "--seeds", str(part.seed),
        "--row", part.row, "--column", part.column, "--output-dir", str(options.folder), "-q", "--discard-models",
        "-c", f"device={json.dumps(options.device)}",
        "-c", f"data-dir={json.dumps(str(options.data_dir.expanduser().absolute()))}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        error = process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.communicate()
        return ""
    return error.strip().splitlines()[-1] if process.returncode and error.strip() else ""


def slim(folder: Path, most: float) -> str:
    """Delete all but the numbers of finished runs, and an interrupted run above ``most`` MiB; return what was lost."""
    runs = [run for run in (folder / "runs").glob("*") if run.is_dir()]
    begun = [run for run in runs if not (run / "summary.md").is_file()]
    for path in (path for run in runs if run not in begun for path in run.iterdir() if path.name not in NUMBERS):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / MIB
    if size <= most:
        return ""
    for run in (*begun, folder / "state"):
        shutil.rmtree(run, ignore_errors=True)
    return f"deleted: FOLDER had {size:.0f} MiB, --keep {most:g}"


def measured(part: Part, options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the numbers of a part that has finished, else None."""
    planned = grid(part, options)
    folder = planned.store.folder(planned.runs[part.row, part.column, part.seed])
    if planned.store.state(planned.runs[part.row, part.column, part.seed]) is not State.FINISHED:
        return None
    lines = folder.metrics()
    numbers = {
        metric: round(value, 6)
        for metric in planned.experiment.metrics
        if (value := planned.value(metric, part.row, part.column, part.seed)) is not None
    }
    return {**numbers, "rounds": lines[-1]["round"], "seconds": round(sum(line["seconds"] for line in lines), 1)}


def main() -> None:
    """Run what the budget allows, and write the record."""
    parser = argparse.ArgumentParser(prog="paper_size.py", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of all runs; a later call with it continues")
    parser.add_argument("--budget", type=float, default=840.0, help="seconds for all of it (%(default)s)")
    parser.add_argument("--keep", type=float, default=64.0, help="most MiB of FOLDER at the end (%(default)s)")
    parser.add_argument("--record", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--commit", default="", help="what runs, for the record")
    parser.add_argument("--data-dir", type=Path, default=Path("~/.fedpfl/data"), help="where data lie (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="of each cell (%(default)s)")
    parser.add_argument("--first", type=int, help="only so many runs; by default all")
    parser.add_argument("--scale", choices=("paper", "smoke"), default="paper", help="smoke tries the program")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to compute (%(default)s)")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("paper_size.py: --device cuda: PyTorch finds no GPU; --device cpu --scale smoke tries the program")
    ends = time.monotonic() + options.budget
    values: dict[str, Any] = {}
    missing: dict[str, str] = {}
    processor = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} cores"
    for part in parts(options.scale, options.seeds)[: options.first]:
        try:
            done = measured(part, options)
            left = ends - time.monotonic() - TO_STOP
            if done is None and left > 0:
                error = run(part, options, left)
                done = measured(part, options)
                missing[part.label] = error or "the budget is spent"
            elif done is None:
                missing[part.label] = "the budget is spent"
        except FedpflError as refused:  # such as files that are not here
            done, missing[part.label] = None, str(refused)
        if done is not None:
            values[part.label] = done
            missing.pop(part.label, None)
    if lost := slim(options.folder, options.keep):
        missing["the interrupted run"] = lost
    record = {
        "command": shlex.join(["python", "experiments/comparisons/paper_size.py", *sys.argv[1:]]),
        "commit": options.commit, "processor": processor,
        "versions": {"python": platform.python_version(), "torch": torch.__version__}, "values": values,
        "missing": missing,
    }  # fmt: skip
    write_atomically(options.record, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"{len(values)} runs have finished, {len(missing)} not; {options.record}")


if __name__ == "__main__":
    main()
