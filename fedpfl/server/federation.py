"""The server's side of a run: find the clients, agree on the task, run the rounds, write the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.serverapp import Grid

from ..core.errors import ConfigError, FedpflError
from ..core.extras import SERVER
from ..core.federation import Client, new_clients
from ..core.layout import Layout
from ..core.payload import Payload
from ..core.settings import Value
from ..results.line import in_words
from ..results.record import Round
from ..results.run import RunFolder
from ..results.summary import summary
from ..results.trackers import Tracked, tracking
from ..rules import Rule
from ..setup.assembly import assemble, extras_of, make_rule, mean_model_layout
from ..setup.config import Config, scored, untuned, unused
from ..strategies import Companion, PersonalisedStrategy
from ..strategies.diagnostics import Diagnostics
from ..strategies.mean_model import MeanModel
from ..strategies.norm_limit import NormLimit
from ..strategies.privacy import ServerPrivacy
from ..training.losses import MSE
from ..transports import Transport
from ..transports.flower import FlowerTransport
from .agreement import leave_out_false_classes, leave_out_other_models, leave_out_others

logger = getLogger("flwr")


class Watch(Protocol):
    """Is told how a run goes on, in the server's process."""

    def described(self, remarks: Sequence[str]) -> None:
        """Hear that the clients are there, and what there is to know before round 1."""

    def round(self, line: dict[str, Any]) -> None:
        """Hear of a finished round, given its line of ``metrics.jsonl``."""


def run_federation(grid: Grid | Transport, run_config: Mapping[str, Value], watch: Watch | None = None) -> RunFolder:
    """Run a federation from the first message to the summary.

    Parameters
    ----------
    grid : Grid or Transport
        Flower's connection to the nodes, or another way to reach the clients.
    run_config : mapping
        The settings, as Flower hands them to the ServerApp.
    watch : Watch, optional
        Is told of the clients and of each round.

    Returns
    -------
    RunFolder
        Where the results are.

    Raises
    ------
    FedpflError
        A setting is wrong, the clients do not fit together, or a round failed.
    """
    config = Config.parse(run_config)
    folder = RunFolder.reopen(config) if config.run.resume else RunFolder.create(config)
    with folder.alone():
        try:
            with tracking(config, folder) as tracked:
                _run(grid, config, folder, run_config, watch, tracked)
        except Exception as error:  # whatever it is, it goes on its way; the folder says that the run failed
            folder.fail(str(error) if isinstance(error, (FedpflError, OSError)) else f"{type(error).__name__}: {error}")
            raise
    return folder


def _run(
    grid: Grid | Transport,
    config: Config,
    folder: RunFolder,
    run_config: Mapping[str, Value],
    watch: Watch | None,
    tracked: Tracked,
) -> None:
    logger.log(INFO, "fedpfl: %s on %s, results in %s", config.run.method, config.data.dataset, folder.path)
    finished, state = _resumed(folder, config) if config.run.resume else (0, None)
    if isinstance(grid, Transport):
        transport = grid
    else:
        task = folder.task()
        transport = FlowerTransport(grid, config.run, task["state_key"], task.get("identities"))
    found = transport.find_clients(config)
    total = int(next(iter(found.values())).config["num-clients"])
    least = config.run.enough_clients(total)
    descriptions = leave_out_others(found, least)
    shape, classes, vocabulary = _task(descriptions, total)
    model, sharing = assemble(config, shape, max(classes), vocabulary=vocabulary)
    if len(set(classes)) > 1:
        descriptions = leave_out_false_classes(descriptions, sharing.layout, least)
        if max(remaining := _task(descriptions, total)[1]) != max(classes):
            classes = remaining
            model, sharing = assemble(config, shape, max(classes), vocabulary=vocabulary)
    descriptions = leave_out_other_models(descriptions, sharing.layout, least)
    division = _division(descriptions)
    if config.run.resume:
        folder.require_task(shape, classes, division)
    else:
        clients = total - len(new_clients(config.run.seed, config.run.new_clients, total))
        remarks = [
            *config.method.remarks(model, clients, config.run.num_server_rounds),
            *config.server.remarks(sharing.layout.size),
            *config.robust.remarks(config.run.asked(clients), sharing.layout.size), *untuned(config), *scored(config),
            *unused(run_config, config.method.name), *_remarks(descriptions), *_absent(descriptions, total),
        ]  # fmt: skip
        folder.describe(shape, classes, remarks, vocabulary, division, transport.identities())
    remarks = folder.task().get("remarks", [])
    if watch is not None:
        watch.described(remarks)
    else:
        for remark in remarks:
            logger.log(WARNING, "fedpfl: %s", remark)
    rule = make_rule(config, _clients(descriptions, total), sharing)
    state_key = folder.task()["state_key"]
    extras, training = extras_of(config, model, sharing), config.training
    limit = NormLimit(config.robust.update_norm_limit, extras, config.privacy, config.run.wire_dtype)
    companions: list[Companion] = [limit]
    if config.privacy.on:
        companions.append(_privacy(config, rule, state_key))
    personal = mean_model_layout(config, model, sharing)
    if personal.size:
        companions.append(_mean_model(config, rule, personal, classes))
    if config.run.diagnostics:
        companions.append(Diagnostics())
    companions.append(_Recorder(folder, watch, config.run.num_server_rounds, config.run.early_stop, tracked))
    strategy = PersonalisedStrategy(
        rule, config.run, state_key, extras, companions, training.loss != MSE, not training.kind.classes
    )
    if state is not None:
        strategy.load_state(state)
        folder.forget_after(finished)
        folder.go_on(config)
    # A run that was interrupted after its last round, before it had written its results, has nothing left to train.
    if not folder.stalled(config.run.early_stop):
        strategy.start(transport, first_round=finished + 1)
    folder.finish(rule, summary(folder))


def _resumed(folder: RunFolder, config: Config) -> tuple[int, Mapping[str, np.ndarray]]:
    """Return the round after which a run goes on, and the state after it."""
    if not folder.has_checksums:
        logger.log(WARNING, "fedpfl: %s was begun without checksums: its files are not checked", folder.path)
    finished, state, remarks = folder.last_intact(config.run.state_dir)
    for remark in remarks:
        logger.log(WARNING, "fedpfl: %s", remark)
    return finished, state


class _Recorder(Companion):
    """Records rounds in the run's folder, then tells of them; ends a run that no longer gets better."""

    def __init__(self, folder: RunFolder, watch: Watch | None, rounds: int, patience: int, tracked: Tracked) -> None:
        self.folder = folder
        self.rounds = rounds
        self.tracked = tracked
        self.watch = watch
        self.patience = patience

    def ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Record the round."""
        line = self.folder.record(done, state)
        self.tracked.round(line)
        if self.watch is not None:
            self.watch.round(line)
        else:
            # Where the server is Flower's, `flwr log` is what its user sees.
            logger.log(INFO, "fedpfl: round %d of %d: %s", done.number, self.rounds, in_words(line))
        return self.folder.stalled(self.patience)


def _division(descriptions: Mapping[int, Payload]) -> int | None:
    """Return the checksum of how common data are divided; None where a client has data of its own."""
    divisions = {description.config.get("division") for description in descriptions.values()}
    return None if None in divisions else int(str(divisions.pop()))


def _remarks(descriptions: Mapping[int, Payload]) -> list[str]:
    """Return what clients remark on common data, each remark once."""
    said = (str(description.config.get("remarks", "")).splitlines() for description in descriptions.values())
    return list(dict.fromkeys(line for lines in said for line in lines))


def _absent(descriptions: Mapping[int, Payload], total: int) -> list[str]:
    """Return a remark that names the clients that do not take part, if there are any."""
    absent = sorted(set(range(total)) - descriptions.keys())
    return [f"clients {', '.join(map(str, absent))} of {total} do not take part in this run"] if absent else []


def _task(descriptions: Mapping[int, Payload], total: int) -> tuple[tuple[int, ...], list[int], int]:
    """Return input shape, the classes of each client in order, and the number of different tokens of texts (else 0).

    An absent client counts as one with as many classes as most others have.
    """
    one = next(iter(descriptions.values())).config
    classes = {client: int(description.config["num-classes"]) for client, description in descriptions.items()}
    usual = Counter(classes.values()).most_common(1)[0][0]
    shape = tuple(int(n) for n in str(one["input-shape"]).split("x"))
    return shape, [classes.get(client, usual) for client in range(total)], int(one.get("vocabulary", 0))


def _clients(descriptions: Mapping[int, Payload], total: int) -> list[Client]:
    """Return the clients as they described themselves, and those that are absent."""
    sizes = {i: (int(d.metrics["train-samples"]), int(d.metrics["test-samples"])) for i, d in descriptions.items()}
    return [Client(i, *sizes.get(i, (0, 0)), absent=i not in sizes) for i in range(total)]


def _privacy(config: Config, rule: Rule, state_key: str) -> ServerPrivacy:
    """Set up differential privacy; refuse a rule that computes more of clients' arrays than a sum with noise."""
    if config.privacy.dp_where == "server" and not rule.only_a_sum:
        allowed = f"the server's rule of {config.method.name} is more than a mean of updates; use client"
        raise ConfigError("dp-where", "server", allowed)
    folder = Path(config.run.state_dir).expanduser() / state_key / "server"
    besides = any(extra.goes(SERVER) for extra in config.method.extras)
    return ServerPrivacy(config.privacy, rule.clients, config.run.seed, folder, config.run.wire_dtype, besides)


def _mean_model(config: Config, rule: Rule, personal: Layout, classes: Sequence[int]) -> MeanModel:
    """Set up ``evaluate-global``; refuse clients whose models have no mean."""
    if not rule.one_model:
        allowed = f"{config.method.name} has no mean: each client gets other arrays"
        raise ConfigError("evaluate-global", True, allowed)
    if len(set(classes)) > 1:
        raise ConfigError("evaluate-global", True, "clients with different numbers of classes have no mean model")
    return MeanModel(personal, config.run.evaluates_in)
