"""The reference, written from the code itself by ``fedpfl config --update``; a test fails when it is out of date."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any, Iterable, Mapping

from ..core.errors import FedpflError
from ..core.files import write_atomically
from ..core.references import FORM
from ..methods import Method, methods
from ..version import REPOSITORY, __version__, urls
from .all_settings import METHOD, all_settings, functions, sections, tagged

BEGIN = "# -- settings: written by `fedpfl config --update`; `fedpfl config` explains them --"
END = "# -- end of settings --"
HOOKS_BEGIN, HOOKS_END = "<!-- hooks: written by `fedpfl config --update` -->", "<!-- end of hooks -->"
VERSION = re.compile(r'(?<=^version = ")[^"]*(?="$)', re.MULTILINE)
RECIPE_VERSION = re.compile(r'(?<=^  version: ")[^"]*', re.MULTILINE)
CITED_VERSION = re.compile(r"(?<=^version: ).*$", re.MULTILINE)
URLS = re.compile(r"(?<=^\[project\.urls\]\n)(?:\w+ = .*\n)*", re.MULTILINE)
CITED_REPOSITORY = re.compile(r"^repository-code: .*\n", re.MULTILINE)
CLONED = re.compile(r"(?<=^git clone )\S+(?= && cd fedpfl)", re.MULTILINE)
# In the pages' commands while the repository has no address.
NO_ADDRESS = "ADDRESS"
# Groups of settings so small share a table of the page.
FEW = 2
METHODS_LINK = f"a [method](../methods/index.md), or {FORM}"
PAGES_THAT_CLONE = ("README.md", "docs/index.md", "docs/how-to/install.md", "docs/devices/testbed.md")


def pyproject_block(values: Mapping[str, Any] | None = None, explained: bool = False) -> str:
    """Return the settings' block: every key and its default, or an app's own ``values``, perhaps ``explained``."""
    lines = [BEGIN, "[tool.flwr.app.config]"]
    for title, fields in sections().items():
        lines.append(f"# {title}")
        for key, field in fields.items():
            value = json.dumps((values or {}).get(key, field.default), ensure_ascii=False)
            lines.append(f"{key} = {value}" + (f"  # {meaning(field)}" if explained else ""))
    return "\n".join([*lines, END])


def settings_page() -> str:
    """Return the reference of all settings as a Markdown page."""
    lines = [
        "# Settings",
        "",
        "This page lists each setting, its default and what it accepts. Change settings with `-c`, as pairs or in a",
        "TOML file (`fedpfl run -c my.toml`); `flwr run . --run-config` takes the same. `[tool.flwr.app.config]` in",
        "`pyproject.toml` has a project's own defaults. `fedpfl config --update` writes this page.",
        "",
        "```sh",
        "fedpfl run -c 'method=\"fedavg\" dirichlet-alpha=0.1'",
        "```",
        "",
        "<!-- no output: tutorial/first-run.md shows it -->",
        "",
        "Commas separate the entries of a list.",
        "",
    ]
    others: dict[str, dataclasses.Field[Any]] = {}
    for title, fields in sections().items():
        if len(fields) <= FEW:
            others.update({} if title.startswith(METHOD) else fields)
        elif not title.startswith(METHOD):
            lines += [f"## {title}", "", *settings_table(fields), ""]
    lines += ["## Other settings", "", *settings_table(others), "", "## Settings of methods", ""]
    return "\n".join([*lines, "Each [method's page](../methods/index.md) lists them.", ""])


def settings_stub() -> str:
    """Return ``fedpfl/api/settings.pyi``: types of all settings for editors."""
    types = {
        key: "FunctionsOrNames" if key in functions() - tagged("server") else _type_of(field).removesuffix(" | float")
        for key, field in all_settings().items()
    }

    def fields(keys: Iterable[str], kinds: Mapping[str, str] = types) -> list[str]:
        return [f"    {key.replace('-', '_')}: {kinds.get(key, 'Any')}" for key in keys]

    arguments, of_run = ("method", "model", "dataset", "data", "num-clients"), ("output-dir", "seed", "run-name")
    of_arguments = (*arguments, "resume")
    return "\n".join([
        '"""Types of all settings for editors. Written by `fedpfl config --update`."""',
        "",
        "# fmt: off",
        "",
        "from collections.abc import Callable, Mapping, Sequence",
        "from typing import Any, Literal, TypedDict",
        "",
        "_One = str | Callable[..., Any]",
        "FunctionsOrNames = _One | Sequence[_One] | Mapping[int, _One] | Mapping[str, _One]",
        "",
        "class CommonSettings(TypedDict, total=False):",
        *fields(key for key in types if key not in (*of_arguments, *of_run)),
        "",
        "class Settings(CommonSettings, total=False):",
        *fields(of_run),
        "",
        "class SweepSettings(CommonSettings, total=False):",
        *fields(arguments, {}),
        "",
    ])  # fmt: skip


# Flower's own settings of a strategy, as its FedAvg has them.
FLOWERS = (
    "fraction_train: float = ...", "fraction_evaluate: float = ...", "min_train_nodes: int = ...",
    "min_evaluate_nodes: int = ...", "min_available_nodes: int = ...", "weighted_by_key: str = ...",
    "arrayrecord_key: str = ...", "configrecord_key: str = ...",
    "train_metrics_aggr_fn: MetricsFunction | None = ...", "evaluate_metrics_aggr_fn: MetricsFunction | None = ...",
)  # fmt: skip
OURS = (
    "model: Callable[..., nn.Module] | nn.Module | str | None = ...", "head: str = ...",
    "keep: str | Sequence[str] = ...", "personal: str | Sequence[str] = ...",
    "state_key: str = ...", "listeners: Sequence[Listener] = ...",
)  # fmt: skip


def strategies_stub() -> str:
    """Return ``fedpfl/strategies.pyi``: the classes of all strategies with their settings, for editors."""
    lines = [
        '"""Types of the strategies for editors. Written by `fedpfl config --update`."""',
        "",
        "# ruff: noqa: D204, E501",
        "# fmt: off",
        "",
        "from collections.abc import Callable, Sequence",
        "from typing import Any, Literal",
        "",
        "from torch import nn",
        "",
        "from .engine.listener import Listener",
        "from .flower.fit import client_app as client_app",
        "from .flower.fit import fit as fit",
        "from .flower.keep import keep as keep",
        "from .flower.strategy import MethodStrategy as MethodStrategy",
        "from .flower.strategy import MetricsFunction",
        "from .flower.strategy import of as of",
        "",
    ]
    for method in methods().values():
        fields = [f"{field.name}: {_type_of(field)} = ..." for field in dataclasses.fields(method.Settings)]
        first = (inspect.getdoc(method) or method.name).splitlines()[0]
        lines += [
            f"class {method.__name__}(MethodStrategy):",
            f'    """{first}"""' if "\\" not in first else f'    r"""{first}"""',
            "    def __init__(",
            f"        self, {', '.join(FLOWERS)},",
            f"        *, {', '.join((*OURS, *fields))}, **settings: Any,",
            "    ) -> None: ...",
            "",
        ]
    return "\n".join(lines)


def _type_of(field: dataclasses.Field[Any]) -> str:
    limits = field.metadata["limits"]
    if limits.choices is not None and not limits.open_to:
        return f"Literal[{', '.join(json.dumps(choice) for choice in limits.choices())}]"
    return f"{type(field.default).__name__} | float" if isinstance(field.default, str) else type(field.default).__name__


def hooks_table() -> str:
    """Return the hooks that a method can define as a Markdown table, between the two marker lines of its page."""
    listed = inspect.cleandoc(Method.__doc__ or "").partition("Attributes\n----------\n")[2]
    rows = {name: (name, text) for name, text in re.findall(r"^(\w+) : .*\n((?: {4}.*\n?)+)", listed, re.MULTILINE)}
    for name, hook in vars(Method).items():
        if name not in rows and not name.startswith("_"):
            asked = [] if isinstance(hook, property) else [", ".join([*inspect.signature(hook).parameters][1:])]
            rows[name] = "".join([name, *(f"({arguments})" for arguments in asked)]), inspect.getdoc(hook) or ""
    lines = [HOOKS_BEGIN, "", "| attribute or hook | meaning | example |", "|---|---|---|"]
    for name, (called, text) in rows.items():
        first = " ".join(text.partition("\n\n")[0].split())
        said = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", first).replace("``", "`")
        lines.append(f"| `{called}` | {said} | {_example(name)} |")
    return "\n".join([*lines, "", HOOKS_END])


def _example(name: str) -> str:
    """Name a method whose attribute is not the base's."""
    default = getattr(Method, name, None)
    having = [method.name for method in methods().values() if getattr(method, name) is not default]
    return "all" if len(having) == len(methods()) else f"`{having[0]}`" if having else "none"


def update(root: Path) -> list[Path]:
    """Rewrite the stubs, the block in ``pyproject.toml``, a page and a table in another, and return what changed.

    The version and the repository, whose one place is ``fedpfl/version.py``, go in as well. A user's app, which is
    without the package's code, has the block alone, and keeps its own values there.
    """
    project = root / "pyproject.toml"
    text = project.read_text(encoding="utf-8") if project.is_file() else ""
    # The rest of the first line has changed between versions.
    block = re.compile(re.escape(BEGIN[: BEGIN.index(":")]) + ".*?" + re.escape(END), re.DOTALL)
    if not block.search(text):
        raise FedpflError(f"{project}: has no settings block; run this in the project's folder")
    if not (root / "fedpfl").is_dir():
        return _write({project: block.sub(lambda match: pyproject_block(_values(project, match.group())), text)})
    wanted = {
        root / "fedpfl" / "api" / "settings.pyi": settings_stub(),
        root / "fedpfl" / "strategies.pyi": strategies_stub(),
        project: URLS.sub(
            "".join(f'{name} = "{address}"\n' for name, address in urls().items()),
            VERSION.sub(__version__, block.sub(lambda _: pyproject_block(), text), count=1),
        ),
        root / "docs" / "reference" / "configuration.md": settings_page(),
    }
    citation = root / "CITATION.cff"
    if citation.is_file():
        cited = CITED_REPOSITORY.sub("", CITED_VERSION.sub(__version__, citation.read_text(encoding="utf-8")))
        wanted[citation] = cited + (f"repository-code: {REPOSITORY}\n" if REPOSITORY else "")
    recipe = root / "deploy" / "conda" / "recipe.yaml"
    if recipe.is_file():
        wanted[recipe] = RECIPE_VERSION.sub(__version__, recipe.read_text(encoding="utf-8"))
    for path in (root / name for name in PAGES_THAT_CLONE):
        if path.is_file():
            wanted[path] = CLONED.sub(REPOSITORY or NO_ADDRESS, path.read_text(encoding="utf-8"))
    page, table = root / "docs" / "reference" / "hooks.md", hooks_table()
    if page.is_file():
        old = re.compile(re.escape(HOOKS_BEGIN) + ".*?" + re.escape(HOOKS_END), re.DOTALL)
        wanted[page] = old.sub(lambda _: table, page.read_text(encoding="utf-8"))
    return _write(wanted)


def _write(wanted: Mapping[Path, str]) -> list[Path]:
    changed = [path for path, new in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != new]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path.resolve(), wanted[path].encode())  # a user's own pyproject.toml, too
    return changed


def _values(project: Path, block: str) -> dict[str, Any]:
    """Return the values of a block of settings: on each line ``key = value``, the value as JSON, and a comment."""
    values: dict[str, Any] = {}
    for line in block.splitlines():
        key, equals, rest = line.partition(" = ")
        if equals and not line.startswith("#"):
            try:
                values[key], _ = json.JSONDecoder().raw_decode(rest)
            except ValueError:
                raise FedpflError(f"{project}: the setting {key} is not written as a plain value: {rest}") from None
    return values


def settings_table(fields: Mapping[str, dataclasses.Field[Any]]) -> list[str]:
    """Return settings by their keys as lines of a Markdown table."""
    lines = ["| key | default | meaning | allowed |", "|---|---|---|---|"]
    for key, field in fields.items():
        default = json.dumps(field.default, ensure_ascii=False)
        allowed = METHODS_LINK if key == "method" else _allowed(field).removeprefix("one of ")
        allowed = allowed.replace(" and at most ", ", ≤ ").replace("at least", "≥")
        row = (f"`{key}`", f"`{default}`", field.metadata["doc"], allowed)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return lines


def _allowed(field: dataclasses.Field[object]) -> str:
    if isinstance(field.default, bool):
        return "true, false"
    if isinstance(field.default, str) and field.metadata["limits"].choices is None:
        return str(field.metadata["form"])
    return str(field.metadata["limits"].describe())


def meaning(field: dataclasses.Field[object]) -> str:
    """Return a setting's meaning, and the values that it accepts."""
    allowed = _allowed(field)
    return str(field.metadata["doc"]) + ("" if allowed in ("", "true, false") else f" ({allowed})")
