"""How long the default run takes from the command to its first step, and to its end.

`fedpfl run` without any option: FedDecomp on scikit-learn's digits, 10 clients, 5 rounds. Most of the time before the
first step is the import of torch, which is measured beside it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from common import count, footer, main, note, simulate, table

from fedpfl.setup.config import RunSettings

GOAL_FIRST, GOAL_WHOLE = 3.0, 6.0


def measure(options: argparse.Namespace) -> None:
    """Run it several times, by turns with an import of torch alone."""
    imports, first, whole, rounds = [], [], [], []
    for repeat in range(1, options.repeats + 1):
        note(f"repeat {repeat} of {options.repeats}")
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        imports.append(time.perf_counter() - started)
        run = simulate({"seed": options.seed})
        first += [run.seconds_to_first_step] if run.seconds_to_first_step is not None else []
        whole.append(run.seconds)
        rounds += [line["seconds"] for line in run.lines]

    def row(what: str, seconds: list[float], goal: str = "") -> list[str]:
        return [what, f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f} … {max(seconds):.2f}", goal]

    print(
        table(
            ["what", "s (median)", "least … most", "goal"],
            [
                row("`python -c 'import torch'`", imports),
                row("from the command to the first client's first step", first, f"≤ {GOAL_FIRST:g}"),
                row("a round with tests", rounds),
                row("the whole command", whole, f"≤ {GOAL_WHOLE:g}"),
            ],
        )
    )
    print(f"\nWork: the default run, {RunSettings().num_server_rounds} rounds; {options.repeats} times.")
    print(footer(options.seed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=count, default=5, help="how often (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    main(measure, parser)
