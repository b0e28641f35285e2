"""``fedpfl partition``: who gets which classes, without running anything."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError, FedpflError
from ..core.files import is_free, private_folder, write_atomically
from .common import NumClients, RunConfig, app_settings, load_app, overrides
from .program import app

if TYPE_CHECKING:
    import numpy as np

CHART = "partition.png"


@app.command("partition")
def partition_command(
    run_config: RunConfig = None,
    num_clients: NumClients = None,
    plot: Annotated[bool, typer.Option("--plot", help=f"Save a chart as {CHART}.")] = False,
    output: Annotated[Path | None, typer.Option(help="Save the chart as this .png, .svg or .pdf file.")] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="FILE.npz: write which client has each sample, for division-file. FOLDER: write each client's samples "
            "to FOLDER/client-NUMBER.npz, for its device.",
        ),
    ] = None,
    pfllib: Annotated[
        bool,
        typer.Option(
            "--pfllib",
            help="With --export FOLDER: write PFLlib's layout, with scaled inputs, since PFLlib does not scale.",
        ),
    ] = False,
) -> None:
    """Print each client's training samples by class.

    Example: fedpfl partition -c dirichlet-alpha=0.1 --plot
    """
    import numpy as np

    from ..core.references import short_name
    from ..data import default_clients, federated_data, partition_counts, with_partitioner
    from ..data.plot import as_text, bubble_chart, require_chart
    from ..data.settings import in_words
    from ..launch.plan import DEFAULT_CLIENTS
    from ..setup.all_settings import check_keys
    from ..setup.config import Config

    chart = output or (Path(CHART) if plot else None)
    if chart is not None:
        require_chart(chart)
        if find_spec("matplotlib") is None:
            raise FedpflError("the chart needs matplotlib: pip install matplotlib")
    to_file = export is not None and export.suffix == ".npz"
    if pfllib and (export is None or to_file):
        raise ConfigError("pfllib", True, "needs --export FOLDER")
    if export is not None:
        _require_free(export.expanduser(), to_file)
    load_app()
    values = {**(app_settings(Path()) or {}), **overrides(run_config, num_clients)}
    check_keys(values)
    config = Config.parse(values)
    seed = config.run.seed
    clients = config.data.num_clients or default_clients(config.data, seed) or DEFAULT_CLIENTS
    data = federated_data(config.data, clients, seed)
    for remark in data.remarks:
        typer.echo(f"note: {remark}", err=True)
    counts = partition_counts(data)
    typer.echo(as_text(counts, data.client_names, () if data.has_no_class_names else data.class_names))
    if export is not None and to_file:
        _write(export.expanduser(), data.division())
        typer.echo(f"wrote {export}, division {data.checksum}", err=True)
    elif export is not None and pfllib:
        for client in range(data.num_clients):
            for part in ("train", "test"):
                x, y = getattr(data, part)(client)
                pair = {"x": x.numpy(), "y": y.numpy()}
                _write(export.expanduser() / part / f"{client}.npz", {"data": np.array(pair, object)})
        about = {"num_clients": data.num_clients, "num_classes": data.num_classes}
        write_atomically(export.expanduser() / "config.json", json.dumps(about).encode())
        typer.echo(f"wrote {data.num_clients} clients to {export} as PFLlib's folders are", err=True)
    elif export is not None:
        for client in range(data.num_clients):
            _write(export.expanduser() / f"client-{client}.npz", data.arrays(client))
        typer.echo(f"wrote {data.num_clients} files to {export}", err=True)
    if chart is not None:
        how = in_words(with_partitioner(config.data, seed))
        title = f"{short_name(config.data.dataset)}, {how}, {clients} clients"
        typer.echo(f"wrote {bubble_chart(counts, chart, title).absolute()}", err=True)


def _require_free(place: Path, is_file: bool) -> None:
    """Raise ``ConfigError`` for a file that is there, and for a folder with files, which could be of more clients."""
    if place.exists() and (is_file or not place.is_dir()):
        raise ConfigError("export", str(place), "is there already")
    if not is_free(place):
        raise ConfigError("export", str(place), "must be a new or an empty folder")


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    import numpy as np

    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    try:
        private_folder(path.parent)  # clients' samples
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise ConfigError("export", str(path), f"cannot be written ({error.strerror})") from error
