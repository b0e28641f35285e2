"""The server's side of a run: find the clients, agree on the task, run the rounds, write the results."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING, getLogger
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid

from .assembly import assemble, mean_model_layout
from .config import Config, RunSettings, unused
from .errors import ConfigError, FedpflError, LayoutError
from .messages import from_content, to_content
from .partition import Partition
from .payload import Payload
from .results import RunFolder
from .settings import Value
from .strategies import Client, PersonalisedStrategy, strategies
from .strategies.exchange import Pace
from .strategies.mean_model import MeanModel
from .strategies.privacy import ServerPrivacy
from .wire import Layout

logger = getLogger("flwr")

# The number of nodes has to stand still for this long before the first are asked.
SETTLED_SECONDS = 0.3
# How long a round waits for nodes that appeared during the run to say which clients they are.
ASK_SECONDS = 60.0
# Classes, clients, tokens and samples are fewer than this; larger numbers are no descriptions.
MOST = 10_000_000
MOST_CHARACTERS = 2_000


def run_federation(grid: Grid, run_config: Mapping[str, Value]) -> RunFolder:
    """Run a federation from the first message to the summary.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    run_config : mapping
        The settings, as Flower hands them to the ServerApp.

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
            _run(grid, config, folder, run_config)
        except Exception as error:  # whatever it is, it goes on its way; the folder says that the run failed
            folder.fail(str(error) if isinstance(error, (FedpflError, OSError)) else f"{type(error).__name__}: {error}")
            raise
    return folder


def _run(grid: Grid, config: Config, folder: RunFolder, run_config: Mapping[str, Value]) -> None:
    logger.log(INFO, "fedpfl: %s on %s, results in %s", config.run.method, config.data.dataset, folder.path)
    descriptions = _find_clients(grid, config)
    shape, classes, vocabulary = _task(descriptions)
    division = _division(descriptions)
    model, partition = assemble(config, shape, max(classes), vocabulary=vocabulary)
    if config.run.resume:
        folder.require_task(shape, classes, division)
    else:
        remarks = [*config.method.remarks(model), *unused(run_config, config.method.name), *_remarks(descriptions)]
        folder.describe(shape, classes, remarks, vocabulary, division)
    for remark in folder.task().get("remarks", []):
        logger.log(WARNING, "fedpfl: %s", remark)
    strategy = _strategy(config, descriptions, folder.task()["state_key"], partition)
    strategy.recorder = folder
    if config.privacy.on:
        strategy.privacy = _privacy(config, strategy)
    personal = mean_model_layout(config, model, partition)
    if personal.size:
        if not strategy.one_model:
            raise ConfigError(
                "evaluate-global", True, f"{config.run.method} has no mean: each client gets other arrays"
            )
        if len(set(classes)) > 1:
            raise ConfigError("evaluate-global", True, "clients with different numbers of classes have no mean model")
        strategy.mean_model = MeanModel(personal, config.run.wire_dtype)
    strategy.ask = lambda grid, nodes: _ask(grid, nodes, config.run)
    first_round = 1
    if config.run.resume:
        finished, state = folder.checkpoint()
        strategy.load_state(state)
        folder.forget_after(finished)
        first_round = finished + 1
        folder.go_on(config)
    # A run that was interrupted after its last round, before it had written its results, has nothing left to train.
    if not folder.stalled(config.run.early_stop):
        strategy.start(grid, first_round=first_round)
    folder.finish(strategy)


def _find_clients(grid: Grid, config: Config) -> dict[int, Payload]:
    """Wait for the nodes and ask each which client it is; return the descriptions by node id."""
    settings, deadline = config.run, time.monotonic() + config.run.node_timeout
    descriptions: dict[int, Payload] = {}
    while True:
        nodes = _settled_nodes(grid, deadline)
        descriptions = {node: d for node, d in descriptions.items() if node in nodes}
        descriptions.update(_query(grid, [n for n in nodes if n not in descriptions], settings, deadline))
        if descriptions:
            counts = {int(d.config["num-clients"]) for d in descriptions.values()}
            if len(counts) > 1:
                raise ConfigError("num-partitions", sorted(counts), "must be the same on all nodes")
            expected = counts.pop()
            if len(descriptions) == expected:
                break
            if len(descriptions) > expected:
                allowed = f"this federation has {len(descriptions)} nodes"
                raise ConfigError("num-clients", expected, allowed)
        if time.monotonic() > deadline:
            seen = sorted(int(d.config["client"]) for d in descriptions.values())
            raise FedpflError(
                f"{len(seen)} of {expected if descriptions else config.data.num_clients or 'the'} clients connected "
                f"within node-timeout = {settings.node_timeout:g} s: {seen}"
            )
    by_client: dict[int, int] = {}
    for node, description in descriptions.items():
        client = int(description.config["client"])
        if client in by_client:
            raise ConfigError("partition-id", client, "two nodes have it; each node needs its own")
        by_client[client] = node
    return descriptions


def _settled_nodes(grid: Grid, deadline: float) -> list[int]:
    nodes: list[int] = []
    since, pace = time.monotonic(), Pace()
    while time.monotonic() < deadline:
        found = sorted(grid.get_node_ids())
        new = found != nodes
        if new:
            nodes, since = found, time.monotonic()
        elif nodes and time.monotonic() - since > SETTLED_SECONDS:
            break
        pace.pause(new)
    return nodes


def _query(grid: Grid, nodes: list[int], settings: RunSettings, deadline: float) -> dict[int, Payload]:
    content = to_content(Payload())
    pending = {i for i in grid.push_messages([Message(content, node, "query") for node in nodes]) if i}
    out: dict[int, Payload] = {}
    pace = Pace()
    deadline = min(deadline, time.monotonic() + settings.round_timeout)
    while pending and time.monotonic() < deadline:
        replies = list(grid.pull_messages(pending))
        for reply in replies:
            pending.discard(reply.metadata.reply_to_message_id)
            if reply.metadata.src_node_id not in nodes:
                continue  # made by the SuperLink for a node that is gone; if it comes back it is asked again
            if reply.has_error():
                raise FedpflError(f"a client cannot take part: {reply.error.reason}")
            out[reply.metadata.src_node_id] = _description(from_content(reply.content))
        pace.pause(bool(replies))
    return out


def _ask(grid: Grid, nodes: Sequence[int], settings: RunSettings) -> dict[int, int]:
    """Ask nodes that appeared during the run which clients they are; return the clients' nodes."""
    try:
        found = _query(grid, list(nodes), settings, time.monotonic() + ASK_SECONDS)
    except FedpflError as error:
        logger.log(WARNING, "fedpfl: %s", error)
        return {}
    return {int(description.config["client"]): node for node, description in found.items()}


def _description(payload: Payload) -> Payload:
    """Check what a client says of itself; it comes from the network."""
    config, metrics = payload.config, payload.metrics
    numbers = [config.get("client"), config.get("num-clients"), config.get("num-classes")]
    numbers += [config.get("vocabulary", 0), metrics.get("train-samples"), metrics.get("test-samples")]
    division = config.get("division", 0)
    shape = str(config.get("input-shape", ""))
    proper = all(type(n) is int and 0 <= n < MOST for n in numbers) and re.fullmatch(r"\d{1,6}(x\d{1,6}){0,3}", shape)
    remarks = str(config.get("remarks", "")).replace("\n", "")
    readable = len(remarks) <= MOST_CHARACTERS and remarks.isprintable()
    if not proper or not readable or type(division) is not int or "layout" not in config:
        raise FedpflError("a client described itself in a way that this version does not understand")
    return payload


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


def _privacy(config: Config, strategy: PersonalisedStrategy) -> ServerPrivacy:
    """Set up differential privacy; refuse a rule that computes more of clients' arrays than a sum with noise."""
    if config.privacy.dp_where == "server" and not strategy.only_a_sum:
        allowed = f"the server's rule of {config.run.method} is more than a mean of updates; use client"
        raise ConfigError("dp-where", "server", allowed)
    folder = Path(config.run.state_dir).expanduser() / strategy.state_key / "server"
    return ServerPrivacy(config.privacy, strategy.clients, config.run.seed, folder, config.run.wire_dtype)


def _strategy(
    config: Config, descriptions: Mapping[int, Payload], state_key: str, partition: Partition
) -> PersonalisedStrategy:
    clients = []
    for node, description in descriptions.items():
        client = int(description.config["client"])
        try:
            partition.layout.require(Layout.from_text(str(description.config["layout"])))
        except LayoutError as error:
            raise LayoutError(f"client {client} has another model: {error}") from error
        metrics = description.metrics
        in_turn = description.config.get("in-turn") is True
        clients.append(Client(client, node, int(metrics["train-samples"]), int(metrics["test-samples"]), in_turn))
    aggregation = config.method.aggregation
    options = {**aggregation.options, **partition.rule_options}
    return strategies()[aggregation.rule](
        clients, partition.layout, partition.get_shared(), config.run, state_key, **options
    )
