"""The engines of one run that a process keeps."""

from __future__ import annotations

from collections import OrderedDict
from typing import Tuple

from ..core import user_code
from ..core.errors import ConfigError
from ..core.settings import Value
from ..data.federation import FederatedData, federated_data
from ..setup.config import Config
from .engine import Engine

Key = Tuple[Tuple[Tuple[Tuple[str, Value], ...], int, int], str, int, str]

# The engines of one run, the latest used last. Clients that divide a data set share one; a client with data of its own
# has its own, and a device has few of those.
_engines: OrderedDict[Key, Engine] = OrderedDict()
MAX_ENGINES = 4


# The run, by the key of its clients' states, that has begun last.
_begun: list[str] = [""]


def engine_for(
    config: Config, nodes: int, path: str, client: int, model: str = "", begins: str | None = None
) -> Engine:
    """Return the engine that runs a client (from 0), made now or cached from an earlier message of the same run.

    ``path`` is the client's own data, or empty; ``model`` is its own model, or empty for the run's. As a run begins,
    whose key ``begins`` is then (empty: `user_code` knows of it), data that have changed are read again; within a run
    they stay what they were.
    """
    # The custom code as well: a later run may have the same settings and another file.
    run = tuple(sorted(config.flat().items())), nodes, user_code.version()
    key = (run, path, client if path else -1, model)
    if begins is not None:
        if begins and begins != _begun[0]:
            user_code.begin_run()
            _begun[0] = begins
        if key in _engines and _data(config, nodes, path, client) is not _engines[key].data:
            del _engines[key]
    if key in _engines:
        _engines.move_to_end(key)
        return _engines[key]
    # Before the new engine is made: two runs' data and models may not fit into the memory of a small board.
    if any(kept[0] != run for kept in _engines):
        _engines.clear()
    while len(_engines) >= MAX_ENGINES:
        _engines.popitem(last=False)
    _engines[key] = _make_engine(config, nodes, path, client, model)
    return _engines[key]


def _make_engine(config: Config, nodes: int, path: str, client: int, model: str) -> Engine:
    num_clients = config.data.num_clients or nodes
    if num_clients != nodes:
        raise ConfigError("num-clients", num_clients, f"this federation has {nodes} nodes; use {nodes} or 0")
    data = _data(config, num_clients, path, client)
    return Engine(config, data, num_clients, of_one_client=bool(path), client=client, own_model=model)


def _data(config: Config, num_clients: int, path: str, client: int) -> FederatedData:
    if not path:
        return federated_data(config.data, num_clients, config.run.seed)
    from ..data.datasets.client_files import own_data

    return own_data(config.data, path, client, config.run.seed, config.data.num_classes or None)
