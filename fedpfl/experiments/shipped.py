"""Where the files of settings and of experiments are that come with fedpfl: ``configs/`` and ``experiments/``.

A checkout has both folders beside the package; a wheel has copies of them inside, in ``fedpfl/shipped/``, side by side
again, so that ``../configs/…`` in an experiment's file is right in both.
"""

from __future__ import annotations

from pathlib import Path

CONFIGS, EXPERIMENTS = "configs", "experiments"

_PACKAGE = Path(__file__).resolve().parents[1]


def folder(name: str, package: Path = _PACKAGE) -> Path | None:
    """Return a folder that comes with fedpfl, or None: an app's bundle on Flower's side may be without.

    Parameters
    ----------
    name : str
        ``CONFIGS`` or ``EXPERIMENTS``.
    package : Path
        The package's folder.
    """
    # Beside an installed package, in site-packages, lies what others have installed: never look there.
    inside, beside = package / "shipped", package.parent
    place = inside if inside.is_dir() or not (beside / "pyproject.toml").is_file() else beside
    return place / name if (place / name).is_dir() else None


def settings_file(path: Path) -> Path:
    """Return the file of settings that a path means: ``configs/NAME`` is fedpfl's own where no such file is here.

    Parameters
    ----------
    path : Path
        As given by a user.
    """
    own = folder(CONFIGS)
    if own is None or path.exists() or path.parent != Path(CONFIGS) or not (own / path.name).is_file():
        return path
    return own / path.name
