"""Flower's own command, as a user without the `fedpfl` command has it, with a home folder that nobody else uses."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from processes import using
from waiting import wait_until

from fedpfl.bench.superlink import free_port
from fedpfl.results.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
# A busy machine may take ten times as long as an idle one, and Ray's workers come behind everything else that runs.
SECONDS = 600
# Ray gives itself 30 s to start, without a setting, and says this when it needed more: no fault of what is tested.
TOO_BUSY, TRIES = "timed out during startup", 4


class Flower:
    """`flwr`, and a SuperLink of its own on loopback; a context manager that leaves nothing behind.

    Flower would start a SuperLink by itself, but gives up if it does not answer within 15 s.

    Attributes
    ----------
    commands : Path
        The folder of Flower's commands; by default beside this Python.
    folder : Path
        Where all its processes have their files; gone at the end.
    environment : dict of str to str
        Theirs.
    """

    # What tells the SuperLink that nodes are played, by Ray.
    mode = ("--simulation",)

    def __init__(self, commands: Path = BIN, **environment: str) -> None:
        self.commands = commands
        # Ray puts sockets below it, whose paths are limited to about 100 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="fedpfl-test-", dir="/tmp"))
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {
            **os.environ,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            # Installing the dependencies once more for every run takes gigabytes.
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            # Another Ray that runs on this machine is not found from here.
            "RAY_TMPDIR": str(self.folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray's own 15 lets clients wait for minutes where other programs keep the processor busy.
            "RAY_worker_niceness": "0",
            **environment,
        }

    def __enter__(self) -> Flower:
        port, home = free_port(), self.folder / "flwr"
        self.address = f"127.0.0.1:{port}"
        home.mkdir()
        address = f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "own"\n[superlink.own]\n{address}')
        command = ["flower-superlink", "--insecure", *self.mode, "--host", "127.0.0.1", "--port", str(port)]
        log = self.folder / "superlink.log"
        with log.open("wb") as out:
            self._superlink = subprocess.Popen(
                [self.commands / command[0], *command[1:]], env=self.environment, cwd=home, stdout=out, stderr=out
            )
        try:
            with socket.socket() as probe:
                wait_until(
                    lambda: probe.connect_ex(("127.0.0.1", port)) == 0,
                    lambda: self._superlink.poll() is None,
                    log.read_text,
                    SECONDS,
                )
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the SuperLink, and see that all others end with it."""
        self._superlink.terminate()
        self._superlink.wait(SECONDS)
        try:
            wait_until(lambda: not using(self.folder), hint=lambda: using(self.folder), seconds=SECONDS)
        finally:
            for pid in using(self.folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.folder)

    def app(self) -> Path:
        """Return a copy of what git tracks: the bundle must not depend on anything else that lies in a checkout."""
        app = self.folder / "app"
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in tracked.stdout.split():
            (app / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, app / name)
        return app

    def bundle(self) -> Path:
        """Return a folder with what `flwr build` puts into the app's bundle, and nothing else."""
        source = self.app()
        command = [self.commands / "flwr", "build", "--app", source]
        subprocess.run(command, cwd=self.folder, env=self.environment, check=True, timeout=SECONDS)
        (file,) = self.folder.glob("*.fab")
        shutil.rmtree(source)
        with zipfile.ZipFile(file) as archive:
            archive.extractall(self.folder / "bundle")
        return self.folder / "bundle"

    def run(
        self,
        app: Path,
        places: Path,
        state: Path,
        settings: Mapping[str, object],
        *arguments: str,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> RunFolder:
        """Run `flwr run .` in the app's folder to its good end and return the run's folder.

        Parameters
        ----------
        app : Path
            The app.
        places, state : Path
            ``output-dir`` and ``state-dir``.
        settings : mapping
            All other settings.
        arguments : str
            More arguments of `flwr run`.
        meanwhile : callable
            Is called all the time.
        """
        for attempt in range(TRIES):
            values = {
                "output-dir": f'"{places}"',
                "state-dir": f'"{state}"',
                "run-name": f'"run-{attempt}"',
                **settings,
            }
            pairs = " ".join(f"{key}={value}" for key, value in values.items())
            log = self.folder / f"run-{attempt}.log"
            with log.open("wb") as out:
                run = subprocess.Popen(
                    [self.commands / "flwr", "run", ".", "--run-config", pairs, *arguments, "--stream"],
                    cwd=app, env=self.environment, stdout=out, stderr=out,
                )  # fmt: skip

            def ended(run: subprocess.Popen[bytes] = run) -> bool:
                meanwhile()
                return run.poll() is not None

            wait_until(ended, hint=log.read_text, seconds=SECONDS)
            assert run.returncode == 0, log.read_text()
            status = self.status()
            if status == "finished:completed" or TOO_BUSY not in log.read_text():
                break
        assert status == "finished:completed", log.read_text()
        return RunFolder(places / f"run-{attempt}")

    def status(self) -> str:
        """Return what `flwr ls` says of the newest run."""
        done = subprocess.run(
            [self.commands / "flwr", "ls", "--format", "json"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        return str(json.loads(done.stdout)["runs"][0]["status"])
