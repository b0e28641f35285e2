"""The server's side of a run: find the clients, agree on the task, run the rounds, write the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.serverapp import Grid

from ..core.errors import ConfigError, FedpflError, LayoutError
from ..core.extras import SERVER
from ..core.federation import Client, new_clients
from ..core.layout import Layout
from ..core.payload import Payload
from ..core.settings import Value
from ..core.sharing import Sharing
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
from ..strategies.privacy import ServerPrivacy
from ..training.losses import MSE
from ..transports import Transport
from ..transports.flower import FlowerTransport

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
    transport = grid if isinstance(grid, Transport) else FlowerTransport(grid, config.run, folder.task()["state_key"])
    descriptions = transport.find_clients(config)
    shape, classes, vocabulary = _task(descriptions)
    division = _division(descriptions)
    model, sharing = assemble(config, shape, max(classes), vocabulary=vocabulary)
    if config.run.resume:
        folder.require_task(shape, classes, division)
    else:
        clients = len(descriptions) - len(new_clients(config.run.seed, config.run.new_clients, len(descriptions)))
        remarks = [
            *config.method.remarks(model, clients, config.run.num_server_rounds),
            *config.server.remarks(sharing.layout.size), *untuned(config), *scored(config),
            *unused(run_config, config.method.name), *_remarks(descriptions),
        ]  # fmt: skip
        folder.describe(shape, classes, remarks, vocabulary, division)
    remarks = folder.task().get("remarks", [])
    if watch is not None:
        watch.described(remarks)
    else:
        for remark in remarks:
            logger.log(WARNING, "fedpfl: %s", remark)
    rule = make_rule(config, _clients(descriptions, sharing), sharing)
    state_key = folder.task()["state_key"]
    companions: list[Companion] = []
    if config.privacy.on:
        companions.append(_privacy(config, rule, state_key))
    personal = mean_model_layout(config, model, sharing)
    if personal.size:
        companions.append(_mean_model(config, rule, personal, classes))
    if config.run.diagnostics:
        companions.append(Diagnostics())
    companions.append(_Recorder(folder, watch, config.run.num_server_rounds, config.run.early_stop, tracked))
    extras, counted = extras_of(config, model, sharing), config.training.loss != MSE
    strategy = PersonalisedStrategy(rule, config.run, state_key, extras, companions, counted)
    first_round = 1
    if config.run.resume:
        finished, state = folder.checkpoint()
        strategy.load_state(state)
        folder.forget_after(finished)
        first_round = finished + 1
        folder.go_on(config)
    # A run that was interrupted after its last round, before it had written its results, has nothing left to train.
    if not folder.history().stalled(config.run.early_stop):
        strategy.start(transport, first_round=first_round)
    folder.finish(rule, summary(folder))


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
        return self.folder.history().stalled(self.patience)


def _division(descriptions: Mapping[int, Payload]) -> int | None:
    """Return the checksum of how common data are divided; None where a client has data of its own.

    Raises
    ------
    FedpflError
        Clients' processes divide the common data differently: some samples would be trained on twice.
    """
    clients: dict[int, list[int]] = {}
    for description in descriptions.values():
        if "division" in description.config:
            clients.setdefault(int(description.config["division"]), []).append(int(description.config["client"]))
    if len(clients) > 1:
        groups = " and ".join(f"clients {same}" for same in sorted(map(sorted, clients.values())))
        raise FedpflError(f"{groups} divide the data differently: other versions of NumPy or of the data set?")
    common = all("division" in description.config for description in descriptions.values())
    return next(iter(clients)) if common else None


def _remarks(descriptions: Mapping[int, Payload]) -> list[str]:
    """Return what clients say of common data, each remark once."""
    said = (str(description.config.get("remarks", "")).splitlines() for description in descriptions.values())
    return list(dict.fromkeys(line for lines in said for line in lines))


def _task(descriptions: Mapping[int, Payload]) -> tuple[tuple[int, ...], list[int], int]:
    """Return input shape and vocabulary, which all clients have in common, and each one's classes, in client order.

    Numbers of classes may differ where the method keeps on the client whatever depends on them: the layouts are then
    the same all the same.

    Returns
    -------
    input_shape : tuple of int
    classes : list of int
    vocabulary : int
        Number of different tokens of texts, else 0.
    """
    found = sorted(descriptions.values(), key=lambda description: int(description.config["client"]))
    inputs = [(str(d.config["input-shape"]), int(d.config.get("vocabulary", 0))) for d in found]
    classes, layouts = [int(d.config["num-classes"]) for d in found], {str(d.config["layout"]) for d in found}
    tasks = set(zip(inputs, classes, strict=True))
    if len(set(inputs)) > 1 or (len(tasks) > 1 and len(layouts) > 1):
        described = ", ".join(
            f"{shape}{f' of {tokens} tokens' * bool(tokens)} with {count} classes"
            for (shape, tokens), count in sorted(tasks)
        )
        raise FedpflError(f"the clients' data do not fit together: {described}")
    shape, vocabulary = inputs[0]
    return tuple(int(n) for n in shape.split("x")), classes, vocabulary


def _clients(descriptions: Mapping[int, Payload], sharing: Sharing) -> list[Client]:
    """Return the clients as they described themselves.

    Raises
    ------
    LayoutError
        One of them has another model.
    """
    clients, layout = [], sharing.layout.to_text()
    for client, description in descriptions.items():
        try:
            if description.config["layout"] != layout:
                sharing.layout.require(Layout.from_text(str(description.config["layout"])))
        except LayoutError as error:
            raise LayoutError(f"client {client} has another model: {error}") from error
        metrics = description.metrics
        clients.append(Client(client, int(metrics["train-samples"]), int(metrics["test-samples"])))
    return clients


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
