"""Warm processes: commands that start in a fork, how they end, and that none leaves anything to the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import HANG_SECONDS, wait_until

from fedpfl.results.run_folder import RunFolder
from fedpfl.study.warm_process import WarmProcess

RUN = """\
method = "{method}"
model = "mlp"
dataset = "digits"
num-clients = 2
num-server-rounds = 1
local-epochs = 1
run-name = "{name}"
output-dir = "{folder}"
state-dir = "{folder}/state"
"""

# A method of a user that changes what it can reach.
SPOILER = """\
import os, threading, time, warnings
import numpy as np
import torch
from fedpfl.methods import Method
from fedpfl.rules.mean import Mean

class Spoiler(Method):
    name = "spoiler"
    paper = shares = "none"

Mean.weight = lambda self, client, reply=None: 1.0 + client.id
torch.manual_seed(0)
torch.set_num_threads(3)
torch.set_flush_denormal(True)
np.random.seed(0)
os.environ["OMP_NUM_THREADS"] = os.environ["FEDPFL_SPOILT"] = "3"
warnings.simplefilter("error")
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmProcess]:
    process = WarmProcess()
    yield process
    process.close()


@pytest.fixture
def play(warm: WarmProcess, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Return what runs a command; it returns its exit code and what it wrote on standard output."""

    def command(*words: str) -> tuple[int, str]:
        warm.start(words, tmp_path, tmp_path / "output", tmp_path / "log.txt")
        wait_until(lambda: warm.poll() is not None)
        code = warm.poll()
        assert code is not None
        return code, (tmp_path / "output").read_text()

    return command


def arrays(folder: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in RunFolder(folder).checkpoint()[1].items()}


def test_no_run_finds_what_another_one_has_changed(play: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    (tmp_path / "spoiler.py").write_text(SPOILER)
    for name, method in (("before", "fedavg"), ("spoilt", "spoiler:Spoiler"), ("after", "fedavg")):
        (tmp_path / "run.toml").write_text(RUN.format(method=method, name=name, folder=tmp_path))
        code, _ = play("fedpfl", "run", "--json", "--quiet", "--workers", "1", "-c", str(tmp_path / "run.toml"))
        assert code == 0, (tmp_path / "log.txt").read_text()
    assert arrays(tmp_path / "after") == arrays(tmp_path / "before")
    assert arrays(tmp_path / "spoilt") != arrays(tmp_path / "before")
    assert play("fedpfl", "run", "--workers", "-1")[0] == 2
    assert "FEDPFL_SPOILT" not in play(sys.executable, "-c", "import os; print(*os.environ)")[1]


def test_a_command_has_a_session_of_its_own_and_the_files_and_the_folder_that_it_was_given(
    play: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    code = "import os, sys; print(os.getsid(0) == os.getpid(), os.getcwd(), sys.stdin.read()); sys.exit('two\\nlines')"
    assert play(sys.executable, "-c", code) == (1, f"True {tmp_path} \n")
    assert play(sys.executable, "-c", code) == (1, f"True {tmp_path} \n")
    assert (tmp_path / "log.txt").read_text() == 2 * "two\nlines\n"


def test_it_ends_when_it_is_asked_to_or_killed(
    warm: WarmProcess, play: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    sleeping = [sys.executable, "-c", f"print(1, flush=True); import time; time.sleep({HANG_SECONDS})"]
    warm.start(sleeping, tmp_path, tmp_path / "output", tmp_path / "log.txt")
    wait_until(lambda: (tmp_path / "output").exists() and (tmp_path / "output").read_text())
    assert warm.poll() is None
    warm.terminate()
    wait_until(lambda: warm.poll() is not None)
    assert warm.poll() == -signal.SIGTERM
    warm.start(sleeping, tmp_path, tmp_path / "output", tmp_path / "log.txt")
    warm.terminate()  # before the command has begun, or soon after
    wait_until(lambda: warm.poll() is not None)
    assert warm.poll() == -signal.SIGTERM
    assert play(sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")[0] == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux tells which of two ends first")
def test_a_command_ends_with_a_grid_that_was_killed(tmp_path: Path) -> None:
    warm = WarmProcess()
    sleeping = [sys.executable, "-c", f"import os, time; print(os.getpid(), flush=True); time.sleep({HANG_SECONDS})"]
    warm.start(sleeping, tmp_path, tmp_path / "output", tmp_path / "log.txt")
    wait_until(lambda: (tmp_path / "output").exists() and (tmp_path / "output").read_text())
    command = int((tmp_path / "output").read_text())
    warm.close()  # all that is seen of a kill
    with pytest.raises(ProcessLookupError):
        os.kill(command, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux alone")
def test_what_it_imports_starts_neither_threads_nor_a_gpu() -> None:
    code = """
from fedpfl.cli.warm import serve
serve()
import os, torch
print(len(os.listdir("/proc/self/task")), torch.cuda.is_initialized())
"""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
        env={**environment, "OPENBLAS_NUM_THREADS": "1"},  # NumPy's own threads survive a fork
    )  # fmt: skip
    assert done.stdout == "1 False\n"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin processes")
def test_it_keeps_to_its_cores(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    process = WarmProcess([core])
    code = "import os; print(os.sched_getaffinity(0))"
    process.start([sys.executable, "-c", code], tmp_path, tmp_path / "output", tmp_path / "log.txt")
    wait_until(lambda: process.poll() is not None)
    process.close()
    assert (tmp_path / "output").read_text() == f"{{{core}}}\n"
