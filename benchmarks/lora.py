"""Personalised LoRA against training everything: a small ViT, pretrained on CIFAR-100 domains, adapted on CIFAR-10.

``python benchmarks/lora.py`` pretrains ``small-vit`` on the classes of CIFAR-100's five domains (unless the file of
weights is there), then runs each method on CIFAR-10 with ``trainable = "lora"`` and ``trainable = "all"`` and prints a
table: accuracy, bytes of a client's reply, seconds of a round. ``--only-steps`` needs neither data nor weights: it
times a training step of each kind and counts the values that travel.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import add_data_options, count, data_dir, footer, main, note, simulate, table
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from fedpfl import models
from fedpfl.core.pixels import scale
from fedpfl.core.samples import Samples
from fedpfl.data import load
from fedpfl.data.more_partitioners import DOMAINS
from fedpfl.data.settings import DataSettings
from fedpfl.setup.options.trainable import TrainableSettings
from fedpfl.setup.trainable import adapt
from fedpfl.training.loop import run_phase
from fedpfl.training.phase import Phase
from fedpfl.training.settings import TrainingSettings

MODEL = "small-vit"
BATCH, LEARNING_RATE, WEIGHT_DECAY, WARM_UP = 64, 1e-3, 0.05, 0.05
SHIFT = 4  # pixels
BATCH_OF_STEP = 20
ALPHAS = (0.1, 0.5)
# Each client has 200 samples to train on and 100 to be tested with, of its own mixture of classes.
PROTOCOL: dict[str, Any] = {
    "model": MODEL, "partitioner": "dirichlet-client", "train-samples": 200, "test-samples": 100, "local-epochs": 2,
    "batch-size": 20, "last-batch": "drop", "precision": "bf16", "evaluate-every": 0, "lora-rank": 4,
    "lora-targets": "*attention*",
}  # fmt: skip
# Chosen beforehand, not by looking at these runs: adapters usually take a larger step than whole weights.
TUNED = {"all": {"learning-rate": 0.01}, "lora": {"learning-rate": 0.05}}


def pretrain(path: Path, options: argparse.Namespace) -> None:
    """Train the model on the fifty classes of the domains, all in one place, and write its weights.

    AdamW with a cosine schedule, random flips and shifts; a function of the seed on one machine.
    """
    rng = np.random.default_rng(options.seed)
    torch.manual_seed(options.seed)
    data = load(DataSettings(dataset="cifar100", data_dir=options.data_dir))
    assert data.y_test is not None and data.x_test is not None
    classes = np.array(sorted(number for _, numbers in DOMAINS for number in numbers))
    parts = []
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        chosen = np.isin(y, classes)
        images = scale(torch.from_numpy(np.ascontiguousarray(x[chosen])).permute(0, 3, 1, 2))
        parts.append((images, torch.from_numpy(np.searchsorted(classes, y[chosen]))))
    (x, y), (x_test, y_test) = parts
    model = models.build(MODEL, tuple(x.shape[1:]), len(classes))
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = options.pretrain_epochs * math.ceil(len(y) / BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / (WARM_UP * steps), 0.5 * (1 + math.cos(math.pi * step / steps))),
    )
    started = time.perf_counter()
    for epoch in range(options.pretrain_epochs):
        total = 0.0
        for positions in torch.split(torch.from_numpy(rng.permutation(len(y))), BATCH):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(_augmented(x[positions], rng)), y[positions])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(positions)
        if epoch % 5 == 4 or epoch + 1 == options.pretrain_epochs:
            with torch.no_grad():
                model.eval()
                right = sum(
                    int((model(part).argmax(1) == labels).sum())
                    for part, labels in zip(x_test.split(200), y_test.split(200), strict=True)
                )
                model.train()
            seconds = time.perf_counter() - started
            loss_mean, accuracy = total / len(y), 100 * right / len(y_test)
            note(f"epoch {epoch + 1}: loss {loss_mean:.3f}, held-out accuracy {accuracy:.1f} %, {seconds:.0f} s")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    save_file({name: array.contiguous() for name, array in model.state_dict().items()}, unfinished)
    unfinished.replace(path)


def _augmented(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Flip half of the images and shift each by up to four pixels; what comes in at an edge is 0."""
    n, _, height, width = x.shape
    flipped = torch.where(torch.from_numpy(rng.random(n) < 0.5)[:, None, None, None], x.flip(3), x)
    padded = F.pad(flipped, [SHIFT] * 4)
    rows = torch.from_numpy(rng.integers(0, 2 * SHIFT + 1, n))[:, None] + torch.arange(height)
    columns = torch.from_numpy(rng.integers(0, 2 * SHIFT + 1, n))[:, None] + torch.arange(width)
    number = torch.arange(n)[:, None, None]
    return padded[number, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def steps(options: argparse.Namespace) -> None:
    """Time a training step of the model with everything, adapters or the head alone training, in turn; print the table.

    In turn, because a machine's speed drifts: the ratios are medians over turns.
    """
    torch.set_num_threads(1)
    rng, values = np.random.default_rng(options.seed), {}
    x, y = torch.randn(BATCH_OF_STEP, 3, 32, 32), torch.arange(BATCH_OF_STEP) % 10
    built = {}
    for trainable in ("all", "lora", "head"):
        torch.manual_seed(options.seed)
        chosen = TrainableSettings(
            trainable=trainable, lora_rank=PROTOCOL["lora-rank"], lora_targets=PROTOCOL["lora-targets"]
        )
        built[trainable] = adapt(models.build(MODEL, (3, 32, 32), 10), chosen)
        values[trainable] = sum(parameter.numel() for parameter in built[trainable].parameters())
    settings = TrainingSettings(batch_size=BATCH_OF_STEP, learning_rate=1e-4, precision=PROTOCOL["precision"])
    phase = Phase(train=lambda name: True, epochs=1)

    def seconds(trainable: str) -> float:
        started = time.perf_counter()
        run_phase(built[trainable], phase, Samples(x, y), settings, rng)
        return time.perf_counter() - started

    for trainable in built:  # the first step of each is not counted
        seconds(trainable)
    turns = [{trainable: seconds(trainable) for trainable in built} for _ in range(options.turns)]
    rows = [
        [
            trainable, f"{count:,}", f"{100 * count / values['all']:.1f} %",
            f"{1000 * statistics.median(turn[trainable] for turn in turns):.0f}",
            f"{statistics.median(turn[trainable] / turn['all'] for turn in turns):.2f}",
        ]
        for trainable, count in values.items()
    ]  # fmt: skip
    print(table(["trainable", "values that train", "of all", f"ms / step of {BATCH_OF_STEP}", "÷ all"], rows))
    print(footer(options.seed))


def measure(options: argparse.Namespace) -> None:
    """Pretrain if need be, then run every method both ways and print the table."""
    if options.only_steps:
        steps(options)
        return
    options.data_dir = data_dir(options.data_dir)
    weights = Path(options.weights).expanduser().absolute()
    if not weights.is_file():
        note(f"pretraining {MODEL} for {options.pretrain_epochs} epochs")
        pretrain(weights, options)
    whole, rows = 0, []
    for alpha in ALPHAS:
        for method in options.methods.split(","):
            seconds = {}
            for trainable in ("all", "lora"):
                note(f"{method}, Dir({alpha}), trainable = {trainable}")
                run = simulate(
                    {
                        **PROTOCOL, **TUNED[trainable], "method": method, "trainable": trainable,
                        "dirichlet-alpha": alpha, "num-server-rounds": options.rounds, "num-clients": options.clients,
                        "seed": options.seed, "dataset": options.dataset, "data-dir": options.data_dir,
                        "initial-weights": str(weights),
                    }
                )  # fmt: skip
                last = run.lines[-1]
                if trainable == "all":
                    whole = sum(array.numel() for array in load_file(weights).values()) * 4
                sent = run.lines[0]["bytes_up"] / len(run.lines[0]["clients"])
                seconds[trainable] = run.seconds_a_round or math.nan
                rows.append([
                    f"{method}, Dir({alpha}), {trainable}", f"{100 * last['personalised']['accuracy']:.1f}",
                    f"{sent / 1000:.1f}", f"{100 * sent / whole:.1f} %", f"{seconds[trainable]:.1f}",
                    f"{seconds[trainable] / seconds['all']:.2f}",
                ])  # fmt: skip
    header = ["run", "accuracy", "kB a reply", "of the whole model", "s / round", "÷ all"]
    print(table(header, rows))
    print(footer(options.seed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="lora.py", description=__doc__.splitlines()[0])
    add_data_options(parser, "cifar10")
    parser.add_argument("--weights", default="~/.fedpfl/small-vit-domains.safetensors", help="file (%(default)s)")
    parser.add_argument("--pretrain-epochs", type=count, default=40, help="epochs of the pretraining (%(default)s)")
    parser.add_argument("--rounds", type=count, default=10, help="rounds of a run (%(default)s)")
    parser.add_argument("--clients", type=count, default=10, help="clients (%(default)s)")
    parser.add_argument("--methods", default="fedavg,fedper,feddecomp", help="methods (%(default)s)")
    parser.add_argument("--only-steps", action="store_true", help="time training steps and nothing else")
    parser.add_argument("--turns", type=count, default=20, help="turns of --only-steps (%(default)s)")
    main(measure, parser)
