"""FedAMP: what a client trains, mixtures against the equations, and local training when nobody is listened to."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
from support import federation, head, linear_round, play, rule, simulate, softmax, train

from fedpfl.core.errors import ConfigError
from fedpfl.core.layout import Layout
from fedpfl.layers.memory import twin
from fedpfl.methods.fedamp import Attentive, FedAMP, FedAMPSettings
from fedpfl.setup.config import Config
from fedpfl.training.settings import TrainingSettings

W = {0: [0.0, 0.0], 1: [1.0, 0.0], 2: [0.0, 2.0]}


def test_two_steps_follow_the_gradient_with_the_pull_to_the_mixture():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 3)), np.array([0, 1, 2, 0, 1, 1])
    training = TrainingSettings(local_epochs=2, batch_size=6, learning_rate=0.3, momentum=0.0)
    method = FedAMP(FedAMPSettings(alpha=2.0, prox=0.8), training)
    local = linear_round(method, x, y, 3)
    weight, bias = start = head(local.model)
    train(method, local)
    for _ in range(2):
        error = (softmax(x @ weight.T + bias) - np.eye(3)[y]) / 6
        weight, bias = (
            weight - 0.3 * (error.T @ x + 0.8 / 2 * (weight - start[0])),
            bias - 0.3 * (error.sum(0) + 0.8 / 2 * (bias - start[1])),
        )
    for ours, reference in zip(head(local.model), (weight, bias), strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-12)


def test_clients_are_tested_with_what_they_trained_or_else_received():
    method = FedAMP(FedAMPSettings(), TrainingSettings(local_epochs=1))
    fresh = linear_round(method, [[1.0, 2.0]], [0], 2)
    fresh.model.head.weight.data.add_(1)  # as if another mixture had arrived
    method.prepare(fresh)
    assert np.array_equal(head(twin(fresh.model))[0], head(fresh.model)[0])
    train(method, fresh)
    trained = head(fresh.model)[0]
    fresh.model.head.weight.data.add_(1)
    later = linear_round(method, [[1.0, 2.0]], [0], 2, trained=1)
    later.model.load_state_dict(fresh.model.state_dict())
    method.prepare(later)
    assert np.array_equal(head(method.personalised(later.model))[0], trained)
    assert np.array_equal(method.export(later.model)["head.weight"].numpy(), trained)
    assert method.global_model(later.model) is None


def test_a_prox_needs_a_step(tmp_path):
    with pytest.raises(ConfigError, match=r"fedamp-alpha = 0.0: must be > 0 unless fedamp-prox = 0"):
        Config.parse(federation(tmp_path) | {"method": "fedamp", "fedamp-alpha": 0.0})


def test_what_could_end_a_run_is_said_before_round_1(tmp_path):
    calm = {"num_server_rounds": 1, "local_epochs": 1, "learning_rate": 0.1}
    said = "can reach 1.5; a fedamp-sigma above 3 is always enough"
    run = simulate(tmp_path / "a", 4, method="fedamp", fedamp_sigma=2.0, **calm)
    assert len(run.task()["remarks"]) == 1
    assert run.task()["remarks"][0].endswith(f"with 4 clients they {said}")
    # A client that is held out has no model for the others, and α_k scales all weights.
    run = simulate(tmp_path / "b", 4, method="fedamp", fedamp_sigma=2.0, new_clients=0.25, **calm)
    assert run.task()["remarks"][0].endswith("with 3 clients they can reach 1; a fedamp-sigma above 2 is always enough")
    run = simulate(tmp_path / "c", 4, method="fedamp", fedamp_sigma=2.0, fedamp_alpha=0.5, **calm)
    assert run.task()["remarks"] == []
    assert simulate(tmp_path / "d", 4, method="fedamp", **calm).task()["remarks"] == []


def test_mixtures_follow_the_equations():
    attentive = rule(Attentive, [9, 9], (1, 1, 1), alpha=2.0, sigma=5.0)
    play(attentive, 1, W)
    squared = {(0, 1): 1, (0, 2): 4, (1, 2): 5}
    for i in range(3):
        xi = {j: 2 * exp(-squared[min(i, j), max(i, j)] / 5) / 5 for j in range(3) if j != i}
        u = (1 - sum(xi.values())) * np.array(W[i]) + sum(x * np.array(W[j]) for j, x in xi.items())
        np.testing.assert_allclose(attentive.for_clients[i], u, rtol=1e-6, atol=1e-7)


def test_absent_clients_count_with_their_newest_model_and_unknown_ones_not_at_all():
    attentive = rule(Attentive, [0, 0], (1, 1, 1), alpha=1.0, sigma=4.0)
    play(attentive, 1, {1: [1, 0]})
    xi = exp(-1 / 4) / 4
    np.testing.assert_allclose(attentive.for_clients, [[xi, 0], [1, 0], [xi, 0]], rtol=1e-6)
    play(attentive, 2, {0: [3, 0]})
    xi = exp(-4 / 4) / 4
    np.testing.assert_allclose(attentive.for_clients[:2], [[3 - 2 * xi, 0], [1 + 2 * xi, 0]], rtol=1e-6)


def test_running_statistics_are_mixed_but_make_no_distance():
    layout = Layout.of([("w", (1,)), ("bn.running_mean", (1,))])
    attentive = rule(Attentive, [0, 0], (1, 1), layout, alpha=1.0, sigma=4.0)
    play(attentive, 1, {0: [1, 0], 1: [1, 8]})
    np.testing.assert_allclose(attentive.for_clients, [[1, 2], [1, 6]])


def test_too_small_a_sigma_is_one_clear_line():
    attentive = rule(Attentive, [0, 0], (1, 1, 1), alpha=1.0, sigma=2.0)
    with pytest.raises(
        ConfigError,
        match=r"fedamp-sigma = 2.0: the weights of the other clients in the mixture of client 0 add up to 1 in round "
        r"7, they must stay below 1; more than fedamp-alpha × \(clients − 1\) = 2 is always enough",
    ):
        play(attentive, 7, {i: [1, 1] for i in range(3)})
