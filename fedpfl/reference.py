"""The configuration reference, written from the settings themselves: ``pyproject.toml``'s block and a docs page.

``fedpfl config --update`` writes both; a test fails when they are out of date.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from .config import sections
from .errors import FedpflError
from .settings import key_of

BEGIN = "# -- settings: written by `fedpfl config --update`, which reads them from the code --"
END = "# -- end of settings --"


def pyproject_block() -> str:
    """Return ``[tool.flwr.app.config]`` with every key, its default and, as a comment, its meaning and limits."""
    lines = [BEGIN, "[tool.flwr.app.config]"]
    for title, cls, prefix in sections():
        lines.append(f"# {title}")
        for field in dataclasses.fields(cls):
            default = json.dumps(field.default, ensure_ascii=False)
            lines.append(f"{key_of(field, prefix)} = {default}  # {_meaning(field)}")
    return "\n".join([*lines, END])


def markdown() -> str:
    """Return the reference as a Markdown page."""
    lines = [
        "# Settings",
        "",
        "Every setting is a key of `[tool.flwr.app.config]` in `pyproject.toml` and can be overridden:",
        "`fedpfl run --run-config 'method=\"fedavg\" dirichlet-alpha=0.1'`, or with a TOML file from `configs/`;",
        "`flwr run . --run-config …` takes the same. Written by `fedpfl config --update`.",
        "",
    ]
    for title, cls, prefix in sections():
        lines += [f"## {title}", "", "| key | default | meaning | allowed |", "|---|---|---|---|"]
        for field in dataclasses.fields(cls):
            default = json.dumps(field.default, ensure_ascii=False)
            row = (f"`{key_of(field, prefix)}`", f"`{default}`", field.metadata["doc"], _allowed(field))
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
        lines.append("")
    return "\n".join(lines)


def update(root: Path) -> list[Path]:
    """Rewrite the block in ``pyproject.toml`` and the page ``docs/configuration.md`` under ``root``.

    Returns
    -------
    list of Path
        The files that changed.

    Raises
    ------
    FedpflError
        ``pyproject.toml`` is missing or lacks the two marker lines.
    """
    project = root / "pyproject.toml"
    text = project.read_text(encoding="utf-8") if project.is_file() else ""
    block = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not block.search(text):
        raise FedpflError(f"{project}: has no settings block; run this in the project's folder")
    wanted = {project: block.sub(lambda _: pyproject_block(), text), root / "docs" / "configuration.md": markdown()}
    changed = [path for path, new in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != new]
    for path in changed:
        path.parent.mkdir(exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    return changed


def _allowed(field: dataclasses.Field[object]) -> str:
    if isinstance(field.default, bool):
        return "true, false"
    if isinstance(field.default, str) and field.metadata["limits"].choices is None:
        return "text"
    return str(field.metadata["limits"].describe())


def _meaning(field: dataclasses.Field[object]) -> str:
    allowed = _allowed(field)
    return str(field.metadata["doc"]) + ("" if allowed in ("text", "true, false") else f" ({allowed})")
