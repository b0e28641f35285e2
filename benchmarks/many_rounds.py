"""Many rounds of one run: whether the last ones take the time and memory of the first.

Ten clients with eight samples each train and are tested in this process, so that what remains is the server's work: it
chooses clients, records rounds, keeps the best one and decides whether to stop. All of it could grow with the history.
After every hundredth round a live page reads what is new and lists the runs. Prints a table; ``--json`` writes the
same as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common import MIB, count, footer, main, table
from many_clients import synthetic

from fedpfl.engine.listener import Listener
from fedpfl.engine.server_run import run_federation
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.setup.config import Config
from fedpfl.study.live.run_data import list_runs, read_run

CLIENTS, PARTS, PAGE_EVERY, RUN = 10, 10, 100, "run"


class Marks(Listener):
    """Notes CPU seconds, memory and what the live page takes, round by round."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.since = runs, ""
        self.seconds: list[float] = []
        self.memory: list[float] = []
        self.page: list[float] = []
        self._last = time.process_time()

    def round_ended(self, rule: Any, done: Any, state: Any) -> bool:
        """Take the marks."""
        now = time.process_time()
        self.seconds.append(now - self._last)
        self.memory.append(memory())
        if done.number % PAGE_EVERY == 0:
            self.since = read_run(self.runs, RUN, self.since)["since"]
            list_runs(self.runs)
            self.page.append(time.process_time() - now)
        self._last = time.process_time()
        return False


def memory() -> float:
    """Return the private memory of this process in MiB, without the pages of files."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon:")]
    return int(line.split()[1]) / 1024


def measure(options: argparse.Namespace) -> None:
    """Carry out the run, and print what each tenth of its rounds took."""
    with tempfile.TemporaryDirectory(prefix="fedpfl-many-rounds-") as name:
        folder = Path(name)
        config = Config.parse({
            "method": "fedavg", "model": "mlp", "dataset": "npz", "partitioner": "natural", "num-clients": CLIENTS,
            "data": synthetic(folder / "data.npz", CLIENTS, options.seed), "seed": options.seed, "threads": 1,
            "num-server-rounds": options.rounds, "local-epochs": 1, "validation-fraction": 0.2, "min-samples": 2,
            "early-stop": options.rounds, "learning-rate": 1e-4, "output-dir": str(folder / "runs"),
            "state-dir": str(folder / "state"), "run-name": RUN,
        })  # fmt: skip
        marks = Marks(folder / "runs")
        with SimulationTransport(config, 0) as transport:
            run_federation(transport, config, [marks])
        files = sum(path.stat().st_size for path in (folder / "runs" / RUN).rglob("*") if path.is_file()) / MIB
    found, rounds = {}, options.rounds // PARTS
    for part in range(PARTS):
        seconds, sizes = (of[part * rounds : (part + 1) * rounds] for of in (marks.seconds, marks.memory))
        visits = rounds // PAGE_EVERY
        page = marks.page[part * visits : (part + 1) * visits]
        found[f"rounds {part * rounds + 1:,} to {(part + 1) * rounds:,}"] = {
            "a round, ms of a core (median)": [1e3 * statistics.median(seconds)],
            "the same (least)": [1e3 * min(seconds)],  # which other programs do not make longer
            "memory at the end, MiB": [sizes[-1]],
            "the live page's visit, ms of a core (median)": [1e3 * statistics.median(page)],
        }
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    columns = list(next(iter(found.values())))
    print(table(["", *columns], [[row, *(f"{of[name][0]:.2f}" for name in columns)] for row, of in found.items()]))
    print(f"\nThe run's folder has {files:.1f} MiB at the end.")
    print(footer(options.seed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="many_rounds.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=count, default=10_000, help="(%(default)s); at least 1,000")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    parser.add_argument("--json", type=Path, help="the JSON file to write")
    main(measure, parser)
