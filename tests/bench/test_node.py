"""``fedpfl node``: worker and fork server are there while a SuperNode's command runs, and end with it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from fedpfl.bench import node, run_guard
from fedpfl.bench.flower_command import supernode_command
from fedpfl.bench.run_guard import _groups
from fedpfl.bench.superlink import script
from fedpfl.client.policy import VARIABLE as POLICY
from fedpfl.client.protocol import SOCKET_VARIABLE
from fedpfl.core.errors import FedpflError

# What a SuperNode would have: it waits for both servers, and says where it looks for commands.
SUPERNODE = """
import json, os, pathlib, shutil, sys, time
worker = pathlib.Path(os.environ["FEDPFL_WORKER_SOCKET"])
while not (worker.exists() and (worker.parent / "bin" / "flwr-clientapp").exists()):  # made once the socket is there
    time.sleep(0.05)
command = shutil.which("flwr-clientapp")
names = ("FLWR_HOME", "FEDPFL_WORKER_SOCKET", "FEDPFL_POLICY")
told = {**{name: os.environ.get(name) for name in names}, "command": command}
pathlib.Path(sys.argv[1] + ".part").write_text(json.dumps(told))
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(float(sys.argv[2]))
sys.exit(7)
"""


@pytest.fixture
def command(tmp_path):
    """Return the command of a SuperNode that stays for some seconds, and the file in which it tells what it has."""
    program = tmp_path / "supernode.py"
    program.write_text(SUPERNODE)
    return lambda seconds: [sys.executable, str(program), str(tmp_path / "told.json"), str(seconds)]


def of_folder(folder):
    return _groups(f"FLWR_HOME={folder}")


def test_a_supernode_has_a_worker_and_a_fork_server_which_end_with_it(command, tmp_path, monkeypatch):
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    policy = tmp_path / "policy.toml"
    policy.write_text('methods = ["fedavg"]\n')
    assert node.run(command(0), policy) == 7
    told = json.loads((tmp_path / "told.json").read_text())
    folder = Path(told[SOCKET_VARIABLE]).parent
    assert told[POLICY] == str(policy)
    assert Path(told["command"]).parent == folder / "bin"
    assert Path(told["FLWR_HOME"]).parent == folder
    assert not folder.exists() and not of_folder(told["FLWR_HOME"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_they_end_when_the_command_is_killed_or_interrupted(command, tmp_path, number):
    """As a terminal does it: with all processes of its group."""
    arguments = [sys.executable, "-c", "from fedpfl.cli import main; main()", "node", "--", *command(300)]
    process = subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                               start_new_session=True)  # fmt: skip
    wait_until((tmp_path / "told.json").exists, lambda: process.poll() is None)
    home = json.loads((tmp_path / "told.json").read_text())["FLWR_HOME"]
    assert len(of_folder(home)) == 3
    os.killpg(process.pid, number)
    process.wait()
    wait_until(lambda: not of_folder(home) and not Path(home).parent.exists())


def test_a_supernode_looks_for_messages_sooner_whether_its_name_or_its_path_is_given():
    expected = supernode_command()
    assert node.program_of("flower-supernode") == node.program_of(script("flower-supernode")) == expected
    assert node.program_of(sys.executable) == [sys.executable]


def test_all_ends_where_what_watches_over_the_command_ends_everything_at_once(command, tmp_path):
    """As in `fedpfl up --command`, which ends by group what has its FLWR_HOME."""
    folder = tmp_path / "outer"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "FLWR_HOME": str(run_guard.home(folder))}
    arguments = [sys.executable, "-c", "from fedpfl.cli import main; main()", "node", "--", *command(300)]
    process = subprocess.Popen(arguments, env=environment, start_new_session=True)
    wait_until((tmp_path / "told.json").exists, lambda: process.poll() is None)
    home = json.loads((tmp_path / "told.json").read_text())["FLWR_HOME"]
    assert len(of_folder(home)) == 3
    run_guard.end_all(folder, set())
    assert process.wait() == -signal.SIGKILL
    wait_until(lambda: not of_folder(home) and not Path(home).parent.exists())


def test_a_command_that_is_not_there_is_refused():
    with pytest.raises(FedpflError, match="the command no-such-supernode is not installed"):
        node.run(["no-such-supernode"])
