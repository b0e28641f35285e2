"""Federations on series of measurements: every method on both models."""

from __future__ import annotations

import numpy as np
import pytest
from support import each_method, quick, simulate

from fedpfl.data import DataSettings, FederatedData

PEOPLE, WINDOWS, CLASSES = 2, 20, 3


@pytest.fixture
def movements(tmp_path):
    """Write windows of 3 sensors × 30 steps of two people, and return the settings that read them."""
    rng = np.random.default_rng(0)
    y = np.arange(PEOPLE * WINDOWS) % CLASSES
    time = np.arange(30) * 2 * np.pi / 30
    x = np.sin((1 + y)[:, None, None] * time + np.arange(3)[:, None]) + rng.normal(0, 0.1, (len(y), 3, 30))
    path = tmp_path / "movements.npz"
    np.savez(path, x=x.astype(np.float32), y=y, client=np.arange(PEOPLE).repeat(WINDOWS), classes=["a", "b", "c"])
    return {
        "dataset": "npz", "data": str(path), "num_server_rounds": 1, "local_epochs": 2, "batch_size": 4,
        "learning_rate": 0.01,
    }  # fmt: skip


@pytest.mark.parametrize("model", ["cnn-1d", "gru"])
@pytest.mark.parametrize("method", each_method())
def test_every_method_trains_on_series(tmp_path, movements, method, model):
    options = {key: value for key, value in quick(method).items() if key.startswith(method.replace("-", "_"))}
    settings = {**options, **movements, "method": method, "model": model, "fedreg_augmentation": "simple"}
    run = simulate(tmp_path, PEOPLE, **settings)
    (line,) = run.metrics()
    assert line["clients"] == [0, 1]
    assert 0 < line["train_loss"] < 10
    assert np.isfinite(line["personalised"]["loss"])
    assert run.task()["input_shape"] == [3, 30]


def test_series_are_not_scaled(movements):
    settings = DataSettings(dataset="npz", data=movements["data"], partitioner="natural")
    data = FederatedData(settings, PEOPLE, 0)
    with np.load(movements["data"]) as arrays:
        share = data.share(1)
        assert np.array_equal(data.train(1).x.numpy(), arrays["x"][share.train])
        assert np.array_equal(data.test(1).x.numpy(), arrays["x"][share.test])
    assert data.input_shape == (3, 30) and not data.is_image


def test_fedreg_says_that_series_are_copied(tmp_path, movements):
    settings = {**movements, "method": "fedreg", "model": "cnn-1d"}
    said = simulate(tmp_path / "simple", PEOPLE, **settings).task()["remarks"]
    assert said == ["fedreg: these data are not images: classes are filled up with plain copies (fedreg-augmentation)"]
    assert not simulate(tmp_path / "none", PEOPLE, **settings, fedreg_augmentation="none").task()["remarks"]


def test_feddecomp_leaves_a_gru_to_sigma(tmp_path, movements):
    for model, expected in {
        "cnn-1d": [], "gru": ["feddecomp: no low-rank part in base.gru: these weights are σ alone"],
    }.items():  # fmt: skip
        run = simulate(tmp_path / model, PEOPLE, **movements, method="feddecomp", model=model)
        # At so short a training some layers' τ moves little, which another remark tells.
        assert [remark for remark in run.task()["remarks"] if "τ sleeps" not in remark] == expected
