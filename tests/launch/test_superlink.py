"""What `fedpfl up` starts ends with it, however it ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import marked

from fedpfl.core.errors import FedpflError
from fedpfl.launch.superlink import SuperLink, guard

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")


def belonging(folder):
    return marked(f"FLWR_HOME={guard.home(folder)}")


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_nothing_outlives_a_killed_program():
    program = "import time; from fedpfl.launch.superlink import SuperLink; link = SuperLink().__enter__(); "
    program += "print(link.folder, flush=True); time.sleep(60)"
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    folder = Path(run.stdout.readline().strip())
    assert until(lambda: belonging(folder))
    run.kill()
    run.wait()
    run.stdout.close()
    assert until(lambda: not folder.exists())
    assert belonging(folder) == {}


def test_a_stopped_superlink_is_gone_at_once():
    with SuperLink() as link:
        assert until(lambda: belonging(link.folder))
        assert link.ended() is None
    assert belonging(link.folder) == {}
    assert not link.folder.exists()


def test_a_log_that_flower_does_not_hand_out_is_no_failure(monkeypatch):
    def slow(*arguments):
        raise FedpflError(f"`flwr {arguments[0]}` did not end within 120 s")

    link = SuperLink()
    monkeypatch.setattr(link, "_command", slow)
    (link.folder / "superlink.log").write_text("ready\n")
    assert link.log("1") == "ready\n\n`flwr log` did not end within 120 s"
    shutil.rmtree(link.folder)


def test_a_superlink_that_dies_is_noticed():
    with SuperLink() as link:
        for process in link._processes.values():
            os.killpg(process.pid, signal.SIGKILL)
        assert until(link.ended) == "Flower's SuperLink ended with exit code -9"
