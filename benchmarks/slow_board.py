"""How long four boards need for the same accuracy, if one of them is ten times slower, by how rounds wait for it.

Every run goes through ``fedpfl up`` with four devices of one client each. The slow one's worker is stopped for nine
tenths of the time, by signals. The accuracy is the shared model's, of the clients that were tested; the time is that of
the rounds until it is reached. ``--goal`` is the accuracy; every way must reach it within its rounds.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from common import BenchmarkError, ProcessTree, count, footer, main, note, simulate, table

from fedpfl.results.history import History

CLIENTS = 4
SYNCHRONOUS = "synchronous"
WAYS = {
    SYNCHRONOUS: {}, "over-selection": {"fraction-train": 0.75, "over-selection": 0.34},
    "round-deadline": {"round-deadline": 20.0},
    "buffered": {"schedule": "buffered", "buffer-size": 3},
}  # fmt: skip
# How the slow board's worker is stopped and goes on.
PERIOD_SECONDS, WORKING_SHARE = 0.5, 0.1


class Slowed:
    """Stops the worker of a testbed's last device for most of the time."""

    def __init__(self) -> None:
        self._pid = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Slowed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def find(self, tree: ProcessTree) -> None:
        """Look for the worker among a run's processes."""
        socket = f"device-{CLIENTS - 1}/worker.sock".encode()
        for pid in tree.members:
            with suppress(OSError):
                about = Path(f"/proc/{pid}")
                if b"device.worker" in (about / "cmdline").read_bytes() and socket in (about / "environ").read_bytes():
                    self._pid = pid

    def _run(self) -> None:
        while not self._over.is_set():
            for number, share in ((signal.SIGSTOP, 1 - WORKING_SHARE), (signal.SIGCONT, WORKING_SHARE)):
                if self._pid:
                    with suppress(ProcessLookupError):
                        os.kill(self._pid, number)
                time.sleep(PERIOD_SECONDS * share)


def measure(options: argparse.Namespace) -> None:
    """Run every way once."""
    settings = {
        "dataset": "digits", "method": "fedavg", "model": "small-cnn", "partitioner": "iid", "threads": 1,
        "num-clients": CLIENTS, "local-epochs": options.epochs, "batch-size": 10, "learning-rate": options.rate,
        "momentum": 0.0, "num-server-rounds": options.rounds, "seed": options.seed,
    }  # fmt: skip
    rows, first = [], 0.0
    for name in options.ways or WAYS:
        note(name)
        with Slowed() as slowed:
            how = ("up", "--devices", str(CLIENTS), "--state", "memory")
            lines = simulate({**settings, **WAYS[name]}, slowed.find, 1.0, how).lines
        accuracy = History(lines).curve("global.accuracy")
        times = accumulate(line["seconds"] for line in lines)
        reached = next(
            ((passed, line["round"]) for line, passed in zip(lines, times, strict=True)
             if accuracy.get(line["round"], 0.0) >= options.goal), None,
        )  # fmt: skip
        if reached is None:
            best = max(accuracy.values(), default=0.0)
            raise BenchmarkError(
                f"{name}: {best:.3f} is the best accuracy of {options.rounds} rounds: --rounds, --goal"
            )
        first = reached[0] if name == SYNCHRONOUS else first
        rows.append([name, f"{reached[1]}", f"{reached[0]:.1f}", f"{reached[0] / first:.2f}" if first else "–"])
    print(table(["how", "rounds", f"s to {100 * options.goal:g} %", "/ synchronous"], rows))
    print(
        f"\nWork: FedAvg of a small CNN on digits, {options.epochs} epochs, one of {CLIENTS} boards ten times slower."
    )
    print(footer(options.seed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="slow_board.py", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=count, default=10, help="rounds of each run (%(default)s)")
    parser.add_argument("--epochs", type=count, default=10, help="epochs of a round (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.005, help="learning rate (%(default)s)")
    parser.add_argument("--goal", type=float, default=0.85, help="accuracy to be reached (%(default)s)")
    parser.add_argument("--way", dest="ways", action="append", choices=WAYS, help="only these; all by default")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    main(measure, parser)
