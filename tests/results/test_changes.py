"""What differs between the program that wrote a run and the one that reads it is said, or refused where it counts."""

import pytest
from support import FEW_SAMPLES, federation, run_federation
from typer.testing import CliRunner

from fedpfl.cli import load
from fedpfl.core import code_hash
from fedpfl.core.checksummed_files import from_json_line, json_line, read_toml, to_toml, write_toml
from fedpfl.core.errors import ConfigError, StateError
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.results.resumed_run import ResumedRun
from fedpfl.results.run_folder import is_newer
from fedpfl.setup.config import Config
from fedpfl.version import __version__


@pytest.fixture
def values(tmp_path):
    return federation(tmp_path, 2, num_clients=2, num_server_rounds=1, threads=1, run_name="one", **FEW_SAMPLES)


def changes(folder):
    return ResumedRun(folder.path).changes()


@pytest.fixture
def folder(values):
    with SimulationTransport(Config.parse(values), 0) as transport:
        return run_federation(transport, values)


def written_by(folder, **changed):
    """Write into a run that another program has written it."""
    path = folder.path / "task.json"
    task = from_json_line(path.read_bytes(), path, "state_key")
    path.write_bytes(json_line({**task, "written_by": {**task["written_by"], **changed}}).encode())


def resume(values, **changed):
    again = {**values, "resume": True, "num-server-rounds": 2, **changed}
    with SimulationTransport(Config.parse(again), 0) as transport:
        return run_federation(transport, again)


def with_setting(folder, **more):
    path = folder.path / "config.toml"
    write_toml(path, to_toml({**read_toml(path), **more}))


def test_the_same_program_has_nothing_to_say(folder, values, caplog):
    assert changes(folder) == []
    resume(values)
    assert changes(folder) == []
    assert "one:" not in caplog.text


@pytest.mark.parametrize(
    ("theirs", "newer"),
    [("", False), (__version__, False), ("0.0.9", False), ("0.1.1", True), ("1", True), ("x", False)],
)
def test_versions_are_compared_by_their_numbers(theirs, newer):
    assert is_newer(theirs) == newer


def test_files_of_a_newer_version_are_one_line_wherever_they_are_read(folder, values):
    written_by(folder, fedpfl="99.1.0", code="other")
    message = f"{folder.path}: it was written by fedpfl 99.1.0, which is newer than this ({__version__})"
    assert changes(folder) == [message]
    done = CliRunner().invoke(load("export"), ["export", str(folder.path)])
    assert done.exit_code and message in done.stderr
    with pytest.raises(StateError, match="newer than this"):
        resume(values)


def test_an_unknown_setting_ends_a_resume_and_is_said_elsewhere(folder, values):
    with_setting(folder, **{"magic-rate": 0.5})
    assert changes(folder) == ["config.toml has magic-rate = 0.5, and there is no such setting"]
    with pytest.raises(ConfigError, match=r"^magic-rate = 0.5: .*config.toml has it, and there is no such setting"):
        resume(values)


def test_other_code_is_said_once_when_the_run_is_resumed(folder, values, monkeypatch, caplog):
    monkeypatch.setattr(code_hash, "of_package", lambda: "other")
    message = f"fedpfl's code has changed since (it was {__version__}, this is {__version__}): results may differ"
    assert changes(folder) == [message]
    resume(values)
    assert caplog.text.count(f"one: {message}") == 1
    assert changes(folder) == []


def test_changed_code_of_one_s_own_is_said(tmp_path, values):
    from fedpfl.core import user_code

    code = tmp_path / "mine.py"
    text = (
        "from torch import nn\n\n\ndef net(input_shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    code.write_text(text)
    user_code.set_folder(tmp_path)
    try:
        values = {**values, "model": "mine:net"}
        with SimulationTransport(Config.parse(values), 0) as transport:
            folder = run_federation(transport, values)
        assert changes(folder) == []
        code.write_text(text + "# changed\n")
        user_code.set_folder(tmp_path)
        assert changes(folder) == ["the module mine has changed since"]
        code.unlink()
        user_code.set_folder(tmp_path)
        assert changes(folder)[0].startswith("its settings cannot be checked here: model = 'mine:net'")
    finally:
        user_code.set_folder(None)
