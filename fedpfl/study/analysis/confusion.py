"""Which classes each client's model takes for which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...results.new_clients import Simulation
from ...results.run_folder import RunFolder
from ...results.tables import Cell, Table
from ...training.loop import predict
from .registry import NoOptions, Result, analysis
from .repetitions import name_of, require


@analysis("confusion", "Each client's confusion matrix, and its accuracy of each class", computes=True)
def confusion(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Test the clients' models as the run's last test did, and count true and predicted classes of each client."""
    result = Result()
    for run in runs:
        stored = Simulation.of(run)
        if not stored.engine.config.training.kind.classes:
            continue
        data = stored.engine.data
        counts_of = {client.id: counts(stored, client.id) for client in stored.rule.participants if client.test_samples}
        names = {client: data.class_names_of(client) for client in counts_of}
        heads = list(dict.fromkeys(name for listed in (data.class_names, *names.values()) for name in listed))
        accuracies: list[list[Cell]] = []
        matrices: list[list[Cell]] = []
        for client, matrix in counts_of.items():
            places = {name: place for place, name in enumerate(names[client])}
            samples = matrix.sum(1)
            shares = {
                name: 100 * matrix[place, place] / samples[place] for name, place in places.items() if samples[place]
            }
            who: Cell = data.client_names[client] if data.client_names else client
            accuracies.append([who, *(float(shares[name]) if name in shares else None for name in heads)])
            for name in shares:
                row = matrix[places[name]]
                matrices.append([who, name, *(int(row[places[other]]) if other in places else None for other in heads)])
        title = f", {name_of(run)}"
        note = "Empty where a client has no test sample of the class."
        result.tables.append(
            Table(f"Accuracy of each class in percent{title}", ["client", *heads], accuracies, note=note)
        )
        note = "Rows: the true classes of a client's test samples. Columns: what its model says, in samples."
        result.tables.append(Table(f"Confusion matrices{title}", ["client", "class", *heads], matrices, note=note))
    require(result.tables, "classes", "loss = cross-entropy has")
    return result


def counts(stored: Simulation, client: int) -> np.ndarray:
    """Return how many test samples of each class (row) a client's model takes for each class (column)."""
    message, samples = stored.message(client), stored.engine.test_samples(client)
    message.config["round"] = stored.last  # whose test it is, with its random numbers
    _, local = stored.engine.load(client, message)
    stored.engine.config.method.prepare(local)
    outputs = predict(stored.engine.adapted(local), samples.x)
    matrix = np.zeros((outputs.shape[1],) * 2, np.int64)
    np.add.at(matrix, (samples.y.cpu().numpy(), outputs.argmax(1).cpu().numpy()), 1)
    return matrix
