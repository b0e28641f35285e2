"""A run on the server: find the clients, agree on the task, run the rounds, write the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING, getLogger

import numpy as np

from ..core.errors import FedpflError
from ..core.metrics import CLASSES
from ..methods.base import Method
from ..results.history import Patience
from ..results.round_line import in_words
from ..results.round_record import Round
from ..results.run_folder import RunFolder
from ..results.summary import summary
from ..rules import Rule
from ..setup.assembly import extras_of, make_rule
from ..setup.config import Config
from . import options
from .agreement import agree
from .beginning import Beginning, beginning_of
from .listener import Listener, Server
from .rounds import RoundLoop
from .transport import Transport

logger = getLogger("flwr")


class Recorder(Listener):
    """Appends each round to ``metrics.jsonl``, writes the checkpoint, and ends a run that no longer improves."""

    def __init__(self, folder: RunFolder, patience: int, by: str) -> None:
        self.folder, self._read_before = folder, False
        self.trained = False  # whether a client has, in a round of this process
        self._patience = Patience(patience, by) if patience else None

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Record the round."""
        done.line = self.folder.record(done, state)
        self.trained |= done.line["train_loss"] is not None
        if self._patience is None:
            return False
        # A resumed run has rounds before this one.
        for line in [done.line] if self._read_before else self.folder.metrics():
            self._patience.add(line)
        self._read_before = True
        return self._patience.over


class Log(Listener):
    """Logs remarks and rounds where no terminal shows them: ``flwr log`` is what a user of Flower sees."""

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


def run_federation(
    transport: Transport, config: Config, listeners: Sequence[Listener] = (), remarks: Sequence[str] = ()
) -> RunFolder:
    """Run from the first message to the summary; ``listeners`` follow the package's own, ``remarks`` are for users."""
    if (done := options.instead_of_rounds(transport, config)) is not None:
        return done
    beginning = beginning_of(config)
    folder = beginning.folder
    with folder.exclusive():
        reason, following = "the run was interrupted", list[Listener]()
        try:
            following += [*options.followers(config, folder), *listeners]
            _run(transport, config, beginning, following, remarks)
            reason = ""
        except Exception as error:  # of any kind: the folder records that the run failed, and the error is raised again
            reason = str(error) if isinstance(error, (FedpflError, OSError)) else f"{type(error).__name__}: {error}"
            folder.fail(reason)
            raise
        finally:
            for listener in following:
                listener.run_ended(reason)
    return folder


def _run(
    transport: Transport, config: Config, beginning: Beginning, following: Sequence[Listener], remarks: Sequence[str]
) -> None:
    folder = beginning.folder
    logger.log(INFO, "fedpfl: %s on %s, results in %s", config.run.method, config.data.dataset, folder.path)
    beginning.open()
    sampling = options.sampling(config, folder, transport)
    task = folder.task()
    answers = transport.find_clients(config, task["state_key"], task.get("identities"))
    agreed = agree(config, answers)
    beginning.take_task(agreed, transport, [*remarks, *agreed.remarks])
    task = folder.task()
    rule = make_rule(config, agreed.clients, agreed.sharing, agreed.layouts)
    server = Server(config, folder, agreed, rule, extras_of(config, agreed.model, agreed.sharing))
    recorder = Recorder(folder, config.run.early_stop, config.run.choose_by)
    listeners = [*options.listeners_of(server), recorder, *following]
    for listener in listeners:
        listener.run_started(folder, task.get("remarks", []))
    kind = config.training.kind
    loop = RoundLoop(
        rule, config.run, task["state_key"], server.extras, listeners, counted=kind.counted,
        several=not kind.classes, sampling=sampling,
        own_loss=config.training.has_own_loss,
    )  # fmt: skip
    beginning.prepare(loop)
    del server, agreed  # with the model that was agreed on, unless a listener needs it
    # A run that was interrupted after its last round, before it had written its results, has nothing left to train.
    if not folder.stalled(config.run.early_stop):
        loop.run(transport, first_round=beginning.finished + 1)
    if not recorder.trained:
        _require_trained(config.method, folder)
    folder.finish(rule, summary(folder))


def _require_trained(method: Method, folder: RunFolder) -> None:
    """Refuse to end well if no phase of any client has trained; of a method's other hooks nobody knows what they do."""
    hooks = (type(method).prepare is Method.prepare, type(method).conclude is Method.conclude)
    if all(hooks) and all(line["train_loss"] is None for line in folder.metrics()):
        raise FedpflError(f"no client has trained in any round: {method.name}.schedule lists no phase with epochs")
