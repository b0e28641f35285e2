"""A run on the server: find the clients, agree on the task, run the rounds, write the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, getLogger
from typing import Any

import numpy as np

from ..core.errors import FedpflError
from ..core.option import TaskFacts
from ..core.server_view import new_clients
from ..core.stored import write_arrays
from ..results.export import CLIENTS
from ..results.history import Patience
from ..results.record import Round
from ..results.run_folder import RunFolder
from ..rules import Rule
from ..setup.assembly import extras_of, make_rule
from ..setup.config import Config
from . import options
from .agreement import Agreement, agree
from .listener import Listener, Server
from .rounds import RoundLoop
from .transport import Transport

logger = getLogger("flwr")


class Beginning:
    """How a run begins: at round 1. One that goes on where another ended begins as ``going_on.py`` says."""

    finished = 0  # the round after which it goes on
    task_before: Mapping[str, Any] | None = None  # of a run that this one continues

    def __init__(self, config: Config) -> None:
        self.config, self.folder = config, RunFolder.create(config)

    def open(self) -> None:
        """Read what there is of an earlier run, once nobody else uses the folder."""

    def take_task(self, agreed: Agreement, transport: Transport, remarks: Sequence[str]) -> None:
        """Record the task on which the clients have agreed, or compare it with that of before."""
        self.describe(agreed, transport, remarks)

    def describe(self, agreed: Agreement, transport: Transport, remarks: Sequence[str], **more: Any) -> None:
        """Record the task of a new run."""
        config = self.config
        samples = [(client.train_samples, client.test_samples) for client in agreed.clients]
        known = {"names": agreed.names, "models": agreed.models, "changed": _changed(config)}
        remarks = [*_remarks(config, agreed, transport.real), *remarks]
        self.folder.describe(
            agreed.input_shape, agreed.classes, remarks, agreed.vocabulary, agreed.division,
            transport.identities(), samples=samples, threads=agreed.threads,
            **transport.about_data(), **{key: found for key, found in known.items() if found}, **more,
        )  # fmt: skip
        if arrays := transport.about_clients():
            write_arrays(self.folder.path / CLIENTS, arrays)

    def prepare(self, loop: RoundLoop) -> None:
        """Give the loop the state from which the first round starts; it has that of round 1."""


def _changed(config: Config) -> list[str]:
    """Return the settings that are not those of a run of which only the method is given."""
    defaults = Config.parse({"method": config.run.method}).flat()
    return [key for key, value in config.flat().items() if key == "method" or value != defaults.get(key)]


class Recorder(Listener):
    """Appends each round to ``metrics.jsonl``, writes the checkpoint, and ends a run that no longer improves."""

    def __init__(self, folder: RunFolder, patience: int, by: str) -> None:
        self.folder, self._read_before = folder, False
        self._patience = Patience(patience, by) if patience else None

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Record the round."""
        done.line = self.folder.record(done, state)
        if self._patience is None:
            return False
        # A resumed run has rounds before this one.
        for line in [done.line] if self._read_before else self.folder.metrics():
            self._patience.add(line)
        self._read_before = True
        return self._patience.over


def run_federation(
    transport: Transport, config: Config, listeners: Sequence[Listener] = (), remarks: Sequence[str] = ()
) -> RunFolder:
    """Run a federation from the first message to the summary, or what an option has in its place.

    ``listeners`` follow the run after the package's own.

    ``remarks`` are for users before round 1, in addition to those on settings and clients.
    """
    if (done := options.instead_of_rounds(transport, config)) is not None:
        return done
    goes_on = config.run.resume or config.run.continue_from
    from fedpfl.engine.going_on import beginning as _beginning

    beginning: Beginning = (_beginning if goes_on else Beginning)(config)
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
    attendance = options.attendance(config, folder, transport)
    task = folder.task()
    found = transport.find_clients(config, task["state_key"], task.get("identities"), beginning.task_before)
    agreed = agree(config, attendance.present_at_start(found))
    beginning.take_task(agreed, transport, [*remarks, *agreed.remarks])
    task = folder.task()
    rule = make_rule(config, agreed.clients, agreed.sharing)
    attendance.take_rule(rule)
    server = Server(config, folder, agreed, rule, extras_of(config, agreed.model, agreed.sharing))
    listeners = [
        *options.listeners_of(server),
        Recorder(folder, config.run.early_stop, config.run.choose_by),
        *following,
    ]
    for listener in listeners:
        listener.run_started(folder, task.get("remarks", []))
    kind = config.training.kind
    loop = options.loop(config)(
        rule, config.run, task["state_key"], server.extras, listeners, counted=kind.counted,
        several=not kind.classes, continued=task.get("continued", {}).get("personal", ()), attendance=attendance,
        own_loss=config.training.has_own_loss,
    )  # fmt: skip
    beginning.prepare(loop)
    # A run that was interrupted after its last round, before it had written its results, has nothing left to train.
    if not folder.stalled(config.run.early_stop):
        loop.run(transport, first_round=beginning.finished + 1)
    from fedpfl.results.summary import summary

    folder.finish(rule, summary(folder))


def _remarks(config: Config, agreed: Agreement, real: bool) -> list[str]:
    """Return what a user should know of the settings before round 1."""
    total = len(agreed.classes)
    clients = total - len(new_clients(config.run.seed, config.run.new_clients, total))
    own = config.method.remarks(agreed.model, clients, config.run.num_server_rounds)
    asked = config.run.asked(clients)
    if unkept := getattr(agreed.model, "unkept", ()):
        own = [*own, f"the model changes {', '.join(unkept)} as it trains, which no state dict has: each client's turn "
                     "begins with what the model was built with; a persistent buffer is kept"]  # fmt: skip
    return [*own, *config.remarks(TaskFacts(agreed.model, asked, agreed.sharing.layout.size, real))]
