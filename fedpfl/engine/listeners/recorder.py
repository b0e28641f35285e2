"""Records rounds in the run's folder, and ends a run that no longer improves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...results.history import Patience
from ...results.record import Round
from ...results.run import RunFolder
from ...rules import Rule
from ..listener import Listener


class Recorder(Listener):
    """Appends each round to ``metrics.jsonl`` and writes the checkpoint."""

    def __init__(self, folder: RunFolder, patience: int) -> None:
        self.folder, self.patience = folder, patience
        self._waiting: Patience | None = None

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Record the round."""
        done.line = self.folder.record(done, state)
        if not self.patience:
            return False
        if self._waiting is not None:
            self._waiting.add(done.line)
        else:  # a resumed run has rounds before this one
            self._waiting = Patience(self.patience, self.folder.chosen_by)
            for line in self.folder.history().lines:
                self._waiting.add(line)
        return self._waiting.over
