"""Small experiments and runs that end at once, for the tests of grids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedpfl.setup.config import Config
from fedpfl.study.execution import Resources
from fedpfl.study.run_store import PlannedRun, Store

FILE = """\
title = "A table"
paper = "Somebody, Something, 2024"
base = "base.toml"
metrics = ["personalised-best", "gigabytes"]
seeds = 3
remarks = "All of it."

[rows]
"FedAvg" = { method = "fedavg" }
"Local" = { method = "local" }

[columns]
"A" = { dirichlet-alpha = 0.1 }
"B" = { dirichlet-alpha = 1.0 }

[cells."FedAvg"."B"]
learning-rate = 0.5

[[not-covered]]
rows = ["Local"]
columns = ["B"]
reason = "there is no such data"

[scale.smoke]
remarks = "Small."
settings = { num-server-rounds = 2, evaluate-every = 1 }
column."A" = { batch-size = 7 }

[scale.small]
remarks = "Larger."
columns = ["A"]
seeds = 2

[paper-values]
missing = "the paper does not say"
[paper-values.personalised-best]
"FedAvg" = ["60.39 ± 1.46", 61.5]
"Local" = ["81.91 ± 3.09", "–"]
"""
BASE = 'dataset = "digits"\nnum-clients = 4\nlearning-rate = 0.1\nbatch-size = 32\n'


def write(folder: Path, text: str = FILE) -> Path:
    """Write an experiment and its base; return its file."""
    (folder / "base.toml").write_text(BASE)
    path = folder / "table.toml"
    path.write_text(text)
    return path


class Fake:
    """Runs that are there at once: personalised accuracy 0.5 + seed / 100, 1 GB each way a round.

    The accuracy on validation samples, where there are any, is the learning rate; AUROC and the mean absolute error,
    where asked for, what the accuracy leaves of 1.

    Parameters
    ----------
    fail : dict of str to str
        Reasons for which runs fail, by method, or by method and learning rate.
    stop_after : int
        Rounds after which a run stays as it is until it is interrupted.
    accuracy : dict of str to float
        Instead of 0.5, by method.
    """

    def __init__(
        self, fail: dict[str, str] | None = None, stop_after: int = 10**9, accuracy: dict[str, float] | None = None
    ) -> None:
        self.fail, self.stop_after, self.accuracy = fail or {}, stop_after, accuracy or {}
        self.started: list[str] = []
        self.resumed: list[str] = []
        self.shares: list[Resources] = []
        self.interrupted: list[str] = []

    def __call__(self, run: PlannedRun, store: Store, share: Resources) -> Fake.Job:
        self.started.append(run.name)
        self.shares.append(share)
        if store.folder(run).resumable:
            self.resumed.append(run.name)
        store.prepare(run)
        return Fake.Job(self, run, store)

    class Job:
        """One of them."""

        def __init__(self, runs: Fake, run: PlannedRun, store: Store) -> None:
            self.runs, self.run = runs, run
            self.ended: dict[str, Any] | None = None
            method = str(run.settings["method"])
            reason = runs.fail.get(method) or runs.fail.get(f"{method} {run.settings['learning-rate']}")
            if reason:
                self.ended = {"status": "failed", "error": reason}
                return
            folder = store.folder(run).path
            (store.root / "state" / f"{run.name}-key").mkdir(parents=True, exist_ok=True)
            rounds = min(run.rounds, runs.stop_after)
            leave(folder, run, rounds, runs.accuracy.get(method, 0.5))
            if rounds == run.rounds:
                (folder / "summary.md").write_text("done\n")
                self.ended = {"status": "finished:completed", "error": None}
            for mode in run.modes:
                store.measured(run, mode).write_text('{"weighted": 0.25}')

        def outcome(self) -> dict[str, Any] | None:
            return self.ended

        def interrupt(self) -> bool:
            self.runs.interrupted.append(self.run.name)
            self.ended = {"status": "interrupted", "error": "interrupted"}
            return True


def leave(folder: Path, run: PlannedRun, rounds: int, base: float = 0.5) -> None:
    """Leave what a run of so many rounds leaves, its summary excepted."""
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    accuracy = base + run.settings["seed"] / 100
    lines = []
    for number in range(1, rounds + 1):
        scores = {"accuracy": accuracy, "weighted": accuracy, "std": 0.0, "each": {"0": accuracy - 0.1, "1": accuracy}}
        for name in ("auroc", "mae"):
            if name in str(run.settings["metrics"]):
                scores.update({name: 1 - accuracy, f"each-{name}": {"0": 1 - accuracy, "1": 1 - accuracy}})
        lines.append({
            "round": number, "seconds": 1.0, "seconds_train": 1.0, "bytes_up": 10**9, "bytes_down": 10**9,
            "train_loss": 1 / number, "personalised": scores, "details": {"drift": 2.0 * number},
        })  # fmt: skip
        if run.settings["validation-fraction"]:
            lines[-1]["validation"] = {"accuracy": run.settings["learning-rate"]}
        (folder / "checkpoint" / f"round-{number:06d}.safetensors").touch()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {"state_key": f"{run.name}-key", "clients": 4, "written_by": run.identity}
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "config.toml").write_text("".join(
        f"{key} = {json.dumps(value)}\n" for key, value in Config.parse(run.settings).flat().items()
    ))  # fmt: skip


class Silent:
    """Hears everything and keeps it."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def begin(self, runs: int, done: int, rounds: int) -> None:
        self.heard.append(("begin", runs, done, rounds))

    def started(self, run: PlannedRun) -> None:
        self.heard.append(("started", run.name))

    def round(self, run: PlannedRun, line: dict[str, Any]) -> None:
        self.heard.append(("round", run.name, line["round"]))

    def ended(self, run: PlannedRun, reason: str) -> None:
        self.heard.append(("ended", run.name, reason))
