"""A run on the server: find the clients, agree on the task, run the rounds, write the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ConfigError, FedpflError
from ..core.extras import SERVER, Extras
from ..core.federation import Client, new_clients
from ..core.payload import Payload
from ..models import remarks as model_remarks
from ..results.run import RunFolder
from ..results.summary import summary
from ..rules import Rule
from ..setup.assembly import extras_of, make_rule, mean_model_layout
from ..setup.config import Config, idle, scored, untuned
from ..training.losses import MSE
from .after_the_end import personalise, wait_for_missed
from .agreement import Agreement, agree, agree_with
from .attendance import SILENT, Attendance, Recorded
from .buffered import STATE, BufferedLoop
from .clock import CLOCK_STATE, Clock
from .devices import KEY, read_bench
from .listener import Listener
from .listeners.diagnostics import Diagnostics
from .listeners.mean_model import MeanModel
from .listeners.named import named_listeners
from .listeners.norm_limit import NormLimit
from .listeners.privacy import ServerPrivacy
from .listeners.recorder import Recorder
from .listeners.trackers import trackers
from .rounds import RoundLoop
from .transport import Transport

logger = getLogger("flwr")

# Clients whose numbers of samples a remark tells.
MAX_NAMED = 5


def run_federation(
    transport: Transport, config: Config, listeners: Sequence[Listener] = (), remarks: Sequence[str] = ()
) -> RunFolder:
    """Run a federation from the first message to the summary; with ``personalise``, do what follows a run's end.

    ``listeners`` follow the run after the package's own.

    ``remarks`` are for users before round 1, in addition to those on settings and clients.
    """
    if config.run.after_the_end:
        return personalise(transport, config)
    earlier = None if config.run.resume else RunFolder.continued(config)
    folder = RunFolder.reopen(config) if config.run.resume else RunFolder.create(config)
    with folder.exclusive():
        reason, following = "the run was interrupted", list[Listener]()
        try:
            following += [*trackers(config, folder), *named_listeners(config.run), *listeners]
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
    if config.run.devices_model and transport.real:
        raise ConfigError(KEY, config.run.devices_model, "must be empty where real devices set the pace")
    task, before = folder.task(), None if earlier is None else earlier.task()
    recorded = Recorded.of(config.run, folder.path.parent) if config.run.replay else None
    found = transport.find_clients(config, task["state_key"], task.get("identities"), before)
    later = {client: found.pop(client) for client in recorded.absent & found.keys()} if recorded else {}
    agreed = agree(config, found)
    if config.run.resume:
        folder.require_task(agreed.input_shape, agreed.classes, agreed.division, names=agreed.names)
        folder.require_models({client: agreed.models.get(str(client), "") for client in agreed.descriptions})
        folder.add_identities(transport.identities())
    else:
        samples = [(client.train_samples, client.test_samples) for client in agreed.clients]
        remarks = [*_remarks(config, agreed), *idle(config, transport.real), *remarks, *agreed.remarks]
        more: dict[str, Any] = {"samples": samples, "threads": agreed.threads}
        if agreed.names:
            more["names"] = agreed.names
        if agreed.models:
            more["models"] = agreed.models
        if earlier is not None:
            earlier.require_task(agreed.input_shape, agreed.classes, run="the run to continue", names=agreed.names)
            remarks.append(_grown(earlier, about, samples))
            more["continued"] = about
        identities = transport.identities()
        folder.describe(
            agreed.input_shape, agreed.classes, remarks, agreed.vocabulary, agreed.division, identities, **more,
            **transport.about_data(),
        )  # fmt: skip
    task = folder.task()
    rule = make_rule(config, agreed.clients, agreed.sharing)
    extras = extras_of(config, agreed.model, agreed.sharing)
    listeners = [*_listeners(config, folder, agreed, rule, extras), *following]
    remarks, continued = task.get("remarks", []), task.get("continued", {})
    for listener in listeners:
        listener.run_started(folder, remarks)
    kind = config.training.kind
    loop = (BufferedLoop if config.run.schedule == "buffered" else RoundLoop)(
        rule, config.run, task["state_key"], extras, listeners,
        counted=config.training.loss != MSE, several=not kind.classes, continued=continued.get("personal", ()),
        attendance=Attendance(
            config.run, partial(_admit, config, folder, transport), recorded, later, _clock(config, agreed, rule),
        ),
    )  # fmt: skip
    del agreed  # its model is not needed any more
    if state is not None:
        loop.load_state(state)
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
    wait_for_missed(transport, config, folder, rule, extras)


def _clock(config: Config, agreed: Agreement, rule: Rule) -> Clock | None:
    """Return the clock of the devices that ``devices-model`` describes; None without."""
    if not config.run.devices_model:
        return None
    size = rule.layout.size * np.dtype(config.run.wire_dtype).itemsize
    return Clock(read_bench(config, agreed.input_shape), config.training, size, size if rule.takes_shared else 0)


def _admit(config: Config, folder: RunFolder, transport: Transport, client: int, description: Payload) -> Client | None:
    """Return a client that was absent, and store that it takes part; None if it does not fit the run's task."""
    task, said = folder.described(), int(description.config["num-classes"])
    try:
        if said > task["num_classes"]:
            raise FedpflError(f"client {client} has {said} classes, the run was started for {task['num_classes']}")
        agreed = agree_with(config, {client: description}, task)
    except FedpflError as error:
        logger.log(WARNING, "fedpfl: client %d cannot join: %s", client, error)
        return None
    joined = agreed.clients[client]
    logger.log(INFO, "fedpfl: client %d joins, with %d training samples", client, joined.train_samples)
    folder.add_client(joined, agreed.models.get(str(client), ""))
    folder.add_identities(transport.identities())
    return joined


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
            stored, about, remarks = source.to_continue(config.run.state_dir)
        # Who was silent or still trained then is nothing to a new run.
        state = {name: array for name, array in stored.items() if name not in (SILENT, *STATE, *CLOCK_STATE)}
    else:
        finished, state, remarks = source.last_intact(config.run.state_dir)
    for remark in remarks:
        logger.log(WARNING, "fedpfl: %s", remark)
    return finished, state, about


def _grown(earlier: RunFolder, continued: Mapping[str, Any], samples: Sequence[tuple[int, int]]) -> str:
    """Tell which run is continued, and whose numbers of training samples are others than in that run."""
    what = f"continues {earlier.path.name} after its round {continued['round']}"
    if not earlier.finished:
        what += f" of {earlier.config()['num-server-rounds']}; it is not finished"
    before = [train for train, _ in continued["samples"]]
    if not before:
        return f"{what}; how many samples its clients had was not stored"
    now = [train for train, _ in samples]
    others = [f"client {i} {a} → {b}" for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    more = f" and {len(others) - MAX_NAMED} more clients" if len(others) > MAX_NAMED else ""
    which = f" ({', '.join(others[:MAX_NAMED])}{more})" if others else ""
    return f"{what}; training samples: {sum(before)} before, {sum(now)} now{which}"


def _remarks(config: Config, agreed: Agreement) -> list[str]:
    """Return what a user should know of the settings before round 1."""
    total, shared = len(agreed.classes), agreed.sharing.layout.size
    clients = total - len(new_clients(config.run.seed, config.run.new_clients, total))
    return [
        *model_remarks(agreed.model),
        *config.method.remarks(agreed.model, clients, config.run.num_server_rounds),
        *config.server.remarks(shared),
        *config.robust.remarks(config.run.asked(clients), shared),
        *untuned(config),
        *scored(config),
    ]


def _listeners(config: Config, folder: RunFolder, agreed: Agreement, rule: Rule, extras: Extras) -> list[Listener]:
    """Return the package's own listeners, in the order in which they are called."""
    found: list[Listener] = [NormLimit(config.robust.update_norm_limit, extras, config.privacy, config.run.wire_dtype)]
    if config.privacy.on:
        found.append(_privacy(config, rule, folder.task()["state_key"]))
    personal = mean_model_layout(config, agreed.model, agreed.sharing)
    if personal.size:
        _require_mean_model(config, rule, agreed.classes)
        found.append(MeanModel(personal, config.run.evaluates_after, config.run.test_at == "start"))
    if config.run.diagnostics:
        found.append(Diagnostics())
    return [*found, Recorder(folder, config.run.early_stop)]


def _privacy(config: Config, rule: Rule, state_key: str) -> ServerPrivacy:
    """Set up differential privacy; refuse a rule that computes more of clients' arrays than a sum with noise."""
    if config.privacy.dp_where == "server" and not rule.only_a_sum:
        allowed = f"the server's rule of {config.method.name} is more than a mean of updates; use client"
        raise ConfigError("dp-where", "server", allowed)
    folder = Path(config.run.state_dir).expanduser() / state_key / "server"
    sends_more = any(extra.goes(SERVER) for extra in config.method.extras)
    return ServerPrivacy(config.privacy, rule.clients, config.run.seed, folder, config.run.wire_dtype, sends_more)


def _require_mean_model(config: Config, rule: Rule, classes: Sequence[int]) -> None:
    """Refuse ``evaluate-global`` where clients' models have no mean."""
    if not rule.one_model:
        allowed = f"{config.method.name} has no mean: each client gets different arrays"
        raise ConfigError("evaluate-global", True, allowed)
    if len(set(classes)) > 1:
        raise ConfigError("evaluate-global", True, "clients with different numbers of classes have no mean model")
