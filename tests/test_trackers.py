"""Weights & Biases and MLflow, both without a network; and that a run outlives its tracker."""

from __future__ import annotations

import builtins
import json

import pytest
from support import LocalGrid, federation, run_federation, simulate
from waiting import wait_until

from fedpfl import trackers
from fedpfl.core.errors import FedpflError
from fedpfl.engine.rounds import RoundFailed
from fedpfl.results.curves import curves

NO_KEY = "WeightsAndBiases: no API key; `wandb login` stores one, WANDB_MODE=offline needs none"
WANDB, MLFLOW, FAILS = "fedpfl.trackers:WeightsAndBiases", "fedpfl.trackers:MLflow", "fedpfl.trackers:Fails"
RUN = {"method": "fedavg", "num_server_rounds": 2, "local_epochs": 1}


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Keep what trackers store of a user, and their settings, out of these tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR", "WANDB_PROJECT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")


def test_mlflow_has_the_settings_and_each_round_of_a_run_that_was_resumed(tmp_path):
    tracking_client = pytest.importorskip("mlflow.tracking")
    simulate(tmp_path, 2, listeners=MLFLOW, **{**RUN, "num_server_rounds": 1})
    folder = simulate(tmp_path, 2, listeners=MLFLOW, resume=True, **RUN)
    client = tracking_client.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/runs/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert run.data.params["method"] == "fedavg" and run.data.params["dirichlet-alpha"] == "0.5"
    lines = folder.metrics()
    found = client.get_metric_history(run.info.run_id, "personalised/accuracy")
    assert [(one.step, one.value) for one in found] == [(n + 1, lines[n]["personalised"]["accuracy"]) for n in (0, 1)]
    assert set(run.data.metrics) == set(curves(lines[-1]))


def test_wandb_works_offline_in_the_run_s_folder(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = simulate(tmp_path, 2, listeners=WANDB, **RUN)
    (stored,) = (folder.path / "wandb").glob("offline-run-*/run-*.wandb")
    # As its package writes it: settings and numbers by their names, values as JSON; its own process does so.
    numbers = [json.dumps(line["personalised"]["accuracy"]).encode() for line in folder.metrics()]
    wait_until(lambda: all(part in stored.read_bytes() for part in [b"dirichlet-alpha", b"accuracy", *numbers]))
    assert folder.task()["state_key"] in stored.name


def test_wandb_without_a_key_is_one_line_before_round_1(tmp_path):
    pytest.importorskip("wandb")
    with pytest.raises(FedpflError, match=NO_KEY):
        simulate(tmp_path, 2, listeners=WANDB, **RUN)
    assert not (tmp_path / "runs" / "run" / "metrics.jsonl").exists()


def test_mlflow_at_a_wrong_place_is_one_line_before_round_1(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://nowhere")
    with pytest.raises(FedpflError, match=r"listeners: MLflow: ") as caught:
        simulate(tmp_path, 2, listeners=MLFLOW, **RUN)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("listeners", "package"), [(WANDB, "wandb"), (MLFLOW, "mlflow")])
def test_what_is_not_installed_is_one_line_before_round_1_and_is_imported_by_no_other_run(
    tmp_path, monkeypatch, listeners, package
):
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name.partition(".")[0] in ("wandb", "mlflow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(FedpflError, match=rf"needs the package {package}: pip install 'fedpfl\[{package}\]'"):
        simulate(tmp_path / "tracked", 2, listeners=listeners, **RUN)
    assert len(simulate(tmp_path, 2, **RUN).metrics()) == 2


class Lost(Exception):
    """What the tracker below raises."""


class Fails(trackers._Tracker):
    """Takes one round, then has lost its connection."""

    heard: list[object] = []  # noqa: RUF012
    _errors = (Lost,)

    def _start(self, folder, key):
        self.heard.clear()

    def _send(self, number, values):
        self.heard.append(number)
        if number == 2:
            raise Lost("no connection\nat all")

    def _close(self, finished):
        self.heard.append(finished)


@pytest.fixture
def failing(monkeypatch):
    monkeypatch.setattr(trackers, "Fails", Fails, raising=False)
    return Fails.heard


def test_a_run_outlives_its_tracker(tmp_path, failing, caplog):
    folder = simulate(tmp_path, 2, listeners=FAILS, **{**RUN, "num_server_rounds": 3})
    assert len(folder.metrics()) == 3 and (folder.path / "summary.md").is_file()
    assert failing == [1, 2], "after the failure it is left alone"
    assert "fedpfl: nothing more is tracked: no connection at all" in caplog.text


def test_a_run_that_fails_is_closed_as_such(tmp_path, failing):
    def fail(kind, client, payload):
        if kind == "train":
            raise FedpflError("no memory")

    values = federation(tmp_path, 2, listeners=FAILS, **RUN)
    with pytest.raises(RoundFailed):
        run_federation(LocalGrid(2, values, intercept=fail), values)
    assert failing == [False]
