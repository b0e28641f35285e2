"""Settings for which a method is another one: the same bits, through server, strategy and clients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import simulate
from torch import nn

from fedpfl.methods import fedpac
from fedpfl.models import BaseHeadModel, registry

# Clients are missing in each round, and so are classes on each client.
FEW = {"num_server_rounds": 2, "local_epochs": 1, "fraction_train": 0.67, "dirichlet_alpha": 0.1}


def normalised(input_shape, num_classes):
    base = registry.named(flatten=nn.Flatten(), norm=nn.BatchNorm1d(64), fc=nn.Linear(64, 16), relu=nn.ReLU())
    return BaseHeadModel(base, nn.Linear(16, num_classes))


@pytest.fixture(autouse=True)
def model_with_batchnorm(monkeypatch):
    monkeypatch.setitem(registry.MODELS._entries, "normalised", registry._Entry(normalised, None))


def run(folder, method, **settings):
    return simulate(folder, 3, method=method, **{**FEW, **settings})


def shared(folder):
    return load_file(folder.path / "global.safetensors")


def personal(tmp_path):
    newest = [sorted(client.iterdir())[-1] for client in sorted((tmp_path / "state").glob("*/client-*"))]
    return [load_file(path) for path in newest]


def assert_same(a, b):
    assert a
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


@pytest.mark.parametrize(
    ("method", "settings", "fedavg"),
    [
        ("fedprox", {"fedprox_mu": 0.0}, {}),
        ("fedprox", {"fedprox_mu": 0.0, "model": "normalised"}, {}),
        ("moon", {"moon_mu": 0.0}, {}),
        ("moon", {"moon_mu": 0.0, "model": "normalised"}, {}),
        ("feddyn", {"feddyn_alpha": 0.0}, {"fedavg_weights": "uniform"}),
        ("feddyn", {"feddyn_alpha": 0.0, "model": "normalised"}, {"fedavg_weights": "uniform"}),
        ("fedselect", {"fedselect_share": 0.0}, {"fedavg_weights": "uniform"}),
        ("fedselect", {"fedselect_share": 0.0, "model": "normalised"}, {"fedavg_weights": "uniform"}),
        ("heterofl", {"heterofl_mask": False}, {"fedavg_weights": "uniform"}),
        ("heterofl", {"heterofl_mask": False, "model": "normalised"}, {"fedavg_weights": "uniform"}),
        ("fedrolex", {"fedrolex_mask": False, "fedrolex_scale": "always"}, {"fedavg_weights": "uniform"}),
        # Before their first round all control variates are 0.
        ("scaffold", {"num_server_rounds": 1}, {"fedavg_weights": "uniform", "momentum": 0.0}),
        (
            "scaffold",
            {"num_server_rounds": 1, "model": "normalised"},
            {"fedavg_weights": "uniform", "momentum": 0.0},
        ),
        ("fedala", {"fedala_layers": 0, "num_server_rounds": 3}, {}),
        ("fedala", {"fedala_layers": 0, "model": "normalised", "num_server_rounds": 3}, {}),
        ("fedbn", {}, {}),
        ("lg-fedavg", {"head_layers": 3, "model": "mlp"}, {}),
    ],
)
def test_it_is_fedavg(tmp_path, method, settings, fedavg):
    ours = run(tmp_path / "a", method, **settings)
    common = {key: value for key, value in settings.items() if not key.startswith((method.replace("-", "_"), "head_"))}
    theirs = run(tmp_path / "b", "fedavg", **common, **fedavg)
    assert_same(shared(ours), shared(theirs))
    for key in ("clients", "personalised", "global", "train_loss"):
        assert [line[key] for line in ours.metrics()] == [line[key] for line in theirs.metrics()]


def test_moon_s_first_round_is_fedavg_s(tmp_path):
    """Until a client has trained, the two models that it compares with are one."""
    settings = {"num_server_rounds": 1, "model": "normalised"}
    assert_same(
        shared(run(tmp_path / "a", "moon", moon_mu=5.0, **settings)), shared(run(tmp_path / "b", "fedavg", **settings))
    )


def test_fedfac_with_all_channels_shared_is_fedavg_with_personal_statistics_too(tmp_path):
    settings = {"model": "normalised", "num_server_rounds": 3}
    ours = run(tmp_path / "a", "fedfac", fedfac_tau="-inf", fedfac_share_buffers=False, **settings)
    theirs = run(tmp_path / "b", "fedavg", fedavg_share_buffers=False, **settings)
    assert not any(name.startswith("base.norm.running") for name in shared(ours))
    assert_same(shared(ours), shared(theirs))
    for mine, other in zip(personal(tmp_path / "a"), personal(tmp_path / "b"), strict=True):
        assert_same({name: mine[name] for name in other}, other)  # fedfac keeps its layer too, which may yet be split
    for key in ("clients", "train_loss", "personalised"):
        assert [line[key] for line in ours.metrics()] == [line[key] for line in theirs.metrics()]


@pytest.mark.parametrize("model", ["small-cnn", "normalised"])
def test_ditto_without_a_pull_trains_its_personal_model_as_local_does(tmp_path, model):
    ours = run(tmp_path / "a", "ditto", ditto_pull=0.0, ditto_p_epochs=2, local_epochs=2, model=model)
    theirs = run(tmp_path / "b", "local", local_epochs=2, model=model)
    twins = [{name[len("personal.") :]: array for name, array in v.items()} for v in personal(tmp_path / "a")]
    for v, alone in zip(twins, personal(tmp_path / "b"), strict=True):
        assert_same(v, alone)
    assert [line["personalised"] for line in ours.metrics()] == [line["personalised"] for line in theirs.metrics()]


@pytest.mark.parametrize("model", ["small-cnn", "normalised"])
def test_pfedme_without_a_pull_trains_its_model_of_a_round_as_local_does(tmp_path, model):
    settings = {"model": model, "momentum": 0.0, "num_server_rounds": 1, "fraction_train": 1.0}
    alone = {"pfedme_pull": 0.0, "pfedme_steps": 1, "pfedme_personal_learning_rate": 0.02}
    ours = run(tmp_path / "a", "pfedme", **alone, **settings)
    theirs = run(tmp_path / "b", "local", **settings)
    for theta, personal_arrays in zip(personal(tmp_path / "a"), personal(tmp_path / "b"), strict=True):
        assert_same({name[len("personal.") :]: array for name, array in theta.items()}, personal_arrays)
    for key in ("personalised", "train_loss"):
        assert [line[key] for line in ours.metrics()] == [line[key] for line in theirs.metrics()]


def test_fedproto_without_a_pull_is_local(tmp_path):
    settings = {"model": "normalised", "num_server_rounds": 3}
    ours = run(tmp_path / "a", "fedproto", fedproto_pull=0.0, **settings)
    theirs = run(tmp_path / "b", "local", **settings)
    for mine, alone in zip(personal(tmp_path / "a"), personal(tmp_path / "b"), strict=True):
        assert_same({name: mine[name] for name in alone}, alone)
    assert [line["personalised"] for line in ours.metrics()] == [line["personalised"] for line in theirs.metrics()]


@pytest.mark.parametrize("model", ["small-cnn", "normalised"])
def test_fedpac_without_alignment_and_combination_is_fedrep(tmp_path, monkeypatch, model):
    calls = itertools.count()
    monkeypatch.setattr(fedpac, "ALIGNMENT", 0.0)
    monkeypatch.setattr(fedpac, "least_on_simplex", lambda p: np.eye(len(p))[next(calls) % len(p)])
    ours = run(tmp_path / "a", "fedpac", model=model, num_server_rounds=3)
    theirs = run(tmp_path / "b", "fedrep", model=model, num_server_rounds=3, fedrep_p_epochs=1)
    (_, mine), (_, other) = ours.checkpoint(), theirs.checkpoint()
    assert np.array_equal(mine["shared"][: other["shared"].size], other["shared"])
    for key in ("clients", "train_loss", "personalised"):
        assert [line[key] for line in ours.metrics()] == [line[key] for line in theirs.metrics()]


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_knn_per_trains_as_fedavg_and_without_neighbours_predicts_so(tmp_path, weight):
    ours = run(tmp_path / "a", "knn-per", knn_per_weight=weight)
    theirs = run(tmp_path / "b", "fedavg")
    assert_same(shared(ours), shared(theirs))
    for mine, other in zip(ours.metrics(), theirs.metrics(), strict=True):
        assert mine["global"] == other["global"]
        assert (mine["personalised"]["each"] == other["personalised"]["each"]) == (weight == 0)


def test_fedper_with_every_layer_in_the_head_is_local(tmp_path):
    run(tmp_path / "a", "fedper", model="mlp", head_layers=3)
    run(tmp_path / "b", "local", model="mlp")
    for mine, alone in zip(personal(tmp_path / "a"), personal(tmp_path / "b"), strict=True):
        assert_same(mine, alone)
