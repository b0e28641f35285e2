"""What `fedpfl up` starts ends with it, however it ends."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import marked
from waiting import wait_until

from fedpfl.bench import superlink, testbed
from fedpfl.bench.superlink import SuperLink, run_guard
from fedpfl.core.errors import FedpflError

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")


def belonging(folder):
    return marked(f"FLWR_HOME={run_guard.home(folder)}")


def test_nothing_outlives_a_killed_program(tmp_path):
    program = "import signal; from pathlib import Path; from fedpfl.bench.superlink import SuperLink; "
    program += f"link = SuperLink(Path({str(tmp_path / 'keys')!r})).__enter__(); "
    program += "print(link.folder, flush=True); signal.pause()"
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    folder = Path(run.stdout.readline().strip())
    wait_until(lambda: belonging(folder))
    run.kill()
    run.wait()
    run.stdout.close()
    wait_until(lambda: not folder.exists())
    assert belonging(folder) == {}


def test_a_stopped_superlink_is_gone_at_once(tmp_path):
    with SuperLink(tmp_path / "keys") as link:
        wait_until(lambda: belonging(link.folder))
        assert link.ended() is None
    assert belonging(link.folder) == {}
    assert not link.folder.exists()


def test_a_log_that_flower_does_not_hand_out_is_no_failure(tmp_path, monkeypatch):
    def slow(*arguments):
        raise FedpflError(f"`flwr {arguments[0]}` did not end within 120 s")

    link = SuperLink(tmp_path / "keys")
    monkeypatch.setattr(link, "_command", slow)
    (link.folder / "superlink.log").write_text("ready\n")
    assert link.log("1") == "ready\n\n`flwr log` did not end within 120 s"
    shutil.rmtree(link.folder)


def test_a_long_log_loses_its_older_half_and_its_writer_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(superlink, "MAX_LOG", 1000)
    bed = testbed.Testbed(tmp_path / "keys")
    bed._complete = True
    print_on = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    log = bed.folder / "superlink.log"
    with log.open("ab") as file:
        part = subprocess.Popen([sys.executable, "-c", print_on], stdin=subprocess.PIPE, stdout=file, text=True)
    bed._processes = {testbed.SUPERLINK: part}

    def says(lines):
        part.stdin.write("".join(f"{line}\n" for line in lines))
        part.stdin.flush()
        wait_until(lambda: log.read_text().endswith(f"{lines[-1]}\n"))

    says([f"line {number:04d}" for number in range(300)])
    assert not bed.logged_end()
    assert bed.ended() is None
    assert log.read_text().splitlines() == [f"line {number:04d}" for number in range(251, 300)]
    says([superlink.TASK_ENDED])
    assert bed.logged_end() and not bed.logged_end()
    bed.ended()
    assert len(log.read_text().splitlines()) == 50
    part.communicate()
    shutil.rmtree(bed.folder)


def test_a_superlink_that_dies_is_noticed(tmp_path):
    with SuperLink(tmp_path / "keys") as link:
        for process in link._processes.values():
            os.killpg(process.pid, signal.SIGKILL)
        assert wait_until(link.ended) == "Flower's SuperLink ended with exit code -9"
