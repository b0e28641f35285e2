"""How a run begins that goes on: the same one after an interruption, or a new one from the arrays of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from logging import WARNING, getLogger

import numpy as np

from ..results.earlier_run import EarlierRun
from ..setup.config import Config
from .agreement import Agreement
from .continued import carry_over
from .rounds import RoundLoop
from .server_run import Beginning
from .transport import Transport

logger = getLogger("flwr")


class Resumed(Beginning):
    """A run that is resumed after its last round with an intact state."""

    folder: EarlierRun

    def __init__(self, config: Config) -> None:
        self.config, self.folder = config, EarlierRun.reopen(config)

    def open(self) -> None:
        """Find the round."""
        self.finished, self._state, remarks = self.folder.last_intact(self.config.run.state_dir)
        _tell(self.folder, remarks)

    def take_task(self, agreed: Agreement, transport: Transport, remarks: Sequence[str]) -> None:
        """Refuse clients with another task than before."""
        data = str(transport.about_data().get("data", ""))
        self.folder.require_task(agreed.input_shape, agreed.classes, agreed.division, names=agreed.names, data=data)
        self.folder.require_models({client: agreed.models.get(str(client), "") for client in agreed.descriptions})
        self.folder.add_identities(transport.identities())

    def prepare(self, loop: RoundLoop) -> None:
        """Restore the state, and drop what was recorded after it."""
        loop.load_state(self._state)
        self.folder.drop_after(self.finished)
        before, now = self.folder.config()["num-server-rounds"], self.config.run.num_server_rounds
        if self.config.training.learning_rate_schedule == "cosine" and before != now:
            words = "fedpfl: the cosine schedule now ends after %d rounds: the rates of the first ones were for %d"
            logger.log(WARNING, words, now, before)
        self.folder.mark_resumed(self.config)


class Continued(Beginning):
    """A new run that starts from what another one has ended with."""

    def __init__(self, config: Config, earlier: EarlierRun) -> None:
        super().__init__(config)
        self._earlier = earlier
        self._state: Mapping[str, np.ndarray] = {}

    def open(self) -> None:
        """Read the other run."""
        with self._earlier.exclusive():
            self._state, self._about, remarks = self._earlier.to_continue(self.config.run.state_dir)
        _tell(self._earlier, remarks)
        self.task_before = self._earlier.task()

    def take_task(self, agreed: Agreement, transport: Transport, remarks: Sequence[str]) -> None:
        """Record the task, and whose arrays are whose."""
        self._state, about, remark = carry_over(
            self._earlier, self.folder, self.config, agreed, transport.about_data(), self._state, self._about
        )
        self.describe(agreed, transport, [*remarks, remark], continued=about)

    def prepare(self, loop: RoundLoop) -> None:
        """Start from the other run's state."""
        loop.take_over(self._state)


def beginning(config: Config) -> Beginning:
    """Return how a run begins that is resumed, or that continues another one."""
    if config.run.resume:
        return Resumed(config)
    return Continued(config, EarlierRun.continued(config))


def _tell(folder: EarlierRun, remarks: Iterable[str]) -> None:
    for remark in [*(f"{folder.path.name}: {change}" for change in folder.changes()), *remarks]:
        logger.log(WARNING, "fedpfl: %s", remark)
