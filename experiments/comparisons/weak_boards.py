"""How clients of three widths do: by their slices, and by the whole model, which papers of sub-models test.

It reads the runs of the comparisons that are named, and writes for each method, seed by seed, the accuracy of the
clients of each width after the last round:

    python experiments/comparisons/weak_boards.py weak-boards

The whole model is tested on each client's test samples, among the classes that the client has.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import torch

from fedpfl.api.runs import Run
from fedpfl.data.federation import federated_data
from fedpfl.results.run_folder import RunFolder

WIDTHS = {"½ width, %": range(3), "¼ width, %": range(3, 6), "whole, %": range(6, 10), "all, %": range(10)}


def by_whole_model(folder: RunFolder) -> dict[int, float]:
    """Return each client's accuracy by the run's whole model."""
    config, clients = folder.parsed(), int(folder.described()["clients"])
    data, model = federated_data(config.data, clients, config.run.seed), Run(folder).model().eval()
    accuracies = {}
    for client in range(clients):
        train, test = data.train(client), data.test(client)
        absent = ~torch.isin(torch.arange(data.num_classes), train.y)
        with torch.no_grad():
            said = model(test.x).masked_fill(absent, 0).argmax(1)
        accuracies[client] = float((said == test.y).float().mean())
    return accuracies


def main() -> None:
    """Print the values of the record ``figures/weak-boards``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    options = parser.parse_args()
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in options.runs:
        folder = RunFolder(path)
        method = str(folder.config()["method"])
        run = Run(folder)
        tests = {method: run.clients.loc[run.summary["rounds"]]["accuracy"].to_dict()}
        if method != "local":
            tests[f"{method}, whole model"] = by_whole_model(folder)
        for name, accuracies in tests.items():
            for width, clients in WIDTHS.items():
                values[name][width].append(round(100 * fmean(accuracies[client] for client in clients), 2))
        values[method]["MB"].append(round(float(run.rounds[["bytes_up", "bytes_down"]].to_numpy().sum()) / 1e6, 2))
    print(json.dumps(values, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
