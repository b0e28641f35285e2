"""``fedpfl doctor``: looks for what would stop a run, and tells what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ..core.errors import ConfigError, FedpflError
from ..version import FLOWER
from .common import AsJson, RunConfig, app_settings, overrides, print_json, stdout
from .program import app

if TYPE_CHECKING:
    from ..training.settings import TrainingSettings

OK, WARNING, PROBLEM = "ok", "warning", "problem"
LOCAL_SUPERLINK_PORT = 39091
MIN_FREE_BYTES = 1_000_000_000
MATTERS = "this matters only for plain `flwr run .`"
# Where a testbed and `fedpfl up` keep certificates.
KEYS = (Path("/etc/fedpfl/keys"), Path("/etc/fedpfl/local"), Path("~/.fedpfl/testbed"))
# Savings below a twentieth are within the error of such a short measurement.
PAYS = 0.95


class Finding(NamedTuple):
    """One line of the report."""

    check: str
    state: str
    words: str


@app.command("doctor")
def doctor(
    as_json: AsJson = False,
    keys: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Look also at these certificates (*.pem), of `fedpfl keys`; repeatable."),
    ] = None,
    run_config: RunConfig = None,
) -> None:
    """Check this machine for problems that would stop a run.

    The exit code is 1 if there is a problem.

    Example: fedpfl doctor
    """
    from ..setup.all_settings import tagged
    from ..setup.config import Config

    values = {**(app_settings(Path()) or {}), **overrides(run_config)}
    settings = Config.parse(
        {key: value for key, value in values.items() if key in (*tagged("place"), "device", "threads")}
    )
    folders = {
        "output-dir": settings.run.output_dir,
        "state-dir": settings.run.state_dir,
        "data-dir": settings.data.data_dir,
    }
    findings = [*examine({key: Path(path).expanduser() for key, path in folders.items()}, settings.training)]
    places = [path for path in KEYS if path.expanduser().is_dir()] if keys is None else keys
    findings += [_certificates(path.expanduser()) for path in places]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        colours = {OK: "green", WARNING: "yellow", PROBLEM: "red"}
        for finding in findings:
            stdout().print(f"{finding.state:8}", style=colours[finding.state], end=f" {finding.check}: ")
            typer.echo(finding.words)
    if any(finding.state == PROBLEM for finding in findings):
        raise typer.Exit(1)


def examine(folders: dict[str, Path], training: TrainingSettings) -> Iterator[Finding]:
    """Run every check."""
    yield Finding("python", OK, f"Python {sys.version.split()[0]}")
    yield _flower()
    yield _imports("torch", "training", PROBLEM)
    yield _imports("ray", "plain `flwr run .`", WARNING)
    yield _commands()
    yield from (_folder(key, path) for key, path in folders.items())
    yield _proxy()
    yield _local_superlink()
    yield _precision(training)


def _flower() -> Finding:
    from ..flower_private import untested

    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        return Finding("flower", PROBLEM, f"not installed; pip install '{FLOWER}'")
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if number < tuple(map(int, FLOWER.rpartition("=")[2].split("."))):
        return Finding("flower", PROBLEM, f"Flower {version}; pip install '{FLOWER}'")
    if words := untested(version):
        return Finding("flower", WARNING, words)
    return Finding("flower", OK, f"Flower {version}")


def _imports(name: str, why: str, otherwise: str) -> Finding:
    try:
        return Finding(name, OK, f"{name} {import_module(name).__version__}")
    except (ImportError, OSError) as error:  # OSError: a shared library that torch needs
        return Finding(name, otherwise, f"cannot be imported ({error}); {why} needs it")


def _commands() -> Finding:
    from ..bench.superlink import script

    try:
        for name in ("flwr", "flower-superlink", "flower-superexec"):
            script(name)
    except FedpflError as error:
        return Finding("commands", PROBLEM, str(error))
    return Finding("commands", OK, "Flower's commands are there; uv is not needed")


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
    if not folder.is_dir():
        return Finding(check, PROBLEM, f"{folder} is not a folder")
    try:
        found = flaws(folder)
    except (ConfigError, OSError) as error:
        return Finding(check, WARNING, f"{folder} cannot be read ({error})")
    if not found:
        return Finding(check, OK, f"those in {folder} are valid now and in {MIN_DAYS} days")
    words = ", ".join(f"{path.name} {flaw.words}" for path, flaw in found.items())
    renew = "renew with `fedpfl keys` in the folder that has ca.key, and copy what it writes to where it is used"
    useless = any(flaw.useless for flaw in found.values())
    return Finding(check, PROBLEM if useless else WARNING, f"{folder}: {words}; {renew}")


def _proxy() -> Finding:
    names = [name for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy") if os.environ.get(name)]
    bypass = (os.environ.get("NO_PROXY", "") + "," + os.environ.get("no_proxy", "")).split(",")
    if names and not {"127.0.0.1", "*"} & {name.strip() for name in bypass}:
        words = f"{names[0]} is set and NO_PROXY lacks 127.0.0.1: `fedpfl up` handles this, plain `flwr run` would fail"
        return Finding("proxy", WARNING, f"{words}; export NO_PROXY=127.0.0.1,localhost")
    return Finding("proxy", OK, "no proxy is in the way")


def _local_superlink() -> Finding:
    check = "superlink"
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", LOCAL_SUPERLINK_PORT)) != 0:
            return Finding(check, OK, "no shared SuperLink of `flwr run` is running")
    executable = Path(sys.executable)
    for entry in Path("/proc").glob("[0-9]*/cmdline"):  # only Linux has it
        try:
            python, *words = entry.read_bytes().decode(errors="replace").split("\0")
            folder = (entry.parent / "cwd").readlink()
        except OSError:  # it has ended, or is another user's
            continue
        if "superlink" in "".join(words[:1]) and str(LOCAL_SUPERLINK_PORT) in " ".join(words):
            other = "" if Path(python) in (executable, executable.resolve()) else f" with {python}"
            found = f"the shared SuperLink (pid {entry.parent.name})"
            if not other and folder == Path.cwd():
                return Finding(check, OK, f"{found} was started from here")
            stop = f"stop it with: kill {entry.parent.name}"
            return Finding(check, WARNING, f"{found} runs apps in {folder}{other}; {MATTERS}; {stop}")
    return Finding(check, WARNING, f"something listens on Flower's local port {LOCAL_SUPERLINK_PORT}; {MATTERS}")


def _precision(training: TrainingSettings) -> Finding:
    check = "precision"
    try:
        from ..training.device import require_device
        from ..training.speed import compare_precisions
    except (ImportError, OSError):  # said of torch above
        return Finding(check, WARNING, "bf16 was not measured, as torch cannot be imported")
    try:
        require_device(replace(training, precision="bf16"))
    except ConfigError as error:
        return Finding(check, OK if error.key == "precision" else WARNING, str(error))
    threads = training.threads or 1  # of a client among others, one on every core
    speed = compare_precisions(replace(training, threads=threads))
    where = "on the GPU" if training.device == "cuda" else f"with {threads} thread{'s' if threads > 1 else ''}"
    words = f"a training step of a small CNN {where} takes {speed.bf16 * 1000:.3g} ms with bf16 and "
    words += f"{speed.float32 * 1000:.3g} ms with float32 ({speed.ratio:.2f} times): "
    words += f'precision = "bf16" is {"" if speed.ratio < PAYS else "not "}worth it here'
    return Finding(check, OK, words)
