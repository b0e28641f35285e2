"""What several commands use: reading settings as Flower does, finding runs, printing."""

from __future__ import annotations

import glob
import json
import re
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError, FedpflError, one_of, uncontrolled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Lines
    from rich.text import Text

    from ..launch.plan import Plan
    from ..results.run_folder import RunFolder
    from ..results.tables import Table

NumClients = Annotated[
    int | None,
    typer.Option(
        "--num-clients",
        "--num-supernodes",
        min=1,
        help="Number of clients (setting num-clients). Default: all clients that the data name, or 10.",
    ),
]
RunConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--run-config",
        "-c",
        metavar="SETTINGS",
        help="Settings such as 'method=fedavg dirichlet-alpha=0.1', or a TOML file; repeatable, the last wins.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def complete_runs(beginning: str) -> list[str]:
    """Return the names of runs in output-dir with this prefix, for the shell's completion."""
    return sorted(path.parent.name for path in output_dir().glob(f"{glob.escape(beginning)}*/config.toml"))


def complete_methods(beginning: str) -> list[str]:
    """Return the names of methods with this prefix, for the shell's completion."""
    from ..methods import names

    return [name for name in names() if name.startswith(beginning)]


RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Name of a run in output-dir, or its folder.", autocompletion=complete_runs),
]

# As in flwr.common.config.parse_config_args, which would take a second to import and overlooks what does not match.
_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")


def app_settings(app: Path) -> dict[str, Any] | None:
    """Return ``[tool.flwr.app.config]`` of the Flower app in a folder; None if the folder holds no Flower app."""
    if not (app / "pyproject.toml").is_file():
        return None  # without what takes longer to import
    from ..launch import shipped

    return shipped.app_settings(app)


def load_app() -> None:
    """Load the custom code of the app in this folder, if there is one, with the settings of its methods.

    Stored numbers are shown, and other methods run, where its own method cannot be loaded.
    """
    from ..core import user_code
    from ..methods import discover
    from ..setup.all_settings import know_method

    user_code.set_folder(Path())
    settings = app_settings(Path())
    if settings is not None:
        discover()
        with suppress(FedpflError):
            know_method(settings)


def require_allowed(
    texts: Sequence[str] | None, app: Path | None = None, methods: Iterable[str] = (), tried: Iterable[str] = ()
) -> None:
    """Refuse settings that are not allowed before anything slow is imported.

    ``methods`` are those that the command line names otherwise: the settings of a custom one are not known yet. Of the
    settings of which several values are ``tried``, the keys are checked.
    """
    from ..core import references, user_code
    from ..setup.all_settings import check

    folder = app or Path()
    user_code.set_folder(folder)
    if not any(references.is_custom("method", name) for name in methods):
        named = dict(text.split("=", 1) for text in tried if "=" in text)
        check(overrides(texts), app_settings(folder) or {}, named)


def overrides(texts: Sequence[str] | None, num_clients: int | None = None) -> dict[str, Any]:
    """Return the settings that ``--run-config`` and ``--num-clients`` give."""
    from ..core import references

    values: dict[str, Any] = {}
    for text in texts or ():
        values.update(_read_text(text)[1])
    if "method" in values:
        values["method"] = references.as_named(values["method"])
    if num_clients is not None:
        if values.get("num-clients") not in (None, 0, num_clients):
            allowed = f"the setting num-clients is {values['num-clients']}; give one of the two"
            raise ConfigError("--num-clients", num_clients, allowed)
        values["num-clients"] = num_clients
    return values


def used(texts: Sequence[str] | None, chosen: Collection[str]) -> dict[str, Any]:
    """Return the settings that ``--run-config`` gives, without those of methods that are not ``chosen``.

    Such settings are refused, unless they come from a file that is for such a method or also has settings of a method
    that is run: then a note names them.
    """
    from ..methods import find
    from ..setup.all_settings import keys_of, owners, require_used

    values, keys = overrides(texts), {key for name in chosen for key in keys_of(name)}
    for text in texts or ():
        file, settings = _read_text(text)
        if not settings.keys() - keys:  # so that no other method needs to be imported
            continue
        methods_of = owners()
        foreign = {
            key: ", ".join(methods_of[key])
            for key in settings
            if key in methods_of and not {*methods_of[key]} & {*chosen}
        }
        if not foreign:
            continue
        # What the file is for: its own method, or several ones.
        method = find(settings["method"]).name if file and isinstance(settings.get("method"), str) else ""
        several = any({*methods_of.get(key, ())} & {*chosen} for key in settings)
        for key in foreign:
            if not file or not (several or method in methods_of[key]):
                require_used({key: settings[key]}, chosen)
            values.pop(key, None)
        others = ", ".join(dict.fromkeys(foreign.values()))
        typer.echo(f"note: {text}: its settings of {others} are not used by {' or '.join(chosen)}", err=True)
    return values


def _read_text(text: str) -> tuple[bool, dict[str, Any]]:
    """Tell whether a text of ``--run-config`` names a file, and return its settings."""
    if names_file(text):
        from ..launch.shipped import read_toml, settings_file

        return True, read_toml(settings_file(Path(text).expanduser()), "run-config")
    rest = _PAIR.sub("", text).strip()
    if rest:
        raise ConfigError("run-config", rest, "must be key=value pairs, without spaces around '=', or a .toml file")
    from ..launch.shipped import value_of

    return False, {key: value_of(key, value) for key, value in _PAIR.findall(text)}


def prepare(
    app: Path | None,
    texts: Sequence[str] | None,
    num_clients: int | None,
    resume: str | None,
    default_clients: int | None = None,
    own_data: bool = False,
) -> Plan:
    """Check everything that can be checked before a run: by the app's folder and the texts of ``--run-config``."""
    from ..launch import plan

    folder = app or Path()
    defaults = app_settings(folder)
    if app is not None and defaults is None:
        hint = "" if app.exists() else "; settings follow -c: -c 'method=\"fedavg\"'"
        message = f"is not the folder of a Flower app (pyproject.toml with [tool.flwr.app]){hint}"
        raise ConfigError("app", str(app), message)
    here, clients = None if defaults is None else folder, default_clients or plan.DEFAULT_CLIENTS
    made = plan.prepare(here, defaults or {}, overrides(texts, num_clients), resume, clients, own_data)
    used(texts, [made.config.method.name])
    return made


def run_folder(run: str) -> RunFolder:
    """Return the run of this path, or of this name in output-dir or among the runs of sweeps and experiments."""
    from ..core import user_code
    from ..study.run_store import find_stored

    user_code.set_folder(Path())  # a run with a custom model is shown in the folder of its code
    return find_stored(run, output_dir())


def output_dir() -> Path:
    """Return the folder of run folders: as the app in this folder says, or else the default."""
    from ..setup.config import RunSettings

    values = app_settings(Path()) or {}
    return Path(str(values.get("output-dir", RunSettings.output_dir))).expanduser()


def require_one_of(key: str, value: str, choices: Collection[str]) -> None:
    """Raise :class:`ConfigError` for a word that is not among the known ones."""
    if value not in choices:
        raise ConfigError(key, value, one_of(value, choices))


def names_file(text: str) -> bool:
    """Tell whether a text on the command line is the name of a file of settings."""
    return text.endswith(".toml") and "=" not in text


def stdout() -> Console:
    """Return a console on standard output that shows texts as they are, and breaks no lines in a file.

    A name is neither markup nor a control sequence to it.
    """
    from rich.console import Console

    class Plain(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(uncontrolled(text), **how)

    return Plain(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)


def print_tables(tables: Iterable[Table], form: str) -> None:
    """Print tables in one of their formats; without one they are drawn on a terminal, and Markdown elsewhere."""
    if form or not sys.stdout.isatty():
        typer.echo("\n".join(table.write(form or "markdown") for table in tables), nl=False)
        return
    for table in tables:
        print_drawn(table)


def print_drawn(table: Table, all_of_it: str = "--format csv") -> None:
    """Print a table as lines, also into a file; ``all_of_it`` is how columns are seen for which there is no room."""
    console = stdout()
    console.print(_drawn(table, console.width, all_of_it))


def _drawn(table: Table, width: int, all_of_it: str) -> Lines:
    """Return a table as rich draws it; a narrow terminal breaks headings and texts, but neither names nor numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table as Lines

    rows, shown, left_out = [table.texts(row) for row in table.rows], [*range(len(table.columns))], list[str]()
    cells = [[name, *(row[column] for row in rows)] for column, name in enumerate(table.columns)]
    whole = [column == 0 or table.is_number(column) for column in shown]
    least = [
        max(map(cell_len, [*name.split(), *(texts if whole[column] else " ".join(texts).split())]), default=0)
        for column, (name, *texts) in enumerate(cells)
    ]
    others = [name for name in reversed(table.columns[1:]) if name not in table.optional]
    for name in (*(name for name in table.optional if name in table.columns), *others):
        if sum(least[column] + 3 for column in shown) >= width and len(shown) > 2:
            shown.remove(table.columns.index(name))
            left_out.append(name)
    longest = [max(map(cell_len, texts)) for texts in cells]
    fits = sum(longest[column] + 3 for column in shown) < width
    room = width - 1 - sum(least[column] + 3 for column in shown)
    for column in (column for column in shown if not whole[column]):  # columns of text take the remaining width
        more = max(0, min(room, longest[column] - least[column]))
        least[column], room = least[column] + more, room - more
    separator = "; " if any("," in name for name in left_out) else ", "
    note = f"{table.note} Not shown here: {separator.join(left_out)} ({all_of_it}).".strip() if left_out else table.note
    lines = Lines(
        title=table.title, title_justify="left", caption=note or None, caption_justify="left", box=SIMPLE_HEAD
    )
    for column in shown:
        lines.add_column(
            table.columns[column], justify="right" if table.is_number(column) else "left", overflow="fold",
            width=None if fits else least[column],
        )  # fmt: skip
    for row in rows:
        lines.add_row(*(row[column] for column in shown))
    return lines


def print_json(value: object) -> None:
    """Print one line of JSON on standard output."""
    text = json.dumps(value, ensure_ascii=sys.stdout.encoding.lower() != "utf-8")
    typer.echo("".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text))


@contextmanager
def ending_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the program as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def outcome_table(folder: RunFolder) -> object:
    """Return :func:`fedpfl.results.summary.outcome_rows` of a run as a table."""
    from rich.table import Table

    from ..results.summary import outcome_rows

    table = Table("", "last round", "best round")
    for number, row in enumerate(outcome_rows(folder), start=1):
        table.add_row(*row, end_section=number == 2)  # accuracies, and all the rest
    return table
