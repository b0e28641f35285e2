"""What a sweep costs beside the rounds of its runs: starts, data, records, summaries.

The cost is (seconds of the command × runs side by side) / seconds of all rounds. A run that starts another Python
imports torch first, which takes as long as a short run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import BenchmarkError, cores, count, footer, main, note, reason, table

GOAL = 1.3
SEEDS = 3


def measure(options: argparse.Namespace) -> None:
    """Run a sweep and print the table."""
    rates = ",".join(f"{0.01 * place:g}" for place in range(1, -(-options.runs // SEEDS) + 1))
    settings = (
        'method="fedavg" dataset="digits" model="small-cnn" num-clients=8 fraction-train=1.0 '
        f"num-server-rounds={options.rounds} local-epochs={options.epochs} evaluate-every=1"
    )
    with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as folder:
        words = ["sweep", "-q", "-c", settings, "--grid", f"learning-rate={rates}", "--seeds", str(SEEDS)]
        words += ["--jobs", str(options.jobs), "--output-dir", folder]
        note("fedpfl sweep")
        begun = time.perf_counter()
        command = [sys.executable, "-c", "from fedpfl.cli import main; main()", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        seconds = time.perf_counter() - begun
        if done.returncode:
            raise BenchmarkError(f"fedpfl sweep failed: {reason(done.stderr)}")
        of_runs = [rounds(path) for path in sorted(Path(folder).glob("runs/*/metrics.jsonl"))]
    print(
        table(
            ["what", "value", "goal"],
            [
                [f"s of the command, {len(of_runs)} runs, {options.jobs} at a time", f"{seconds:.1f}", ""],
                ["s of a run's rounds, mean", f"{sum(of_runs) / len(of_runs):.2f}", ""],
                ["cost, of the rounds alone", f"{seconds * options.jobs / sum(of_runs):.2f}", f"≤ {GOAL}"],
            ],
        )
    )
    print(footer(1))


def rounds(path: Path) -> float:
    """Return the seconds of all rounds of a run, with their tests."""
    return sum(json.loads(line)["seconds"] for line in path.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=count, default=27, help=f"runs, a multiple of {SEEDS} (%(default)s)")
    parser.add_argument("--rounds", type=count, default=10, help="rounds of a run (%(default)s)")
    parser.add_argument("--epochs", type=count, default=5, help="local epochs (%(default)s)")
    parser.add_argument("--jobs", type=count, default=cores(), help="runs side by side; all cores (%(default)s)")
    main(measure, parser)
