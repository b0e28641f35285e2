"""Keeps the models of the round that is best on the validation samples."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...client.state import ClientState
from ...core.files import private_folder
from ...results.history import History
from ...results.record import Round
from ...results.run_folder import BEST, RunFolder
from ...results.summary import summary
from ...rules import Rule
from ...setup.config import Config
from ..listener import Listener


class BestRound(Listener):
    """Makes RUN/best the folder of a run that ended with the best round; it grows in a new one, which then replaces it.

    Clients' arrays on this machine are in it; those of devices stay there.
    """

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self._config, self._folder = config, folder
        self._best = -math.inf

    def run_started(self, folder: RunFolder, remarks: Sequence[str]) -> None:
        """Know the best round so far of a run that is resumed."""
        if (folder.path / BEST).is_dir():
            found = RunFolder(folder.path / BEST).history().best_score()
            self._best = self._best if found is None else found

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Keep the round if it is the best, the first of several."""
        score = History([done.line], self._config.run.choose_by).best_score()
        if score is not None and score > self._best and done.line.get("personalised"):
            self._best = score
            self._keep(rule, done.number, state)
        return False

    def _keep(self, rule: Rule, number: int, state: Mapping[str, np.ndarray]) -> None:
        best, new = self._folder.path / BEST, self._folder.path / f".{BEST}"
        shutil.rmtree(new, ignore_errors=True)
        private_folder(new)
        places = replace(self._config.run, state_dir=str(best / "state"), run_name="", resume=False)
        kept = RunFolder.copied(new, self._folder, replace(self._config, run=places), number, state)
        for client in rule.participants:
            key, trained = kept.personal_place(client.id, state)
            source = ClientState(self._config.run.state_dir, key, client.id).path(trained)
            if source.is_file():
                target = ClientState(str(new / "state"), key, client.id).path(trained)
                private_folder(target.parent)
                _link(source, target)
        kept.finish(rule, summary(kept))
        if best.is_dir():
            shutil.rmtree(best)
        new.rename(best)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # on another disk
        shutil.copyfile(source, target)


def best_round(config: Config, folder: RunFolder) -> list[Listener]:
    """Return the listener of a run."""
    return [BestRound(config, folder)]
