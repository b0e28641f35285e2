"""``fedpfl partition``: who gets which classes, without running anything."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ..errors import FedpflError
from . import app
from .common import RunConfig, app_settings, overrides

DEFAULT_CLIENTS = 10
CHART = "partition.png"


@app.command("partition")
def partition_command(
    run_config: RunConfig = None,
    num_supernodes: Annotated[
        int | None, typer.Option(min=1, help="Number of clients where num-clients is 0; 10 by default.")
    ] = None,
    plot: Annotated[bool, typer.Option("--plot", help=f"Draw a chart into {CHART}.")] = False,
    output: Annotated[Path | None, typer.Option(help="Draw it into this .png, .svg or .pdf instead.")] = None,
) -> None:
    """Print how the data are divided: clients by classes."""
    from ..config import Config, check_keys
    from ..data import as_text, bubble_chart, federated_data, partition_counts

    chart = output or (Path(CHART) if plot else None)
    if chart is not None and find_spec("matplotlib") is None:
        raise FedpflError("the chart needs matplotlib: pip install 'fedpfl[report]'")
    values = {**(app_settings(Path()) or {}), **overrides(run_config)}
    check_keys(values)
    config = Config.parse(values)
    clients = config.data.num_clients or num_supernodes or DEFAULT_CLIENTS
    counts = partition_counts(federated_data(config.data, clients, config.run.seed))
    typer.echo(as_text(counts))
    if chart is not None:
        title = f"{config.data.dataset}, {config.data.partitioner}, {clients} clients"
        typer.echo(f"wrote {bubble_chart(counts, chart, title).absolute()}", err=True)
