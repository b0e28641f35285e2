"""Data sets, their division among clients, and the samples of one client."""

from __future__ import annotations

from . import pfllib  # noqa: F401  (registers its partitioners)
from .dataset import Dataset
from .datasets import fetch, load, no_downloads
from .federation import FederatedData, default_clients, federated_data, own_data, with_partitioner
from .partitioners import Pool, Share, label_permutation, partition
from .plot import as_text, bubble_chart, partition_counts
from .registry import DatasetInfo, dataset, partitioner, table
from .settings import DataSettings

__all__ = [
    "DataSettings",
    "Dataset",
    "DatasetInfo",
    "FederatedData",
    "Pool",
    "Share",
    "as_text",
    "bubble_chart",
    "dataset",
    "default_clients",
    "federated_data",
    "fetch",
    "label_permutation",
    "load",
    "no_downloads",
    "own_data",
    "partition",
    "partition_counts",
    "partitioner",
    "table",
    "with_partitioner",
]
