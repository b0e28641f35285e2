"""``fedpfl doctor``: looks for what would stop a run, and tells what to do about it."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import typer

from ..core.errors import ConfigError
from ..version import FLOWER, untested
from .common import AsJson, RunConfig, app_settings, overrides, print_json, stdout
from .program import app

OK, WARNING, PROBLEM = "ok", "warning", "problem"
LOCAL_SUPERLINK_PORT = 39091
MIN_FREE_BYTES = 1_000_000_000
MATTERS = "this matters only for plain `flwr run .`"
# Where a testbed and `fedpfl up` keep certificates.
KEYS = (Path("/etc/fedpfl/keys"), Path("/etc/fedpfl/local"), Path("~/.fedpfl/testbed"))


class Finding(NamedTuple):
    """One line of the report."""

    check: str
    state: str
    message: str


@app.command("doctor")
def doctor(
    as_json: AsJson = False,
    run_config: RunConfig = None,
) -> None:
    """Check this machine for problems that would stop a run.

    The exit code is 1 if there is a problem.

    Example: fedpfl doctor
    """
    from ..setup.all_settings import tagged
    from ..setup.config import Config

    values = {**(app_settings(Path()) or {}), **overrides(run_config)}
    settings = Config.parse({key: value for key, value in values.items() if key in tagged("place")})
    folders = {
        "output-dir": settings.run.output_dir,
        "state-dir": settings.run.state_dir,
        "data-dir": settings.data.data_dir,
    }
    findings = [*examine({key: Path(path).expanduser() for key, path in folders.items()})]
    findings += [_certificates(path) for path in map(Path.expanduser, KEYS) if path.is_dir()]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        colours = {OK: "green", WARNING: "yellow", PROBLEM: "red"}
        for finding in findings:
            stdout().print(f"{finding.state:8}", style=colours[finding.state], end=f" {finding.check}: ")
            typer.echo(finding.message)
    if any(finding.state == PROBLEM for finding in findings):
        raise typer.Exit(1)


def examine(folders: dict[str, Path]) -> Iterator[Finding]:
    """Run every check."""
    yield _flower()
    yield _torch()
    yield from (_folder(key, path) for key, path in folders.items())
    yield _local_superlink()


def _flower() -> Finding:
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        return Finding("flower", PROBLEM, f"not installed; pip install '{FLOWER}'")
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if number < tuple(map(int, FLOWER.rpartition("=")[2].split("."))):
        return Finding("flower", PROBLEM, f"Flower {version}; pip install '{FLOWER}'")
    if warning := untested(version):
        return Finding("flower", WARNING, warning)
    return Finding("flower", OK, f"Flower {version}")


def _torch() -> Finding:
    try:
        return Finding("torch", OK, f"torch {import_module('torch').__version__}, Python {sys.version.split()[0]}")
    except (ImportError, OSError) as error:  # OSError: a shared library that torch needs
        return Finding("torch", PROBLEM, f"cannot be imported ({error}); training needs it")


def _folder(key: str, path: Path) -> Finding:
    # The folder itself or, where a run would make it, the nearest one above that is there.
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return Finding(key, PROBLEM, f"{path} cannot be written ({error.strerror}); set {key}")
    free = shutil.disk_usage(there).free
    if free < MIN_FREE_BYTES:
        return Finding(key, WARNING, f"{path} has only {free / 1e6:.0f} MB free")
    return Finding(key, OK, f"{path}, {free / 1e9:.0f} GB free")


def _certificates(folder: Path) -> Finding:
    from ..bench.credentials import MIN_DAYS, flaws

    check = "certificates"
    try:
        flawed = flaws(folder)
    except (ConfigError, OSError) as error:
        return Finding(check, WARNING, f"{folder} cannot be read ({error})")
    if not flawed:
        return Finding(check, OK, f"those in {folder} are valid now and in {MIN_DAYS} days")
    reasons = ", ".join(f"{path.name} {flaw.reason}" for path, flaw in flawed.items())
    renew = "renew with `fedpfl keys` in the folder that has ca.key, and copy what it writes to where it is used"
    useless = any(flaw.useless for flaw in flawed.values())
    return Finding(check, PROBLEM if useless else WARNING, f"{folder}: {reasons}; {renew}")


def _local_superlink() -> Finding:
    check = "superlink"
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", LOCAL_SUPERLINK_PORT)) != 0:
            return Finding(check, OK, "no shared SuperLink of `flwr run` is running")
    executable = Path(sys.executable)
    for entry in Path("/proc").glob("[0-9]*/cmdline"):  # only Linux has it
        try:
            python, *arguments = entry.read_bytes().decode(errors="replace").split("\0")
            folder = (entry.parent / "cwd").readlink()
        except OSError:  # it has ended, or is another user's
            continue
        if "superlink" in "".join(arguments[:1]) and str(LOCAL_SUPERLINK_PORT) in " ".join(arguments):
            other = "" if Path(python) in (executable, executable.resolve()) else f" with {python}"
            superlink = f"the shared SuperLink (pid {entry.parent.name})"
            if not other and folder == Path.cwd():
                return Finding(check, OK, f"{superlink} was started from here")
            stop = f"stop it with: kill {entry.parent.name}"
            return Finding(check, WARNING, f"{superlink} runs apps in {folder}{other}; {MATTERS}; {stop}")
    return Finding(check, WARNING, f"something listens on Flower's local port {LOCAL_SUPERLINK_PORT}; {MATTERS}")
