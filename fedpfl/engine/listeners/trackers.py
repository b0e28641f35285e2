"""Trackers: runs also appear in Weights & Biases or MLflow; the run's folder stays the record.

To add one, write one class with ``@tracker("name", module)``. A tracker that cannot start ends the run before round 1;
one that fails later is left alone with a warning, because no run should be lost for a curve.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from logging import WARNING, getLogger
from pathlib import Path
from typing import TypeVar

import numpy as np

from ...core.errors import ConfigError, FedpflError
from ...core.registry import Registry
from ...options.tracker import TrackerSettings
from ...results.line import curves
from ...results.record import Round
from ...results.run import RunFolder
from ...rules import Rule
from ...setup.config import Config
from ..listener import Listener

logger = getLogger("flwr")

PROJECT = "fedpfl"  # unless the service's own variable names another

T = TypeVar("T", bound="type[Tracker]")


class Tracker(Listener, ABC):
    """Sends the rounds of one run to a service as well.

    Nothing more is sent after one of its ``errors`` or an ``OSError``.
    """

    @abstractmethod
    def __init__(self, config: Config, folder: RunFolder) -> None: ...

    #: The exceptions that the tracker's own package raises.
    errors: tuple[type[Exception], ...] = ()

    _failed = False

    @abstractmethod
    def send(self, number: int, values: dict[str, float]) -> None:
        """Send the numbers of a round."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """End the run there, well or not."""

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Send the round's curves."""
        self._try(lambda: self.send(done.number, curves(done.line)))
        return False

    def run_ended(self, reason: str) -> None:
        """End the run there."""
        self._try(lambda: self.close(not reason))

    def _try(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        expected: tuple[type[Exception], ...] = (*self.errors, OSError)
        try:
            action()
        except expected as error:
            logger.log(WARNING, "fedpfl: nothing more is tracked: %s", " ".join(str(error).split())[:200])
            self._failed = True


# (module that it needs, class)
TRACKERS: Registry[tuple[str, type[Tracker]]] = Registry("tracker")


def tracker(name: str, module: str) -> Callable[[T], T]:
    """Register a tracker under the value of the setting ``tracker``, and the module that it needs."""
    return TRACKERS.add(name, lambda cls: (module, cls))


def require_tracker(config: Config) -> None:
    """Raise :class:`ConfigError` if the package of the run's tracker is not installed."""
    name = config.of(TrackerSettings).tracker
    if name in TRACKERS and find_spec(TRACKERS[name][0]) is None:
        raise ConfigError("tracker", name, f"needs the package {name}: pip install 'fedpfl[{name}]'")


def trackers(config: Config, folder: RunFolder) -> list[Tracker]:
    """Return the run's tracker, connected, if it has one."""
    require_tracker(config)
    known = TRACKERS.get(config.of(TrackerSettings).tracker)
    return [known[1](config, folder)] if known else []


def _refused(name: str, error: Exception) -> FedpflError:
    return FedpflError(f"tracker = {name!r}: {' '.join(str(error).split())[:200]}")


@tracker("wandb", "wandb")
class WeightsAndBiases(Tracker):
    """Weights & Biases; with ``WANDB_MODE=offline`` into the run's folder alone, for ``wandb sync``."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        import wandb

        self.errors = (wandb.errors.Error,)
        try:
            # In a terminal it would ask for a key, and wait.
            if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
                raise FedpflError(
                    "tracker = 'wandb': no API key; `wandb login` stores one, WANDB_MODE=offline needs none"
                )
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT), name=folder.path.name,
                id=str(folder.task()["state_key"]),
                resume="allow", dir=str(folder.path), config=dict(config.flat()),
                settings=wandb.Settings(silent=True, console="off"),
            )  # fmt: skip
        except wandb.errors.Error as error:
            raise _refused("wandb", error) from error

    def send(self, number: int, values: dict[str, float]) -> None:
        """Send the numbers of a round."""
        self._run.log({"round": number, **values}, step=number)

    def close(self, finished: bool) -> None:
        """End the run there."""
        self._run.finish(exit_code=0 if finished else 1)


@tracker("mlflow", "mlflow")
class MLflow(Tracker):
    """MLflow, at ``MLFLOW_TRACKING_URI`` or in a file ``mlflow.db`` next to the run's folder."""

    # Parameters in one request; MLflow takes 100.
    BATCH = 100

    def __init__(self, config: Config, folder: RunFolder) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        for talkative in ("mlflow", "alembic"):
            getLogger(talkative).setLevel(WARNING)
        self.errors = (MlflowException,)
        place = os.environ.get("MLFLOW_TRACKING_URI") or _database(folder.path.parent)
        key, name = str(folder.task()["state_key"]), os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        try:
            self._client = MlflowClient(tracking_uri=place)
            project = self._client.get_experiment_by_name(name)
            number = project.experiment_id if project else self._client.create_experiment(name)
            before = self._client.search_runs([number], filter_string=f"tags.`fedpfl.key` = '{key}'")
            if before:
                self._id = before[0].info.run_id
                self._client.update_run(self._id, status="RUNNING")
                return
            made = self._client.create_run(number, run_name=folder.path.name, tags={"fedpfl.key": key})
            self._id = made.info.run_id
            params = [Param(name, str(value)) for name, value in config.flat().items()]
            for start in range(0, len(params), self.BATCH):
                self._client.log_batch(self._id, params=params[start : start + self.BATCH])
        except MlflowException as error:
            raise _refused("mlflow", error) from error

    def send(self, number: int, values: dict[str, float]) -> None:
        """Send the numbers of a round."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, number) for name, value in values.items()])

    def close(self, finished: bool) -> None:
        """End the run there."""
        self._client.set_terminated(self._id, "FINISHED" if finished else "FAILED")


def _database(folder: Path) -> str:
    return f"sqlite:///{(folder / 'mlflow.db').absolute()}"
