"""What a method's round costs a client beyond the method's own steps.

Each method trains a client through the real engine (``fedpfl.client.engine.Engine``: receive, schedule, train, store,
answer) and, in turn with it, with the only loop over batches replaced by a bare one: batches gathered beforehand, then
the phase's own loss or gradient, gradients for what the phase trains, its penalty, one call for the SGD step, nothing
else. Only the bare loop itself is timed then, so messages, state on disk and the making of the schedule count for the
engine alone.
A method that is added to ``fedpfl/methods`` is measured without a change here.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import torch
from common import BenchmarkError, add_data_options, count, data_dir, footer, main, note, table
from torch import Tensor, nn

from fedpfl.client import engine as engine_module
from fedpfl.client.engine import Engine
from fedpfl.core.errors import TrainingDiverged
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client
from fedpfl.data.federation import federated_data
from fedpfl.methods import methods
from fedpfl.setup.assembly import make_rule
from fedpfl.setup.config import Config
from fedpfl.training.batches import batch_sizes
from fedpfl.training.optim import clip
from fedpfl.training.phase import Batch, Group, Phase, Samples
from fedpfl.training.settings import TrainingSettings

GOAL = 1.1


def measure(options: argparse.Namespace) -> None:
    """Measure every method, one after the other."""
    chosen = options.method or list(methods())
    rows, size, left_out = [], 0, []
    for name in chosen:
        note(name)
        try:
            whole, bare, ratio, steps, size = cost(options, name)
        except TrainingDiverged as error:  # at the one learning rate that serves all
            left_out.append(f"{name} is left out: {error}")
            continue
        rows.append([name, f"{whole:.3f}", f"{bare:.3f}", str(steps), f"{ratio:.3f}", "yes" if ratio <= GOAL else "NO"])
    print(table(["method", "s / round, engine", "s / round, bare steps", "steps", "ratio", f"≤ {GOAL}"], rows))
    print(
        f"\nWork: {options.model} on {options.dataset}, one client of {size} samples, batch {options.batch_size}, "
        f"{options.epochs} epochs, one thread; medians of {options.rounds} rounds each, in turn, after one that does "
        "not count, and of the ratios of neighbours."
    )
    for line in left_out:
        print(line)
    print(footer(options.seed))


def cost(options: argparse.Namespace, name: str) -> tuple[float, float, float, int, int]:
    """Return (seconds of a round, seconds of its bare steps, their ratio, steps, samples) of one method."""
    with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as folder:
        config = Config.parse(
            {
                "method": name, "model": options.model, "dataset": options.dataset,
                "data-dir": data_dir(options.data_dir), "num-clients": options.clients, "partitioner": "iid",
                "local-epochs": options.epochs, "batch-size": options.batch_size,
                "last-batch": "keep", "optimizer": "sgd",
                "learning-rate": options.learning_rate, "threads": 1, "seed": options.seed, "state-dir": folder,
            }
        )  # fmt: skip
        data = federated_data(config.data, options.clients, options.seed)
        engine = Engine(config, data, options.clients)
        play = player(engine)
        bare = BareLoop()
        whole: list[float] = []
        steps: list[float] = []
        for place in range(options.rounds + 1):
            begun = time.perf_counter()
            play()
            whole.append(time.perf_counter() - begun)
            bare.seconds, bare.steps = 0.0, 0
            with patch.object(engine_module, "run_phase", bare):
                play()
            steps.append(bare.seconds)
            if bare.steps == 0:
                raise BenchmarkError(f"{name}: its schedule has no steps")
            if place == 0:
                whole.clear()
                steps.clear()
        # A machine's speed drifts, and neighbours have about the same.
        ratio = statistics.median(a / b for a, b in zip(whole, steps, strict=True))
        return statistics.median(whole), statistics.median(steps), ratio, bare.steps, data.sizes(0)[0]


def player(engine: Engine) -> Callable[[], None]:
    """Return a function that plays the next round of client 0, as the server would ask for it."""
    config, sharing = engine.config, engine.sharing
    rule = make_rule(config, [Client(0, *engine.data.sizes(0))], sharing)
    played = 0

    def play() -> None:
        nonlocal played
        client, layout = rule.clients[0], rule.layout
        extra = rule.attachments(client, "train")
        message = Payload(
            config={
                **extra.config,
                "round": played + 1, "personal-round": played, "state-key": "benchmark", "layout": layout.to_text(),
            },
            arrays={
                **extra.arrays,
                **layout.pack(rule.outgoing(client), config.run.wire_dtype),
            },
        )  # fmt: skip
        engine.train(0, message)
        played += 1

    return play


class BareLoop:
    """Takes the place of ``fedpfl.training.loop.run_phase`` and counts its own steps and seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0

    def __call__(
        self, model: nn.Module, phase: Phase, samples: Samples, settings: TrainingSettings, rng: np.random.Generator
    ) -> float:
        """Train through one phase."""
        settings = phase.adjusted(settings)
        if settings.optimizer != "sgd":
            raise BenchmarkError(f"a phase trains with {settings.optimizer}; this loop has SGD only")
        x, y = phase.data if phase.data is not None else samples
        trained = [(name, p) for name, p in model.named_parameters() if phase.train(name)]
        if not trained or phase.epochs == 0 or len(y) == 0:
            return 0.0
        order = torch.from_numpy(rng.permutation(len(y)))
        sizes = batch_sizes(len(y), phase.batch_size or settings.batch_size, settings.last_batch)
        cut = torch.split(order[: sum(sizes)], sizes)
        batches = [Batch(_rows(x, positions), y[positions], positions) for positions in cut]
        names = [name for name, _ in trained]
        params: list[Tensor] = [p for _, p in trained]
        still = [p for name, p in model.named_parameters() if name not in set(names) and p.requires_grad]
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        momenta = [m.momentum for m in norms]
        rate = settings.learning_rate if phase.learning_rate is None else phase.learning_rate
        momentum, decay = settings.momentum, settings.weight_decay
        velocity, loss = [torch.zeros_like(p) for p in params], phase.loss_with(settings)
        groups = (*phase.groups, Group(lambda name: True))
        of = [next(i for i, group in enumerate(groups) if group.selected(name)) for name in names]
        parts = [
            (group, group.learning_rate or rate, [at for at, own in enumerate(of) if own == i])
            for i, group in enumerate(groups)
            if i in of
        ]
        for p in still:
            p.requires_grad_(False)
        for m in norms:
            m.momentum = m.momentum if phase.move_statistics else 0.0
        model.train()
        begun = time.perf_counter()
        with phase.during(model):
            for _ in range(phase.epochs):
                for batch in batches:
                    if norms and len(batch.y) == 1:  # which BatchNorm cannot normalise
                        model.eval()
                    if phase.gradient is None:
                        grads: list[Tensor] = list(torch.autograd.grad(loss(model, batch), params))
                    else:
                        _, grads = phase.gradient(model, batch, names, params)
                    if phase.penalty is not None:
                        phase.penalty.add_gradient(names, params, grads)
                    with torch.no_grad():
                        for group, _, own in parts:
                            if group.clip_norm is not None:
                                clip([grads[at] for at in own], group.clip_norm)
                        if decay:
                            torch._foreach_add_(grads, params, alpha=decay)
                        if momentum:
                            torch._foreach_mul_(velocity, momentum)
                            torch._foreach_add_(velocity, grads)
                            grads = velocity
                        for _, step, own in parts:
                            torch._foreach_add_([params[at] for at in own], [grads[at] for at in own], alpha=-step)
                    if norms and len(batch.y) == 1:
                        model.train()
        self.seconds += time.perf_counter() - begun
        self.steps += phase.epochs * len(batches)
        for p in still:
            p.requires_grad_(True)
        for m, before in zip(norms, momenta, strict=True):
            m.momentum = before
        return 0.0


def _rows(x: Tensor, positions: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)[positions].permute(0, 3, 1, 2) if x.dim() == 4 else x[positions]


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="methods.py", description="What a round of each method costs a client beyond the method's own steps."
    )
    add_data_options(parser, "fashion-mnist")
    parser.add_argument("--model", default="fedavg-cnn", help="model (%(default)s); for example resnet8 with cifar10")
    parser.add_argument("--method", action="append", choices=list(methods()), help="only this one; may be repeated")
    parser.add_argument("--rounds", type=count, default=5, help="rounds to measure, after one more (%(default)s)")
    parser.add_argument("--clients", type=count, default=100, help="clients that share the data (%(default)s)")
    parser.add_argument("--epochs", type=count, default=5, help="epochs of a round (%(default)s)")
    parser.add_argument("--batch-size", type=count, default=20, help="samples in a batch (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="of SGD with momentum 0.9 (%(default)s)")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
