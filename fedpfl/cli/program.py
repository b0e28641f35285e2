"""The program that the commands belong to: their groups in its help, and errors in one line."""

from __future__ import annotations

import inspect
import io
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import click
import typer
import typer.core
from typer.models import CommandFunctionType
from typer.utils import get_params_from_function

from ..core.errors import ConfigError, FedpflError, uncontrolled
from ..version import __version__

# Typer escapes the brackets of "[default: 3]" for Rich, which prints none of the help here (rich_markup_mode=None).
typer.core.HAS_RICH = False


class _Command(typer.core.TyperCommand):
    """A command whose help calls a number a number, and says in words where it has to lie."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; refuse ``nan`` and ``inf``, which lie within no limits and outside of none."""
        rest = super().parse_args(ctx, args)
        for param in self.get_params(ctx):
            value = ctx.params.get(str(param.name))
            if isinstance(value, float) and not math.isfinite(value):
                raise click.BadParameter(f"{value} is not a finite number.", ctx, param)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command takes."""
        parameters = get_params_from_function(inspect.unwrap(self.callback)) if self.callback else {}
        for kind in (click.Argument, click.Option):
            rows = []
            for param in self.get_params(ctx):
                if isinstance(param, click.Argument):
                    param.help = parameters[str(param.name)].default.help  # which Click 8.5 forgets
                if isinstance(param, kind) and (row := param.get_help_record(ctx)):
                    rows.append(_in_words(param.type, *row))
            if rows:
                with formatter.section(f"{kind.__name__}s"):
                    formatter.write_dl(rows)


def _in_words(kind: Any, name: str, help: str) -> tuple[str, str]:
    if not isinstance(kind, (click.IntRange, click.FloatRange)):
        return name, help
    name = name.replace("INTEGER RANGE", "NUMBER").replace("FLOAT RANGE", "NUMBER")
    return name, re.sub(r"[-\w.]*<?=?x[<>]=[-\w.]+(?=]$)", _limits(kind), help)


def _limits(kind: click.IntRange | click.FloatRange) -> str:
    return f"at least {kind.min:,}" if kind.max is None else f"{kind.min:,} to {kind.max:,}"


# Groups of commands in the help; commands without a group come last.
GROUPS = {
    "Run": ("run", "compare", "sweep", "experiment"),
    "Results": ("show", "report", "analyse", "export", "personalise", "clean"),
    "Data, methods and settings": ("methods", "models", "datasets", "partition", "config", "new"),
    "Devices": ("up", "node", "watch", "doctor", "keys", "register", "broker", "resume"),
}


class OneLineErrors(typer.core.TyperGroup):
    """A group of commands that reports every error in one line: exit code 2 for wrong usage, else 1."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; for one that does not exist, raise an error with a hint."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from ..core.errors import did_you_mean  # only the error needs it

            hint = did_you_mean(name, self.list_commands(ctx)) or "; `fedpfl --help` lists all"
            raise click.UsageError(f"there is no command {name}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their groups."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: command for name, command in commands.items() if command is not None and not command.hidden}
        grouped = {name for names in GROUPS.values() for name in names}
        if ctx.parent is not None or not grouped & shown.keys():
            super().format_commands(ctx, formatter)
            return
        rest = tuple(name for name in shown if name not in grouped)
        width = formatter.width - 6 - max(map(len, shown), default=0)
        for title, names in {**GROUPS, "More": rest}.items():
            rows = [(name, shown[name].get_short_help_str(width)) for name in names if name in shown]
            if rows:
                with formatter.section(title):
                    # Names stand below one another in all groups.
                    longest = max(map(len, shown))
                    formatter.write_dl([(name.ljust(longest), help) for name, help in rows])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; say that it was interrupted if it does not do so itself."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(130) from None

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line, and leave the program."""
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        if isinstance(sys.stdout, io.TextIOWrapper):  # what its encoding lacks must not hide the rest
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
        except click.ClickException as error:
            # A command without arguments is no error; click before 8.2 has no class for it.
            if type(error).__name__ == "NoArgsIsHelpError":
                click.echo(error.format_message())
                code = 0
            else:
                code = _complain(_usage(error), error.exit_code)
        except click.Abort:
            code = 130
        except FedpflError as error:
            code = _complain(str(error), 2 if isinstance(error, ConfigError) else 1)
        except OSError as error:  # the disk is full, or a file belongs to another user
            code = _complain(in_words(error), 1)
        except RuntimeError as error:  # pathlib has no class for it, and does not name the path
            if not str(error).startswith("Could not determine home"):
                raise
            homes = re.findall(r"~[\w.-]+", " ".join(sys.argv[1:] if args is None else args))
            user = next((one for one in homes if os.path.expanduser(one) == one), "~NAME")  # noqa: PTH111
            code = _complain(f"{user}: this machine has no such user", 1)
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: click.ClickException) -> str:
    """Return the line on wrong usage; of a number as of a setting: what it is for, the value, what is allowed."""
    kind = getattr(getattr(error, "param", None), "type", None)
    wrong = re.match(r"(?:'(.*)'|(\S+)) is not (?:a valid|in the range)", getattr(error, "message", ""))
    if wrong and isinstance(error, click.BadParameter) and error.param:
        number = {click.types.IntParamType: "a whole number", click.types.FloatParamType: "a number"}
        kinds = [word for base, word in number.items() if isinstance(kind, base)]
        if kinds:
            limits = f", {_limits(kind)}" if isinstance(kind, (click.IntRange, click.FloatRange)) else ""
            return f"{error.param.opts[0].lstrip('-')} = {wrong[1] or wrong[2]}: must be {kinds[0]}{limits}"
    return error.format_message() + _setting(error)


def _setting(error: click.ClickException) -> str:
    """Show the form of a setting that was taken for an option."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    from ..setup.all_settings import all_settings, owners  # only the error needs it

    if not any("-c" in param.opts for param in error.ctx.command.params):
        return ""
    key, keys = error.option_name.lstrip("-"), all_settings()
    if key in keys:
        return f" It is a setting: -c '{key}=…'"
    forms = [f"-c '{one}=…'" for one in keys if key in one.split("-") and one not in owners()]  # --rounds
    return f" Settings with that word: {', '.join(forms)}" if forms else ""


def in_words(error: FedpflError | OSError) -> str:
    """Describe an error, and name its file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


def _complain(message: str, code: int) -> int:
    click.echo("error: " + " ".join(uncontrolled(message).split()), err=True)
    return code


class Program(typer.Typer):
    """A program, or a group of its commands."""

    def __init__(self, help: str, completion: bool = True) -> None:
        super().__init__(
            cls=OneLineErrors, help=help, no_args_is_help=True, add_completion=completion, rich_markup_mode=None,
            pretty_exceptions_enable=False,
        )  # fmt: skip

    def command(  # type: ignore[override]
        self, name: str | None = None, *, hidden: bool = False
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Make a function a command."""
        return super().command(name, cls=_Command, hidden=hidden)


app = Program(
    "Personalised federated learning as one Flower app. Start with `fedpfl run`; `fedpfl methods` lists the methods."
)


def _print_version(asked: bool) -> None:
    if asked:
        click.echo(f"fedpfl {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Make it a program of commands even where only one is loaded."""
