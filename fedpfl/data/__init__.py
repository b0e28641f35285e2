"""Data sets, their division among clients, and the samples of one client."""

from __future__ import annotations

from .dataset import Dataset
from .federation import FederatedData, default_clients, federated_data, partition_counts, with_partitioner
from .partitioners import Pool, Share, partition
from .reading import fetch, load
from .registry import DatasetInfo, dataset, partitioner, table
from .settings import DataSettings

__all__ = [
    "DataSettings",
    "Dataset",
    "DatasetInfo",
    "FederatedData",
    "Pool",
    "Share",
    "dataset",
    "default_clients",
    "federated_data",
    "fetch",
    "load",
    "partition",
    "partition_counts",
    "partitioner",
    "table",
    "with_partitioner",
]
