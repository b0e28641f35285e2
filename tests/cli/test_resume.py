"""`fedpfl resume` on a testbed: after a power cut, and with a device that was replaced."""

import json
import shutil
import sys
import tomllib

import pytest
from in_process import call_fedpfl
from support import FEW_SAMPLES, LocalGrid, federation, run_federation

from fedpfl.bench import superlink
from fedpfl.core.errors import ConfigError
from fedpfl.results.run_folder import RunFolder

CLIENTS = 3
SETTINGS = {"method": "fedper", "num_server_rounds": 2, "threads": 1, "min_clients": 1, **FEW_SAMPLES}
FLWR = """#!{python}
import json, pathlib, shutil, sys
shutil.copy(sys.argv[sys.argv.index("--run-config") + 1], {folder!r})
files = map(str, pathlib.Path(sys.argv[2]).iterdir())
pathlib.Path({folder!r}, "asked.json").write_text(json.dumps([*sys.argv[1:], *files]))
print(json.dumps({{"success": True, "run-id": "17"}}))
"""


class Devices(LocalGrid):
    """Nodes that prove who they are."""

    devices = True


def carry_out(settings, clients=CLIENTS):
    return run_federation(Devices(clients, settings), settings)


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A run whose two rounds are over; the third device's card is lost, and a new one in its place."""
    program = tmp_path / "flwr"
    program.write_text(FLWR.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setattr(superlink, "script", lambda name: str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    folder = carry_out(federation(tmp_path, CLIENTS, run_name="cut", **SETTINGS))
    shutil.rmtree(tmp_path / "state" / folder.task()["state_key"] / "client-00002")
    return folder


def resume(folder, *options):
    return call_fedpfl("resume", str(folder.path), *options)


def settings_of(tmp_path):
    """Return what the command has given to Flower."""
    return tomllib.loads((tmp_path / "settings.toml").read_text())


def test_a_run_is_resumed_with_all_of_its_settings(stopped, tmp_path):
    done = resume(stopped, "--federation", "bench", "-c", "num-server-rounds=4")
    assert done.exit_code == 0, done.output
    assert done.stdout == "cut goes on as run 17: flwr ls bench\n"
    asked = json.loads((tmp_path / "asked.json").read_text())
    assert (asked[0], asked[2]) == ("run", "bench")
    assert any(path.endswith("/pyproject.toml") for path in asked)
    before = stopped.config()
    changed = {key: value for key, value in settings_of(tmp_path).items() if value != before.get(key)}
    assert changed == {"run-name": "cut", "resume": True, "num-server-rounds": 4, "num-clients": CLIENTS}
    # Devices that missed its end make models afterwards.
    assert resume(stopped, "-c", 'personalise="local-train" node-timeout=20').exit_code == 0
    assert settings_of(tmp_path).items() >= {"personalise": "local-train", "node-timeout": 20.0}.items()


def test_a_replaced_device_takes_part_again_once_its_owner_says_so(stopped, tmp_path):
    more = ["-c", "num-server-rounds=4"]
    resume(stopped, *more)
    alone = carry_out(settings_of(tmp_path))
    assert [line["clients"] for line in alone.metrics()[2:]] == [[0, 1], [0, 1]]
    # Two of three clients are no best round, and the summary says who is missing.
    assert [line.get("untested") for line in alone.metrics()] == [None, None, [2], [2]]
    whole = [line["personalised"]["accuracy"] for line in alone.metrics()[:2]]
    assert alone.history().best("personalised.accuracy") == max(whole)
    assert "2, first round 3 with 2 of 3 clients, without 2" in (alone.path / "summary.md").read_text()
    done = resume(stopped, "--replaced", "2", "-c", "num-server-rounds=6")
    assert done.exit_code == 0, done.output
    together = carry_out(settings_of(tmp_path))
    assert [line["clients"] for line in together.metrics()[4:]] == [[0, 1, 2], [0, 1, 2]]
    assert set(together.task()["identities"]) == {"0", "1", "2"}


def test_another_node_is_named_with_the_remedy(stopped, tmp_path, caplog):
    resume(stopped, "-c", "num-server-rounds=3")
    carry_out(settings_of(tmp_path))
    assert "client = 2: another node has had this number in this run" in caplog.text
    assert "`fedpfl resume --replaced 2`" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--replaced", "2,7"], "client = 7: the clients of cut are 0 … 2"),
        (["--replaced", "nano-3"], "client = 'nano-3': run cut has no client of this name"),
        (["-c", "learning-rate=0.5"], "learning-rate = 0.5: the run to resume used"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(stopped, tmp_path, options, message):
    before = stopped.task()
    done = resume(stopped, *options)
    assert done.exit_code == 2 and message in done.output, done.output
    assert not (tmp_path / "settings.toml").exists()
    assert RunFolder(stopped.path).task() == before


def test_other_settings_name_the_method_first(stopped, tmp_path):
    other = {**federation(tmp_path, CLIENTS, run_name="cut", **SETTINGS), "method": "fedavg", "resume": True}
    with pytest.raises(ConfigError, match="method = 'fedavg': the run to resume used 'fedper'; `fedpfl run --resume`"):
        carry_out(other)
