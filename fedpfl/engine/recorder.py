"""Records rounds in the run's folder, and ends a run that no longer improves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..results.history import Patience
from ..results.record import Round
from ..results.run_folder import RunFolder
from ..rules import Rule
from .listener import Listener


class Recorder(Listener):
    """Appends each round to ``metrics.jsonl`` and writes the checkpoint."""

    def __init__(self, folder: RunFolder, patience: int, by: str) -> None:
        self.folder, self._patience, self._read_before = folder, Patience(patience, by), not patience

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Record the round."""
        done.line = self.folder.record(done, state)
        # A resumed run has rounds before this one.
        for line in [done.line] if self._read_before else self.folder.metrics():
            self._patience.add(line)
        self._read_before = True
        return self._patience.over
