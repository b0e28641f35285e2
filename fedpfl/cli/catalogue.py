"""``fedpfl methods``, ``datasets``, ``models`` and ``config``: what there is to choose from."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError, uncontrolled
from .common import AsJson, load_app, print_drawn, print_json
from .program import app

if TYPE_CHECKING:
    from ..methods import Method


@app.command("methods")
def methods_command(
    name: Annotated[str | None, typer.Argument(metavar="[METHOD]", help="One method, with its settings.")] = None,
    choose: Annotated[bool, typer.Option("--choose", help="Which method to try first in which situation.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods, or show one with its settings.

    Example: fedpfl methods fedrep
    """
    if choose:
        if name:
            raise ConfigError("METHOD", name, "must be left out with --choose, which is about all methods")
        _print_advice(as_json)
        return
    from ..core import settings
    from ..methods import find, with_custom

    load_app()
    chosen = [find(name)] if name else [*with_custom().values()]
    rows: list[dict[str, Any]] = [
        {
            "name": method.name,
            "aliases": list(method.aliases),
            "paper": method.paper,
            "shares": method.shares,
            "settings": dict(settings.items(method.Settings(), method.name)),
        }
        for method in chosen
    ]
    if as_json:
        print_json(rows)
        return
    if name:
        _print_method(chosen[0], rows[0])
        return
    width, room = max(len(method.name) for method in chosen), _room()
    for method in chosen:
        line = uncontrolled(f"{method.name:<{width}}  {method.paper}")
        typer.echo(line if len(line) <= room else f"{line[: room - 1]}…")
    typer.echo("`fedpfl methods METHOD` shows one; with --choose: which one to try first.", err=True)


def _room() -> int:
    """Return how long a line may be: as the terminal is wide, and without a limit in a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _print_method(method: type[Method], row: dict[str, Any]) -> None:
    """Print a method's paper, what it shares, and each of its settings with default and meaning."""
    from ..core.settings import by_key
    from ..setup.reference import meaning

    aliases = {"aliases": ", ".join(row["aliases"])} if row["aliases"] else {}
    for key, text in {"name": row["name"], **aliases, "paper": row["paper"], "shares": row["shares"]}.items():
        start = f"{key + ':':<9}"
        typer.echo(textwrap.fill(uncontrolled(text), _room(), initial_indent=start, subsequent_indent=" " * len(start)))
    fields = by_key(method.Settings, method.name)
    for key, value in row["settings"].items():
        line = f"{key} = {json.dumps(value, ensure_ascii=False)}  # {meaning(fields[key])}"
        typer.echo(textwrap.fill(line, _room(), subsequent_indent="    ", break_on_hyphens=False))


def _print_advice(as_json: bool) -> None:
    """Print which method to try first in which situation."""
    from ..methods.advice import ADVICE

    if as_json:
        print_json([advice._asdict() for advice in ADVICE])
        return
    room = _room()
    for advice in ADVICE:
        typer.echo(f"{advice.situation}:")
        for text in (advice.first, f"instead: {advice.instead}", f"why: {advice.evidence}"):
            typer.echo(textwrap.fill(text.replace("`", ""), room, initial_indent="  ", subsequent_indent="    "))


@app.command("datasets")
def datasets_command(as_json: AsJson = False) -> None:
    """List the data sets: samples, classes, input."""
    from ..data import table as datasets
    from ..results.tables import Table

    if as_json:
        print_json([info._asdict() for info in datasets()])
        return
    rows = [[info.name, info.description, info.size, info.classes, info.shape, info.source] for info in datasets()]
    columns = ["data set", "what", "samples", "classes", "input", "from"]
    print_drawn(Table("", columns, rows, optional=["from", "input"]), "--json, or a wider terminal")


@app.command("models")
def models_command(as_json: AsJson = False) -> None:
    """List the models: what they take, how large they are."""
    from ..models import names, sources
    from ..models.model_info import describe
    from ..results.tables import Table

    infos = [describe(name) for name in names()]
    if as_json:
        print_json([info._asdict() for info in infos])
        return
    columns, rows = ["model", "what", "takes", "parameters", "for", "from"], []
    for info in infos:
        size = "–" if info.parameters is None else f"{info.parameters:,}"
        rows.append([info.name, info.what, info.takes, size, info.example, info.source.partition("; ")[0]])
    print_drawn(Table("", columns, rows, optional=["from", "for"]), "--json, or a wider terminal")
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
