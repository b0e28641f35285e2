"""``fedpfl compare``: several methods on the same data, with several seeds."""

from __future__ import annotations

import hashlib
from typing import Annotated

import typer

from ..core.errors import ConfigError
from .app import app
from .common import RunConfig, overrides, require_used
from .experiment import DiscardModels, ExecutorName, Jobs, OutputDir, Quiet, SlurmOptions, cluster_of, store
from .sweep import Form, Select, check, play, with_clients

# Of a name that is made of the methods' names.
MOST_CHARACTERS = 60


def complete_methods(beginning: str) -> list[str]:
    """Return the names of methods that begin so, for the shell."""
    from ..methods import names

    return [name for name in names() if name.startswith(beginning)]


@app.command("compare")
def compare_command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD...", help="Methods of `fedpfl methods`, two or more.", autocompletion=complete_methods
        ),
    ],
    run_config: RunConfig = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 1 … N for each method.")] = 3,
    select: Select = "test",
    name: Annotated[
        str, typer.Option(help="Folder of the tables; by default it follows from methods and settings.")
    ] = "",
    jobs: Jobs = None,
    output_dir: OutputDir = None,
    form: Form = "markdown",
    discard_models: DiscardModels = False,
    executor: ExecutorName = "local",
    slurm: SlurmOptions = None,
    quiet: Quiet = False,
) -> None:
    """Run methods on the same data, skip finished runs, and print a line for each, the best first."""
    from ..core.parts import is_reference
    from ..core.settings import parse
    from ..data import DataSettings, with_partitioner
    from ..data.settings import in_words
    from ..experiments.sweep import Sweep
    from ..methods import find

    check(form, select, name)
    # As papers write them, too: FedAvg. The names of modules and classes are left as they are.
    written = (name if is_reference(name) else name.lower() for name in names)
    methods = list(dict.fromkeys(find(name).name for name in written))
    if len(methods) < 2:
        raise ConfigError("METHOD...", " ".join(names), "a comparison needs two methods or more")
    given = with_clients({key: value for key, value in overrides(run_config).items() if key != "method"})
    sweep = Sweep(given, [f"method={','.join(methods)}"], (), 1, seeds, select)
    require_used(run_config, sweep.methods)
    if not name:
        # More seeds of the same comparison keep its name.
        first = "".join(sorted(run.name for run in sweep.runs[: len(sweep.points)]))
        name = f"{'-'.join(methods)[:MOST_CHARACTERS]}-{hashlib.sha256(first.encode()).hexdigest()[:6]}"
    data = with_partitioner(parse(DataSettings, given))
    title = f"{', '.join(methods)} on {data.dataset} ({in_words(data)}, {given['num-clients']} clients)"
    place = store(output_dir)
    cluster = cluster_of(executor, slurm, place)
    play(sweep, name, title, place, cluster, jobs, discard_models, quiet, form)
