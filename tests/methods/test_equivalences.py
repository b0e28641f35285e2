"""Settings for which a method is another one: the same bits, through server, strategy and clients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import FEW_SAMPLES, simulate

from fedpfl.methods import fedpac

UNIFORM = {"fedavg_weights": "uniform"}


@pytest.fixture
def run(small_bn):
    """Return a function that runs a method where clients are missing in each round, and classes on each client."""
    few = {
        **FEW_SAMPLES, "num_server_rounds": 2, "local_epochs": 1, "fraction_train": 0.67, "dirichlet_alpha": 0.1,
        "model": small_bn,
    }  # fmt: skip
    return lambda folder, method, **settings: simulate(folder, 3, method=method, **{**few, **settings})


def of_both(method, settings):
    """Return the settings that another method understands as well."""
    return {key: value for key, value in settings.items() if not key.startswith((method.replace("-", "_"), "head_"))}


def shared(folder):
    return load_file(folder.path / "global.safetensors")


def personal(folder):
    newest = [sorted(client.iterdir())[-1] for client in sorted((folder / "state").glob("*/client-*"))]
    return [load_file(path) for path in newest]


def assert_same(a, b):
    assert a
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


def assert_same_numbers(ours, theirs, *keys):
    for key in keys:
        assert [line[key] for line in ours.metrics()] == [line[key] for line in theirs.metrics()], key


@pytest.mark.parametrize(
    ("method", "settings", "fedavg"),
    [
        ("fedprox", {"fedprox_mu": 0.0}, {}),
        ("moon", {"moon_mu": 0.0}, {}),
        ("feddyn", {"feddyn_alpha": 0.0}, UNIFORM),
        ("feddecomp", {"feddecomp_lora_epochs": 0}, UNIFORM),
        ("fedselect", {"fedselect_share": 0.0}, UNIFORM),
        ("heterofl", {"heterofl_mask": False}, UNIFORM),
        ("fedrolex", {"fedrolex_mask": False, "fedrolex_scale": "always"}, UNIFORM),
        # Before their first round all control variates are 0.
        ("scaffold", {"num_server_rounds": 1}, {**UNIFORM, "momentum": 0.0}),
        ("pfedsd", {"num_server_rounds": 1}, {}),
        ("fedala", {"fedala_layers": 0, "num_server_rounds": 3}, {}),
        ("fedbn", {"model": "small-cnn"}, {}),
        ("lg-fedavg", {"head_layers": 3, "model": "mlp"}, {}),
    ],
)
def test_it_is_fedavg(tmp_path, run, method, settings, fedavg):
    ours = run(tmp_path / "a", method, **settings)
    theirs = run(tmp_path / "b", "fedavg", **of_both(method, settings), **fedavg)
    assert_same(shared(ours), shared(theirs))
    kept = {"pfedsd": ["global"]}.get(method, ["personalised", "global"])  # pfedsd tests what a client trained
    assert_same_numbers(ours, theirs, "clients", "train_loss", *kept)


def test_moon_s_first_round_is_fedavg_s(tmp_path, run):
    """Until a client has trained, the two models that it compares with are one."""
    ours = run(tmp_path / "a", "moon", moon_mu=5.0, num_server_rounds=1)
    assert_same(shared(ours), shared(run(tmp_path / "b", "fedavg", num_server_rounds=1)))


@pytest.mark.parametrize(("variant", "buffers"), [("static", True), ("dynamic", True), ("dynamic", False)])
def test_fedfac_with_all_channels_shared_is_fedavg_with_personal_statistics_too(tmp_path, run, variant, buffers):
    settings = {"fedfac_tau": "-inf", "fedfac_variant": variant, "fedfac_share_buffers": buffers}
    ours = run(tmp_path / "a", "fedfac", **settings, num_server_rounds=3)
    theirs = run(tmp_path / "b", "fedavg", fedavg_share_buffers=buffers, num_server_rounds=3)
    assert any(name.startswith("base.norm.running") for name in shared(ours)) == buffers
    assert_same(shared(ours), shared(theirs))
    assert_same_numbers(ours, theirs, "clients", "train_loss", "personalised")
    if not buffers:
        for mine, other in zip(personal(tmp_path / "a"), personal(tmp_path / "b"), strict=True):
            assert_same(
                {name: mine[name] for name in other}, other
            )  # fedfac keeps its layer too, which may yet be split


@pytest.mark.parametrize(
    ("method", "settings", "prefix"),
    [
        ("ditto", {"ditto_pull": 0.0, "ditto_p_epochs": 2, "local_epochs": 2}, "personal."),
        ("fedamp", {"fedamp_alpha": 0.0, "fedamp_prox": 0.0, "num_server_rounds": 3}, "personal."),
        ("fedper", {"model": "mlp", "head_layers": 3}, ""),
        ("fedproto", {"fedproto_pull": 0.0, "num_server_rounds": 3}, ""),
        (
            "pfedme",
            {"pfedme_pull": 0.0, "pfedme_steps": 1, "pfedme_personal_learning_rate": 0.02, "momentum": 0.0,
             "num_server_rounds": 1, "fraction_train": 1.0},
            "personal.",
        ),
    ],
)  # fmt: skip
def test_it_trains_the_model_of_a_client_as_local_does(tmp_path, run, method, settings, prefix):
    ours = run(tmp_path / "a", method, **settings)
    theirs = run(tmp_path / "b", "local", **of_both(method, settings))
    for mine, alone in zip(personal(tmp_path / "a"), personal(tmp_path / "b"), strict=True):
        assert_same({name: mine[f"{prefix}{name}"] for name in alone}, alone)
    assert_same_numbers(ours, theirs, "personalised")


def test_fedpac_without_alignment_and_combination_is_fedrep(tmp_path, run, monkeypatch):
    calls = itertools.count()
    monkeypatch.setattr(fedpac, "ALIGNMENT", 0.0)
    monkeypatch.setattr(fedpac, "least_on_simplex", lambda p: np.eye(len(p))[next(calls) % len(p)])
    ours = run(tmp_path / "a", "fedpac", num_server_rounds=3)
    theirs = run(tmp_path / "b", "fedrep", num_server_rounds=3, fedrep_p_epochs=1)
    (_, mine), (_, other) = ours.checkpoint(), theirs.checkpoint()
    assert np.array_equal(mine["shared"][: other["shared"].size], other["shared"])
    assert_same_numbers(ours, theirs, "clients", "train_loss", "personalised")


def test_knn_per_trains_as_fedavg_and_without_neighbours_predicts_so(tmp_path, run):
    theirs = run(tmp_path / "fedavg", "fedavg")
    for weight in (0.0, 0.5):
        ours = run(tmp_path / str(weight), "knn-per", knn_per_weight=weight)
        assert_same(shared(ours), shared(theirs))
        assert_same_numbers(ours, theirs, "global")
        for mine, other in zip(ours.metrics(), theirs.metrics(), strict=True):
            assert (mine["personalised"]["each"] == other["personalised"]["each"]) == (weight == 0)
