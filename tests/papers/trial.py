"""One combination at the papers' own size: a few rounds of a few of its clients, and what came of it."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import made_data
import numpy as np
from combinations import NOWHERE, Combination, counted
from support import run_federation

import fedpfl
from fedpfl.core.errors import FedpflError
from fedpfl.core.server_view import Client
from fedpfl.data import FederatedData
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.engine.transport import Fail, Reply, Request, Wait
from fedpfl.setup.config import Config

# Of the program, of what is done here and of made data: records of another version are old.
VERSION = f"{fedpfl.__version__}/2/{made_data.VERSION}"
ROUNDS = 3
# Test samples that the chosen clients should have in all, so that an accuracy says something, and most clients for it.
ENOUGH_TESTS, MAX_CLIENTS = 150, 8
# Sizes of clients that are nearly equal do not show how long a client's round takes without any sample.
SPREAD = 1.2


@dataclass
class Played:
    """A client's part of a round.

    Attributes
    ----------
    kind : str
        ``train`` or ``evaluate``.
    round, client : int
    seconds : float
        Processor time, with making the message.
    metrics : dict of str to float
        What the client reported.
    """

    kind: str
    round: int
    client: int
    seconds: float
    metrics: dict[str, float]


class Few(SimulationTransport):
    """A simulation in this process, with a federation of which only a few clients answer.

    The server has all clients of the paper, and so do rules that go by their number or sizes; those that are not chosen
    are silent in every round.

    Parameters
    ----------
    config : Config
        The run's settings.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config, workers=0)
        self.data: FederatedData = self._engine.data
        self.sizes = [self.data.sizes(client) for client in range(config.data.num_clients)]
        self.variety = [entropy(self.data.labels(client), self.data.num_classes) for client in range(len(self.sizes))]
        self.chosen = choose(self.sizes, self.variety, config.training.batch_size, config.training.last_batch)
        self.played: list[Played] = []
        self.failed: dict[int, str] = {}
        self._round = 0

    def begin_round(self) -> None:
        """Count the rounds."""
        self._round += 1

    def replies(self, requests: Sequence[Request], wait: Wait, fail: Fail) -> Iterator[Sequence[Reply]]:
        """Let the chosen clients answer, and note what they say and how long it takes them."""

        def failed(client: Client, reason: str, error: Exception | None = None) -> None:
            self.failed[client.id] = f"round {self._round}, client {client.id}: {reason}"
            fail(client, reason, error)

        asked = [request for request in requests if request.client.id in self.chosen]
        kind = asked[0].kind if asked else ""
        answers = super().replies(asked, wait, failed)
        while True:
            begun = time.process_time()
            try:
                group = next(answers)
            except StopIteration:
                return
            seconds = time.process_time() - begun
            for client, answer, _ in group:
                self.played.append(Played(kind, self._round, client.id, seconds / len(group), dict(answer.metrics)))
            yield group


def entropy(labels: Sequence[int] | np.ndarray, classes: int) -> float:
    """Return the loss of always saying how frequent each class is among these labels."""
    shares = np.bincount(labels, minlength=classes) / len(labels)
    return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


def choose(sizes: Sequence[tuple[int, int]], variety: Sequence[float], batch_size: int, last_batch: str) -> list[int]:
    """Choose clients: of those of different sizes the smallest, those about the median, and one with an odd batch.

    Of clients of one size the two with the most mixed classes are chosen. One that has nearly a single class is right
    with its first step, and what two of these share swings from one class to the other.

    Parameters
    ----------
    sizes : sequence of (int, int)
        Training and test samples of each client.
    variety : sequence of float
        Entropy of each client's training labels.
    batch_size : int
        B: a client with one sample more than a multiple of it has a batch of one sample.
    last_batch : str
        The setting ``last-batch``.
    """
    order = sorted(range(len(sizes)), key=lambda client: (sizes[client][0], client))
    smallest, middle, largest = order[0], len(order) // 2, order[-1]
    if sizes[largest][0] <= SPREAD * sizes[smallest][0]:
        chosen = sorted(range(len(sizes)), key=lambda client: (-variety[client], client))[:2]
    else:
        chosen = list(dict.fromkeys([smallest, order[middle]]))
    lone = [i for i in order[: middle + 1] if sizes[i][0] > batch_size and sizes[i][0] % batch_size == 1]
    if batch_size > 1 and last_batch == "keep" and lone and lone[-1] not in chosen:
        chosen.append(lone[-1])
    for at in range(middle - 1, 0, -1):
        if sum(sizes[i][1] for i in chosen) >= ENOUGH_TESTS or len(chosen) >= MAX_CLIENTS:
            break
        if order[at] not in chosen:
            chosen.append(order[at])
    return sorted(chosen)


def attempt(one: Combination, rounds: int = ROUNDS, precision: str = "float32") -> dict[str, Any]:
    """Run a combination and return its record.

    Parameters
    ----------
    one : Combination
        What to run.
    rounds : int
        How many.
    precision : str
        The setting ``precision``: the number type of a training step.
    """
    record: dict[str, Any] = {
        "key": one.key, "version": VERSION, "when": time.strftime("%Y-%m-%d"), "machine": processor(),
        # Without this machine's places and whatever else does not tell combinations apart.
        "settings": counted(one.settings), "rounds": rounds, "precision": precision,
    }  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="fedpfl-papers-"))
    begun = time.perf_counter()
    try:
        settings, record["real"] = on_this_machine(one, folder)
        settings.update({
            "num-server-rounds": rounds, "fraction-train": 1.0, "evaluate-every": 1, "evaluate-trained": True,
            "new-clients": 0.0, "run-name": "run", "precision": precision,
            "output-dir": str(folder / "runs"), "state-dir": str(folder / "state"),
        })  # fmt: skip
        config = Config.parse(settings)
        few = Few(config)
        record.update(described(few))
        before = time.process_time()
        run_federation(few, config.flat())
        record["server_seconds"] = (time.process_time() - before - sum(p.seconds for p in few.played)) / rounds
        record.update(measured(few, rounds))
    except FedpflError as error:
        record["error"] = " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001  a combination that breaks is what this looks for, whatever breaks
        record["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    record["seconds"] = round(time.perf_counter() - begun, 1)
    record["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return record


def on_this_machine(one: Combination, folder: Path) -> tuple[dict[str, Any], bool]:
    """Return the settings with this machine's places, and whether all of its data are real ones."""
    settings, real = dict(one.settings), True
    if one.generate:
        # What scripts of experiments make belongs to the experiment: it is no stand-in.
        made = folder / "generated"
        subprocess.run([sys.executable, *one.generate, "--write", str(made)], check=True, stdout=subprocess.DEVNULL)
        for key in ("data", "initial-weights", "fedsplit-split"):
            value = str(settings.get(key, ""))
            if value.startswith(str(NOWHERE)):
                settings[key] = str(made / Path(value).name)
        return settings, True
    for key in ("data", "initial-weights"):
        if settings[key]:
            name = made_data.HOME + Path(settings[key]).name
            path, is_real = made_data.place(name)
            settings[key], real = str(path), real and is_real
    if settings["dataset"] != "npz":
        path, is_real = made_data.data_dir(settings["dataset"])
        settings["data-dir"], real = str(path), real and is_real
    return settings, real


def described(few: Few) -> dict[str, Any]:
    """Return who was chosen, and what could be known without looking at any input."""
    train = np.array([size for size, _ in few.sizes])
    ids = few.chosen
    labels = [few.data.labels(i) for i in ids]
    shares = [np.bincount(y, minlength=few.data.num_classes) / len(y) for y in labels]
    tests = [few.data.test(i).y.numpy() for i in ids]
    weights = np.array([len(y) for y in labels], float)
    most = [float((y == p.argmax()).sum()) for y, p in zip(tests, shares, strict=True)]
    return {
        "clients": ids,
        "samples": [few.sizes[i] for i in ids],
        "mean_samples": [float(train.mean()), float(np.mean([size for _, size in few.sizes]))],
        "classes": few.data.num_classes,
        # Accuracy of guessing a class, and of always saying the most frequent of the client's training samples.
        "chance": 1 / few.data.num_classes,
        "majority": sum(most) / sum(len(y) for y in tests),
        # Loss of always saying how frequent each class is among the client's training samples.
        "entropy": float(np.average([few.variety[i] for i in ids], weights=weights)),
    }


def measured(few: Few, rounds: int) -> dict[str, Any]:
    """Return losses and accuracies by round, and processor seconds by client."""
    found: dict[str, Any] = {"losses": [], "trained": [], "personalised": []}
    for number in range(1, rounds + 1):
        trained = [p for p in few.played if p.kind == "train" and p.round == number]
        tested = [p for p in few.played if p.kind == "evaluate" and p.round == number]
        weights = [p.metrics["train-samples"] for p in trained]
        losses = [p.metrics["train-loss"] for p in trained]
        found["losses"].append(float(np.average(losses, weights=weights)) if trained else math.nan)
        found["trained"].append(_accuracy(trained, "trained"))
        found["personalised"].append(_accuracy(tested, "personalised"))
    later = [p for p in few.played if p.round > 1] or few.played  # the first round also warms up
    for kind in ("train", "evaluate"):
        times = [[p.seconds for p in later if p.kind == kind and p.client == i] for i in few.chosen]
        found[f"{kind}_seconds"] = [float(np.mean(t)) if t else math.nan for t in times]
    found["failed"] = list(few.failed.values())
    return found


def _accuracy(played: Sequence[Played], of: str) -> float:
    samples = sum(p.metrics.get(f"{of}-samples", 0) for p in played)
    return sum(p.metrics.get(f"{of}-correct", 0) for p in played) / samples if samples else math.nan


def processor() -> str:
    """Return what kind of processor this machine has, and how many cores may be used."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {cores} cores"
