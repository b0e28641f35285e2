"""Logs a run where no terminal shows it: ``flwr log`` is what a user of Flower sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING, getLogger

import numpy as np

from ..core.metrics import CLASSES
from ..results.round_line import in_words
from ..results.round_record import Round
from ..results.run_folder import RunFolder
from ..rules import Rule
from .listener import Listener

logger = getLogger("flwr")


class Log(Listener):
    """Logs remarks and rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self._loss = rounds, CLASSES

    def run_started(self, folder: RunFolder, remarks: Sequence[str]) -> None:
        """Log the remarks."""
        self._loss = str(folder.config()["loss"])
        for remark in remarks:
            logger.log(WARNING, "fedpfl: %s", remark)

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Log the round."""
        logger.log(INFO, "fedpfl: round %d of %d: %s", done.number, self.rounds, in_words(done.line, loss=self._loss))
        return False
