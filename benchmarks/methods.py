"""What a method's round costs a client, relative to FedAvg's.

Each method trains a client through the real engine (``fedpfl.client.engine.Engine``: receive, schedule, train, store,
answer), and the server's rule takes its replies. In turn with it FedAvg trains the same client. Seconds are processor
time, of one thread. A method that is added to ``fedpfl/methods`` is measured without a change here; methods of adapters
train a small vision transformer, and FedAvg then the whole of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common import add_data_options, count, data_dir, footer, main, note, table

from fedpfl.client.engine import Engine
from fedpfl.core.errors import TrainingDiverged
from fedpfl.core.extra_arrays import CLIENT, SERVER
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client
from fedpfl.data.federation import federated_data
from fedpfl.methods import methods
from fedpfl.methods.bases.adapters import AdapterMethod
from fedpfl.setup.assembly import make_rule
from fedpfl.setup.config import Config

# Those whose models a method may send or mix: all train in round 1, then client 0 alone.
CLIENTS = 6
# What a method of adapters cannot do without.
ADAPTED = {"model": "small-vit", "trainable": "lora"}


def measure(options: argparse.Namespace) -> None:
    """Measure every method, one after the other."""
    chosen = options.method or list(methods())
    rows, left_out, values = [], [], {}
    players: dict[str, RoundPlayer] = {}
    for name in chosen:
        note(name)
        try:
            ratios, traffic = cost(options, name, players)
        except TrainingDiverged as error:  # at the one learning rate that serves all
            left_out.append(f"{name} is left out: {error}")
            continue
        values[name] = {"of FedAvg's round": ratios, "of FedAvg's bytes": [traffic]}
        spread = f"{min(ratios):.2f} … {max(ratios):.2f}"
        rows.append([name, f"{statistics.median(ratios):.3f}", spread, f"{traffic:.3f}"])
    print(table(["method", "of FedAvg's round", "least … most", "of FedAvg's bytes"], rows))
    print(
        f"\nWork: {options.model} on {options.dataset}, one of {options.clients} clients, batch {options.batch_size}, "
        f"{options.epochs} epochs, one thread; medians of {options.rounds} ratios of neighbours, after round 1."
    )
    for line in left_out:
        print(line)
    if options.json:
        options.json.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    print(footer(options.seed))


def cost(options: argparse.Namespace, name: str, fedavg: dict[str, RoundPlayer]) -> tuple[list[float], float]:
    """Return each round's time relative to FedAvg's, and the bytes of the last one, both ways.

    ``fedavg`` keeps FedAvg's players from one method to the next, by model.
    """
    adapted = issubclass(methods()[name], AdapterMethod)
    model = ADAPTED["model"] if adapted else options.model
    model_name = f"{model}@{options.width}" if options.width else model
    method = RoundPlayer(options, {"method": name, **(ADAPTED if adapted else {"model": model_name})})
    if model not in fedavg:
        fedavg[model] = RoundPlayer(options, {"model": model})
    ratios = []
    for _ in range(options.rounds):
        reference = fedavg[model].round()
        ratios.append(round(method.round() / reference, 3))
    return ratios, round(method.bytes / fedavg[model].bytes, 3)


class RoundPlayer:
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
        self.played = self.bytes = 0
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
            if client.id == 0:
                moved = (*message.arrays.values(), *replies[0].arrays.values())
                self.bytes = sum(array.nbytes for array in moved)
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


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="methods.py", description="What a round of each method costs a client.")
    add_data_options(parser, "fashion-mnist")
    parser.add_argument("--model", default="fedavg-cnn", help="model (%(default)s); for example resnet8 with cifar10")
    parser.add_argument("--method", action="append", choices=list(methods()), help="only this one; may be repeated")
    parser.add_argument("--width", default="", help="the methods' models at this width, for example 0.5")
    parser.add_argument("--json", type=Path, help="file for the ratios")
    parser.add_argument("--rounds", type=count, default=5, help="rounds to measure, after one more (%(default)s)")
    parser.add_argument("--clients", type=count, default=100, help="clients that share the data (%(default)s)")
    parser.add_argument("--epochs", type=count, default=5, help="epochs of a round (%(default)s)")
    parser.add_argument("--batch-size", type=count, default=20, help="samples in a batch (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="of SGD with momentum 0.9 (%(default)s)")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
