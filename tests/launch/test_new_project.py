"""`fedpfl new`: what it makes fits together, and its app learns."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml
from flower_apps import AppGrid
from flwr.app import ArrayRecord, ConfigRecord
from in_process import call_fedpfl
from mqtt_parts import MOSQUITTO
from support import engine, run_federation

from fedpfl import strategies
from fedpfl.bench.inventory import read_inventory
from fedpfl.bench.superlink import copy_app
from fedpfl.client import policy
from fedpfl.client.policy import VARIABLE
from fedpfl.core import user_code
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.launch.new_project import APP, files, make
from fedpfl.launch.plan import prepare
from fedpfl.methods import discover
from fedpfl.setup import reference
from fedpfl.setup.all_settings import code_in
from fedpfl.version import FLOWER, SIMULATION

ROOT = Path(__file__).parents[2]
SECONDS = 600


@pytest.fixture
def app(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "my-app"
    make(folder)
    user_code.set_folder(folder)
    discover()
    reference.update(folder)
    yield folder
    user_code.set_folder(None)


def test_it_asks_for_the_flower_that_fedpfl_was_tested_with(app):
    ours, made = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, app))
    assert made["dependencies"] == [SIMULATION] and FLOWER in ours["dependencies"]
    assert made["requires-python"] == ours["requires-python"]


@pytest.fixture
def testbed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    made = call_fedpfl("new", "--testbed", str(tmp_path / "my-testbed"))
    assert made.exit_code == 0, made.output
    assert made.stdout.count("wrote ") == 4
    digits = 'num-clients=4 partitioner="dirichlet" dirichlet-alpha=0.3'
    made = call_fedpfl("partition", "-c", digits, "--export", str(tmp_path / "partitions"))
    assert made.exit_code == 0, made.output
    return tmp_path / "my-testbed"


def test_a_testbed_fits_together(testbed, monkeypatch):
    boards = read_inventory(testbed / "inventory.yml")
    values = tomllib.loads((testbed / "settings.toml").read_text())
    data = {"dataset": "clients", "data": str(testbed.parent / "partitions")}  # as the page's simulation has them
    plan = prepare(None, {}, {**values, **data, "output-dir": str(testbed)})
    assert plan.config.data.num_clients == boards.clients == 4
    monkeypatch.setenv(VARIABLE, str(testbed / "policy.toml"))
    policy.guard().check(plan.run_config(), "")
    with pytest.raises(policy.PolicyError, match="feddecomp"):
        policy.guard().check({**plan.run_config(), "method": "feddecomp"}, "")
    page = (testbed / "README.md").read_text()
    assert all(name in page for name in ("inventory.yml", "settings.toml", "policy.toml"))
    ours = "".join(
        (ROOT / "docs" / "devices" / name).read_text() for name in ("testbed.md", "jetson.md", "deployment.md")
    )
    for command in ("ansible-playbook", "jetson/wheelhouse.sh ~/bundle", "/etc/fedpfl/policy.toml", "supernode list"):
        assert command in page and command in ours


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.xdist_group("flower")
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed (Debian: apt-get install mosquitto)")
def test_a_testbed_is_rehearsed_with_the_data_that_boards_get(testbed):
    program = "from fedpfl.cli import main; main()"
    arrays = []
    for way in (["run", "-c", "settings.toml", "-c", 'dataset="clients" data="~/partitions"'],
                ["up", "--inventory", "inventory.yml", "-c", "settings.toml"]):  # fmt: skip
        command = [sys.executable, "-c", program, *way, "-c", "num-server-rounds=1 threads=1", "--json", "-q"]
        done = subprocess.run(command, cwd=testbed, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        outcome = json.loads(done.stdout)
        assert outcome["status"] == "finished:completed"
        arrays.append(Path(outcome["folder"], "global.safetensors").read_bytes())
    assert arrays[0] == arrays[1]


def test_the_app_has_its_settings_and_learns(app, tmp_path):
    settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert settings["my-method-personal-layers"] == 1 and settings["method"] == "parts:MyMethod"
    places = {"output-dir": str(tmp_path / "runs"), "state-dir": str(tmp_path / "state"), "run-name": "run"}
    values = prepare(app, settings, {"num-server-rounds": 2, "local-epochs": 1, **places}).run_config()
    folder = run_federation(engine(int(values["num-clients"]), values), values)
    assert folder.task()["clients"] == 6 and folder.config()["my-method-personal-layers"] == 1


def test_its_own_tests_pass(app):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=app, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_config_update_keeps_its_values_and_follows_its_methods(app):
    project, code = app / "pyproject.toml", app / "parts.py"
    project.write_text(project.read_text().replace("\nseed = 1\n", "\nseed = 7\n"))
    code.write_text(code.read_text().replace("personal_layers", "own_layers"))
    user_code.set_folder(app)
    discover()
    assert reference.update(app) == [project]
    settings = tomllib.loads(project.read_text())["tool"]["flwr"]["app"]["config"]
    assert settings["seed"] == 7 and settings["my-method-own-layers"] == 1
    assert "my-method-personal-layers" not in settings and not (app / "docs").exists()
    project.write_text(project.read_text().replace("\nseed = 7\n", "\nseed = 'seven'\n"))
    with pytest.raises(FedpflError, match="the setting seed is not written as a plain value"):
        reference.update(app)


def test_the_commands_know_its_parts(app, monkeypatch):
    monkeypatch.chdir(app)
    outputs = {}
    for command in (["methods", "--json"], ["partition"], ["config", "--update"]):
        result = call_fedpfl(*command)
        assert result.exit_code == 0, result.output
        outputs[command[0]] = result.output
    assert '"my-method"' in outputs["methods"] and outputs["config"] == "nothing to change\n"
    assert len(outputs["partition"].splitlines()) >= 6


def test_what_is_there_is_not_written_over(app, tmp_path):
    for place, message in ((app, "is there already"), (tmp_path / "My app", "must be lower-case letters")):
        with pytest.raises(ConfigError, match=message):
            make(place)


def test_all_of_it_goes_into_the_bundle(app, tmp_path):
    copy_app(app, tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy").iterdir()} >= files(APP, "my-app").keys()


def test_parts_without_an_app_reach_no_device(tmp_path):
    (tmp_path / "parts.py").write_text("def net(): pass\n")
    user_code.set_folder(tmp_path)
    try:
        with pytest.raises(ConfigError, match="is not part of a Flower app"):
            user_code.require_installed(code_in({"model": "parts:net"}))
        user_code.require_installed(code_in({"model": "mlp", "dataset": "json:loads"}))
    finally:
        user_code.set_folder(None)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that makes an app by a command, and imports a module of its package."""
    made = {}

    def make_and_import(arguments, name):
        result = call_fedpfl("new", *arguments, str(tmp_path / name))
        assert result.exit_code == 0, result.output
        made[name.replace("-", "_")] = tmp_path / name
        monkeypatch.syspath_prepend(str(tmp_path / name))
        return lambda module: importlib.import_module(f"{name.replace('-', '_')}.{module}")

    yield make_and_import
    for module in [module for module in sys.modules if module.partition(".")[0] in made]:
        del sys.modules[module]


@pytest.mark.parametrize(
    "method",
    ["feddecomp", "factorized-fl", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("fedfac", "fedreg"))],
)
def test_a_project_in_the_form_of_flower_s_baselines_runs(package, tmp_path, method):
    name = f"{method.replace('-', '')}baseline"
    module = package(["--baseline", method], name)
    # What Flower's test of a baseline's structure asks for.
    modules = {path.stem for path in (tmp_path / name / name).glob("*.py")}
    assert modules == {"__init__", "client_app", "dataset", "model", "server_app", "strategy", "utils"}
    front, _, text = (tmp_path / name / "README.md").read_text().removeprefix("---\n").partition("\n---\n")
    assert {"title", "url", "labels", "dataset"} == yaml.safe_load(front).keys() and text.startswith("\n# ")
    app = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert [*app["components"].values()] == [f"{name}.server_app:app", f"{name}.client_app:app"]
    config = {**app["config"], "local-epochs": 1}
    grid = AppGrid(module("client_app").app, num_nodes=4)
    result = module("strategy").make_strategy(config).start(grid, ArrayRecord(), num_rounds=2)
    module("utils").save_metrics(result, str(tmp_path / "metrics.json"))
    scores = json.loads((tmp_path / "metrics.json").read_text())["evaluate"]
    assert scores["2"]["personalised-accuracy"] > 0.3


def test_a_baseline_of_what_flower_s_repository_cannot_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, reason in (
        (["--baseline", "fedfac", "fed-fac"], "must have no dash"),
        (["--baseline", "fedfact", "mine"], "did you mean fedfac"),
        (["--baseline", "fedfac", "--flower", "mine"], "only one of them"),
        (["--flower", "json"], "is the name of another package"),
    ):
        result = call_fedpfl("new", *arguments)
        assert result.exit_code == 2 and reason in result.output, arguments
    assert [*tmp_path.iterdir()] == []


def test_an_app_in_flower_s_shape_trains_on_made_data_and_on_a_node_s_own_file(package, tmp_path):
    module = package(["--flower"], "own-heads")
    apps = [AppGrid(module("client_app").app) for _ in range(2)]
    for number, context in enumerate(apps[1].contexts):
        # As flower-supernode --node-config 'data-path="…"', without a number.
        x, y = module("task").load_sim_data(number, 3)[0].dataset.tensors
        np.savez(tmp_path / f"{number}.npz", x=x.numpy(), y=y.numpy())
        context.node_config = {"data-path": str(tmp_path / f"{number}.npz")}
        context.run_config = apps[0].contexts[number].run_config = {"local-epochs": 2}
    for grid in apps:
        strategy = strategies.FedPer(head="fc2")
        arrays = ArrayRecord(module("task").Net().state_dict())
        result = strategy.start(grid, arrays, num_rounds=3, train_config=ConfigRecord({"lr": 0.1}))
        assert set(result.arrays) == {"fc1.weight", "fc1.bias"}
        assert result.evaluate_metrics_clientapp[3]["accuracy"] > 0.6
