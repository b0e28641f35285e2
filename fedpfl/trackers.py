"""Listeners that send a run to Weights & Biases or MLflow as well; the run's folder stays the record.

One that cannot start ends the run before round 1. One that fails later is left alone with a warning, because no run
should be lost for a curve.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from logging import WARNING, getLogger
from typing import Any

import numpy as np

from .core.errors import FedpflError, words_of
from .engine.listener import Listener
from .results.curves import curves
from .results.record import Round
from .results.run_folder import RunFolder
from .rules import Rule

logger = getLogger("flwr")

MLFLOW_BATCH = 100  # parameters in one request


class _Tracker(Listener):
    """Starts, feeds and ends a run of a service; its package's errors are ``_errors``."""

    _errors: tuple[type[Exception], ...] = (OSError,)
    _works = False
    # What `_start` sets: send the numbers of a round; end the service's run, well or not.
    _send: Callable[[int, dict[str, float]], Any]
    _close: Callable[[bool], Any]

    def _start(self, folder: RunFolder, key: str) -> None:
        """Open the service's run with this key, which a resumed run has again."""
        raise NotImplementedError  # each service has its own

    def run_started(self, folder: RunFolder, remarks: Sequence[str]) -> None:
        """Open the service's run."""
        try:
            self._start(folder, str(folder.task()["state_key"]))
        except ImportError as error:
            missing = f"needs the package {error.name}: pip install 'fedpfl[{error.name}]'"
            raise FedpflError(f"listeners: {type(self).__name__} {missing}") from error
        except self._errors as error:
            raise FedpflError(f"listeners: {type(self).__name__}: {words_of(error, 200)}") from error
        self._works = True

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Send the round's curves."""
        if self._works:
            self._try(self._send, done.number, curves(done.line))
        return False

    def run_ended(self, reason: str) -> None:
        """End the service's run."""
        if self._works:
            self._try(self._close, not reason)

    def _try(self, action: Callable[..., Any], *given: Any) -> None:
        try:
            action(*given)
        except self._errors as error:
            logger.log(WARNING, "fedpfl: nothing more is tracked: %s", words_of(error, 200))
            self._works = False


class WeightsAndBiases(_Tracker):
    """Weights & Biases; with ``WANDB_MODE=offline`` into the run's folder alone, for ``wandb sync``."""

    def _start(self, folder: RunFolder, key: str) -> None:
        import wandb

        self._errors = (wandb.errors.Error, OSError)
        # Without a key a terminal would be asked for one.
        if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
            raise wandb.errors.Error("no API key; `wandb login` stores one, WANDB_MODE=offline needs none")
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedpfl"), name=folder.path.name, id=key, resume="allow",
            dir=str(folder.path), config=dict(folder.config()), settings=wandb.Settings(silent=True, console="off"),
        )  # fmt: skip
        self._send = lambda number, values: run.log({"round": number, **values}, step=number)
        self._close = lambda finished: run.finish(exit_code=0 if finished else 1)


class MLflow(_Tracker):
    """MLflow at ``MLFLOW_TRACKING_URI``; without it, in a file ``mlflow.db`` next to the run's folder."""

    def _start(self, folder: RunFolder, key: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow
        from mlflow.entities import Metric, Param

        for talkative in ("mlflow", "alembic"):
            getLogger(talkative).setLevel(WARNING)
        self._errors = (mlflow.exceptions.MlflowException, OSError)
        database = f"sqlite:///{(folder.path.parent / 'mlflow.db').absolute()}"
        client = mlflow.tracking.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or database)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedpfl")
        project = client.get_experiment_by_name(name)
        number = project.experiment_id if project else client.create_experiment(name)
        if before := client.search_runs([number], filter_string=f"tags.`fedpfl.key` = '{key}'"):
            run = before[0].info.run_id
            client.update_run(run, status="RUNNING")
        else:
            run = client.create_run(number, run_name=folder.path.name, tags={"fedpfl.key": key}).info.run_id
            params = [Param(key, str(value)) for key, value in folder.config().items()]
            for first in range(0, len(params), MLFLOW_BATCH):
                client.log_batch(run, params=params[first : first + MLFLOW_BATCH])

        def send(number: int, values: dict[str, float]) -> None:
            now = int(1000 * time.time())
            client.log_batch(run, metrics=[Metric(name, value, now, number) for name, value in values.items()])

        self._send = send
        self._close = lambda finished: client.set_terminated(run, "FINISHED" if finished else "FAILED")
