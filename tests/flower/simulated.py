"""A program: strategies with `client_app` in Flower's simulation; prints a line for each method.

python simulated.py METHOD …
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from flower_apps import CLIENTS, Net, data_of  # noqa: E402
from test_fedpfl_clients import of_method  # noqa: E402

from fedpfl import strategies  # noqa: E402
from fedpfl.core.errors import FedpflError  # noqa: E402
from fedpfl.methods import find  # noqa: E402


def apps(names: list[str]) -> tuple[ServerApp, ClientApp]:
    """Return the app that runs a strategy of each method."""
    server, client = ServerApp(), strategies.client_app(model=Net, data=data_of)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for name in names:
            _, options = of_method(name)
            settings = {"local_epochs": 2, "batch_size": 10, **options}
            strategy = getattr(strategies, find(name).__name__)(model=Net, **settings)
            try:
                result = strategy.start(grid, ArrayRecord(), num_rounds=1)
                said = dict(result.evaluate_metrics_clientapp[1])
            except FedpflError as error:
                said = {"error": str(error)}
            print(json.dumps({"method": name, **said}), flush=True)

    return server, client


if __name__ == "__main__":
    server_app, client_app = apps(sys.argv[1:])
    resources = {"num_cpus": 1.0, "num_gpus": 0.0}
    run_simulation(server_app, client_app, CLIENTS, backend_config={"client_resources": resources})
