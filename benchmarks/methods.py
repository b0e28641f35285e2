"""What a method's round costs a client, relative to FedAvg's, and beyond the method's own steps.

Each method trains a client through the real engine (``fedpfl.client.engine.Engine``: receive, schedule, train, store,
answer), and the server's rule takes its replies. In turn with it FedAvg trains the same client, and then the method
once more with the only loop over batches replaced by a bare one: batches gathered beforehand, then the phase's own loss
or gradient, gradients for what the phase trains, its penalty, one call for the SGD step, nothing else. Only the bare
loop itself is timed then, so messages, state on disk and the making of the schedule count for the engine alone.
Seconds are processor time, of one thread. A method that is added to ``fedpfl/methods`` is measured without a change
here; methods of adapters train a small vision transformer, and FedAvg then the whole of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from common import BenchmarkError, add_data_options, count, data_dir, footer, main, note, table
from torch import Tensor, nn

from fedpfl.client import engine as engine_module
from fedpfl.client.engine import Engine
from fedpfl.core.errors import TrainingDiverged
from fedpfl.core.extras import CLIENT, SERVER
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client
from fedpfl.data.federation import federated_data
from fedpfl.methods import methods
from fedpfl.methods.bases.adapters import AdapterMethod
from fedpfl.setup.assembly import make_rule
from fedpfl.setup.config import Config
from fedpfl.training.optim import clip
from fedpfl.training.phase import Batch, Group, Phase, Samples
from fedpfl.training.settings import TrainingSettings, batch_sizes

GOAL = 1.1
# Those whose models a method may send or mix: all train in round 1, then client 0 alone.
CLIENTS = 6
# What a method of adapters cannot do without.
ADAPTED = {"model": "small-vit", "trainable": "lora"}


def measure(options: argparse.Namespace) -> None:
    """Measure every method, one after the other."""
    chosen = options.method or list(methods())
    rows, left_out, values = [], [], {}
    players: dict[str, Player] = {}
    for name in chosen:
        note(name)
        try:
            computation, engine, steps = cost(options, name, players)
        except TrainingDiverged as error:  # at the one learning rate that serves all
            left_out.append(f"{name} is left out: {error}")
            continue
        values[name] = {"of FedAvg's round": computation, "of the bare steps": engine, "steps": [steps]}
        ratios = [statistics.median(ratio) for ratio in (computation, engine)]
        spread = f"{min(computation):.2f} … {max(computation):.2f}"
        rows.append(
            [name, f"{ratios[0]:.3f}", spread, str(steps), f"{ratios[1]:.3f}", "yes" if ratios[1] <= GOAL else "NO"]
        )
    print(table(["method", "of FedAvg's round", "least … most", "steps", "of the bare steps", f"≤ {GOAL}"], rows))
    print(
        f"\nWork: {options.model} on {options.dataset}, one of {options.clients} clients, batch {options.batch_size}, "
        f"{options.epochs} epochs, one thread; medians of {options.rounds} ratios of neighbours, after round 1."
    )
    for line in left_out:
        print(line)
    if options.json:
        options.json.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    print(footer(options.seed))


def cost(options: argparse.Namespace, name: str, fedavg: dict[str, Player]) -> tuple[list[float], list[float], int]:
    """Return each round's time relative to FedAvg's and to its bare steps, and how many steps there are.

    ``fedavg`` keeps FedAvg's players from one method to the next, by model.
    """
    adapted = issubclass(methods()[name], AdapterMethod)
    model = ADAPTED["model"] if adapted else options.model
    method = Player(options, {"method": name, **(ADAPTED if adapted else {"model": model})})
    if model not in fedavg:
        fedavg[model] = Player(options, {"model": model})
    computation, engine = [], []
    bare = BareLoop()
    for _ in range(options.rounds):
        reference, whole = fedavg[model].round(), method.round()
        bare.seconds, bare.steps = 0.0, 0
        with patch.object(engine_module, "run_phase", bare):
            method.round()
        if bare.steps == 0:
            raise BenchmarkError(f"{name}: its schedule has no steps")
        computation.append(round(whole / reference, 3))
        engine.append(round(whole / bare.seconds, 3))
    return computation, engine, bare.steps


class Player:
    """Plays rounds of one method, as the server would ask for them; in the first one all clients train.

    Parameters
    ----------
    options : argparse.Namespace
        The command line.
    more : dict
        Settings: model, and method if it is not FedAvg.
    """

    def __init__(self, options: argparse.Namespace, more: dict[str, Any]) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-")  # of what clients keep
        self.config = Config.parse(
            {
                "method": "fedavg", "dataset": options.dataset,
                "data-dir": data_dir(options.data_dir), "num-clients": options.clients, "partitioner": "iid",
                "local-epochs": options.epochs, "batch-size": options.batch_size,
                "last-batch": "keep", "optimizer": "sgd",
                "learning-rate": options.learning_rate, "threads": 1, "seed": options.seed,
                "state-dir": self.folder.name, **more,
            }
        )  # fmt: skip
        data = federated_data(self.config.data, options.clients, options.seed)
        self.engine = Engine(self.config, data, options.clients)
        clients = [Client(number, *data.sizes(number)) for number in range(CLIENTS)]
        self.rule = make_rule(self.config, clients, self.engine.sharing)
        self.played = 0
        self.round()

    def round(self) -> float:
        """Play the next round, and return the seconds that client 0 needs."""
        rule, self.played = self.rule, self.played + 1
        asked = [rule.clients[number] for number in range(1 if self.played > 1 else CLIENTS)]
        rule.begin_round(self.played, asked)
        replies, seconds = [], []
        for client in asked:
            message = self._message(client)
            begun = time.process_time()
            replies.append(self.engine.train(client.id, message))
            seconds.append(time.process_time() - begun)
        for client, reply in zip(asked, replies, strict=True):
            sent = rule.layout.unpack(reply.arrays) if rule.takes_shared else rule.outgoing(client)
            rule.add(client, sent, Payload({}, reply.metrics, self.engine.extras.read(reply.arrays, SERVER)))
        rule.personal_round.update({client.id: self.played for client in asked})
        rule.finish_round()
        return seconds[0]

    def _message(self, client: Client) -> Payload:
        rule, extra = self.rule, self.rule.attachments(client, "train")
        return Payload(
            config={
                **extra.config, "round": self.played, "personal-round": rule.personal_round[client.id],
                "state-key": "benchmark", "layout": rule.layout.to_text(),
            },
            arrays={
                **self.engine.extras.pack(extra.arrays, CLIENT),
                **rule.layout.pack(rule.outgoing(client), self.config.run.wire_dtype),
            },
        )  # fmt: skip


class BareLoop:
    """Takes the place of ``fedpfl.training.loop.run_phase`` and counts its own steps and seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0

    def __call__(
        self, model: nn.Module, phase: Phase, samples: Samples, settings: TrainingSettings, rng: np.random.Generator,
        *_: object,
    ) -> float:  # fmt: skip
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
        group_of = [next(i for i, group in enumerate(groups) if group.selected(name)) for name in names]
        parts = [
            (group, group.learning_rate or rate, [place for place, number in enumerate(group_of) if number == i])
            for i, group in enumerate(groups)
            if i in group_of
        ]
        for p in still:
            p.requires_grad_(False)
        for m in norms:
            m.momentum = m.momentum if phase.move_statistics else 0.0
        model.train()
        begun = time.process_time()
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
                        for group, _, members in parts:
                            if group.clip_norm is not None:
                                clip([grads[place] for place in members], group.clip_norm)
                        if decay:
                            torch._foreach_add_(grads, params, alpha=decay)
                        if momentum:
                            torch._foreach_mul_(velocity, momentum)
                            torch._foreach_add_(velocity, grads)
                            grads = velocity
                        for _, step, members in parts:
                            torch._foreach_add_(
                                [params[place] for place in members], [grads[place] for place in members], alpha=-step
                            )
                    if norms and len(batch.y) == 1:
                        model.train()
        self.seconds += time.process_time() - begun
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
    parser = argparse.ArgumentParser(prog="methods.py", description="What a round of each method costs a client.")
    add_data_options(parser, "fashion-mnist")
    parser.add_argument("--model", default="fedavg-cnn", help="model (%(default)s); for example resnet8 with cifar10")
    parser.add_argument("--method", action="append", choices=list(methods()), help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, help="file for the ratios")
    parser.add_argument("--rounds", type=count, default=5, help="rounds to measure, after one more (%(default)s)")
    parser.add_argument("--clients", type=count, default=100, help="clients that share the data (%(default)s)")
    parser.add_argument("--epochs", type=count, default=5, help="epochs of a round (%(default)s)")
    parser.add_argument("--batch-size", type=count, default=20, help="samples in a batch (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="of SGD with momentum 0.9 (%(default)s)")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
