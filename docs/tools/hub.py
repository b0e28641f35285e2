"""The folder that Flower Hub takes: a bundle of ``flwr build``, unpacked, with a README of its own.

Flower Hub takes a project's folder, not a bundle, and a checkout has more files than it allows. What is written here
passes the checks that ``flwr app publish`` makes before it sends anything; ``make dist`` calls this.

    python docs/tools/hub.py BUNDLE.fab dist/hub/fedpfl --publisher NAME
"""

from __future__ import annotations

import argparse
import re
import runpy
import shutil
import sys
import zipfile
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = Path(__file__).with_suffix(".md")
# Flower's own entry of a bundle.
INFO = ".info"


def write(bundle: Path, folder: Path, publisher: str) -> None:
    """Write the folder anew from a bundle; ``publisher`` is the name of an account of Flower Hub."""
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not name.startswith(INFO)])
    # The bundle's has lost its comments.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project, count = re.subn(r'(?m)^publisher = ".*"$', f'publisher = "{publisher}"', project)
    if count != 1:
        raise SystemExit("pyproject.toml: must have one publisher")
    # Written by hatchling from the checkout's README, and by a program that is not in the bundle.
    project = re.sub(r"(?m)^# README\.md, by .*\ndynamic = .*$", 'readme = "README.md"', project)
    project = re.sub(r"(?m)^\[tool\.hatch\.metadata\.hooks\.custom\]\npath = .*\n", "", project)
    project = project.replace(
        'only-include = ["fedpfl", "configs", "experiments"]', 'only-include = ["fedpfl", "configs"]'
    )
    project = project.replace('"experiments" = "fedpfl/shipped/experiments"\n', "")
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    repository = runpy.run_path(str(ROOT / "fedpfl" / "version.py"))["REPOSITORY"]
    link = f"\n[Documentation and source]({repository})\n" if repository else ""
    text = README.read_text(encoding="utf-8").replace("@PUBLISHER@", f"@{publisher}")
    (folder / "README.md").write_text(text.replace("@REPOSITORY@\n", link).rstrip() + "\n", encoding="utf-8")


def check(folder: Path) -> int:
    """Make the checks of ``flwr app publish``; return the number of files that it would send."""
    # The package has a function of this name, too.
    publish = import_module("flwr.cli.app_cmd.publish")
    config, _ = publish.load_and_validate(folder / "pyproject.toml", check_module=False)
    publish._validate_app_name(folder.name, "folder")
    publish._validate_description(config["project"]["description"])
    paths = publish._collect_file_paths(folder)
    publish._validate_files(paths)
    return len(paths)


def main() -> None:
    """Write the folder and check it."""
    parser = argparse.ArgumentParser(prog="hub.py", description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--publisher", default="fedpfl", help="account of Flower Hub (%(default)s)")
    options = parser.parse_args()
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", options.publisher):
        sys.exit(f"publisher = {options.publisher}: must be lower-case letters, digits and dashes")
    write(options.bundle, options.folder, options.publisher)
    print(f"{options.folder}: {check(options.folder.resolve())} files for Flower Hub")


if __name__ == "__main__":
    main()
