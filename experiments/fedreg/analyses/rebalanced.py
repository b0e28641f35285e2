"""What FedReG makes of the clients' data.

Liu, Yang, Wang: FedReG: Recouping the Global Model in Personalized Federated Learning, Section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpfl.core.server_view import new_clients
from fedpfl.data import partition_counts
from fedpfl.methods.fedreg import MAX_GROWTH, THRESHOLDS, effective_samples, quota
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Table
from fedpfl.study.analysis.figure import Figure, Heatmap
from fedpfl.study.analysis.registry import NoOptions, Result, analysis
from fedpfl.study.analysis.repetitions import data_of, require


@analysis("rebalanced", "Each client's samples by class, as they are and rebalanced (FedReG, figure 4)")
def rebalanced(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Count the samples of the clients' original and rebalanced training sets; needs the runs' data on this machine."""
    with_sets = [run for run in runs if "fedreg-threshold" in run.config()]
    require(with_sets, "rebalanced data", 'method = "fedreg" makes them')
    out = Result()
    for run in with_sets:
        table, figures = _row(run)
        out.tables.append(table)
        out.figures.extend(figures)
    return out


def _row(run: RunFolder) -> tuple[Table, list[Figure]]:
    config, data = data_of(run)
    counts, clients = partition_counts(data), data.num_clients
    absent = set(new_clients(config.run.seed, config.run.new_clients, clients))
    settings = config.method.settings
    threshold = THRESHOLDS[settings.threshold]([int(row.sum()) for i, row in enumerate(counts) if i not in absent])
    quotas = [quota(row, threshold, MAX_GROWTH) for row in counts]
    made = np.where(counts > 0, np.array(quotas)[:, None], 0)
    rows: list[list[Cell]] = [
        [client, int(row.sum()), int((row > 0).sum()), size, int(made[client].sum()), effective_samples(row, size)]
        for client, (row, size) in enumerate(zip(counts, quotas, strict=True))
    ]
    columns = ["client", "samples", "classes", "Q", "rebalanced samples", "of them no copies"]
    title = f"Rebalanced data, seed {config.run.seed}, threshold {threshold:g} ({settings.threshold})"
    names = [str(client) for client in range(clients)]
    classes = [str(label) for label in range(counts.shape[1])]
    maps = [
        Heatmap(f"{kind} training samples, seed {config.run.seed}", "class", "client", numbers, names, classes)
        for kind, numbers in (("Original", counts), ("Rebalanced", made))
    ]
    return Table(title, columns, rows), list(maps)
