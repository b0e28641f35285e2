"""An in-process federation: the real server, strategies and client engine with Flower's runtime left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedpfl.client import handle
from fedpfl.config import Config
from fedpfl.errors import FedpflError
from fedpfl.messages import from_content, to_content
from fedpfl.results import RunFolder
from fedpfl.server import run_federation

# Flower sets these when it starts a process; a message cannot be made without.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class Killed(BaseException):
    """Stands for a process that is killed: nothing may catch it."""


class LocalGrid(Grid):
    """Answers every message at once, in this process.

    Parameters
    ----------
    num_nodes : int
        Nodes; node 100 + i is partition i.
    run_config : dict
        What Flower would hand to the ClientApps.
    intercept : callable, optional
        Sees (kind, client, message payload) before the client does and may raise.
    shuffle : bool
        Whether replies come in another order than the messages went.
    """

    def __init__(
        self,
        num_nodes: int,
        run_config: dict[str, Any],
        intercept: Callable[[str, int, Any], None] | None = None,
        shuffle: bool = False,
        node_config: dict[int, dict[str, Any]] | None = None,
    ) -> None:
        self.num_nodes = num_nodes
        self.run_config = run_config
        self.intercept = intercept
        self.shuffle = random.Random(7) if shuffle else None
        self.node_config = node_config or {}
        self.replies: dict[str, Message] = {}
        self.log: list[tuple[str, int, RecordDict, RecordDict | None]] = []

    def set_run(self, run: Any) -> None:
        raise AssertionError("not used")

    @property
    def run(self) -> Any:
        raise AssertionError("not used")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated in Flower")

    def get_node_ids(self) -> Iterable[int]:
        return [100 + i for i in range(self.num_nodes)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            assert message.metadata.dst_node_id
        for message in messages:  # Flower's grid over HTTP goes through them twice, too
            message_id = f"m{len(self.log)}"
            message.metadata.__dict__["_message_id"] = message_id
            client = message.metadata.dst_node_id - 100
            kind = message.metadata.message_type
            payload = from_content(message.content)
            node_config = {"partition-id": client, "num-partitions": self.num_nodes, **self.node_config.get(client, {})}
            content = None
            try:
                if self.intercept is not None:
                    self.intercept(kind, client, payload)
                content = to_content(handle(kind, payload, self.run_config, node_config))
                reply = Message(content, reply_to=message)
            except FedpflError as error:
                reply = Message(Error(2, str(error)), reply_to=message)
            self.log.append((kind, client, message.content, content))
            self.replies[message_id] = reply
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [m for m in message_ids if m in self.replies]
        if self.shuffle is not None:
            self.shuffle.shuffle(found)
            found = found[: max(1, len(found) // 2)]
        return [self.replies.pop(m) for m in found]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise AssertionError("the strategies have their own loop")


QUICK = {
    "dataset": "digits", "model": "small-cnn", "num-server-rounds": 3, "local-epochs": 2, "batch-size": 32,
    "dirichlet-alpha": 0.5, "seed": 3, "run-name": "run", "feddecomp-lora-epochs": 1,
}  # fmt: skip


def federation(tmp_path: Any, num_nodes: int = 4, **settings: Any) -> dict[str, Any]:
    """Return the run config of a small run in ``tmp_path``; underscores in the names stand for dashes."""
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    folders = {"output-dir": str(tmp_path / "runs"), "state-dir": str(tmp_path / "state")}
    config = Config.parse({**QUICK, **folders, **given})
    return config.flat()


def simulate(tmp_path: Any, num_nodes: int = 4, grid: Callable[..., Grid] = LocalGrid, **settings: Any) -> RunFolder:
    """Run a small federation in this process and return its folder."""
    values = federation(tmp_path, num_nodes, **settings)
    return run_federation(grid(num_nodes, values), values)
