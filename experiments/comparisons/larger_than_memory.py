"""The memory of a run on 20 GB of images, which are made of their numbers when they are read.

    python experiments/comparisons/larger_than_memory.py numbers.json

Each image is read by its number when a batch needs it, as from a disk (`fedpfl.Lazy`); none is kept.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import fedpfl

COUNT, SIDE, CLASSES, CLIENTS, ROUNDS = 133_000, 224, 10, 1000, 2
MIB = 2**20


class Images:
    """Noise, brighter in the rows of the class."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, place: int) -> tuple[np.ndarray, int]:
        pixels = np.random.default_rng(place).integers(128, size=(SIDE, SIDE, 3), dtype=np.uint8)
        pixels[place % CLASSES * 20 :][:20] += 100
        return pixels, place % CLASSES


def processes() -> list[Path]:
    """Return the folders in /proc of this process and of all that it has started."""
    folders = [Path("/proc/self").resolve()]
    for folder in folders:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for thread in (folder / "task").iterdir():
                folders += [Path("/proc", pid) for pid in (thread / "children").read_text().split()]
    return folders


def memory(folder: Path, file: str, key: str) -> int:
    """Return a number of kB in a file of /proc, in bytes; 0 for a process that has ended."""
    try:
        lines = (folder / file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(key)), 0)


class Peak(threading.Thread):
    """Measures memory five times a second: the most of one process, and of all together, shared pages counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.one = self.all = self.workers = 0

    def run(self) -> None:
        """Measure until the program ends."""
        while True:
            there = processes()
            self.workers = max(self.workers, len(there) - 1)
            self.one = max(self.one, *(memory(folder, "status", "VmHWM:") for folder in there))
            self.all = max(self.all, sum(memory(folder, "smaps_rollup", "Pss:") for folder in there))
            time.sleep(0.2)


def main() -> None:
    """Run, and write the numbers."""
    peak = Peak()
    peak.start()
    images = fedpfl.Lazy(Images(), np.arange(COUNT) % CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        run = fedpfl.run(
            "fedavg", data=images, model="small-cnn", num_clients=CLIENTS, partitioner="iid", test_fraction=0.02,
            fraction_train=0.015, local_epochs=1, num_server_rounds=ROUNDS, evaluate_every=0, workers=2, quiet=True,
            output_dir=folder, state_dir=folder,
        )  # fmt: skip
        seconds = time.monotonic() - start
        numbers = {
            "images": COUNT, "GB": round(COUNT * SIDE * SIDE * 3 / 1e9, 1), "clients": CLIENTS, "rounds": ROUNDS,
            "workers": peak.workers, "peak of one process, MiB": round(peak.one / MIB),
            "peak of all, MiB": round(peak.all / MIB), "seconds": round(seconds),
            "accuracy": run.summary["personalised_accuracy"],
        }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(numbers, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
