"""The partitioners of Flower's package ``flwr-datasets``, by name: ``flwr:DirichletPartitioner(alpha=0.5)``."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

import numpy as np

from ..core.errors import ConfigError, in_one_line
from ..core.rng import generator
from .registry import FLOWER, FLOWER_FORM


def deal(pool: Any, num_clients: int, settings: Any, seed: int) -> list[np.ndarray]:
    """Divide a pool as the partitioner does with the seed, over its columns ``label`` and ``client``.

    As in Flower's FederatedDataset the samples are shuffled before, since some partitioners cut contiguous pieces.
    """
    text = settings.partitioner
    kind, arguments = _called(text)
    if pool.num_classes == 1 and "partition_by" in inspect.signature(kind).parameters:
        raise ConfigError("partitioner", text, "divides by classes, and all samples are of one, or have targets")
    equal = [len(pool.labels) // num_clients] * num_clients
    usual = {"num_partitions": num_clients, "partition_by": "label", "partition_sizes": equal, "seed": seed}
    order = generator(seed, "partition").permutation(len(pool.labels))
    columns = {"label": pool.labels[order], "place": order}
    if pool.owners is not None:
        columns["client"] = pool.owners[order]
    try:
        made = kind(**{key: usual[key] for key in inspect.signature(kind).parameters if key in usual} | arguments)
        made.dataset = importlib.import_module("datasets").Dataset.from_dict(columns)
        if made.num_partitions != num_clients:
            raise ConfigError("num-clients", num_clients, f"{text} makes {made.num_partitions} parts")
        return [np.array(made.load_partition(client)["place"], np.int64) for client in range(num_clients)]
    except (TypeError, ValueError, KeyError, RuntimeError, IndexError, AttributeError) as error:
        raise ConfigError("partitioner", text, f"flwr-datasets says {in_one_line(error)}") from error


def _called(text: str) -> tuple[Any, dict[str, Any]]:
    """Return the class and the options that a partitioner's text names; the options are plain values."""
    try:
        module = importlib.import_module("flwr_datasets.partitioner")
    except ImportError as error:
        raise ConfigError(
            "partitioner", text, f"needs the package flwr-datasets (pip install flwr-datasets): {error}"
        ) from error
    names = [name for name in module.__all__ if name != "Partitioner" and not name.startswith("Vertical")]
    try:
        call = ast.parse(text.removeprefix(FLOWER), mode="eval").body
        name, keywords = (call.func, call.keywords) if isinstance(call, ast.Call) and not call.args else (call, [])
        options = {str(option.arg): ast.literal_eval(option.value) for option in keywords}
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ConfigError("partitioner", text, f"must have the form {FLOWER_FORM}") from None
    if not isinstance(name, ast.Name) or name.id not in names:
        raise ConfigError(
            "partitioner", text, f"must be {FLOWER} and one of {', '.join(names)}, with (OPTION=VALUE, …)"
        )
    return getattr(module, name.id), options
