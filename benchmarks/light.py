"""Measure in which steps fedpfl spends a round of light clients, and how long the straight loop takes for them.

The light work of ``peers.py``, in one process with one thread. As soon as fedpfl has run a client, the loop
(``loops.py``) runs the same one: whatever else the machine does slows both down alike. A step's time is without the
steps within it, and without the slowest tenth of its calls. Replies do not go through shared memory as a worker's do.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import add_json_option, count, footer, main, note, table, write_json
from loops import Clients, make_strategy
from peers import settings

from fedpfl.client import engine as client_engine
from fedpfl.client.engine import HANDLERS, Engine
from fedpfl.core.payload import Payload
from fedpfl.core.sharing import Sharing
from fedpfl.data.federation import FederatedData
from fedpfl.engine import simulation_transport
from fedpfl.engine.rounds import RoundLoop
from fedpfl.launch.simulation import simulate
from fedpfl.rules.norms import NormCheck
from fedpfl.setup.config import Config

HEADS = ("straight loop, µs", "fedpfl, µs")
LOAD, STEPS, TEST = "weights loaded", "batches, forward, backward, step", "test: forward, loss, count"
FINITE = "are they finite"
# Where a step's time is spent in fedpfl.
PLACES: tuple[tuple[Any, str, str], ...] = (
    (RoundLoop, "_payload", "server: messages"),
    (RoundLoop, "_is_sound", "server: numbers checked"),
    (RoundLoop, "_read", "server: arrays checked"),
    (NormCheck, "__call__", "server: norm of the update"),
    (RoundLoop, "_add", "server: sum"),
    (RoundLoop, "close", "server: end of the round"),
    (Engine, "_fill", LOAD),
    (Engine, "begin_training", "message read, schedule"),
    (Engine, "run_phases", STEPS),
    (Engine, "end_training", "reply made"),
    (Sharing, "get_shared", "weights in one vector"),
    (Engine, "train", "process's settings"),
    (Engine, "evaluate", "test: process's settings, message, samples, reply"),
    (Engine, "score", TEST),
)


class Steps:
    """The processor seconds of steps, by who makes them and what they are."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._inner, self._round = [0.0], 1

    def begin(self, number: int) -> None:
        """Forget the first round, which prepares the samples, when the second begins."""
        if number != self._round:
            self._round = number
            if number == 2:
                self.seconds.clear()

    def timed(self, owner: Any, name: str, step: str, who: str = HEADS[1]) -> None:
        """Have a function of a class or a module note its time, without that of the steps within it."""
        function: Callable[..., Any] = getattr(owner, name)

        def noting(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            begun = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                whole = time.thread_time() - begun
                self.seconds[who, step].append(whole - self._inner.pop())
                self._inner[-1] += whole

        setattr(owner, name, noting)

    def of_a_client(self, clients: int) -> dict[str, dict[str, float | None]]:
        """Return the microseconds of a client, by step and who makes it; ``clients`` have been run."""
        rows: dict[str, dict[str, float | None]] = {}
        for (who, step), seconds in self.seconds.items():
            row = rows.setdefault(step, dict.fromkeys(HEADS))
            usual = sorted(seconds)[: len(seconds) - len(seconds) // 10]
            row[who] = 1e6 * statistics.fmean(usual) * len(seconds) / clients
        rows["all"] = {who: sum(row[who] or 0.0 for row in rows.values()) for who in HEADS}
        return rows


def measure(options: argparse.Namespace) -> None:
    """Run the work and print the table."""
    torch.set_num_threads(1)
    config = Config.parse(settings("light", options))
    note("preparing the data")
    clients = Clients(config)
    data = FederatedData(config.data, config.data.num_clients, options.seed)
    start = torch.from_numpy(make_strategy(config, data).rule.shared.copy())
    steps, into = Steps(), torch.zeros_like(start)
    for place in PLACES:
        steps.timed(*place)
    steps.timed(client_engine, "are_finite", FINITE)
    HANDLERS.update({"train": Engine.train, "evaluate": Engine.evaluate})
    loop, load = HEADS[0], clients.load
    steps.timed(clients, "load", LOAD, loop)
    steps.timed(clients, "train", STEPS, loop)
    steps.timed(clients, "test", TEST, loop)
    transport: Any = simulation_transport
    run_client = transport.run_client

    def both(engine: Engine, kind: str, client: int, message: Payload) -> Any:
        steps.begin(int(message.config["round"]))
        reply = run_client(engine, kind, client, message)
        if kind == "train":
            clients.train([client], int(message.config["round"]), start, into)
        else:
            load(start)
            clients.test([client])
        return reply

    transport.run_client = both
    note(f"{options.rounds + 1} rounds")
    with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as folder:
        places = {"output-dir": f"{folder}/runs", "state-dir": f"{folder}/state", "run-name": "run"}
        simulate(Config.parse({**config.flat(), **places}), workers=0)
    numbers = steps.of_a_client(config.data.num_clients * options.rounds)
    shown: list[Sequence[str]] = [
        [step, *("" if number is None else f"{number:.0f}" for number in row.values())] for step, row in numbers.items()
    ]
    print(table(["step", *HEADS], shown))
    print(footer(options.seed))
    write_json(options.json, numbers)


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="light.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="where data lie or are downloaded to")
    parser.add_argument("--data", help="an npz file of images of 28x28 pixels instead of the work's data set")
    parser.add_argument("--num-clients", type=count, help="other clients than the work's")
    parser.add_argument("--rounds", type=count, default=3, help="rounds, after one more (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    add_json_option(parser)
    return parser


if __name__ == "__main__":
    main(measure, arguments())
