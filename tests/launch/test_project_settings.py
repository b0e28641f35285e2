"""The settings of the user's own project count at every door."""

import pytest
from in_process import InProcess, call_fedpfl

import fedpfl
from fedpfl.core.errors import ConfigError
from fedpfl.launch.plan import project_settings

PROJECT = """
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.config]
method = "{method}"
dataset = "digits"
model = "mlp"
num-clients = 2
num-server-rounds = 1
local-epochs = 3
batch-size = 10
seed = 7
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pyproject.toml").write_text(PROJECT.format(method="local"))
    return tmp_path


def test_what_is_not_at_its_default_counts_for_the_runs_of_grids(project):
    settings = project_settings(project, "method")
    assert settings == {
        "model": "mlp", "num-clients": 2, "num-server-rounds": 1, "local-epochs": 3,
    }  # fmt: skip


def test_every_door_obeys_it(project, monkeypatch):
    monkeypatch.setattr("fedpfl.study.execution.Process", InProcess)
    places = {"output_dir": str(project / "runs"), "quiet": True}
    one = fedpfl.run(workers=0, **places)
    several = fedpfl.sweep({"learning_rate": [0.01]}, workers=0, **places).runs
    compared = fedpfl.compare(["local", "fedavg"], seeds=1, workers=0, **places).runs
    command = call_fedpfl("compare", "local", "fedavg", "--seeds", "1", "-q", "--output-dir", "grid")
    assert command.exit_code == 0 and "local-epochs = 3" in command.stderr
    for run in (one, *several, *compared, *map(fedpfl.load, (project / "grid" / "runs").iterdir())):
        settings = {key: run.settings[key] for key in ("local-epochs", "num-clients", "num-server-rounds", "model")}
        assert settings == {"local-epochs": 3, "num-clients": 2, "num-server-rounds": 1, "model": "mlp"}
    assert [one.settings["method"], one.settings["seed"]] == ["local", 7]


def test_a_default_method_that_is_gone_is_named_and_another_one_runs(project):
    (project / "pyproject.toml").write_text(PROJECT.format(method="parts:Gone"))
    with pytest.raises(ConfigError, match=r"method = 'parts:Gone': the default of pyproject.toml: there is no module"):
        fedpfl.run(quiet=True, workers=0)
    assert fedpfl.run("local", quiet=True, workers=0).summary["rounds"] == 1
