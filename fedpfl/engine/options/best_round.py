"""Keeps the models of the round that is best on the validation samples."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np

from ...client.state import ClientState
from ...core.files import private_folder, write_atomically
from ...results.export import CLIENTS, stored_rule
from ...results.history import History
from ...results.resumed_run import BEST, ResumedRun
from ...results.round_record import Round
from ...results.run_folder import RunFolder
from ...results.summary import summary
from ...rules import Rule
from ...setup.config import Config
from ..listener import Listener

logger = getLogger("flwr")


class BestRound(Listener):
    """Makes RUN/best the folder of a run that ended with the best round; it grows in a new one, which then replaces it.

    Clients' arrays on this machine are in it; those of devices stay there. A round reads what is new of the run's
    metrics, not all; so the summary has its numbers only when the run ends.
    """

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self._config, self._folder = config, folder
        self._line: dict[str, Any] | None = None  # of the best round so far
        self._told = False
        self._best = folder.path / BEST
        self._new, self._before = folder.path / f".{BEST}", folder.path / f".{BEST}-before"
        # The lines of the best round before: those of the next one begin with them.
        self._lines = folder.path / f".{BEST}.jsonl"

    def run_started(self, folder: RunFolder, remarks: Sequence[str]) -> None:
        """Know the best round so far of a run that is resumed; put right what an interruption has left."""
        self._lines.unlink(missing_ok=True)
        self._tidy()
        if self._best.is_dir():
            self._line = RunFolder(self._best).history().best_validated()
        if folder.resumable:  # the last round may have been stored, and not yet kept
            last, state, _ = ResumedRun(folder.path).last_intact(self._config.run.state_dir)
            if self._is_best(folder.history().lines[last - 1]):
                self._keep(stored_rule(folder.parsed(), folder.described(), state), last, state)

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Keep the round if it is the best, the first of several."""
        if self._is_best(done.line):
            self._keep(rule, done.number, state)
        elif (
            not self._told
            and all(map(done.line.get, ("validation", "personalised")))
            and History([done.line], self._config.run.choose_by).best_validated() is None
        ):
            self._told = True
            text = (
                "fedpfl: choose-by = %s is defined for no client's validation samples in round %d: it chooses no round"
            )
            logger.log(WARNING, text, self._config.run.choose_by, done.number)
        return False

    def _is_best(self, line: dict[str, Any]) -> bool:
        """Tell whether a round is better than the best so far, as :class:`History` chooses from them."""
        both = [line] if self._line is None else [self._line, line]
        if History(both, self._config.run.choose_by).best_validated() is not line:
            return False
        self._line = line
        return True

    def run_ended(self, reason: str) -> None:
        """Write the best round's summary, with all numbers."""
        self._lines.unlink(missing_ok=True)
        if not reason and self._best.is_dir():
            write_atomically(self._best / "summary.md", summary(RunFolder(self._best)).encode())

    def _keep(self, rule: Rule, number: int, state: Mapping[str, np.ndarray]) -> None:
        try:
            self._write(rule, number, state)
            if self._best.is_dir():
                self._best.rename(self._before)
            self._new.rename(self._best)
            if self._before.is_dir():
                (self._before / "metrics.jsonl").rename(self._lines)
                shutil.rmtree(self._before)
        except BaseException:
            self._tidy()
            raise

    def _tidy(self) -> None:
        """Put the best round before back where no newer one is in its place; remove what is half-written."""
        if self._before.is_dir() and not self._best.is_dir():
            self._before.rename(self._best)
        for left in (self._new, self._before):
            shutil.rmtree(left, ignore_errors=True)

    def _write(self, rule: Rule, number: int, state: Mapping[str, np.ndarray]) -> None:
        private_folder(self._new)
        places = replace(self._config.run, state_dir=str(self._best / "state"), run_name="", resume=False)
        config = replace(self._config, run=places)
        kept = ResumedRun.copied(self._new, self._folder, config, number, state, self._lines)
        if (self._folder.path / CLIENTS).is_file():
            _link(self._folder.path / CLIENTS, self._new / CLIENTS)
        for client in rule.participants:
            key, trained = kept.task()["state_key"], int(state["personal_round"][client.id])
            source = ClientState(self._config.run.state_dir, key, client.id).path(trained)
            if source.is_file():
                target = ClientState(str(self._new / "state"), key, client.id).path(trained)
                private_folder(target.parent)
                _link(source, target)
        kept.finish(rule, f"# {BEST}\n\nThe best round so far: {number}. Its numbers come when the run ends.\n")


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # on another disk
        shutil.copyfile(source, target)
