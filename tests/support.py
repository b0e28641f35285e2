"""An in-process federation: the real server, transport and client engine with Flower's runtime left out."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from safetensors.numpy import load_file
from torch import nn

import fedpfl
from fedpfl.api.runs import Run
from fedpfl.client.message_handler import handle
from fedpfl.core.errors import FedpflError
from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.core.samples import Samples
from fedpfl.core.server_view import Client, Federation
from fedpfl.data import federated_data
from fedpfl.engine import server_run as engine_federation
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.engine.transport import Transport
from fedpfl.flower import nodes
from fedpfl.flower.messages import from_content, to_content
from fedpfl.flower.strategy import run_over_flower
from fedpfl.methods import methods
from fedpfl.methods.base import LocalRound
from fedpfl.methods.bases.adapters import AdapterMethod
from fedpfl.models import build, registry
from fedpfl.models.registry import BaseHeadModel
from fedpfl.results.export import export_personal
from fedpfl.results.run_folder import RunFolder
from fedpfl.rules import Rule
from fedpfl.setup.config import Config
from fedpfl.training.loop import predict, run_phase

# Flower sets these when it starts a process; a message cannot be made without. Older versions have no such thing.
with contextlib.suppress(ModuleNotFoundError):
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

# Nodes in this process are all there from the beginning.
nodes.SETTLED_SECONDS = nodes.GRACE_SECONDS = 0.0


class Clock:
    """Takes the place of the server's clocks: whoever sleeps has slept at once, and nothing else takes any time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    @classmethod
    def of_the_server(cls, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Return one by which servers go for the time of a test."""
        clock = cls()
        for module in ("engine.rounds", "flower.half_round", "flower.nodes"):
            monkeypatch.setattr(f"fedpfl.{module}.time", clock)
        return clock


def add_model(monkeypatch: pytest.MonkeyPatch, name: str, build: Callable[..., nn.Module]) -> None:
    """Have a built-in model of this name while a test runs."""
    monkeypatch.setitem(registry.MODELS._entries, name, registry._Entry(build, None))


def add_small_bn(monkeypatch: pytest.MonkeyPatch) -> str:
    """Have a small convolutional network with BatchNorm for the digits while a test runs; return its name."""

    def build(input_shape: tuple[int, ...], num_classes: int) -> BaseHeadModel:
        base = registry.named(
            conv=nn.Conv2d(1, 4, 3, stride=2), norm=nn.BatchNorm2d(4), relu=nn.ReLU(), flatten=nn.Flatten(),
            fc=nn.Linear(36, 8), relu2=nn.ReLU(),
        )  # fmt: skip
        return BaseHeadModel(base, nn.Linear(8, num_classes))

    add_model(monkeypatch, "small-bn", build)
    return "small-bn"


class Killed(BaseException):
    """Stands for a process that is killed: nothing may catch it."""


class LocalGrid(Grid):
    """Answers every message at once, in this process.

    Parameters
    ----------
    num_nodes : int
        Nodes; node 100 + i holds the data of client i.
    run_config : dict
        What Flower would hand to the ClientApps.
    intercept : callable, optional
        Sees (kind, client, message payload) before the client does and may raise.
    shuffle : bool
        Whether replies come in another order than the messages went.
    """

    devices = False  # whether clients are asked as those on devices are, each in its turn

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

    def answer(self, kind: str, payload: Payload, node_config: dict[str, Any]) -> Payload:
        return handle(kind, payload, self.run_config, node_config)

    def arriving(self, kind: str, client: int, reply: Message) -> Message | None:
        """Return what arrives of a client's reply; None: nothing."""
        return reply

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
            if self.devices and kind == "query":
                payload.config["in-turn"] = True
            node_config = {"partition-id": client, "num-partitions": self.num_nodes, **self.node_config.get(client, {})}
            content = None
            try:
                if self.intercept is not None:
                    self.intercept(kind, client, payload)
                content = to_content(self.answer(kind, payload, node_config))
                reply = Message(content, reply_to=message)
            except FedpflError as error:
                reply = Message(Error(2, str(error)), reply_to=message)
            self.log.append((kind, client, message.content, content))
            if (arriving := self.arriving(kind, client, reply)) is not None:
                self.replies[message_id] = arriving
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        arrived = [m for m in message_ids if m in self.replies]
        if self.shuffle is not None:
            self.shuffle.shuffle(arrived)
            arrived = arrived[: max(1, len(arrived) // 2)]
        return [self.replies.pop(m) for m in arrived]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise AssertionError("the engine has its own loop")

    def training(self, number: int | None = None) -> list[tuple[int, Payload, Payload]]:
        """Return (client, message, reply) of each training, in order; of one round, or of all."""
        contents = [content for kind, *content in self.log if kind == "train"]
        exchanges = [(client, from_content(message), from_content(reply)) for client, message, reply in contents]
        return [asked for asked in exchanges if number in (None, asked[1].config["round"])]


def run_federation(way: Grid | Transport, values: dict[str, Any]) -> RunFolder:
    """Run a federation over a Grid, or by another transport."""
    if isinstance(way, Grid):
        return run_over_flower(way, values)
    return engine_federation.run_federation(way, Config.parse(values))


QUICK = {
    "method": "feddecomp", "dataset": "digits", "model": "small-cnn", "num-server-rounds": 3, "local-epochs": 2,
    "batch-size": 32, "dirichlet-alpha": 0.5, "seed": 3, "run-name": "run",
}  # fmt: skip

# For equalities to the bit, which two steps show as well as fifty: 64 training and 32 test samples a client.
FEW_SAMPLES = {"partitioner": "dirichlet-client", "train_samples": 64, "test_samples": 32}


# Settings with which a method learns within three short rounds on few data, where those of all do not suit it.
QUICK_OF_METHOD = {
    "apple": {"learning_rate": 0.1},  # p_ii, at first the client's share of all samples, is a factor of each step
    "factorized-fl": {"learning_rate": 0.05},
    "factorized-fl-plus": {"learning_rate": 0.05},
    "fedbabu": {"fedbabu_tuning_epochs": 2},
    "feddbe": {"feddbe_kappa": 1.0, "learning_rate": 0.05},  # round 1 is not averaged
    "feddecomp": {"feddecomp_lora_epochs": 1},
    "fedkd": {"learning_rate": 0.05},
    "fedphp": {"learning_rate": 0.05},  # a part of the loss is the teacher's
    "fedreg": {"fedreg_augmentation": "auto"},  # a third of the time of "simple"
    "fedrep": {"fedrep_p_epochs": 1},
    "ffa-lora": {"learning_rate": 0.2},  # B alone trains
    "fml": {"learning_rate": 0.05},
    "flexlora": {"flexlora_ranks": "1,2", "learning_rate": 0.05},
    "per-fedavg": {"per_fedavg_beta": 0.02},  # the default is for more rounds
    "pfedgate": {"learning_rate": 0.05, "batch_size": 10, "pfedgate_share": 1.0},
    "pfedpara": {"learning_rate": 0.005},  # a step moves both factors of every weight
    "scaffold": {"learning_rate": 0.1},  # steps without momentum are small
}


# A method of a user's own with a setting, as text for a file. With factor 1 it is FedAvg.
DOUBLE = """\
from dataclasses import dataclass

import fedpfl


@dataclass(frozen=True)
class Settings:
    factor: float = fedpfl.setting(2.0, "How many times the learning rate.", above=0)


class Double(fedpfl.Method):
    name = "double"
    Settings = Settings

    def schedule(self, local):
        (phase,) = super().schedule(local)
        rate = self.settings.factor * self.training.learning_rate
        return [fedpfl.Phase(phase.train, phase.epochs, learning_rate=rate)]
"""


# One of each kind: everything is shared; a personal head; layers in two parts; channels that clients analyse; arrays
# that are kept and sent; each client's own mean; prototypes and no shared model; adapted for a test.
STAND_FOR_ALL = {"fedavg", "fedper", "feddecomp", "fedfac", "scaffold", "fedfomo", "fedproto", "per-fedavg"}

# Those that predict with more than a model, which cannot be given back as one.
NO_PLAIN_MODEL = {"fedcp", "fedem", "fedmrl", "fednh", "gpfl", "knn-per", "pfedgate"}


# Methods whose clients send whole numbers, which cannot carry the noise of differential privacy.
NO_NOISE = {"fedkd", "fedrolex", "fedselect", "heterofl"}

# Methods that need a model with adapters.
ADAPTERS = {name for name, method in methods().items() if issubclass(method, AdapterMethod)}


def refusing(setting: str) -> set[str]:
    """Return the methods that say that they refuse a setting."""
    return {name for name, method in methods().items() if setting in method.refuses}


def each_method(also: Iterable[str] = (), without: Iterable[str] = ()) -> list[Any]:
    """Return the methods for a test of the engine: those that stand for all, and the others for `make test-all`."""
    here = {*STAND_FOR_ALL, *also}
    names = sorted(methods().keys() - {*without})
    return [name if name in here else pytest.param(name, marks=pytest.mark.thorough) for name in names]


def quick(method: str) -> dict[str, Any]:
    """Return what a method needs beside the quick settings of all, for :func:`federation`."""
    return QUICK_OF_METHOD.get(method, {})


def needed(method: str) -> dict[str, Any]:
    """Return the settings without which a method runs with no model."""
    return {"trainable": "lora"} if method in ADAPTERS else {}


def federation(tmp_path: Any, num_nodes: int = 4, **settings: Any) -> dict[str, Any]:
    """Return the run config of a small run in ``tmp_path``; underscores in the names stand for dashes."""
    values = {key.replace("_", "-"): value for key, value in settings.items()}
    folders = {"output-dir": str(tmp_path / "runs"), "state-dir": str(tmp_path / "state")}
    config = Config.parse({**QUICK, **folders, **needed(values.get("method", "")), **values})
    return config.flat()


def simulate(tmp_path: Any, num_nodes: int = 4, grid: Callable[..., Grid] | None = None, **settings: Any) -> RunFolder:
    """Run a small federation in this process, as a simulation or over a grid, and return its folder."""
    values = federation(tmp_path, num_nodes, **settings)
    return run_federation(engine(num_nodes, values) if grid is None else grid(num_nodes, values), values)


def simulate_and_listen(tmp_path: Any, num_nodes: int, **settings: Any) -> tuple[RunFolder, LocalGrid]:
    """Run a small federation over a grid; return its folder and the grid, which has noted all messages."""
    values = federation(tmp_path, num_nodes, **settings)
    grid = LocalGrid(num_nodes, values)
    return run_federation(grid, values), grid


def arrays(folder: RunFolder, tmp_path: Path) -> dict[str, np.ndarray]:
    """Return all arrays of a finished run: the server's whole state and each client's newest personal ones."""
    content = {f"server/{k}": v for k, v in folder.checkpoint()[1].items()}
    for client in sorted((tmp_path / "state").glob("*/client-*")):
        # A client without personal arrays may have a model that it made for a test.
        for newest in sorted(client.glob("round-*.safetensors"))[-1:]:
            content.update({f"{client.name}/{newest.name}/{k}": v for k, v in load_file(newest).items()})
    return content


def edit_settings(run: Path, change: Callable[[str], str]) -> None:
    """Change a run's stored settings, and delete the line of their checksum, as a user does who means the change."""
    path = run / "config.toml"
    path.write_text(change(path.read_text().partition("\n")[2]))


def engine(num_nodes: int, values: dict[str, Any]) -> SimulationTransport:
    """Return a simulation whose clients are in this process."""
    return SimulationTransport(Config.parse({**values, "num-clients": num_nodes}), workers=0)


def exported(folder: Path, num_nodes: int, settings: dict[str, Any]) -> RunFolder:
    """Run a federation in this process, with the settings' defaults, and export its models, as `fedpfl run` does."""
    places = {"output-dir": str(folder / "runs"), "state-dir": str(folder / "state"), "run-name": "run"}
    values = Config.parse({**settings, **places}).flat()
    run = run_federation(engine(num_nodes, values), values)
    export_personal(run)
    return run


def run_small(method: str, model: Any, tmp_path: Path, **options: Any) -> Run:
    """Run a method on two clients of few samples, in this process."""
    settings = {
        "num_server_rounds": 1, "local_epochs": 2, "batch_size": 32, "num_clients": 2, "train_samples": 64,
        "partitioner": "dirichlet-client", "test_samples": 16, "validation_fraction": 0.2, "quiet": True, "workers": 0,
        "output_dir": tmp_path / "runs", "state_dir": tmp_path / "state", "num_classes": 0, "dataset": "digits",
    }  # fmt: skip
    return fedpfl.run(method=method, model=model, **{**settings, **needed(method), **quick(method), **options})


def check_recorded(run: Run) -> list[nn.Module]:
    """Compare the recorded accuracies with those of the models that a run gives back, and with those in its files.

    Return these models, by client.
    """
    config, files, models = Config.parse(run.settings), run.path / "personal", []
    with run.objects():
        clients = json.loads((run.path / "task.json").read_text())["clients"]
        data, recorded = federated_data(config.data, clients, config.run.seed), run._folder.history().last_test()
        for client in range(clients):
            model, (x, y) = run.model(client=client), data.test(client)
            models.append(model)
            assert float((predict(model, x).argmax(1) == y).double().mean()) == pytest.approx(recorded[str(client)])
            if (file := files / f"client-{client:05d}.safetensors").is_file():
                built = build(config.of_client(client).run.model, x.shape[1:], data.num_classes)
                built.load_state_dict({name: torch.from_numpy(array) for name, array in load_file(file).items()})
                assert torch.equal(predict(built.eval(), x), predict(model, x))
    for file in files.glob("client-*.json"):
        about = json.loads(file.read_text())
        assert about["tested"]["accuracy"] == recorded[str(about["client"])]
    return models


def linear_round(
    method: Any, x: Any, y: Any, classes: int, trained: int = 0, message: Payload | None = None, seed: int = 0,
    base: Callable[[], nn.Module] = nn.Flatten,
) -> LocalRound:  # fmt: skip
    """Return a client's round on softmax regression in double precision, as the engine would set it up.

    Parameters
    ----------
    method : Method
        What trains.
    x, y : array
        The client's samples, (n, features) and (n,).
    classes : int
        Classes of the task.
    trained : int
        The round in which the client trained last.
    message : Payload, optional
        What the server attached, its arrays in their shapes.
    seed : int
        Of the initial weights.
    base : callable
        Makes what stands before the linear layer.
    """
    torch.manual_seed(seed)

    def plain() -> BaseHeadModel:
        model = BaseHeadModel(base(), nn.Linear(len(x[0]), classes)).double()
        model.another = plain
        return model

    model = method.build(plain()).double()
    sharing = method.sharing(model)
    samples = Samples(torch.tensor(x, dtype=torch.float64), torch.tensor(y))
    message = message or Payload()
    message.config["personal-round"] = trained
    return LocalRound(
        client=0, round=trained + 1, seed=3, num_classes=classes, model=model,
        start=sharing.received(), message=message,
        train_data=lambda: samples, train_labels=lambda: samples.y.numpy(),
        layout=sharing.layout, extras=message.arrays,
    )  # fmt: skip


def train(method: Any, local: LocalRound) -> Payload:
    """Run a client's round as the engine does; return what its reply carries besides."""
    method.prepare(local)
    for phase in method.schedule(local):
        run_phase(local.model, phase, local.samples, method.training, np.random.default_rng(0))
    return method.conclude(local)


def head(model: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """Return copies of weight (classes, features) and bias of a linear model."""
    return model.head.weight.detach().numpy().copy(), model.head.bias.detach().numpy().copy()


def softmax(z: np.ndarray) -> np.ndarray:
    """Return the softmax of each row."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def rule(
    kind: type[Rule], start: Any, sizes: Iterable[int], layout: Layout | None = None, seed: int = 1, **options: Any
) -> Any:
    """Return a rule that starts from one vector, with clients of these numbers of training samples."""
    start = np.asarray(start, np.float32)
    clients = tuple(Client(i, n, 5) for i, n in enumerate(sizes))
    layout = layout or Layout.of([("w", start.shape)])
    return kind(Federation(clients, layout, seed=seed), start, **options)


def play(rule: Any, number: int, vectors: dict[int, Any], **arrays: dict[int, Any]) -> None:
    """Give a rule the replies {client: vector} of a round, with further arrays by name and client."""
    rule.begin_round(number)
    for i in vectors:
        rule.attachments(rule.clients[i], "train")
    for i, vector in vectors.items():
        client = rule.clients[i]
        reply = Payload(arrays={name: np.asarray(by_client[i], np.float32) for name, by_client in arrays.items()})
        shared = np.asarray(vector, np.float32)
        rule.check(client, shared, reply)
        rule.add(client, shared, reply)
        rule.personal_round[i] = number
    rule.finish_round()
