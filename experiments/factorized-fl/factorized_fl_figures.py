"""Factorized-FL's figures 2 and 4: two clients that start from one network, one of them on other data.

The first client has a part of MNIST. The second has another part of it, that part with its labels permuted, or as many
images of CIFAR-10. Printed, for each epoch:

- *updates* (figure 2 b): ‖Δ₁ − Δ₂‖ / (‖Δ₁‖ + ‖Δ₂‖) of what an epoch does to the layers before the classifier, each
  client training by itself: 0 where both do the same, near 0.7 where they have nothing in common, 1 where they do the
  opposite;
- *accuracy* (figure 2 c): that of the first client on test samples of MNIST; after every third epoch the layers before
  the classifier become the mean of both clients';
- *u*, *v* (figure 4): the same distance of the factors themselves, in a factorised network whose u becomes the mean of
  both clients' after every third epoch.

What the paper leaves open is chosen here: 2,000 training and 1,000 test samples, the network, B, η, how images are
brought to 32 × 32 grey pixels (MNIST gets a border, CIFAR-10's colours are averaged), and that distances are divided by
the sum of both norms.

    python experiments/factorized-fl/factorized_fl_figures.py --data-dir ~/.fedpfl/data --json FILE
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedpfl import models
from fedpfl.core.pixels import scale
from fedpfl.core.rng import generator
from fedpfl.core.samples import Samples
from fedpfl.data import DataSettings, load
from fedpfl.methods.base import everything
from fedpfl.methods.factorized_fl.layers import factorize, is_u, is_v
from fedpfl.training.loop import evaluate, run_phase
from fedpfl.training.phase import Phase
from fedpfl.training.settings import TrainingSettings

TRAIN, TEST, SIDE, MERGE = 2000, 1000, 32, 3
SECOND = ("MNIST", "MNIST, labels permuted", "CIFAR-10")
TRAINING = TrainingSettings(batch_size=50, learning_rate=0.01, momentum=0.9, weight_decay=1e-6, last_batch="keep")
Arrays = dict[str, Tensor]


def images(x: np.ndarray, y: np.ndarray) -> Samples:
    """Return samples of grey images of 32 × 32 pixels."""
    grey = x.astype(np.float32).mean(axis=3)
    border = (SIDE - grey.shape[1]) // 2
    padded = np.pad(grey, ((0, 0), (border, border), (border, border)))
    return Samples(scale(torch.from_numpy(padded.astype(np.uint8))[:, None]), torch.from_numpy(y))


def clients(data_dir: str, seed: int) -> tuple[dict[str, Samples], Samples]:
    """Return the first client's samples (under an empty name), the second one's of each kind, and test samples."""
    mnist, other = (load(DataSettings(dataset=name, data_dir=data_dir)) for name in ("mnist", "cifar10"))
    rng = generator(seed, "figures")
    order, others = rng.permutation(len(mnist.y_train)), rng.permutation(len(other.y_train))[:TRAIN]
    first, second = order[:TRAIN], order[TRAIN : 2 * TRAIN]
    here = images(mnist.x_train[second], mnist.y_train[second])
    renamed = Samples(here.x, torch.from_numpy(rng.permutation(10))[here.y])
    parts = {"": images(mnist.x_train[first], mnist.y_train[first]), SECOND[0]: here, SECOND[1]: renamed}
    parts[SECOND[2]] = images(other.x_train[others], other.y_train[others])
    assert mnist.x_test is not None and mnist.y_test is not None  # MNIST has a test set
    return parts, images(mnist.x_test[:TEST], mnist.y_test[:TEST])


def base_of(model: nn.Module) -> Arrays:
    """Return copies of the parameters before the classifier."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if not name.startswith("head.")}


def distance(a: Arrays, b: Arrays) -> float:
    """Return ‖a − b‖ / (‖a‖ + ‖b‖)."""
    first, second = (torch.cat([array.flatten() for array in arrays.values()]) for arrays in (a, b))
    return float((first - second).norm() / (first.norm() + second.norm()))


@torch.no_grad()
def merge(pair: list[nn.Module], chosen: str = "") -> None:
    """Give both models the mean of their arrays before the classifier, or of every u alone."""
    states = [model.state_dict() for model in pair]
    for name, array in states[0].items():
        if name.startswith("head.") or not array.is_floating_point() or (chosen == "u" and not is_u(name)):
            continue
        mean = (array + states[1][name]) / 2
        for state in states:
            state[name].copy_(mean)


def pair_of(seed: int, factorised: bool) -> list[nn.Module]:
    """Return two copies of one network."""
    torch.manual_seed(seed)
    model: nn.Module = models.build("resnet9-narrow", (1, SIDE, SIDE), 10).to(memory_format=torch.channels_last)
    if factorised:
        model = factorize(model, 5e-4, True, torch.Generator().manual_seed(seed))
    return [model, copy.deepcopy(model)]


def epoch(pair: list[nn.Module], samples: list[Samples], seed: int, number: int) -> None:
    """Train each model for an epoch on its samples."""
    for client, (model, own) in enumerate(zip(pair, samples, strict=True)):
        run_phase(model, Phase(everything, 1), own, TRAINING, generator(seed, "epoch", client, number))


def accuracy(model: nn.Module, test: Samples) -> float:
    """Return a model's accuracy in percent."""
    score = evaluate(model.eval(), test)
    return 100 * score.correct / score.samples


def measure(kind: str, data: dict[str, Samples], test: Samples, seed: int, epochs: int) -> dict[str, list[float]]:
    """Return the numbers of each epoch with one kind of second client."""
    samples = [data[""], data[kind]]
    alone, joined, factors = (pair_of(seed, factorised) for factorised in (False, False, True))
    distances: dict[str, list[float]] = {"updates": [], "accuracy": [], "u": [], "v": []}
    for number in range(1, epochs + 1):
        before = [base_of(model) for model in alone]
        epoch(alone, samples, seed, number)
        moved = [
            {name: array - old[name] for name, array in base_of(model).items()}
            for model, old in zip(alone, before, strict=True)
        ]
        distances["updates"].append(distance(*moved))
        epoch(joined, samples, seed, number)
        epoch(factors, samples, seed, number)
        for name, selected in (("u", is_u), ("v", is_v)):
            arrays = [{key: array for key, array in base_of(model).items() if selected(key)} for model in factors]
            distances[name].append(distance(*arrays))
        if number % MERGE == 0:
            merge(joined)
            merge(factors, "u")
        distances["accuracy"].append(accuracy(joined[0], test))
    return {name: [round(value, 3) for value in values] for name, values in distances.items()}


def main() -> None:
    """Print a table of each number, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="~/.fedpfl/data", help="where MNIST and CIFAR-10 are (%(default)s)")
    parser.add_argument("--epochs", type=int, default=12, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, test = clients(options.data_dir, options.seed)
    measured = {kind: measure(kind, data, test, options.seed, options.epochs) for kind in SECOND}
    for number in ("updates", "accuracy", "u", "v"):
        print(f"\n{number}: | " + " | ".join(map(str, range(1, options.epochs + 1))))
        for kind, values in measured.items():
            print(f"{kind} | " + " | ".join(f"{value:g}" for value in values[number]))
    if options.json:
        options.json.write_text(json.dumps(measured, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
