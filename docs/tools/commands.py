"""The page of commands, written from Typer's own description of them."""

from __future__ import annotations

import html
from typing import Any

import typer

from fedpfl.cli import GROUPS, app
from fedpfl.cli.bridge import app as bridge


def commands_page() -> str:
    """Return the reference of all commands as a Markdown page."""
    group: Any = typer.main.get_command(app)
    lines = ["# Commands", "", "Every command with its options, as `--help` prints them.", ""]
    grouped = [name for names in GROUPS.values() for name in names]
    rest = tuple(name for name in group.commands if name not in grouped)
    for title, names in {**GROUPS, "More": rest}.items():
        shown = [name for name in names if name in group.commands and not group.commands[name].hidden]
        if shown:
            lines += [f"## {title}", ""]
            for name in shown:
                lines += _command(f"fedpfl {name}", group.commands[name])
    lines += ["## The MQTT bridge", ""]
    return "\n".join([*lines, *_command("fedpfl-bridge", typer.main.get_command(bridge))])


def _command(name: str, command: Any) -> list[str]:
    context = command.context_class(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"### {name}", "", _text(command.help), "", f"```text\n{name} {usage}\n```", ""]
    records = (parameter.get_help_record(context) for parameter in command.params)
    rows = [f"| `{row[0]}` | {_text(row[1])} |" for row in records if row and row[0] != "--help"]
    if rows:
        lines += ["| option | meaning |", "|---|---|", *rows, ""]
    for below, inner in getattr(command, "commands", {}).items():
        lines += _command(f"{name} {below}", inner)
    return lines


def _text(text: str | None) -> str:
    return html.escape(" ".join((text or "").split()), quote=False).replace("|", "\\|")
