"""Answers the messages that a node gets, over Flower or from a device's worker."""

from __future__ import annotations

from typing import Callable, Mapping

from ..core.errors import ConfigError, StateError
from ..core.payload import Payload
from ..core.settings import Value
from ..setup.all_settings import require_absolute
from .client_number import clients_of, own_data_path, stored_number, unnumbered
from .engine import HANDLERS
from .engines import engine_for
from .forks import in_one_process
from .policy import bounded, guard
from .run_settings import parse_once

Handler = Callable[[str, Payload, Mapping[str, Value], Mapping[str, Value]], Payload]


def handle(kind: str, message: Payload, run_config: Mapping[str, Value], node_config: Mapping[str, Value]) -> Payload:
    """Answer a ``query``, ``train`` or ``evaluate`` for the client that the node is; errors are a ``FedpflError``.

    The message's config has ``state-key`` and, but for a query, ``round``, ``layout`` and ``personal-round``, the round
    after which the client's arrays are wanted (0: the initial ones). ``run_config`` and ``node_config`` are Flower's.
    The node has ``partition-id``, and ``num-partitions`` if the run has no num-clients, or ``data-path``.
    """
    require_absolute(run_config)
    path = own_data_path(node_config)
    if (owner := guard()) is not None:
        owner.check(run_config, path)
    if path and not {"partition-id", "num-partitions"} & node_config.keys():
        nodes, number = clients_of(run_config), stored_number(message, run_config, path)
        if number is None and kind == "query":
            return unnumbered(run_config)
        if number is None:
            raise StateError(f"data-path = {path!r}: this node does not know which client of this run it is")
        client = number
    else:
        client, whose = _number(node_config, "partition-id", 0), "num-partitions"
        if whose in node_config:
            nodes = _number(node_config, whose, 1)
        else:  # the run says how many: a node serves runs of any number of clients that has its own
            nodes, whose = clients_of(run_config), "num-clients"
        if client >= nodes:
            raise ConfigError("partition-id", client, f"must be below {whose} = {nodes}")
    model = str(node_config.get("model", ""))
    begins = str(message.config.get("state-key", "")) if kind == "query" else None
    with bounded():
        engine = engine_for(parse_once(run_config), nodes, path, client, model, begins)
        with in_one_process():
            return HANDLERS[kind](engine, client, message)


def _number(node_config: Mapping[str, Value], key: str, least: int) -> int:
    if key not in node_config:
        allowed = f"must have {key} (`--node-config '{key}=…'`), or data-path alone"
        raise ConfigError("node-config", dict(node_config), allowed)
    value = node_config[key]
    if type(value) is not int or value < least:
        raise ConfigError(key, value, f"must be a whole number of at least {least} (`--node-config '{key}=…'`)")
    return value
