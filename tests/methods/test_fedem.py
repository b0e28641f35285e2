"""FedEM: E-step and M-step by hand, and FedAvg as its limit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, head, linear_round, simulate, softmax, train

from fedpfl import models
from fedpfl.core.errors import NoPlainModel
from fedpfl.launch.simulation import export
from fedpfl.methods.fedem import FedEM, FedEMSettings, components
from fedpfl.results.export import export_personal
from fedpfl.setup.config import Config
from fedpfl.training.settings import TrainingSettings


def test_one_component_is_fedavg_to_the_bit(tmp_path):
    settings = {"fraction_train": 0.5, "num_server_rounds": 2, **FEW_SAMPLES}
    ours = simulate(tmp_path / "a", 4, method="fedem", fedem_components=1, **settings)
    fedavg = simulate(tmp_path / "b", 4, method="fedavg", **settings)
    assert np.array_equal(ours.checkpoint()[1]["shared"], fedavg.checkpoint()[1]["shared"])
    for a, b in zip(ours.metrics(), fedavg.metrics(), strict=True):
        assert a["personalised"]["each"] == b["personalised"]["each"]
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-6)  # a sum over B in another order


def test_a_round_is_the_e_step_and_weighted_gradient_steps():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(8, 3)), rng.integers(0, 3, 8)
    training = TrainingSettings(local_epochs=2, batch_size=8, learning_rate=0.5, momentum=0.0)
    method = FedEM(FedEMSettings(components=2), training)
    local = linear_round(method, x, y, 3)
    pi = np.array([0.2, 0.8])
    local.model.mixture.copy_(torch.tensor(pi))
    parameters = [head(component) for component in components(local.model)]
    assert not np.array_equal(parameters[0][0], parameters[1][0])
    train(method, local)

    def probabilities(m):
        weight, bias = parameters[m]
        return softmax(x @ weight.T + bias)

    likelihood = np.array([pi[m] * probabilities(m)[np.arange(8), y] for m in range(2)])  # π_m·exp(−ℓ_m(s))
    q = likelihood / likelihood.sum(axis=0)
    np.testing.assert_allclose(local.model.mixture.numpy(), q.mean(axis=1), rtol=1e-6)
    for _ in range(2):
        for m, (weight, bias) in enumerate(parameters):
            error = q[m][:, None] * (probabilities(m) - np.eye(3)[y]) / 8
            parameters[m] = weight - 0.5 * error.T @ x, bias - 0.5 * error.sum(0)
    for component, expected in zip(components(local.model), parameters, strict=True):
        for ours, reference in zip(head(component), expected, strict=True):
            np.testing.assert_allclose(ours, reference, rtol=1e-6)
    predicted = method.personalised(local.model)(torch.tensor(x)).exp().detach().numpy()
    np.testing.assert_allclose(predicted, sum(q.mean(1)[m] * probabilities(m) for m in range(2)), rtol=1e-6)


def test_the_first_component_is_the_plain_model_and_the_others_differ_in_every_layer():
    torch.manual_seed(5)
    plain = models.build("resnet8", (3, 16, 16), 4)
    torch.manual_seed(5)
    mixed = FedEM(FedEMSettings(), TrainingSettings()).build(models.build("resnet8", (3, 16, 16), 4))
    state, first = plain.state_dict(), mixed.state_dict()
    assert all(torch.equal(first[name], array) for name, array in state.items())
    for name, array in state.items():
        if array.dim() > 1:
            assert not torch.equal(first[f"others.0.{name}"], array)
            assert not torch.equal(first[f"others.0.{name}"], first[f"others.1.{name}"])


def test_there_is_no_plain_model_to_export(tmp_path):
    run = simulate(tmp_path, 2, method="fedem", num_server_rounds=1, local_epochs=1, **FEW_SAMPLES)
    with pytest.raises(NoPlainModel, match="fedem predicts with a mixture of 3 models"):
        export_personal(run)
    said: list[str] = []
    export(
        SimpleNamespace(folder=run, config=Config.parse(run.config())), SimpleNamespace(show_step=str, line=said.append)
    )  # as `fedpfl run` does at its end
    assert len(said) == 1 and said[0].startswith("note: no personalised models are written: fedem predicts with")
    assert not (run.path / "personal").exists()
