"""The server's own optimiser: when it is the mean, what it leaves alone, who may not have it, and resuming."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import FEW_SAMPLES, Killed, LocalGrid, federation, play, rule, run_federation, simulate

from fedpfl.core.errors import ConfigError
from fedpfl.core.layout import Layout
from fedpfl.methods import methods
from fedpfl.methods.fedreg import MeanByPart
from fedpfl.rules import Rule
from fedpfl.rules.mean import Mean
from fedpfl.setup.config import Config
from fedpfl.setup.options.server_step import ServerStepSettings
from fedpfl.setup.server_step import BETA2, TAU, ServerStep

FEW = {"num_server_rounds": 3, "local_epochs": 1, "fraction_train": 0.67, "model": "resnet8", **FEW_SAMPLES}
OWN_STEP = {"feddyn", "fedsplit", "fedfac"}
MEANS = {"mean", "mean-by-part", "mean-of-rebalanced", "mean-after-consensus", "fisher-mean", "mean-of-gaussians",
         "mean-of-factored", "regions"}  # fmt: skip


def end(tmp_path, **settings):
    return load_file(simulate(tmp_path, 3, **{**FEW, **settings}).path / "global.safetensors")


def by_hand(kind, vectors, start, eta, beta1, beta2, tau):
    """Return the server's vectors after rounds whose means are ``vectors``, value by value from the algorithms."""
    w, m, v = float(start), 0.0, tau**2
    for mean in vectors:
        delta = mean - w
        if kind == "momentum":
            m = beta1 * m + delta
            w += eta * m
            continue
        m = beta1 * m + (1 - beta1) * delta
        v = {
            "adam": beta2 * v + (1 - beta2) * delta**2,
            "yogi": v - (1 - beta2) * delta**2 * (1 if v > delta**2 else -1 if v < delta**2 else 0),
        }[kind]
        w += eta * m / (v**0.5 + tau)
    return w


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
@pytest.mark.parametrize("eta", [0.0, 0.3])
def test_each_value_goes_as_the_algorithm_says(kind, eta):
    vectors = np.random.default_rng(2).normal(size=(5, 4)) * [1, 0.01, 1e-4, 0]
    settings = ServerStepSettings(kind, eta, 0.8)
    mean = rule(Mean, [1, 0.5, 0, 0], [3, 3])
    mean.server_step = ServerStep(settings, mean.layout)
    for number, vector in enumerate(vectors, 1):
        mean.begin_round(number)
        for client in mean.clients.values():
            mean.add(client, vector.astype(np.float32), None)
        mean.finish_round()
    for i, start in enumerate([1, 0.5, 0, 0]):
        wanted = by_hand(kind, vectors[:, i], start, eta or {"momentum": 1 - 0.8}.get(kind, 0.01), 0.8, BETA2, TAU)
        assert mean.shared[i] == pytest.approx(wanted, rel=1e-5, abs=1e-7)


def test_the_whole_way_is_the_mean_to_the_bit_also_between_values_of_very_different_size():
    start = np.array([1e6, -1e6, 0, 1e-30], np.float32)
    vectors = {i: np.array([1e-9, 3e-7 * i, i, -1e30], np.float32) for i in range(3)}
    plain, stepped = (rule(Mean, start, [3, 4, 9]) for _ in range(2))
    stepped.server_step = ServerStep(ServerStepSettings("momentum", 1.0, 0.0), stepped.layout)
    play(plain, 1, vectors)
    play(stepped, 1, vectors)
    assert np.array_equal(plain.shared, stepped.shared)


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_of_batchnorm_s_statistics_the_mean_is_kept(tmp_path, kind):
    once = {"method": "fedavg", "num_server_rounds": 1}
    plain = end(tmp_path / "plain", **once)
    stepped = end(tmp_path / "stepped", server_optimizer=kind, server_learning_rate=0.5, **once)
    statistics = [name for name in plain if "running" in name]
    assert statistics
    for name in plain:
        assert np.array_equal(plain[name], stepped[name]) == (name in statistics), name


@pytest.mark.parametrize("method", sorted(methods()))
def test_it_is_had_with_means_alone(method):
    made = Config.parse({"method": method}).method.aggregation.rule
    values = {"method": method, "server-optimizer": "adam"}
    if made.name in MEANS:
        assert Config.parse(values).of(ServerStepSettings).server_optimizer == "adam"
        assert method not in OWN_STEP
        return
    reasons = "does not compute a mean|by itself|clients share nothing"
    if method in OWN_STEP:
        reasons = "averages single channels|moves on from the mean"
    with pytest.raises(ConfigError, match=rf"^server-optimizer = 'adam': must be none for {method}: .*({reasons})"):
        Config.parse(values)


def test_leave_to_have_it_is_not_inherited():
    class More(Mean):
        pass

    class Same(MeanByPart):
        no_server_step = ""

    assert (Mean.no_server_step, Same.no_server_step) == ("", "")
    assert More.no_server_step == Rule.no_server_step != ""


@pytest.mark.parametrize("method", ["fedavg", "fedreg"])
def test_a_killed_and_resumed_run_goes_on_with_the_same_momentum(tmp_path, method):
    settings = {**FEW, "method": method, "model": "mlp", "server_optimizer": "yogi", "fedreg_augmentation": "none"}
    _, whole = simulate(tmp_path / "whole", 3, **settings).checkpoint()
    values = federation(tmp_path / "killed", 3, **settings)

    def kill(kind, client, payload):
        if kind == "train" and payload.config["round"] == 3:
            raise Killed

    with pytest.raises(Killed):
        run_federation(LocalGrid(3, values, intercept=kill), values)
    _, resumed = run_federation(LocalGrid(3, values), {**values, "resume": True}).checkpoint()
    assert whole.keys() == resumed.keys() >= {"server-m", "server-v"}
    for name, array in whole.items():
        assert np.array_equal(array, resumed[name]), name
    assert np.any(whole["server-m"])


def test_what_has_no_optimiser_keeps_no_state():
    plain = rule(Mean, [1], [3], Layout.of([("w", (1,))]))
    assert plain.state().keys() == {"shared", "personal_round"}
