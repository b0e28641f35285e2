"""Files of settings and of experiments, and where those are that come with fedpfl: ``configs/`` and ``experiments/``.

A checkout has both folders next to the package; a wheel has copies of them in ``fedpfl/shipped/``, side by side again,
so that ``../../configs/…`` in an experiment's file is right in both.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ..core.checksummed_files import MAX_TOML
from ..core.errors import ConfigError, DamagedFile
from ..core.files import read_regular

CONFIGS, EXPERIMENTS, SCALES = "configs", "experiments", "scales"

_PACKAGE = Path(__file__).resolve().parents[1]


def folder(name: str, package: Path = _PACKAGE) -> Path | None:
    """Return ``CONFIGS`` or ``EXPERIMENTS`` of fedpfl; None in an app's bundle that has no such folder."""
    # Next to an installed package are other packages, never its own folders.
    inside, checkout = package / "shipped", package.parent
    place = inside if inside.is_dir() or not (checkout / "pyproject.toml").is_file() else checkout
    return place / name if (place / name).is_dir() else None


def settings_file(path: Path) -> Path:
    """Return the file of settings that a path means: fedpfl's own ``configs/NAME`` if no such file is here."""
    shipped = folder(CONFIGS)
    if shipped is None or path.exists() or path.parent != Path(CONFIGS) or not (shipped / path.name).is_file():
        return path
    return shipped / path.name


def experiments(place: Path) -> dict[str, Path]:
    """Return the files of experiments in a folder and in its folders by name, without what several share as scales."""
    files: dict[str, Path] = {}
    for path in sorted((*place.glob("*.toml"), *place.glob("*/*.toml"))):
        if path.parent.name != SCALES and files.setdefault(path.stem, path) is not path:
            raise ConfigError("experiment", path.stem, f"is the name of {files[path.stem]} and of {path}")
    return files


def app_settings(app: Path) -> dict[str, Any] | None:
    """Return ``[tool.flwr.app.config]`` of the Flower app in a folder; None if the folder holds no Flower app."""
    path = app / "pyproject.toml"
    if not path.is_file():
        return None
    tool = read_toml(path, "run-config").get("tool", {})
    flower = tool.get("flwr", {}).get("app")
    return None if flower is None else dict(flower.get("config", {}))


def value_of(key: str, text: str) -> Any:
    """Return the value of a setting on a command line: TOML, or a text that needs no quotes."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        if text and (text[0] in "\"'[{" or text[-1] in "\"'"):
            message = "is no value: a text with a quote or bracket at its ends needs quotes around it"
            raise ConfigError(key, text, message) from None
        return text


def read_toml(path: Path, option: str) -> dict[str, Any]:
    """Read a TOML file that an option or a key names."""
    try:
        return tomllib.loads(read_regular(path, MAX_TOML).decode())
    except OSError as error:
        raise ConfigError(option, str(path), f"cannot be read ({error.strerror})") from error
    except DamagedFile as error:
        raise ConfigError(option, str(path), f"cannot be read ({error.more})") from error
    except (ValueError, RecursionError) as error:  # ValueError: neither UTF-8 nor TOML
        raise ConfigError(option, str(path), f"is not valid TOML ({error})") from error
