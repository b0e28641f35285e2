"""``fedpfl methods``, ``datasets``, ``models`` and ``config``: what there is to choose from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .common import AsJson, load_app, print_json, stdout
from .program import app


@app.command("methods")
def methods_command(as_json: AsJson = False) -> None:
    """List the methods: paper, what travels, settings."""
    from ..core import settings
    from ..methods import known

    load_app()
    rows = [
        {
            "name": method.name,
            "aliases": list(method.aliases),
            "paper": method.paper,
            "shares": method.shares,
            "settings": dict(settings.items(method.Settings(), method.name)),
        }
        for method in known().values()
    ]
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table("method", "paper", "what travels", "settings (default)", show_lines=True)
    for method, row in zip(known().values(), rows, strict=True):
        defaults = settings.items(method.Settings(), method.name)
        own = "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in defaults)
        name = " ".join([method.name, *(f"({alias})" for alias in method.aliases)])
        table.add_row(name, str(row["paper"]), str(row["shares"]), own)
    stdout().print(table)


@app.command("datasets")
def datasets_command(as_json: AsJson = False) -> None:
    """List the data sets: samples, classes, input."""
    from ..data import table as datasets

    if as_json:
        print_json([info._asdict() for info in datasets()])
        return
    from rich.table import Table

    table = Table("data set", "what", "samples", "classes", "input", "from", show_lines=True)
    for info in datasets():
        table.add_row(info.name, info.description, info.size, info.classes, info.shape, info.source)
    stdout().print(table)


@app.command("models")
def models_command(as_json: AsJson = False) -> None:
    """List the models: what they take, how large they are."""
    from ..models import names, sources
    from ..models.about import describe

    found = [describe(name) for name in names()]
    if as_json:
        print_json([info._asdict() for info in found])
        return
    from rich.table import Table

    table = Table("model", "what", "takes", "parameters", "from", show_lines=True)
    for info in found:
        size = "–" if info.parameters is None else f"{info.parameters:,}"
        table.add_row(info.name, info.what, info.takes, f"{size}\n{info.example}", info.source.partition("; ")[0])
    stdout().print(table)
    typer.echo("Besides:")
    typer.echo("\n".join(f"  {form}" for form in sources()))


@app.command("config")
def config_command(
    update: Annotated[
        bool, typer.Option("--update", help="Rewrite the block in ./pyproject.toml and the pages in docs.")
    ] = False,
) -> None:
    """Print every setting with its default, meaning and limits."""
    from ..setup import reference

    if not update:
        typer.echo(reference.pyproject_block(explained=True))
        return
    # The settings of an app's own methods stand there, too.
    load_app()
    changed = reference.update(Path())
    for path in changed:
        typer.echo(f"wrote {path}")
    if not changed:
        typer.echo("nothing to change")
