"""A run on the server: find the clients, agree on the task, run the rounds, write the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING, getLogger
from typing import Any

import numpy as np

from ..core.errors import FedpflError
from ..core.option import TaskFacts
from ..core.option import part as imported
from ..core.server_view import new_clients
from ..results.run_folder import RunFolder
from ..results.summary import summary
from ..setup.assembly import extras_of, make_rule
from ..setup.config import Config
from .agreement import Agreement, agree
from .attendance import Attendance
from .listener import Listener, Server
from .recorder import Recorder
from .rounds import RoundLoop
from .transport import Transport

logger = getLogger("flwr")


def run_federation(
    transport: Transport, config: Config, listeners: Sequence[Listener] = (), remarks: Sequence[str] = ()
) -> RunFolder:
    """Run a federation from the first message to the summary, or what an option has in its place.

    ``listeners`` follow the run after the package's own.

    ``remarks`` are for users before round 1, in addition to those on settings and clients.
    """
    if instead := config.last("instead", None):
        done: RunFolder = instead(transport, config)
        return done
    earlier = None if config.run.resume else RunFolder.continued(config)
    folder = RunFolder.reopen(config) if config.run.resume else RunFolder.create(config)
    with folder.exclusive():
        reason, following = "the run was interrupted", list[Listener]()
        try:
            followers = [listener for part in config.parts("follower") for listener in part(config, folder)]
            following += [*followers, *listeners]
            _run(transport, config, folder, following, remarks, earlier)
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
    transport: Transport,
    config: Config,
    folder: RunFolder,
    following: Sequence[Listener],
    remarks: Sequence[str],
    earlier: RunFolder | None,
) -> None:
    logger.log(INFO, "fedpfl: %s on %s, results in %s", config.run.method, config.data.dataset, folder.path)
    finished, state, about = _start(folder, config, earlier)
    attendance = config.last("attendance", _usual)(config, folder, transport)
    task, before = folder.task(), None if earlier is None else earlier.task()
    found = transport.find_clients(config, task["state_key"], task.get("identities"), before)
    agreed = agree(config, attendance.present_at_start(found))
    if config.run.resume:
        folder.require_task(agreed.input_shape, agreed.classes, agreed.division, names=agreed.names)
        folder.require_models({client: agreed.models.get(str(client), "") for client in agreed.descriptions})
        folder.add_identities(transport.identities())
    else:
        samples = [(client.train_samples, client.test_samples) for client in agreed.clients]
        remarks = [*_remarks(config, agreed, transport.real), *remarks, *agreed.remarks]
        more: dict[str, Any] = {"samples": samples, "threads": agreed.threads, **transport.about_data()}
        if agreed.names:
            more["names"] = agreed.names
        if agreed.models:
            more["models"] = agreed.models
        if earlier is not None:
            carry_over = imported("fedpfl.engine.continued:carry_over")
            names = more.get("client_names", ())
            state, more["continued"], remark = carry_over(earlier, folder, config, agreed, names, state or {}, about)
            remarks.append(remark)
        identities = transport.identities()
        folder.describe(
            agreed.input_shape, agreed.classes, remarks, agreed.vocabulary, agreed.division, identities, **more
        )
    task = folder.task()
    rule = make_rule(config, agreed.clients, agreed.sharing)
    attendance.take_rule(rule)
    server = Server(config, folder, agreed, rule, extras_of(config, agreed.model, agreed.sharing))
    own = [listener for part in config.parts("listener") if (listener := part(server)) is not None]
    listeners = [*own, Recorder(folder, config.run.early_stop, config.run.choose_by), *following]
    remarks, continued = task.get("remarks", []), task.get("continued", {})
    for listener in listeners:
        listener.run_started(folder, remarks)
    kind = config.training.kind
    make = part(config) if (part := config.last("loop", None)) else RoundLoop
    loop = make(
        rule, config.run, task["state_key"], server.extras, listeners, counted=kind.counted,
        several=not kind.classes, continued=continued.get("personal", ()), attendance=attendance,
    )  # fmt: skip
    if state is not None:
        (loop.load_state if config.run.resume else loop.take_over)(state)
    if config.run.resume:
        folder.drop_after(finished)
        rounds = folder.config()["num-server-rounds"]
        if config.training.learning_rate_schedule == "cosine" and rounds != config.run.num_server_rounds:
            words = "fedpfl: the cosine schedule now ends after %d rounds: the rates of the first ones were for %d"
            logger.log(WARNING, words, config.run.num_server_rounds, rounds)
        folder.mark_resumed(config)
    # A run that was interrupted after its last round, before it had written its results, has nothing left to train.
    if not folder.stalled(config.run.early_stop):
        loop.run(transport, first_round=finished + 1)
    folder.finish(rule, summary(folder))
    for afterwards in config.parts("afterwards"):
        afterwards(transport, server)


def _usual(config: Config, folder: RunFolder, transport: Transport) -> Attendance:
    return Attendance(config.run)


def _start(
    folder: RunFolder, config: Config, earlier: RunFolder | None
) -> tuple[int, Mapping[str, np.ndarray] | None, dict[str, Any]]:
    """Return the round after which a run goes on, the state after it, and what there is to say of an earlier run."""
    source = folder if config.run.resume else earlier
    if source is None:
        return 0, None, {}
    if not source.has_checksums:
        logger.log(WARNING, "fedpfl: %s was started without checksums: its files are not checked", source.path)
    finished, about = 0, dict[str, Any]()
    state: Mapping[str, np.ndarray]
    if source is earlier:
        with source.exclusive():
            state, about, remarks = source.to_continue(config.run.state_dir)
    else:
        finished, state, remarks = source.last_intact(config.run.state_dir)
    for remark in [*(f"{source.path.name}: {change}" for change in source.changes()), *remarks]:
        logger.log(WARNING, "fedpfl: %s", remark)
    return finished, state, about


def _remarks(config: Config, agreed: Agreement, real: bool) -> list[str]:
    """Return what a user should know of the settings before round 1."""
    total = len(agreed.classes)
    clients = total - len(new_clients(config.run.seed, config.run.new_clients, total))
    own = config.method.remarks(agreed.model, clients, config.run.num_server_rounds)
    asked = config.run.asked(clients)
    return [*own, *config.remarks(TaskFacts(agreed.model, asked, agreed.sharing.layout.size, real))]
