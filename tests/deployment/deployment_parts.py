"""Start `fedpfl run` and `fedpfl up` in an empty home, find their processes, and see that none stays behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from processes import marked
from waiting import wait_until

SECONDS = 600
SETTINGS = 'dataset="digits" threads=1 local-epochs=2 batch-size=32 seed=3'

# Model and data set of the app that `fedpfl new` makes, and a method with a personal head in a file beside them.
OWN_PARTS = {
    "model": "parts:my_model", "dataset": "parts:my_data", "num-server-rounds": 2, "local-epochs": 1, "batch-size": 32,
    "threads": 1, "method": "mine:Double", "double-factor": 3.0,
}  # fmt: skip

needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None,
    reason="mosquitto is not installed",
)


class Home:
    """A home folder, and a mark in the environment of everything that is started from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "work").mkdir()
        self.environment = {**os.environ, "HOME": str(path), "FEDPFL_TEST_MARK": str(path)}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from fedpfl.cli import main; main()", *arguments]
        return subprocess.Popen(
            command, env={**self.environment, **environment}, cwd=self.path / "work",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def carry_out(self, *arguments: str, **environment: str) -> dict[str, object]:
        """Run a command to its end and return its outcome, which must be good."""
        return self.outcome(self.start(*arguments, "--json", **environment))

    def outcome(self, process: subprocess.Popen[str]) -> dict[str, object]:
        """Wait for the end of a command with ``--json`` and return its outcome, which must be good."""
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, out + err
        return dict(json.loads(out.splitlines()[-1]))

    @property
    def runs(self) -> Path:
        return self.path / ".fedpfl" / "runs"

    def processes(self) -> dict[int, str]:
        """Return the command lines of what was started from here and runs."""
        commands = marked(f"FEDPFL_TEST_MARK={self.path}")
        return {pid: command.replace(b"\0", b" ").decode() for pid, command in commands.items()}

    def find(self, *parts: str) -> list[int]:
        """Return the processes whose command line has these words."""
        return [pid for pid, line in self.processes().items() if all(word in line for word in parts)]

    def kill(self, *parts: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to the first process whose command line has these words; those that it forked have the same."""
        os.kill(min(self.find(*parts)), number)

    def log(self, name: str) -> str:
        """Return what the testbed's part of this name has logged; nothing if it is not there yet."""
        for pid in self.processes():
            try:
                paths = [*(Path(f"/proc/{pid}/cwd").resolve(strict=True).parent).glob(f"{name}-0.log")]
            except OSError:
                continue
            if paths:
                return paths[0].read_text()
        return ""

    def wait_until_empty(self) -> None:
        """Wait until nothing runs that was started from here."""
        wait_until(lambda: not self.processes(), hint=self.processes)


def toml(settings: Mapping[str, object], between: str = "\n") -> str:
    return between.join(f"{key}={value!r}" for key, value in settings.items())


def wait_for(condition, process: subprocess.Popen[str]) -> None:
    """Wait until a condition holds while a process runs."""
    wait_until(
        condition, lambda: process.poll() is None, lambda: process.poll() and process.communicate(), seconds=SECONDS
    )


def disturbed(how):
    """Return the environment in which parts of a testbed suffer: see ``disturbed/sitecustomize.py``."""
    path = [str(Path(__file__).parent / "disturbed"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "FEDPFL_TEST_DISTURB": how}
