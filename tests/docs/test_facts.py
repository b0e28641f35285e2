"""Facts of pages that can be checked: extras, versions, settings with their values and defaults, paths, commands."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from typer.main import get_command

from fedpfl.api import dataframes
from fedpfl.cli import app
from fedpfl.cli.bridge import app as bridge
from fedpfl.data.registry import table as data_sets
from fedpfl.results.round_line import summarise
from fedpfl.results.round_record import Round
from fedpfl.results.summary import Summary
from fedpfl.setup.all_settings import all_settings

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")})
}
FIELDS = all_settings()
# Options of analyses, and keys of files for sbatch and for experiments.
OTHER_KEYS = {"label", "personal", "kind", "setup", "x"}
COMMANDS = {"fedpfl": get_command(app), "fedpfl-bridge": get_command(bridge)}
TOP = "fedpfl|tests|docs|configs|experiments|benchmarks|deploy|jetson"
# Topics of the bridge, and what a reader writes.
NOT_HERE = re.compile(r"fedpfl/(request|response|node|bridge|run|log)/|.*fedrecon")


def code(page: str) -> Iterator[str]:
    """Yield the code spans of a page."""
    yield from re.findall(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S))


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of each command of ours, in blocks and in code spans."""
    blocks = "\n".join(re.findall(r"^ *```sh\n(.*?)^ *```$", page, re.M | re.S)).replace("\\\n", " ")
    for line in (*blocks.splitlines(), *(span.replace("\n", " ") for span in code(page))):
        for part in re.split(r"\s*(?:&&|\|)\s*", line.strip()):
            if part.split(" ")[0] in COMMANDS:
                try:
                    yield shlex.split(part, comments=True)
                except ValueError:  # A quotation that goes on in the next line.
                    yield part.split()


def test_the_extras_of_the_page_are_those_of_the_package():
    table = PAGES["docs/how-to/install.md"].partition("| extra | for |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z]+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.M)))) == EXTRAS


def test_an_extra_that_is_named_exists():
    count = 0
    for page, text in PAGES.items():
        named = re.findall(r"fedpfl\[([a-z,]+)\]|\[?extra\]?(?:\([^)]*\))? `([a-z]+)`", text)
        assert {word for pair in named for names in pair if names for word in names.split(",")} <= EXTRAS, page
        count += len(named)
    assert count >= 10


def test_versions_are_those_of_the_package():
    python = PROJECT["requires-python"].removeprefix(">=").partition(",")[0]
    for page in ("README.md", "docs/how-to/install.md"):
        assert f"Python {python} or later" in " ".join(PAGES[page].split())
    (flower,) = (text for text in PROJECT["dependencies"] if text.startswith("flwr"))
    (first,) = re.findall(r"^flwr>=(1\.\d+)$", flower)
    assert f"Flower {first} or newer" in " ".join(PAGES["docs/how-to/flower.md"].split())


def test_the_table_of_data_sets_is_that_of_the_code():
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d, +]+) \| (\d+) \| ([\d×]+) \|", PAGES["docs/how-to/data.md"], re.M)
    facts = {info.name: (info.size, info.classes, info.shape) for info in data_sets()}
    assert len(rows) > 6 and {name: (size, *more) for name, size, *more in rows}.items() <= facts.items()


def columns(head: str) -> re.Pattern[str]:
    """Return what matches the columns that a table of docs/how-to/python.md lists: NAME and … are more, _x is a_x."""
    table = PAGES["docs/how-to/python.md"].partition(head)[2].partition("\n\n")[0]
    patterns = []
    for row in re.findall(r"^\| (`[^|]*) \|", table, re.M):
        first, *others = re.findall(r"`([^`]+)`", row)
        patterns += [first, *(first.partition("_")[0] * name.startswith("_") + name for name in others)]
    return re.compile("|".join(patterns).replace("NAME", "f1_macro").replace("…", r"\w+"))


def test_the_columns_of_the_frames_are_those_of_the_page():
    scores = {"samples": 4, "correct": 3, "loss-sum": 2.0}
    trained = {f"trained-{name}": number for name, number in scores.items()}
    tested = {f"{of}-{name}": n for of in ("personalised", "validation", "global") for name, n in scores.items()}
    done = Round(
        1, {0: {"train-loss": 0.5, **trained}}, {0: tested}, {1: "away"}, joined=[0],
        bytes_evaluation_only=8, privacy={"epsilon": 1.0, "delta": 1e-5},
    )  # fmt: skip
    lines = [summarise(done)]
    for head, frame in (
        ("| column of `run.rounds`", dataframes.rounds(lines)),
        ("| column of `run.clients`", dataframes.clients(lines, ["Ann", "Ben"])),
    ):
        listed = columns(head)
        assert len(frame.columns) > 8 and not [name for name in frame.columns if not listed.fullmatch(name)]


def test_the_keys_of_a_summary_are_described():
    listed = inspect.getdoc(Summary).partition("Attributes\n----------\n")[2]
    names = [name for row in re.findall(r"^(\w.*) :", listed, re.M) for name in row.split(", ")]
    assert sorted(names) == sorted(Summary.__annotations__)


def value_of(text: str) -> Any:
    """Return the value that a page gives a setting; None where it is no value."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None


def test_settings_exist_and_allow_the_values_that_a_page_gives_them():
    count = 0
    for page, span in ((page, " ".join(span.split())) for page, text in PAGES.items() for span in code(text)):
        for key, text in re.findall(r'(?:^| )([a-z][a-z0-9-]*) = ("[^"]*"|[\w.+-]+)', span):
            if key in OTHER_KEYS or (value := value_of(text)) is None:
                continue
            assert key in FIELDS, (page, span)
            name = isinstance(value, str) and re.search("NAME|FOLDER|^name$", value)
            assert name or FIELDS[key].metadata["limits"].complaint(value) is None, (page, span)
            count += 1
    assert count >= 100


def test_defaults_are_those_of_the_settings():
    defaults = []
    for page in PAGES.values():
        defaults += re.findall(r"`([a-z][a-z0-9-]*) = ([^`]+)`(?: \(default\)|, the default)", " ".join(page.split()))
        for table in re.findall(r"^\| setting \| default \|.*?\n\n", page + "\n\n", re.M | re.S):
            defaults += re.findall(r"^\| `([^`]+)` \| `?([\d.]+)`? \|", table, re.M)
    assert len(defaults) >= 3
    for key, value in defaults:
        assert FIELDS[key].default == value_of(value), key


def test_what_pages_import_of_the_package_exists():
    # In a method's file the first dots are of the package.
    line = re.compile(r"^from ((?:fedpfl|\.\.)[\w.]*) import (.+)$", re.MULTILINE)
    imports = {(page, *each) for page, text in PAGES.items() for each in line.findall(text)}
    assert len(imports) >= 10
    for page, place, names in sorted(imports):
        place = place.replace("..", "fedpfl.", 1)
        for name in names.split(", "):
            assert hasattr(importlib.import_module(place), name) or importlib.util.find_spec(f"{place}.{name}"), page


def test_paths_of_the_repository_exist():
    count = 0
    # These two pages are about other projects' files.
    for page in sorted(PAGES.keys() - {"docs/reference/why.md", "docs/results/pfllib-fashion-mnist.md"}):
        for span in code(PAGES[page]):
            if re.fullmatch(rf"(?:{TOP})/[\w./*@-]+|[a-z_]+/[\w/]+\.py", span) and not NOT_HERE.match(span):
                assert any(any((ROOT / top).glob(span.rstrip("/"))) for top in ("", "fedpfl", "tests")), (page, span)
                count += 1
    assert count >= 100


def test_commands_and_their_options_exist():
    lines = [(page, line) for page, text in PAGES.items() for line in commands(text)]
    assert len(lines) >= 200
    for page, arguments in lines:
        command, arguments = COMMANDS[arguments[0]], arguments[1:]
        while (
            isinstance(command, click.Group)
            and arguments
            and re.fullmatch("[a-z-]+", arguments[0])
            and arguments[0][0] != "-"
        ):
            assert arguments[0] in command.commands, (page, arguments)
            command, arguments = command.commands[arguments[0]], arguments[1:]
        options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments  # another command follows
        flags = {word.partition("=")[0] for word in arguments if re.match("--?[a-z]", word)}
        assert flags <= {*options, "--help", "--version", "-e"}, (page, arguments)
