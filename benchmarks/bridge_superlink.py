"""A model's way to a SuperNode and back, through a real SuperLink: the MQTT bridge beside plain HTTP.

A SuperLink runs an app whose ServerApp sends a random array to each of two nodes, in turns. The nodes are stand-ins
that fetch it and return another one by Flower's own functions for this (`flwr.supernode`), one over HTTP, the other
through the bridge; nothing is trained, and no process is started for a message. Two spans are measured: from the
message's arrival until its array is there and confirmed (*pull*), and from the reply until the SuperLink has all of it
(*push*). With `--bytes` a proxy between device side and broker counts bytes instead, of Flower's messages with all
that is around them.

    python benchmarks/bridge_superlink.py [--bytes]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bridge import Bridge
from common import BenchmarkError, count, footer, main, note, table
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_objects, push_objects
from flwr.supernode.fleet_http_connection import http_request_response

from fedpfl.bench.superlink import SuperLink

PYPROJECT = """\
[project]
name = "bridge-benchmark"
version = "1.0.0"
description = "Sends an array to each node"
license = {{ text = "Apache-2.0" }}
dependencies = ["flwr[simulation]>=1.41"]
[tool.flwr.app]
publisher = "fedpfl"
[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
[tool.flwr.app.config]
turns = {turns}
megabytes = {megabytes}
seed = {seed}
"""
CLIENT_APP = "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n"
SERVER_APP = '''\
"""Sends an array to one node after the other, and waits for its reply."""
import time

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    turns, megabytes, seed = (context.run_config[key] for key in ("turns", "megabytes", "seed"))
    rng = np.random.default_rng(seed)
    while len(nodes := sorted(grid.get_node_ids())) < 2:
        time.sleep(0.2)
    for _ in range(turns):
        for node in nodes:
            array = rng.random(megabytes * 250_000, dtype=np.float32)
            message = Message(RecordDict({"model": ArrayRecord([array])}), node, MessageType.TRAIN)
            waiting = set(grid.push_messages([message]))
            while waiting:
                time.sleep(0.2)
                waiting -= {reply.metadata.reply_to_message_id for reply in grid.pull_messages(waiting)}
'''
# The SuperLink hands a message out before the server has sent its array, and a node that comes too early waits longer
# and longer: that is the server's time, and in a round it passes while other nodes are served.
SETTLE_SECONDS = 1.5
TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.25  # as often as the bridge


class PrivateSuperLink(SuperLink):
    """A SuperLink for SuperNodes, with a database, as `fedpfl up` starts it, but without TLS."""

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    def _flags(self) -> list[str]:
        return ["--insecure", "--isolation", "subprocess", "--database", str(self.folder / "superlink.db")]


@dataclass
class Node:
    """A SuperNode's stand-in, and the seconds that it took."""

    receive: Callable[[], tuple[Message, Any] | None]
    send: Callable[[Message, Any, float], tuple[set[str], str]]
    pull: Callable[[int, str], bytes]
    push: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]
    pulls: list[float] = field(default_factory=list)
    pushes: list[float] = field(default_factory=list)

    @classmethod
    def connect(cls, stack: ExitStack, address: str) -> Node:
        """Register a node and return it."""
        functions = stack.enter_context(http_request_response(address, insecure=True))
        _, receive, send, _, _, pull, push, confirm = functions
        return cls(receive, send, pull, push, confirm)

    @property
    def trips(self) -> list[float]:
        """Seconds of both spans together."""
        return [a + b for a, b in zip(self.pulls, self.pushes, strict=True)]

    def turn(self, array: np.ndarray, ended: Callable[[], str | None]) -> None:
        """Get a message and answer it with ``array``."""
        message, tree = self._message(ended)
        run_id, size = message.metadata.run_id, array.nbytes
        time.sleep(SETTLE_SECONDS)
        started = time.perf_counter()
        contents = pull_objects([t.object_id for t in iterate_object_tree(tree)], lambda name: self.pull(run_id, name))
        self.confirm(run_id, message.metadata.message_id)
        self.pulls.append(time.perf_counter() - started)
        if not size <= sum(map(len, contents.values())) <= 1.01 * size:
            raise BenchmarkError("the message has another size than expected")
        reply = Message(RecordDict({"model": ArrayRecord([array])}), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id  # as Flower's own code does
        objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
        started = time.perf_counter()
        wanted, session = self.send(reply, tree, 0.0)
        push_objects(
            objects, lambda name, content: self.push(run_id, session, name, content), object_ids_to_push=wanted
        )
        self.pushes.append(time.perf_counter() - started)

    def _message(self, ended: Callable[[], str | None]) -> tuple[Message, Any]:
        until = time.monotonic() + TIMEOUT_SECONDS
        while (received := self.receive()) is None:
            if (reason := ended()) or time.monotonic() > until:
                raise BenchmarkError(reason or "no message came")
            time.sleep(POLL_SECONDS)
        return received


def measure(args: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as name, ExitStack() as stack:
        superlink = stack.enter_context(PrivateSuperLink())
        app = Path(name, "app")
        app.mkdir()
        values = {"turns": args.repeats + 1, "megabytes": args.megabytes, "seed": args.seed}
        files = {"pyproject.toml": PYPROJECT.format(**values), "server_app.py": SERVER_APP, "client_app.py": CLIENT_APP}
        for file, text in files.items():
            (app / file).write_text(text, encoding="utf-8")
        run_id = superlink.submit(app, values)
        bridge = stack.enter_context(Bridge(Path(name, "bridge"), superlink.port, counted=args.bytes))
        direct = Node.connect(stack, f"127.0.0.1:{superlink.port}")
        through = Node.connect(stack, bridge.url.removeprefix("http://"))
        note(f"run {run_id}: {args.repeats} times {args.megabytes} MB each way, in turns")

        def turns(node: Node, rng: np.random.Generator) -> None:
            for _ in range(args.repeats + 1):  # the first does not count
                node.turn(rng.random(args.megabytes * 250_000, dtype=np.float32), superlink.ended)

        with ThreadPoolExecutor() as pool:
            list(pool.map(turns, (direct, through), np.random.default_rng(args.seed).spawn(2)))
        if bridge.proxy is not None:
            arrays = 2 * (args.repeats + 1) * args.megabytes * 10**6
            ratio = (bridge.proxy.up + bridge.proxy.down) / arrays
            print(table(["what", "value", "goal"], [["bytes on the wire / arrays", f"{ratio:.4f}", "≤ 1.05"]]))
            print(footer(args.seed))
            return
    rows = [
        [what, *(_median(getattr(node, spans)[1:]) for node in (direct, through)), _ratio(direct, through, spans), goal]
        for what, spans, goal in (("pull", "pulls", ""), ("push", "pushes", ""), ("both", "trips", "≤ 1.5"))
    ]
    print(table([f"{args.megabytes} MB, median (least), ms", "HTTP", "bridge", "bridge / HTTP", "goal"], rows))
    print(footer(args.seed))


def _median(seconds: list[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.0f} ({1e3 * min(seconds):.0f})"


def _ratio(direct: Node, through: Node, spans: str) -> str:
    ours, theirs = getattr(through, spans)[1:], getattr(direct, spans)[1:]
    return f"{statistics.median(ours) / statistics.median(theirs):.2f} ({min(ours) / min(theirs):.2f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="bridge_superlink.py", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--megabytes", type=count, default=5, help="size of the model (%(default)s)")
    parser.add_argument("--repeats", type=count, default=10, help="messages for each node (%(default)s)")
    parser.add_argument("--bytes", action="store_true", help="count bytes at the broker instead of measuring times")
    parser.add_argument("--seed", type=int, default=1, help="the arrays follow from it (%(default)s)")
    sys.path.insert(0, str(Path(__file__).parent))
    main(measure, parser)
