"""``fedpfl new``: copies the files of an app or of a testbed from ``templates/``, and fills in names and versions."""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import ConfigError
from ..setup.reference import pyproject_block
from ..version import SIMULATION, __version__

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TEMPLATES, SUFFIX = Path(__file__).parent / "templates", ".template"

# What the app's settings start from; `fedpfl config --update` keeps them.
SETTINGS = {
    "method": "parts:MyMethod", "model": "parts:my_model", "dataset": "parts:my_data", "local-epochs": 2,
}  # fmt: skip
# `fedpfl new` makes an app of parts for fedpfl; the others are its options.
APP, TESTBED, OWN_FLOWER_APP = "app", "testbed", "flower"


def files(kind: str, name: str) -> dict[str, str]:
    """Return the files of a new app or testbed, by name."""
    # The settings of the example's method stand in the block only when its file is there.
    block = pyproject_block(SETTINGS) if kind == APP else ""
    filled = {"@NAME@": name, "@VERSION@": __version__, "@FLOWER@": SIMULATION, "@SETTINGS@": block}
    found = {}
    for path in sorted((TEMPLATES / kind).iterdir()):
        text = path.read_text(encoding="utf-8")
        for mark, value in filled.items():
            text = text.replace(mark, value)
        found[path.name.removesuffix(SUFFIX)] = text
    return found


def make(place: Path, kind: str = APP) -> list[Path]:
    """Make a new app, or the files of a testbed, in a folder that is not there yet, or is empty; return its files."""
    name = place.absolute().name
    if not _NAME.fullmatch(name):
        raise ConfigError("name", name, "must be lower-case letters, digits and dashes, and begin with a letter")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError("name", str(place), "is there already; choose another name")
    try:
        place.mkdir(parents=True, exist_ok=True)
        made = files(kind, name)
        for file, text in made.items():
            (place / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("name", str(place), f"cannot be written ({error.strerror})") from error
    return [place / file for file in made]
