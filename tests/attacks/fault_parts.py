"""Runs fedpfl's commands with a fault at their n-th change of a file: a kill, a full disk, one Ctrl-C or two.

As a program it has imported what the commands need and forks each of them, so that a command takes as long as its work.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from fedpfl.study.execution import FEDPFL

# What commands import when they need it.
IMPORTED_LATE = (
    "fedpfl.launch.plan", "fedpfl.launch.simulation", "fedpfl.bench.superlink", "fedpfl.results.summary",
    "tensorboard.summary.writer.record_writer", "tensorboard.compat.proto.event_pb2", "fedpfl.study.report",
    "fedpfl.study.paper_tables", "fedpfl.results.export",
)  # fmt: skip
# What changes files and folders, as Python's audit hooks call it.
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
KILL, FULL, INTERRUPT, TWICE = "kill", "full disk", "Ctrl-C", "two Ctrl-C"


class Fault(NamedTuple):
    """What happens at the ``at``-th change of a file below ``root`` (0: nothing); counted in ``counter``."""

    kind: str
    at: int
    root: str
    counter: str


def arm(fault: Fault) -> None:
    """Have the fault happen to this process, which is the command's, and to all that it forks."""
    main, inside = os.getpid(), False
    count = os.open(fault.counter, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal inside
        writes = event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & WRITES)
        if inside or not writes or not isinstance(args[0], (str, bytes, os.PathLike)):
            return
        if not str(Path.cwd() / os.fsdecode(args[0])).startswith(fault.root):
            return
        inside = True
        try:
            os.write(count, b".")
            number = os.fstat(count).st_size
            if not fault.at or number < fault.at:
                return
            if fault.kind == FULL and event not in ("os.remove", "os.rmdir", "os.rename"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fsdecode(args[0]))
            if fault.kind == KILL and number == fault.at:
                os.kill(main, signal.SIGKILL)
            if fault.kind in (INTERRUPT, TWICE) and number <= fault.at + (fault.kind == TWICE):
                os.kill(main, signal.SIGINT)
        finally:
            inside = False

    sys.addaudithook(hook)


class Forked:
    """Takes the place of the process that a grid starts for a command: the same function in a fork."""

    def __init__(self, command: list[str], *, cwd: Path, stdin: int, stdout: Any, stderr: Any, **_: object) -> None:
        self.pid, self.returncode = os.fork(), None
        if not self.pid:
            os.setsid()
            os.chdir(cwd)
            for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), stdout.fileno(), stderr.fileno())):
                os.dup2(file, number)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
            sys.argv = ["fedpfl", *command[len(FEDPFL) :]]
            from fedpfl.cli import main

            code: object = 0
            try:
                main()
            except SystemExit as end:  # it must not go on in the grid's frames
                code = end.code
            for output in (sys.stdout, sys.stderr):
                output.flush()
            os._exit(code if isinstance(code, int) else 0)

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode


class Commands:
    """The program, seen by a test; ends with the context."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            **os.environ, "HOME": str(home), "TMPDIR": str(home / "tmp"), "FEDPFL_TEST_MARK": str(home),
            "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        (home / "tmp").mkdir(parents=True)
        self.program = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment, text=True
        )

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.communicate()

    def __call__(self, command: list[str], folder: Path, kind: str = "", change: int = 0) -> tuple[int, str, str, int]:
        """Run a command in a folder, its home as well; return exit code, both outputs, and the changes of files."""
        places = {name: str(self.home / name) for name in ("out", "err", "counter")}
        (self.home / "counter").unlink(missing_ok=True)
        fault = Fault(kind, change, str(folder), places["counter"])
        request = {"words": command, "folder": str(folder), "tmp": str(self.home / "tmp"), "fault": fault, **places}
        self.program.stdin.write(json.dumps(request) + "\n")
        self.program.stdin.flush()
        code = int(self.program.stdout.readline())
        out, err = (Path(places[name]).read_text(encoding="utf-8") for name in ("out", "err"))
        return code, out, err, (self.home / "counter").stat().st_size if (self.home / "counter").exists() else 0


def serve() -> None:
    """Run the commands on standard input, one JSON object a line; answer with their exit codes."""
    import gc
    import importlib

    from fedpfl.cli import load
    from fedpfl.methods import methods

    load()
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    methods()
    gc.freeze()
    for line in sys.stdin:
        process = os.fork()
        if not process:
            run(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def run(request: dict[str, Any]) -> None:
    """Become the command of a request."""
    from fedpfl.study import execution

    os.setsid()
    os.chdir(request["folder"])
    os.environ["HOME"] = request["folder"]
    for number, name in enumerate((os.devnull, request["out"], request["err"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC * (number > 0), 0o600)
        os.dup2(file, number)
        os.close(file)
    execution.subprocess = type("Subprocess", (), {"Popen": Forked, "DEVNULL": subprocess.DEVNULL})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arm(Fault(*request["fault"]))
    sys.argv = ["fedpfl", *request["words"]]
    from fedpfl.cli import main

    try:
        main()
    except (Exception, KeyboardInterrupt):  # noqa: BLE001 (as the interpreter would show it)
        import traceback

        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    serve()
