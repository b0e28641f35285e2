"""How fast a machine trains and tests: ``fedpfl-worker profile``.

It plays the first round of two clients that hold noise, as often as a few seconds allow. The same is measured with
:data:`STANDARD` in turn, so that another machine's speed with a run can be estimated from its speed with that.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from ...client.engine import Engine
from ...core.errors import ConfigError, FedpflError
from ...core.extras import CLIENT
from ...core.files import write_atomically
from ...core.payload import Payload
from ...core.server_view import Client
from ...core.settings import Value, items, setting
from ...data.datasets.client_files import own_data
from ...data.settings import DataSettings
from ...setup.assembly import make_rule
from ...setup.config import Config

# The method and the network by which machines are compared.
STANDARD: Mapping[str, Value] = {"method": "fedavg", "model": "fedavg-cnn", "batch-size": 20}
STANDARD_INPUT, CLASSES = "1x28x28", 10
# Batches that a client has for training, and about as many samples for tests.
BATCHES = 20
LEAST_TURNS = 3
MAX_VALUES = 2**22

_INPUT = re.compile(r"[1-9]\d{0,6}(?:x[1-9]\d{0,6}){0,2}")
_PAIR = re.compile(r"([a-z][a-z0-9-]*)=(\"[^\"]*\"|\S+)")


@dataclass(frozen=True)
class Profile:
    """A machine's speed in samples a second, and with what it was measured."""

    train: float = setting(0.0, "Training samples a second, each counted once an epoch.", above=0)
    test: float = setting(0.0, "Test samples a second.", above=0)
    standard_train: float = setting(0.0, "The same with STANDARD.", above=0)
    standard_test: float = setting(0.0, "The same with STANDARD.", above=0)
    method: str = setting("", "The run's method.")
    model: str = setting("", "The run's model.")
    batch_size: int = setting(0, "The run's batch size.", minimum=1)
    input: str = setting("", "Shape of a sample.")
    device: str = setting("", "cpu or cuda.")
    threads: int = setting(0, "Threads of a client.", minimum=1)
    machine: str = setting("", "The machine.")

    @property
    def settings(self) -> dict[str, Value]:
        """The settings with which it was measured."""
        return {"method": self.method, "model": self.model, "batch-size": self.batch_size}

    def to_toml(self) -> str:
        """Return the profile as a file that ``devices-model`` can name."""
        # Numbers and texts of JSON are TOML's, too.
        lines = [f"{key} = {json.dumps(value)}" for key, value in items(self)]
        return "\n".join(["# Speeds in samples a second; the standard is FedAvg's CNN on 28×28.", *lines, ""])


def measure(config: Config, shape: str, classes: int, seconds: float = 6.0) -> Profile:
    """Measure this machine's speed with a run's settings, and with :data:`STANDARD`.

    ``shape`` is that of a sample (``3x32x32``, or ``561`` features); ``ConfigError`` if it is none, or the model cannot
    take it.
    """
    if classes < 2:
        raise ConfigError("classes", classes, "must be at least 2")
    if not _INPUT.fullmatch(shape) or math.prod(map(int, shape.split("x"))) > MAX_VALUES:
        raise ConfigError("input", shape, "must be the shape of a sample: 1x28x28 of images, 561 of features")
    flat = {key: value for key, value in config.flat().items() if key in ("device", "threads")}
    standard = Config.parse({**STANDARD, **flat, "local-epochs": 1})
    with tempfile.TemporaryDirectory() as folder:
        model_player = _player(config, shape, classes, Path(folder) / "run")
        common = _player(standard, STANDARD_INPUT, CLASSES, Path(folder) / "standard")
        for player in (model_player, common):  # the first steps allocate memory
            player.turn()
        turns: list[tuple[float, ...]] = []
        end = time.perf_counter() + seconds
        while len(turns) < LEAST_TURNS or time.perf_counter() < end:
            turns.append((*model_player.turn(), *common.turn()))
    train, test, standard_train, standard_test = (round(statistics.median(times), 1) for times in zip(*turns))
    run, training = config.run, config.training
    return Profile(
        train, test, standard_train, standard_test, run.method, run.model, training.batch_size, shape, training.device,
        model_player.threads, f"{platform.node()}, {platform.machine()}",
    )  # fmt: skip


class _Player:
    """Plays the first round of clients that hold noise."""

    def __init__(self, config: Config, shape: str, classes: int, folder: Path) -> None:
        self._config = config
        data = own_data(config.data, str(_noise(shape, classes, config.training.batch_size, folder)), 0, 1, classes)
        self._engine = Engine(config, data, 2, own=True)
        self.threads = self._engine.threads
        self._clients = [Client(i, *data.sizes(0)) for i in range(2)]
        self._rule = make_rule(config, self._clients, self._engine.sharing)
        self._rule.begin_round(1, self._clients)

    def turn(self) -> tuple[float, float]:
        """Return training and test samples a second."""
        return self._speed(self._engine.train, "train"), self._speed(self._engine.evaluate, "evaluate")

    def _speed(self, play: Callable[[int, Payload], Payload], kind: str) -> float:
        client, epochs = self._clients[0], self._config.training.local_epochs
        started = time.perf_counter()
        play(0, self._message(client, kind))
        taken = time.perf_counter() - started
        return (client.train_samples * epochs if kind == "train" else client.test_samples) / taken

    def _message(self, client: Client, kind: str) -> Payload:
        rule, extra = self._rule, self._rule.attachments(client, kind)
        shared = rule.layout.pack(rule.outgoing(client), self._config.run.wire_dtype)
        arrays = {**self._engine.extras.pack(extra.arrays, CLIENT), **shared}
        config: dict[str, Value] = {"round": 1, "personal-round": 0, "state-key": "profile"}
        return Payload({**extra.config, **config, "layout": rule.layout.to_text()}, {}, arrays)


def _player(config: Config, shape: str, classes: int, folder: Path) -> _Player:
    """Return a player of a run's first round; nothing of the run's own files is read or written."""
    folder.mkdir()
    data = replace(DataSettings(), validation_fraction=config.data.validation_fraction)
    # Its steps count what the file's speed is multiplied with: epochs.
    training = replace(config.training, local_steps=0)
    run = replace(config.run, state_dir=str(folder), device_models="never", initial_weights="", client_models="")
    return _Player(replace(config, run=run, data=data, training=training), shape, classes, folder)


def _noise(shape: str, classes: int, batch: int, folder: Path) -> Path:
    """Write noise with labels as a client's own data; return the file."""
    rng, sizes, count = np.random.default_rng(0), [*map(int, shape.split("x"))], BATCHES * batch
    values = [*sizes[1:], sizes[0]] if len(sizes) == 3 else sizes
    arrays: dict[str, np.ndarray] = {"classes": np.array([str(i) for i in range(classes)])}
    for part in ("train", "test"):
        images = len(sizes) == 3
        many = (count, *values)
        x = rng.integers(0, 256, many, np.uint8) if images else rng.standard_normal(many, np.float32)
        arrays.update({f"x_{part}": x, f"y_{part}": np.arange(count) % classes})
    np.savez(folder / "noise.npz", **arrays)  # type: ignore[arg-type]
    return folder / "noise.npz"


def main(arguments: Sequence[str]) -> None:
    """Run ``fedpfl-worker profile``."""
    parser = argparse.ArgumentParser(
        prog="fedpfl-worker profile",
        description="Measure how fast this device trains, and write a file that the setting devices-model can name.",
    )
    parser.add_argument("file", metavar="FILE.toml", type=Path)
    parser.add_argument(
        "-c", "--run-config", metavar='"KEY=VALUE …"', default="",
        help="the run's settings, texts in quotes; by default FedAvg's CNN with FedAvg",
    )  # fmt: skip
    parser.add_argument("--input", metavar="SHAPE", default=STANDARD_INPUT, help="of a sample; %(default)s by default")
    parser.add_argument("--classes", type=int, default=CLASSES, help="%(default)s by default")
    options = parser.parse_args(arguments)
    try:
        values = {**STANDARD, **_pairs(options.run_config)}
        write(options.file, Config.parse(values), options.input, options.classes)
    except (FedpflError, OSError) as error:
        sys.exit(f"error: {error}")


def write(path: Path, config: Config, shape: str, classes: int) -> None:
    """Write what :func:`measure` returns, and print it."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError("profile", str(path), "must be a file in a folder that exists")
    profile = measure(config, shape, classes)
    write_atomically(path, profile.to_toml().encode())
    what = f"{profile.method}, {profile.model}, {profile.input}, threads: {profile.threads}"
    print(f"{what}: {profile.train:.0f} training and {profile.test:.0f} test samples a second; written to {path}")


def _pairs(text: str) -> dict[str, Any]:
    """Return settings that are written as on the command line of ``fedpfl run``; values are JSON's."""
    rest = _PAIR.sub("", text).strip()
    try:
        if rest:
            raise ValueError
        return {key: json.loads(value) for key, value in _PAIR.findall(text)}
    except ValueError:
        allowed = 'must be key=value pairs, texts in double quotes: method="fedavg" batch-size=20'
        raise ConfigError("run-config", text, allowed) from None
