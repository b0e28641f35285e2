"""A Grid whose nodes run a ClientApp in this process, and Flower apps to put on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from support import LocalGrid
from torch import nn

CLIENTS, CLASSES, FEATURES = 3, 3, 6


class AppGrid(LocalGrid):
    """Answers every message at once by a ClientApp; node 100 + i is client i.

    ``broken`` sees (kind, client, message) and may return a reply of its own, or None.
    """

    def __init__(
        self, app: ClientApp, num_nodes: int = CLIENTS,
        broken: Callable[[str, int, Message], Message | None] = lambda kind, client, message: None,
    ) -> None:  # fmt: skip
        super().__init__(num_nodes, {})
        self.app, self.broken = app, broken
        self.sent: list[tuple[str, int, Message]] = []
        self.gone: set[int] = set()
        self.contexts = [
            Context(1, 100 + i, {"partition-id": i, "num-partitions": num_nodes}, RecordDict(), {})
            for i in range(num_nodes)
        ]

    def get_node_ids(self) -> Iterable[int]:
        return [context.node_id for i, context in enumerate(self.contexts) if i not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids, of_node = [], {context.node_id: context for context in self.contexts}
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            message.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
            ids.append(message.metadata.message_id)
            self.sent.append((kind, node - 100, message))
            reply = self.broken(kind, node - 100, message)
            self.replies[ids[-1]] = self.app(message, of_node[node]) if reply is None else reply
        return ids

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(list(messages)))


class Net(nn.Module):
    """A model as Flower's users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(FEATURES, 8)
        self.norm = nn.BatchNorm1d(8)
        self.fc2 = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.norm(self.fc1(x))))


def samples(client: int, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Return samples of classes that a client numbers in its own order."""
    rng = np.random.default_rng(client)
    y = np.arange(count) % CLASSES
    x = rng.normal(size=(count, FEATURES)).astype("float32")
    x[np.arange(count), y] += 2
    return x, ((y + client) % CLASSES).astype("int64")


def data_of(context: Context) -> tuple[np.ndarray, ...]:
    """Return a node's samples, to train and to test."""
    return (*samples(int(context.node_config["partition-id"])),) * 2


def loader(client: int, batch_size: int = 10) -> Any:
    x, y = map(torch.from_numpy, samples(client))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch_size)


def training(model: nn.Module, batches: Any, epochs: int = 1) -> float:
    """Train as a quickstart does; return the last loss."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    return float(loss)


def accuracy(model: nn.Module, batches: Any) -> float:
    model.eval()
    with torch.no_grad():
        right = [model(x).argmax(1) == y for x, y in batches]
    return float(torch.cat(right).float().mean())


def plain_app(personal: tuple[str, ...] = (), whole: bool = True) -> ClientApp:
    """Return an app that is written from Flower's documentation alone: nothing in it is of fedpfl.

    The arrays that begin with ``personal`` are kept in ``Context.state``; the reply has all arrays, or the shared ones.
    """
    app = ClientApp()

    def load(message: Message, context: Context) -> Net:
        torch.manual_seed(0)
        model = Net()
        if "own" in context.state:
            model.load_state_dict(context.state.array_records["own"].to_torch_state_dict(), strict=False)
        received = message.content.array_records["arrays"].to_torch_state_dict()
        model.load_state_dict(received, strict=not personal)
        return model

    @app.train()
    def train(message: Message, context: Context) -> Message:
        batches = loader(context.node_config["partition-id"])
        model = load(message, context)
        loss = training(model, batches)
        state = model.state_dict()
        kept = {name: array for name, array in state.items() if name.startswith(personal)} if personal else {}
        if kept:
            context.state["own"] = ArrayRecord(kept)
        sent = state if whole else {name: array for name, array in state.items() if name not in kept}
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(batches.dataset)})
        return Message(RecordDict({"arrays": ArrayRecord(sent), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        batches = loader(context.node_config["partition-id"])
        score = accuracy(load(message, context), batches)
        metrics = MetricRecord({"accuracy": score, "num-examples": len(batches.dataset)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def flowers_app(mods: Any = (), batches: Callable[[Context], Any] | None = None, seen: Any = None) -> ClientApp:
    """Return an app with the functions of Flower's quickstart: they load strictly and send all; ``seen`` gets heads."""
    app = ClientApp(mods=list(mods))
    batches_of = batches or (lambda context: loader(context.node_config["partition-id"]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        if seen is not None:
            seen.append((context.node_id, model.fc2.weight.detach().numpy().copy()))
        loss = training(model, batches_of(context))
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(batches_of(context).dataset)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        metrics = MetricRecord(
            {"accuracy": accuracy(model, batches_of(context)), "num-examples": len(batches_of(context).dataset)}
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def moved(grid: AppGrid, old: int, new: int) -> None:
    """Have a node come back under another id, its Context forgotten."""
    place = [context.node_id for context in grid.contexts].index(old)
    grid.contexts[place] = Context(1, new, dict(grid.contexts[place].node_config), RecordDict(), {})


def between(base: Any, actions: dict[int, Callable[[], None]]) -> Any:
    """Return a strategy class that does something before the messages of some rounds are made."""

    class Between(base):  # type: ignore[misc]
        def configure_train(self, server_round: int, *rest: Any) -> Any:
            actions.get(server_round, lambda: None)()
            return super().configure_train(server_round, *rest)

    return Between


def initial() -> ArrayRecord:
    torch.manual_seed(1)
    return ArrayRecord(Net().state_dict())
