"""The command line. Each command imports what it needs when it runs, so that ``--help`` is there at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
import typer
import typer.core

from ..core.errors import ConfigError, FedpflError

# Typer escapes the brackets of "[default: 3]" for Rich, which prints none of the help here (rich_markup_mode=None).
typer.core.HAS_RICH = False


class OneLineErrors(typer.core.TyperGroup):
    """A group of commands that answers every mistake with one line: exit code 2 for wrong usage, else 1."""

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line that ``args`` is, and leave the program."""
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
        except click.ClickException as error:
            code = _complain(error.format_message(), error.exit_code)
        except click.Abort:
            code = 130
        except FedpflError as error:
            code = _complain(str(error), 2 if isinstance(error, ConfigError) else 1)
        except OSError as error:  # the disk is full, or a file belongs to somebody else
            code = _complain(in_words(error), 1)
        sys.exit(code if isinstance(code, int) else 0)


def in_words(error: FedpflError | OSError) -> str:
    """Say what went wrong; of a file, which one."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


def _complain(message: str, code: int) -> int:
    click.echo("error: " + " ".join(message.split()), err=True)
    return code


app = typer.Typer(
    cls=OneLineErrors,
    help="Personalised federated learning as one Flower app.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

# The commands register themselves with `app`, which therefore has to be there first.
from . import (  # noqa: E402, F401  # noqa: E402, F401
    analyse,
    doctor,
    experiment,
    keys,
    listing,
    new,
    partition,
    register,
    report,
    runs,
    start,
    sweep,
    up,
    watch,
)


def main() -> None:
    """Run the command line (the console script ``fedpfl``)."""
    app()
