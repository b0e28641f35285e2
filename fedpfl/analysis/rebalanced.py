"""What FedReG makes of the clients' data.

Liu, Yang, Wang: FedReG: Recouping the Global Model in Personalized Federated Learning, Section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.federation import new_clients
from ..data import federated_data, partition_counts
from ..methods.fedreg.rebalance import THRESHOLDS, effective_samples, quota
from ..results.run import RunFolder
from ..results.tables import Cell, Table
from ..setup.config import Config
from .figure import Figure, Heatmap
from .registry import NoOptions, Result, analysis
from .runs import require

THRESHOLD = "fedreg-threshold"


@analysis("rebalanced", "Each client's samples by class, as they are and rebalanced (FedReG, figure 4)")
def rebalanced(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Count the samples of the clients' original and rebalanced training sets; needs the runs' data on this machine."""
    found = [(run, run.config()) for run in runs]
    with_sets = [(run, values) for run, values in found if THRESHOLD in values]
    require(with_sets, "rebalanced data", 'method = "fedreg" makes them')
    out = Result()
    for run, values in with_sets:
        tables, figures = _row(run, values)
        out.tables.append(tables)
        out.figures.extend(figures)
    return out


def _row(run: RunFolder, values: dict[str, Any]) -> tuple[Table, list[Figure]]:
    config, clients = Config.parse(values), int(run.described()["clients"])
    counts = partition_counts(federated_data(config.data, clients, config.run.seed))
    absent = set(new_clients(config.run.seed, config.run.new_clients, clients))
    threshold = THRESHOLDS[values[THRESHOLD]]([int(row.sum()) for i, row in enumerate(counts) if i not in absent])
    quotas = [quota(row, threshold, config.method.settings.max_growth) for row in counts]
    made = np.where(counts > 0, np.array(quotas)[:, None], 0)
    rows: list[list[Cell]] = [
        [client, int(row.sum()), int((row > 0).sum()), size, int(made[client].sum()), effective_samples(row, size)]
        for client, (row, size) in enumerate(zip(counts, quotas, strict=True))
    ]
    columns = ["client", "samples", "classes", "Q", "rebalanced samples", "of them no copies"]
    title = f"Rebalanced data, seed {config.run.seed}, threshold {threshold:g} ({values[THRESHOLD]})"
    names = [str(client) for client in range(clients)]
    classes = [str(label) for label in range(counts.shape[1])]
    maps = [
        Heatmap(f"{kind} training samples, seed {config.run.seed}", "class", "client", numbers, names, classes)
        for kind, numbers in (("Original", counts), ("Rebalanced", made))
    ]
    return Table(title, columns, rows), list(maps)
