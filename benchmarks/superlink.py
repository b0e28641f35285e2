"""What Flower's SuperLink keeps of each node, and what a node's calls cost its state: for a plan of more of them.

Its state is filled with nodes that never connect, in memory and in SQLite, and called as the Fleet API calls it: a
heartbeat, a pull that finds nothing while messages to others wait, and the list of all nodes that a run asks for.
Processor time of the state alone: HTTP, TLS and protobuf come on top.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import add_json_option, count, footer, main, note, table, write_json
from flwr.app import Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store.object_store_factory import ObjectStoreFactory
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager

# Seconds between heartbeats; bytes of a public key of the curve P-384 in PEM; seconds that a message waits.
HEARTBEAT, KEY_BYTES, TTL = 30.0, 215, 3600.0


def measure(options: argparse.Namespace) -> None:
    """Fill and call both kinds of state."""
    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as folder:
        database = str(Path(folder) / "state.db")
        for nodes in options.nodes:
            note(f"memory: {nodes} nodes")
            rows[f"in memory, {nodes:,} nodes"] = costs(FLWR_IN_MEMORY_DB_NAME, nodes, options)
        # SQLite waits for the disk at each node, so only the first number is tried.
        note(f"SQLite: {options.nodes[0]} nodes")
        rows[f"SQLite, {options.nodes[0]:,} nodes"] = costs(database, options.nodes[0], options)
    header = ["bytes a node", "register, µs", "heartbeat, µs", "empty pull, µs"]
    header += [f"the same, {options.messages:,} messages waiting", "list of nodes, µs"]
    print(table(["state", *header], [[name, *(f"{number:,.1f}" for number in row)] for name, row in rows.items()]))
    write_json(options.json, {name: dict(zip(header, row, strict=True)) for name, row in rows.items()})
    print(footer(options.seed))


def costs(database: str, nodes: int, options: argparse.Namespace) -> list[float]:
    """Return the row of a state: bytes of a node, and microseconds of its calls."""
    state: Any = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database)).state()
    run = state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
    rng, before = random.Random(options.seed), size_of(database)
    ids: list[int] = []

    def register(_: int) -> None:
        ids.append(state.create_node("", "", rng.randbytes(KEY_BYTES), HEARTBEAT))
        state.activate_node(ids[-1], HEARTBEAT)

    registered = microseconds(register, range(nodes))
    size = size_of(database) - before
    some = rng.sample(ids, min(nodes, options.calls))
    beat = microseconds(lambda node: state.acknowledge_node_heartbeat(node, HEARTBEAT), some)
    pull = microseconds(lambda node: state.get_message_ins(node, 1), some)
    for node in ids[: options.messages]:
        state.store_message_ins(message(node, run))
    waiting = microseconds(lambda node: state.get_message_ins(node, 1), some[-20:])
    listed = microseconds(lambda _: state.get_nodes(run), [0])
    return [size / nodes, registered, beat, pull, waiting, listed]


def message(node: int, run: int) -> Message:
    """Return an empty message of a run to a node, as the SuperLink stores it."""
    now = time.time()
    metadata = Metadata(run, f"{run}/{node}", SUPERLINK_NODE_ID, node, "", "", now, TTL, "train")
    return make_message(metadata, RecordDict())


def microseconds(call: Callable[[int], Any], arguments: Sequence[int]) -> float:
    """Return the mean processor time of a call."""
    begun = time.process_time()
    for argument in arguments:
        call(argument)
    return 1e6 * (time.process_time() - begun) / len(arguments)


def size_of(database: str) -> int:
    """Return the bytes of a state: of its file with its log, or of this process."""
    if database == FLWR_IN_MEMORY_DB_NAME:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))
    files = (Path(database + end) for end in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=count, nargs="+", default=[10_000, 100_000], help="how many (%(default)s)")
    parser.add_argument("--messages", type=count, default=1_000, help="that wait for other nodes (%(default)s)")
    parser.add_argument("--calls", type=count, default=500, help="of each kind (%(default)s)")
    add_json_option(parser)
    parser.add_argument("--seed", type=int, default=1, help="nodes' keys follow from it (%(default)s)")
    main(measure, parser)
