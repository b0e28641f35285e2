"""A virtual environment that finds every other package, but neither this checkout nor what is installed of it."""

from __future__ import annotations

import sysconfig
import venv
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

# One package from each place where others may be installed.
OTHERS = ("torch", "flwr", "numpy", "ray", "typer", "matplotlib", "sklearn", "pip")


def environment(folder: Path) -> Path:
    """Make one and return its folder of commands, in which are those of Flower and Ray.

    Nothing is copied or downloaded: a .pth file with the folders of the others. Such a folder's own .pth files do not
    count then, and so an editable install of this checkout is not seen.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    home = {"base": str(folder), "platbase": str(folder)}
    places = {str(Path(str(spec.origin)).parents[1]) for name in OTHERS if (spec := find_spec(name)) is not None}
    Path(sysconfig.get_path("purelib", "venv", home), "others.pth").write_text("\n".join(sorted(places)))
    commands = Path(sysconfig.get_path("scripts", "venv", home))
    for package in ("flwr", "ray"):
        for entry in distribution(package).entry_points.select(group="console_scripts"):
            command = commands / entry.name
            command.write_text(
                f"#!{commands}/python\nimport sys\nfrom {entry.module} import {entry.attr} as main\nsys.exit(main())\n"
            )
            command.chmod(0o755)
    return commands


def clean(environment: dict[str, str], commands: Path, home: Path) -> dict[str, str]:
    """Return a process's environment variables, with these commands first and a home folder that is empty."""
    kept = {key: value for key, value in environment.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "HOME": str(home), "PATH": f"{commands}:{environment['PATH']}"}
