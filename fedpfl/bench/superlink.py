"""A private Flower SuperLink: start it, submit a run, watch it, and leave nothing behind.

``flwr run .`` alone uses one SuperLink for all of a user's runs: it goes on running afterwards, in the working
directory and with the environment of the user who started it first. A run of ``fedpfl up`` (``testbed.py``) brings
its own instead, on a free port, with its own ``FLWR_HOME``, in an empty folder. Everything is said through the commands
``flower-superlink`` and ``flwr``, which Flower documents, rather than through the modules behind them, which change.

Nothing here needs torch: a run's settings are checked, which does, while the SuperLink is starting.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import metadata
from logging import WARNING, getLogger
from pathlib import Path
from typing import Any, Self

from ..core.checksummed_files import to_toml
from ..core.errors import FedpflError
from ..flower_private import HEALTH, RUN_REFUSED, TASK_ENDED
from ..version import __version__, untested
from . import run_guard

SUPERLINK = "Flower's SuperLink"
START_SECONDS = 300.0
COMMAND_SECONDS = 120.0
PORT_TRIES = 3
# A log that is longer loses its older half; a testbed may run for weeks.
MAX_LOG = 2**24

# What Flower bundles of an app. It looks at every file below the app's folder, a virtual environment there included
# (5 s for one with torch), and so it is given a copy without one.
APP_SUFFIXES = frozenset({".py", ".toml", ".md", ".yaml", ".yml", ".json"})
APP_NAMES = frozenset({"LICENSE", ".gitignore"})

_PYPROJECT = """\
[project]
name = "fedpfl"
version = "{version}"
description = "The installed package as a Flower app"
license = {{ text = "Apache-2.0" }}
dependencies = ["flwr[simulation]>=1.41"]
[tool.flwr.app]
publisher = "fedpfl"
[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
"""  # and the settings, because Flower refuses a --run-config key that the app does not list
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_REASON = re.compile(rf"ERROR\W+(?:fedpfl|{RUN_REFUSED}): (.*)")


class SuperLink:
    """A SuperLink for one run; a context manager that stops everything it started, even if this program is killed.

    It listens on loopback, with TLS and nodes' keys from the folder ``keys``. Its temporary ``folder`` has its
    ``FLWR_HOME``, the app and logs. With ``database`` it keeps its state in a file and may be started again during a
    run.
    """

    def __init__(self, keys: Path, database: bool = True) -> None:
        # Sockets lie below it, whose paths are limited to about 100 characters.
        base = tempfile.gettempdir()
        self.folder = Path(tempfile.mkdtemp(prefix="fedpfl-", dir=base if len(base) < 24 else "/tmp"))
        self._home = run_guard.home(self.folder)
        self._work = self.folder / "work"
        self._log = self.folder / "superlink.log"
        self._read = 0
        self._port = 0
        self._folder_of_keys = keys
        self._database = self.folder / "superlink.db" if database else None
        self._environment = _environment(self.folder)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[list[str], dict[str, str]]] = {}

    def __enter__(self) -> Self:
        """Begin to start it; :meth:`submit` waits until it answers."""
        if warning := untested(metadata.version("flwr")):
            getLogger("flwr").log(WARNING, "fedpfl: %s", warning)
        # First of all, so that from here on nothing can be left behind. Its standard input closes when this process
        # ends.
        self._guard = run_guard.watch(self.folder)
        try:
            self._home.mkdir()
            self._work.mkdir()
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop every process that came from here and remove the temporary folder."""
        with _ignoring_signals():
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            for process in (self._guard, *self._processes.values()):
                process.wait()

    def submit(self, app: Path | None, run_config: Mapping[str, Any]) -> str:
        """Submit a run, the first or another one after it."""
        self._wait_until_ready()
        copy = self.folder / "app"
        shutil.rmtree(copy, ignore_errors=True)
        copy_app(app, copy)
        settings = self.folder / "run-config.toml"
        settings.write_text(to_toml(dict(run_config)), encoding="utf-8")
        answer = self._flwr("run", str(copy), "--run-config", str(settings), "--format", "json")
        return str(answer["run-id"])

    def status(self, run_id: str) -> tuple[str, str]:
        """Return Flower's (status, details) of a run, for example ``("finished:completed", "N/A")``."""
        run = self._flwr("ls", "--run-id", run_id, "--format", "json")["runs"][0]
        return str(run["status"]), str(run["status-details"])

    def log(self, run_id: str | None) -> str:
        """Return the logs of all parts, and with a run's id of its ServerApp and clients, each under its name."""
        parts = [text(self._log)]
        if run_id is not None and self.ended() is None:
            try:
                shown = self._command("log", run_id, "--show")
                parts.append(shown.stdout + shown.stderr)
            except FedpflError as error:  # the rest is still of use, and how the run ended is known without
                parts.append(str(error))
        parts += [f"-- {name} --\n{text(self._log_of(name))}" for name in self._processes if name != SUPERLINK]
        return _COLOUR.sub("", "\n".join(parts))

    @property
    def processes(self) -> dict[str, int]:
        """The process ids of all parts, by their names."""
        return {name: process.pid for name, process in self._processes.items()}

    def ended(self) -> str | None:
        """Return which of the required processes has ended; None while all are running."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                return f"{name} ended with exit code {process.poll()}"
        return None

    def logged_end(self) -> bool:
        """Return whether the SuperLink has logged since the last call that a task ended: time to ask for the status."""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            self._read = file.seek(self._read if self._read <= size else 0)  # it was shortened
            new = file.read()
        self._read += len(new)
        return TASK_ENDED.encode() in new

    def _start(self) -> None:
        from . import credentials  # and with it cryptography, which a board's processes that import this do not need

        self._port, self._keys = free_port(), credentials.prepare(self._folder_of_keys, 0)
        keys = self._keys
        command = [
            script("flower-superlink"), "--host", "127.0.0.1", "--port", str(self._port),
            "--ssl-certfile", str(keys.certificate), "--ssl-keyfile", str(keys.key),
            "--ssl-ca-certfile", str(keys.authority), "--enable-supernode-auth",
            "--isolation", "process", "--superexec-auth-secret-file", str(keys.superexec_secret),
            *(("--database", str(self._database)) if self._database else ()),
        ]  # fmt: skip
        self._spawn(SUPERLINK, command, self._environment)

    def _connection(self) -> HTTPConnection:
        context = ssl.create_default_context(cafile=str(self._keys.authority))
        return HTTPSConnection("127.0.0.1", self._port, timeout=2, context=context)  # which looks at no proxy variable

    def _wait_until_ready(self) -> None:
        for _ in range(PORT_TRIES):
            if self._is_up():
                address = f"127.0.0.1:{self._port}"
                config = f'[superlink]\ndefault = "fedpfl"\n[superlink.fedpfl]\naddress = "{address}"\n'
                config += f'root-certificates = "{self._keys.authority}"\n'
                (self._home / "config.toml").write_text(config, encoding="utf-8")
                return
            if "address already in use" not in text(self._log):
                break
            self._start()  # another program took the port between our look and the SuperLink's
        reason = self.ended() or f"{SUPERLINK} did not answer within {START_SECONDS:g} s"
        raise FedpflError(f"{reason}: {last_line(self._log)}")

    def _is_up(self) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while self.ended() is None and time.monotonic() < deadline:
            connection = self._connection()
            try:
                connection.request("GET", HEALTH)
                return connection.getresponse().status == 200
            except ssl.SSLCertVerificationError as error:
                raise FedpflError(f"{SUPERLINK}'s certificate is not accepted: {error.verify_message}") from error
            except (OSError, HTTPException):
                time.sleep(0.05)
            finally:
                connection.close()
        return False

    def _spawn(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._commands[name] = list(command), dict(environment)
        with self._log_of(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=environment, cwd=self._work, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _log_of(self, name: str) -> Path:
        return self._log if name == SUPERLINK else self.folder / f"{name.replace(' ', '-')}.log"

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        return answer(arguments[0], self._command(*arguments))

    def _command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_flwr(*arguments, env=self._environment, cwd=self._work)


def run_flwr(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of ``flwr`` to its end."""
    try:
        return subprocess.run(
            [script("flwr"), *arguments], env=env, cwd=cwd, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise FedpflError(f"`flwr {arguments[0]}` did not end within {COMMAND_SECONDS:g} s") from None


def answer(command: str, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the answer of a command of ``flwr`` with ``--format json``."""
    try:
        values = dict(json.loads(done.stdout))
    except ValueError:
        values = {}
    if not values.get("success"):
        reason = values.get("error-message") or done.stderr or done.stdout
        raise FedpflError(f"`flwr {command}` failed: {' '.join(_COLOUR.sub('', str(reason)).split())[:500]}")
    return values


def copy_app(app: Path | None, to: Path) -> None:
    """Copy the files of an app that Flower bundles; without an app, write one for the installed package."""
    if app is None:
        from ..setup.reference import pyproject_block

        to.mkdir()
        project = _PYPROJECT.format(version=__version__) + pyproject_block()
        (to / "pyproject.toml").write_text(project, encoding="utf-8")
        for side in ("server", "client"):
            # Flower looks for the name in the text.
            text = f'from fedpfl.flower.{side}_app import app\n\n__all__ = ["app"]\n'
            (to / f"{side}_app.py").write_text(text, encoding="utf-8")
        return

    def skipped(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if not _is_app_file(Path(folder, name))}

    shutil.copytree(app, to, ignore=skipped)


def reason_in(log: str) -> str | None:
    """Return the reason for the run's failure that the ServerApp, or Flower itself, logged."""
    reasons = _REASON.findall(_COLOUR.sub("", log))
    return reasons[-1].strip() if reasons else None


def _is_app_file(path: Path) -> bool:
    if path.is_dir():
        return not path.name.startswith(".") and path.name != "__pycache__" and not (path / "pyvenv.cfg").exists()
    return path.suffix in APP_SUFFIXES or path.name in APP_NAMES


def _environment(folder: Path) -> dict[str, str]:
    here = {"127.0.0.1", "localhost"}
    excluded = ",".join(os.environ.get(name, "") for name in ("NO_PROXY", "no_proxy"))
    no_proxy = ",".join(sorted({*filter(None, excluded.split(",")), *here}))
    return {
        **os.environ,
        # The SuperLink starts its helpers by name.
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(run_guard.home(folder)),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
    }


def script(name: str) -> str:
    """Return the path of one of Flower's commands; that of this Python's environment comes first."""
    path = shutil.which(name, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))
    if path is None:
        raise FedpflError(f"the command {name} is not installed; install flwr[simulation] in fedpfl's environment")
    return path


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _ignoring_signals() -> Iterator[None]:
    """Ignore further signals to end while everything is being ended."""
    numbers: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def text(path: Path) -> str:
    """Return a log's text; nothing if it is not there."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def shorten(log: Path) -> None:
    """Leave of a long log its newer half. What its writer, which appends, adds at that very moment may be lost."""
    if not log.is_file() or log.stat().st_size <= MAX_LOG:
        return
    with log.open("r+b") as file:
        file.seek(-MAX_LOG // 2, os.SEEK_END)
        newer = file.read().partition(b"\n")[2]
        file.truncate(0)
    with log.open("ab") as file:
        file.write(newer)


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    lines = [line.strip() for line in _COLOUR.sub("", text(log)).splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
