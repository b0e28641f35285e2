"""What FedDecomp costs a client more than FedAvg: memory and computation (section 3.5 of its paper).

Printed, for ResNet-8 and CIFAR-10 with the settings of ``configs/feddecomp-cifar10.toml``: the thousands of values that
a client stores, how many of them an epoch trains, and the CPU seconds of an epoch on 500 samples. The epochs are timed
in turn, five times, and the median is printed, so that a change of the processor's speed concerns all alike.

    python experiments/feddecomp/feddecomp_cost.py --json FILE
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from fedpfl.core.rng import generator
from fedpfl.core.samples import Samples
from fedpfl.methods.base import LocalRound
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.training.loop import run_phase
from fedpfl.training.phase import Phase

SHAPE, CLASSES, SAMPLES, TURNS = (3, 32, 32), 10, 500, 5
SETTINGS = {"model": "resnet8", "batch-size": 100, "local-epochs": 5, "learning-rate": 0.01}
KINDS = {
    ("FedAvg",): {"method": "fedavg"},
    ("τ as in the program", "σ next to it"): {"feddecomp-init": "code"},
    ("τ of equations 3 and 4", "σ next to this τ"): {"feddecomp-init": "paper"},
}


def epochs() -> dict[str, tuple[Config, nn.Module, Phase]]:
    """Return an epoch of each kind: settings, model and phase."""
    by_name = {}
    for names, settings in KINDS.items():
        config = Config.parse({**SETTINGS, "method": "feddecomp", **settings})
        model, _ = assemble(config, SHAPE, CLASSES)
        phases = config.method.schedule(cast(LocalRound, None))  # neither method's schedule depends on the client
        by_name |= {name: (config, model, replace(phase, epochs=1)) for name, phase in zip(names, phases, strict=True)}
    return by_name


def main() -> None:
    """Print the values and the seconds, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    samples = Samples(torch.randn(SAMPLES, *SHAPE), torch.arange(SAMPLES) % CLASSES)
    kinds = epochs()
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(TURNS):
        for name, (config, model, phase) in kinds.items():
            before = time.process_time()
            run_phase(model, phase, samples, config.training, generator(1, "cost", turn))
            seconds[name].append(time.process_time() - before)
    costs = {}
    for name, (_, model, phase) in kinds.items():
        sizes = {key: param.numel() / 1000 for key, param in model.named_parameters()}
        costs[name] = {
            "thousands of values stored": [round(sum(sizes.values()), 1)],
            "of these trained": [round(sum(size for key, size in sizes.items() if phase.train(key)), 1)],
            "CPU seconds": [round(statistics.median(seconds[name]), 2)],
        }
        print(f"{name}: " + ", ".join(f"{what} {value:g}" for what, (value,) in costs[name].items()))
    if options.json:
        options.json.write_text(json.dumps(costs, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
