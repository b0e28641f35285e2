"""What the benchmarks share: a run through ``fedpfl run`` that is watched, the machine in words, Markdown tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpfl.core.checksummed_files import to_toml
from fedpfl.core.errors import FedpflError

GIB = 2**30
MIB = 2**20
# How often something is looked for until it is there.
POLL_SECONDS = 0.05
# After Ctrl-C `fedpfl run` ends its workers, `fedpfl up` Flower.
STOP_SECONDS = 30.0


class BenchmarkError(Exception):
    """A benchmark cannot be measured; the message says why in one line."""


def main(measure: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Run a benchmark; what goes wrong is said in one line."""
    try:
        measure(parser.parse_args())
    except (BenchmarkError, FedpflError) as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def add_data_options(parser: argparse.ArgumentParser, dataset: str) -> None:
    """Add the options that every benchmark has."""
    parser.add_argument("--dataset", default=dataset, help="data set (%(default)s)")
    parser.add_argument("--data-dir", default="~/.fedpfl/data", help="where it lies or is downloaded to (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")


def data_dir(text: str) -> str:
    """Return ``--data-dir`` as an absolute path: runs have another working directory."""
    return str(Path(text).expanduser().absolute())


def note(text: str) -> None:
    """Say on standard error what is being done."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


# -- the table -------------------------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned to the right."""
    lines = [list(header), ["---", *["---:"] * (len(header) - 1)], *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for a file of numbers, of which ``docs/tools/run_records.py figures`` makes a record."""
    parser.add_argument("--json", type=Path, help="file for the numbers")


def write_json(path: Path | None, numbers: Mapping[str, Mapping[str, float | None]]) -> None:
    """Write the numbers of a table, by row and heading, if a file is named for them; None: the cell is empty."""
    if path:
        record = {
            row: {head: [] if number is None else [number] for head, number in cells.items()}
            for row, cells in numbers.items()
        }
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def machine() -> str:
    """Describe the machine and the versions in one line."""
    memory = _memory_bytes()
    parts = [
        cpu_model(), f"{cores()} cores", f"{memory / GIB:.0f} GiB" if memory else "",
        f"{platform.system()} {platform.machine()}", f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in ("torch", "numpy", "flwr")),
        f"load average {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else "",
    ]  # fmt: skip
    return ", ".join(part for part in parts if part)


def footer(seed: int) -> str:
    """Return the lines below a table: the machine, the command, the seed."""
    return f"\nMachine: {machine()}\nCommand: python {shlex.join(sys.argv)}\nSeed: {seed}"


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or "unknown processor"


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


# -- other programs --------------------------------------------------------------------------------------------------


def make_environment(place: Path, packages: Sequence[str]) -> str:
    """Make a virtual environment for another program, unless it is there already.

    Parameters
    ----------
    place : Path
        Where the environment lies; whatever else is there is removed.
    packages : sequence of str
        What pip installs.

    Returns
    -------
    str
        Why that fails, in one line; empty if the environment is there.
    """
    mark, wanted = place / "installed.txt", f"{' '.join(packages)} with torch {version('torch')}"
    if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
        return ""
    note(f"installing {' '.join(packages)} in {place}")
    if place.exists():
        shutil.rmtree(place)
    venv.create(place, with_pip=True)
    # Behind its own packages those that fedpfl uses: the same PyTorch, and not two more of several GB.
    (libraries,) = place.glob("lib/python*/site-packages")
    (libraries / "torch-of-fedpfl.pth").write_text(f"{Path(torch.__file__).parents[1]}\n", encoding="utf-8")
    constraint = place / "constraint.txt"
    constraint.write_text(f"torch=={version('torch')}\n", encoding="utf-8")
    command = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", constraint, *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return reason(done.stderr)
    mark.write_text(wanted, encoding="utf-8")
    return ""


def reason(text: str) -> str:
    """Return the last line of what a program wrote that says anything."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1][:300] if lines else "no reason given"


# -- a run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A finished ``fedpfl run``.

    Attributes
    ----------
    lines : list of dict
        ``metrics.jsonl``.
    arrays : dict of str to Tensor
        The shared arrays after the last round.
    """

    lines: list[dict[str, Any]]
    arrays: dict[str, Tensor]


def simulate(
    settings: Mapping[str, Any],
    sample: Callable[[int], None] | None = None,
    every: float = 1.0,
    command: Sequence[str] = ("run",),
) -> Run:
    """Run ``fedpfl run --json`` with these settings, in a folder of its own that is removed afterwards.

    Parameters
    ----------
    settings : mapping
        Settings by key.
    sample : callable, optional
        Gets the id of the run's process every ``every`` seconds.
    every : float
        Seconds between samples.
    command : sequence of str
        Another command than ``run``, with its options.

    Raises
    ------
    BenchmarkError
        The run failed.
    """
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as name:
        folder = Path(name)
        places = {"output-dir": str(folder / "runs"), "state-dir": str(folder / "state"), "run-name": "run"}
        file = folder / "settings.toml"
        file.write_text(to_toml({**settings, **places}), encoding="utf-8")
        result = folder / "runs" / "run"
        arguments = [sys.executable, "-c", "from fedpfl.cli import main; main()", *command]
        arguments += ["--json", "--quiet", "--run-config", str(file)]
        with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
            process = subprocess.Popen(arguments, cwd=folder, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
            try:
                while sample is not None and process.poll() is None:
                    sample(process.pid)
                    time.sleep(every)
                process.wait()
            finally:
                if process.poll() is None:  # interrupted: it ends its processes itself
                    process.terminate()
                    process.wait(STOP_SECONDS)
            out.seek(0)
            outcome = _last_json(out.read())
            err.seek(0)
            if outcome.get("status") != "finished:completed":
                reason = outcome.get("error") or (err.read().strip().splitlines() or ["no reason given"])[-1]
                raise BenchmarkError(f"fedpfl {command[0]} failed: {reason}")
        lines = [json.loads(line) for line in (result / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        return Run(lines, load_file(result / "global.safetensors"))


def _last_json(text: str) -> dict[str, Any]:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return dict(json.loads(line))
    return {}
