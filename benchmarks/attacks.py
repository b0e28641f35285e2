"""What false clients cost the honest ones: attacks against methods with each defence.

Ten clients share scikit-learn's digits, whose classes are divided by Dirichlet's distribution. The last one or three of
them are false. A false client is made as any user could make it, by a method or by data of one's own. The accuracy is
the mean over the honest clients' personalised models on their own test samples, after the last round.

Each run leaves a line in the file of records, of which ``docs/tools/run_records.py`` makes tables, and is not repeated
where there is one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import footer, main
from sklearn.datasets import load_digits
from torch import nn

import fedpfl
from fedpfl.core.payload import Payload
from fedpfl.core.samples import Samples
from fedpfl.engine.rounds import RoundFailed
from fedpfl.methods import find
from fedpfl.methods.base import LocalRound
from fedpfl.training.phase import Phase

CLIENTS, CLASSES, ROUNDS = 10, 10, 16
METHODS = ("fedavg", "fedper", "ditto", "feddecomp", "fedfac", "fedreg", "fedpac")
# Each attack, and with how many of the clients.
ATTACKS = {
    "no attack": (0,),
    "sign flip": (1, 3),
    "scaled by −10": (1, 3),
    "noise": (1, 3),
    "label flip": (1, 3),
    "false counts": (1, 3),
    "one value of 3e38": (1,),
    # The sign of the update, not that of the arrays: its norm is honest.
    "reversed update": (1, 3),
}
ROBUST = {"robust_false_share": 0.3}
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {"update_norm_limit": 0.0},
    "norm limit": {},
    "clip": {"robust_aggregation": "clip"},
    "median": {"robust_aggregation": "median"},
    "trimmed mean": {"robust_aggregation": "trimmed-mean", **ROBUST},
    "krum": {"robust_aggregation": "krum", **ROBUST},
    "weight share": {"max_weight_share": 0.1},
}
# A false client says that it has so many times its samples.
FALSE_COUNT = 20
# The norm of noise in that of the weights: not refused.
NOISE = 3.0


class Cell(NamedTuple):
    """One run."""

    attack: str
    liars: int
    method: str
    defence: str
    seed: int


def cells(seeds: int) -> Iterator[Cell]:
    """List all runs, seed by seed."""
    for seed in range(1, seeds + 1):
        for attack, counts in ATTACKS.items():
            for liars in counts:
                for method in METHODS:
                    for defence in DEFENCES:
                        if defence != "weight share" or attack in ("no attack", "false counts"):
                            yield Cell(attack, liars, method, defence, seed)


def model(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a small network."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, num_classes))


def data(cell: Cell) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Divide the digits; a false client with false counts has its training samples many times."""
    x, y = load_digits(return_X_y=True)
    x, y, rng = (x / 16).astype(np.float32), y.astype(np.int64), np.random.default_rng(cell.seed)
    sizes = np.zeros(1)
    while sizes.min() < 40:
        owners = np.empty(len(y), np.int64)
        for label in range(CLASSES):
            samples = y == label
            owners[samples] = rng.choice(CLIENTS, int(samples.sum()), p=rng.dirichlet(np.full(CLIENTS, 0.5)))
        sizes = np.bincount(owners, minlength=CLIENTS)
    clients = []
    for client in range(CLIENTS):
        samples = rng.permutation(np.flatnonzero(owners == client))
        test, train = np.split(samples, [len(samples) * 3 // 10])
        if cell.attack == "false counts" and is_false(cell, client):
            train = np.tile(train, FALSE_COUNT)
        clients.append((x[train], y[train], x[test], y[test]))
    return clients


def is_false(cell: Cell, client: int) -> bool:
    """Return whether a client is one of the false ones, the last."""
    return client >= CLIENTS - cell.liars


def attacked(cell: Cell) -> type[fedpfl.Method]:
    """Return a method whose false clients do what the attack says; the others do as ever."""
    base: Any = find(cell.method)

    class Attacked(base):  # type: ignore[misc]
        name = f"{base.name}-attacked"

        def schedule(self, local: LocalRound) -> list[Phase]:
            phases: list[Phase] = super().schedule(local)
            if cell.attack != "label flip" or not is_false(cell, local.client):
                return phases
            data_of = [(phase, phase.data or local.samples) for phase in phases]
            return [replace(phase, data=Samples(x, CLASSES - 1 - y)) for phase, (x, y) in data_of]

        @torch.no_grad()
        def conclude(self, local: LocalRound) -> Payload:
            reply: Payload = super().conclude(local)
            if is_false(cell, local.client):
                rng = local.generator("attack")
                arrays = local.model.state_dict()
                for name in (name for name in local.start if name in arrays):
                    falsify(cell.attack, arrays[name], torch.as_tensor(local.start[name]), rng)
            return reply

    return Attacked


def falsify(attack: str, array: torch.Tensor, start: torch.Tensor, rng: np.random.Generator) -> None:
    """Change a trained array as an attack does."""
    if attack == "reversed update":
        array.copy_(2 * start.to(array) - array)
    elif attack in ("sign flip", "false counts"):
        array.neg_()
    elif attack == "scaled by −10":
        array.mul_(-10)
    elif attack == "noise":
        noise = torch.from_numpy(rng.standard_normal(tuple(array.shape))).to(array)
        array.add_(noise, alpha=NOISE * float(array.norm() / noise.norm()))
    elif attack == "one value of 3e38":
        array.view(-1)[0] = 3e38


def run(cell: Cell) -> dict[str, Any]:
    """Return a run's record: the honest clients' mean accuracy, None if the run ended early."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = fedpfl.run(
                method=attacked(cell), model=model, dataset=lambda: data(cell), seed=cell.seed, workers=0, quiet=True,
                num_server_rounds=ROUNDS, local_epochs=2, batch_size=32, learning_rate=0.2, evaluate_every=0,
                output_dir=f"{folder}/runs", state_dir=f"{folder}/state", **DEFENCES[cell.defence],
            )  # fmt: skip
        except RoundFailed:
            return {**cell._asdict(), "accuracy": None}
        tested = made.clients.loc[ROUNDS]["accuracy"]
    honest = [accuracy for client, accuracy in tested.items() if not is_false(cell, client)]
    return {**cell._asdict(), "accuracy": round(statistics.mean(honest), 4)}


def measure(options: argparse.Namespace) -> None:
    """Make the runs that are missing."""
    torch.set_num_threads(1)
    lines = options.records.read_text().splitlines() if options.records.exists() else []
    done = {Cell(*(json.loads(line)[name] for name in Cell._fields)) for line in lines}
    with options.records.open("a", encoding="utf-8") as file:
        for cell in cells(options.seeds):
            if cell not in done:
                line = json.dumps(run(cell), ensure_ascii=False)
                print(line, flush=True)
                file.write(line + "\n")
                file.flush()
    print(footer(options.seeds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What false clients cost the honest ones.")
    parser.add_argument("--records", type=Path, default=Path("attacks.jsonl"), help="file of records (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds (%(default)s)")
    main(measure, parser)
