"""``fedpfl new``: copies the files of an app or of a testbed from ``templates/``, and fills in names and versions."""

from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import fields
from pathlib import Path

from ..core.errors import ConfigError
from ..core.files import is_free
from ..methods import Method
from ..setup.reference import pyproject_block
from ..version import SIMULATION, __version__

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TEMPLATES, SUFFIX = Path(__file__).parent / "templates", ".template"

# What the app's settings start from; `fedpfl config --update` keeps them.
SETTINGS = {
    "method": "parts:MyMethod", "model": "parts:my_model", "dataset": "parts:my_data", "local-epochs": 2,
}  # fmt: skip
# `fedpfl new` makes an app of parts for fedpfl; the others are its options.
APP, TESTBED, OWN_FLOWER_APP, BASELINE = "app", "testbed", "flower", "baseline"
# The folder of a template that becomes the app's package.
PACKAGE = "package"


def files(kind: str, name: str, method: type[Method] | None = None) -> dict[str, str]:
    """Return the files of a new app or testbed, by their paths in it; a baseline is of a method."""
    package = name.replace("-", "_")
    # The settings of the example's method stand in the block only when its file is there.
    block = pyproject_block(SETTINGS) if kind == APP else ""
    marks = {"@NAME@": name, "@PACKAGE@": package, "@VERSION@": __version__, "@FLOWER@": SIMULATION}
    if method is not None:
        block = "\n".join(
            f"{field.name.replace('_', '-')} = {json.dumps(field.default)}" for field in fields(method.Settings)
        )
        about = (inspect.getdoc(method) or "").splitlines()[0]
        marks |= {"@CLASS@": method.__name__, "@ABOUT@": about, "@PAPER@": method.paper}
    marks["@SETTINGS@"] = block
    texts = {}
    for path in sorted(path for path in (TEMPLATES / kind).rglob(f"*{SUFFIX}")):
        text = path.read_text(encoding="utf-8")
        for mark, value in marks.items():
            text = text.replace(mark, value)
        parts = path.relative_to(TEMPLATES / kind).parts
        parts = (package, *parts[1:]) if parts[0] == PACKAGE else parts
        texts["/".join(parts).removesuffix(SUFFIX)] = text
    return texts


def make(place: Path, kind: str = APP, method: type[Method] | None = None) -> list[Path]:
    """Make a new app, or the files of a testbed, in a folder that is not there yet, or is empty; return its files."""
    name = place.absolute().name
    if not _NAME.fullmatch(name):
        raise ConfigError("name", name, "must be lower-case letters, digits and dashes, and begin with a letter")
    if kind == BASELINE and "-" in name:
        raise ConfigError("name", name, "must have no dash: folder and package of a baseline have one name")
    if name in sys.stdlib_module_names | {"fedpfl", "flwr", "torch"}:
        raise ConfigError("name", name, "is the name of another package; choose another name")
    if not is_free(place):
        raise ConfigError("name", str(place), "is there already; choose another name")
    made = [(place / file, text) for file, text in files(kind, name, method).items()]
    try:
        for path, text in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("name", str(place), f"cannot be written ({error.strerror})") from error
    return [path for path, _ in made]
