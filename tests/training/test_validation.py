"""Samples that are set aside for validation: who has them, what is measured on them, and what they decide."""

from __future__ import annotations

import numpy as np
import pytest
from support import FEW_SAMPLES, LocalGrid, federation, run_federation, simulate

from fedpfl.client.engines import engine_for
from fedpfl.core.errors import ConfigError
from fedpfl.data import DataSettings, FederatedData
from fedpfl.data.datasets.client_files import own_data
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.summary import summary
from fedpfl.setup.config import Config

QUICK = {"method": "fedavg", "local_epochs": 1, "num_server_rounds": 2, "validation_fraction": 0.2, **FEW_SAMPLES}


def positions(data: FederatedData, client: int) -> tuple[set[bytes], ...]:
    parts = data.train(client), data.validation(client), data.test(client)
    return tuple({x.numpy().tobytes() for x in part.x} for part in parts)


def test_a_share_of_the_training_samples_is_set_aside_and_nothing_else_changes():
    whole = FederatedData(DataSettings(), 4, 1)
    held = FederatedData(DataSettings(validation_fraction=0.2), 4, 1)
    for client in range(4):
        train, validation, test = positions(held, client)
        assert not train & validation
        n = whole.sizes(client)[0]
        assert len(held.validation(client).y) == int(n * 0.2 + 0.5)
        assert held.sizes(client) == (n - int(n * 0.2 + 0.5), whole.sizes(client)[1])
        assert held.labels(client).tolist() == held.train(client).y.tolist()
        assert (train | validation, test) == (positions(whole, client)[0], positions(whole, client)[2])
        assert len(whole.validation(client).y) == 0
    assert held.checksum == whole.checksum
    again, other = (FederatedData(DataSettings(validation_fraction=0.2), 4, seed) for seed in (1, 2))
    assert positions(again, 0) == positions(held, 0)
    assert positions(other, 0) != positions(held, 0)


def test_a_single_training_sample_is_trained_on(tmp_path):
    settings = DataSettings(min_samples=2, test_fraction=0.5, validation_fraction=0.5)
    np.savez(tmp_path / "few.npz", x=np.zeros((2, 3), np.float32), y=np.array([0, 1]))
    data = own_data(settings, str(tmp_path / "few.npz"), 0, 0)
    assert (data.sizes(0), len(data.validation(0).y)) == ((1, 1), 0)


def test_a_device_with_its_exported_samples_sets_the_same_ones_aside(tmp_path):
    settings = DataSettings(validation_fraction=0.2, permute_labels=True)
    data = FederatedData(settings, 4, 1)
    np.savez(tmp_path / "2.npz", **data.arrays(2))
    device = own_data(settings, str(tmp_path / "2.npz"), 2, 1)
    for ours, theirs in zip((device.train(0), device.validation(0)), (data.train(2), data.validation(2)), strict=True):
        assert np.array_equal(ours.x.numpy(), theirs.x.numpy())
        assert np.array_equal(ours.y.numpy(), theirs.y.numpy())


def test_they_are_measured_with_the_personalised_model_beside_the_tests(tmp_path):
    run = simulate(tmp_path, 3, **{**QUICK, "method": "fedper"})
    for line in run.metrics():
        assert line["validation"]["each"].keys() == line["personalised"]["each"].keys()
        assert 0 <= line["validation"]["accuracy"] <= 1
    sizes = run.metrics()[0]["validation"]["samples"]
    data = engine_for(Config.parse(federation(tmp_path, 3, **{**QUICK, "method": "fedper"})), 3, "", 0).data
    assert sizes == {str(i): len(data.validation(i).y) for i in range(3)}
    assert "validation" not in simulate(tmp_path / "b", 3, **{**QUICK, "validation_fraction": 0.0}).metrics()[0]
    assert "best on validation samples" in summary(run)


@pytest.mark.parametrize(("accuracies", "patience", "ended"), [
    ([0.5, 0.6, 0.6, 0.6], 2, True),  # as good as the best is not better
    ([0.5, 0.6, 0.6, 0.61], 2, False),
    ([0.5, 0.6, 0.5], 2, False),
    ([0.9] + [0.1] * 9, 0, False),
    ([], 3, False),
])  # fmt: skip
def test_a_run_stalls_when_the_best_round_lies_too_far_back(tmp_path, accuracies, patience, ended):
    lines = [f'{{"round": {i}, "validation": {{"accuracy": {a}}}}}\n' for i, a in enumerate(accuracies, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    (tmp_path / "config.toml").write_text("")
    assert RunFolder(tmp_path).history().stalled(patience) is ended


def test_a_run_ends_early_and_can_go_on(tmp_path):
    # A step that changes nothing: no round is better than the first.
    still = {**QUICK, "num_server_rounds": 9, "learning_rate": 1e-30, "early_stop": 3}
    run = simulate(tmp_path, 2, **still)
    assert [line["round"] for line in run.metrics()] == [1, 2, 3, 4]
    assert "| ended early | no better validation for 3 rounds |" in (run.path / "summary.md").read_text()
    # Killed before it had written its results: nothing is trained any more.
    (run.path / "summary.md").unlink()
    simulate(tmp_path, 2, **{**still, "resume": True})
    assert len(run.metrics()) == 4
    assert (run.path / "summary.md").is_file()
    longer = federation(tmp_path, 2, **{**still, "early_stop": 5, "resume": True})
    run_federation(LocalGrid(2, longer), longer)
    assert len(run.metrics()) == 6


@pytest.mark.parametrize("settings", [{}, {"validation-fraction": 0.1, "evaluate-every": 0}])
def test_early_stop_needs_something_to_go_by(settings):
    with pytest.raises(ConfigError, match=r"early-stop = 3: needs validation-fraction and evaluate-every above 0"):
        Config.parse({"early-stop": 3, **settings})
