"""Commands, programs and runs of a grid in this process, by the real server and clients without Flower's runtime."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support import engine, run_federation
from typer.testing import CliRunner, Result

from fedpfl.cli import app
from fedpfl.core.errors import FedpflError
from fedpfl.results.new_clients import try_new_clients
from fedpfl.study.execution import Resources
from fedpfl.study.run_store import PlannedRun, Store


def call_fedpfl(*arguments: object) -> Result:
    """Give a command, and return what it has printed and its exit code."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="fedpfl")


def call_program(program: Path, *arguments: object) -> tuple[str, str]:
    """Run a Python program with these arguments; return what it has printed, and the line with which it has ended."""
    printed, ended = io.StringIO(), ""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [program.name, *map(str, arguments)])
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as end:
            ended = str(end.code)
    return printed.getvalue(), ended


class InProcess:
    """A run that is over when it has been started; takes the place of ``Process``."""

    def __init__(self, run: PlannedRun, store: Store, share: Resources) -> None:
        again = store.folder(run).resumable
        values = tomllib.loads(store.prepare(run).read_text(encoding="utf-8"))
        self._outcome: dict[str, Any] = {"status": "finished:completed", "error": None}
        if run.generate and not (place := store.generated(run.generate)).is_dir():
            subprocess.run([sys.executable, *run.generate, "--write", str(place)], check=True)
        try:
            if not store.trained(run):
                run_federation(engine(values["num-clients"], values), {**values, "resume": again})
            for mode in run.modes:
                result = try_new_clients(store.folder(run), mode)
                store.measured(run, mode).write_text(json.dumps(result), encoding="utf-8")
        except FedpflError as error:
            self._outcome = {"status": "failed", "error": str(error)}

    def outcome(self) -> dict[str, Any]:
        return self._outcome

    def interrupt(self) -> bool:
        raise AssertionError("it is over")
