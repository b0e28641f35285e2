"""Why the first round is slower here than in Factorized-FL's program: the statistics of batch normalisation.

The program's workers have one network for all their clients, and the first model is copied into it without the running
statistics. So in round 1 a client continues with those of the client before it. Here each client starts with fresh
ones, mean 0 and variance 1, and a few steps leave much of these. Printed: the clients' mean accuracy on their own test
samples after round 1 of local training, in the setting of ``factorized-fl-tests.toml`` with η 0.001, for three seeds.

    python experiments/factorized-fl/factorized_fl_first_round.py --data-dir ~/.fedpfl/data --json FILE
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import torch
from torch import nn

from fedpfl import models
from fedpfl.core.rng import generator
from fedpfl.data import DataSettings, FederatedData
from fedpfl.methods.base import everything
from fedpfl.training.loop import evaluate, run_phase
from fedpfl.training.phase import Phase
from fedpfl.training.settings import TrainingSettings

CLIENTS, SEEDS = 8, (1, 2, 3)
TRAINING = TrainingSettings(batch_size=50, learning_rate=0.001, momentum=0.9, weight_decay=1e-6, last_batch="drop")


def accuracy(data: FederatedData, seed: int, continued: bool) -> float:
    """Return the clients' mean accuracy in percent; ``continued``: with the statistics of the client before."""
    torch.manual_seed(seed)
    model = models.build("resnet9-narrow", data.input_shape, data.num_classes).to(memory_format=torch.channels_last)
    first, correct = copy.deepcopy(model), 0.0
    for client in range(CLIENTS):
        start(model, first, continued)
        rng = generator(seed, "first-round", client)
        run_phase(model.train(), Phase(everything, 2), data.train(client), TRAINING, rng)
        score = evaluate(model.eval(), data.test(client))
        correct += score.correct / score.samples
    return 100 * correct / CLIENTS


def start(model: nn.Module, first: nn.Module, continued: bool) -> None:
    """Give a model its first parameters, and its first running statistics unless it continues with what it has."""
    state = dict(first.named_parameters()) if continued else first.state_dict()
    model.load_state_dict(state, strict=not continued)


def main() -> None:
    """Print the accuracies of each seed, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="~/.fedpfl/data", help="where CIFAR-10 is (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = DataSettings(
        dataset="cifar10", data_dir=options.data_dir, partitioner="dirichlet-client", dirichlet_alpha=0.5,
        split="given", train_samples=400, test_samples=100, permute_labels=True,
    )  # fmt: skip
    accuracies: dict[str, dict[str, list[float]]] = {"fresh statistics": {}, "those of the client before": {}}
    for seed in SEEDS:
        data = FederatedData(settings, CLIENTS, seed)
        for continued, values in enumerate(accuracies.values()):
            values[f"seed {seed}"] = [round(accuracy(data, seed, bool(continued)), 2)]
    for kind, values in accuracies.items():
        print(f"{kind}: " + ", ".join(f"{name} {value[0]:.1f}" for name, value in values.items()))
    if options.json:
        options.json.write_text(json.dumps(accuracies), encoding="utf-8")


if __name__ == "__main__":
    main()
