"""Per-FedAvg: meta-gradients with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import federation, linear_round, simulate
from torch import nn
from torch.nn import functional as F

from fedpfl.core.errors import ConfigError
from fedpfl.methods import per_fedavg
from fedpfl.methods.per_fedavg import PerFedAvg, PerFedAvgSettings
from fedpfl.setup.config import Config
from fedpfl.training.phase import Batch
from fedpfl.training.settings import TrainingSettings

ALPHA = 0.1


def method(**training):
    values = {"local_epochs": 1, "batch_size": 4, "learning_rate": ALPHA, "momentum": 0.0, **training}
    return PerFedAvg(PerFedAvgSettings(), TrainingSettings(**values))


def quadratic(model, batch):
    """Return ½·mean ‖x·w − y‖², whose Hessian is XᵀX/n."""
    return 0.5 * F.mse_loss(model(batch.x)[:, 0], batch.y)


def test_meta_gradients_of_a_quadratic_are_exact(monkeypatch):
    monkeypatch.setattr(per_fedavg, "loss_of", lambda training: quadratic)
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=12)
    model = nn.Linear(3, 1, bias=False).double()
    w = model.weight.detach().numpy()[0].copy()
    ours = method()
    batch = Batch(torch.tensor(x), torch.tensor(y), torch.arange(12))
    loss, (gradient,) = ours.meta_gradient(model, batch, ["weight"], list(model.parameters()))

    size = 12 // per_fedavg.BATCHES

    def part(number):
        rows = slice(number * size, (number + 1) * size)
        return x[rows], y[rows]

    def slope(w, part):
        return part[0].T @ (part[0] @ w - part[1]) / size

    adapted = w - ALPHA * slope(w, part(0))
    expected = slope(adapted, part(1))
    np.testing.assert_allclose(gradient.numpy()[0], expected, rtol=1e-9)
    assert float(loss) == pytest.approx(0.5 * np.mean((part(1)[0] @ adapted - part(1)[1]) ** 2))
    assert np.array_equal(model.weight.detach().numpy()[0], w)  # to the bit


def test_the_inner_step_follows_the_sum_over_a_batch_as_the_outer_does(monkeypatch):
    monkeypatch.setattr(per_fedavg, "loss_of", lambda training: quadratic)
    rng = np.random.default_rng(7)
    x, y = torch.tensor(rng.normal(size=(12, 3))), torch.tensor(rng.normal(size=12))
    model = nn.Linear(3, 1, bias=False).double()
    size = 12 // per_fedavg.BATCHES

    def meta(batch_loss, alpha):
        ours = method(batch_loss=batch_loss, learning_rate=alpha)
        loss, (gradient,) = ours.meta_gradient(
            model, Batch(x, y, torch.arange(12)), ["weight"], list(model.parameters())
        )
        return float(loss), gradient.numpy()

    # A sum is the mean times the samples: a step α/n along it is a step α along the mean.
    (loss, mean), (same, summed) = meta("mean", ALPHA), meta("sum", ALPHA / size)
    assert same == pytest.approx(loss)
    np.testing.assert_allclose(summed, size * mean, rtol=1e-4)
    assert not np.allclose(meta("sum", ALPHA)[1], size * mean, rtol=1e-2)


def test_phases_draw_as_many_samples_as_a_step_needs_and_adapt_by_one_step_of_alpha():
    x, y = np.random.default_rng(8).normal(size=(30, 2)), np.zeros(30, int)
    ours = method()
    local = linear_round(ours, x, y, 2)
    (phase,) = ours.schedule(local)
    assert (phase.batch_size, phase.learning_rate) == (8, 0.001)
    (adaptation,) = ours.adaptation(local)
    assert (adaptation.epochs, len(adaptation.data.y), adaptation.learning_rate) == (1, 4, None)


def test_clients_count_alike_and_are_tested_adapted(tmp_path):
    run = simulate(tmp_path, 2, method="per-fedavg", num_server_rounds=1, local_epochs=1, per_fedavg_beta=0.02)
    line = run.metrics()[0]
    assert line["personalised"]["loss"] < line["global"]["loss"]
    assert method().aggregation.options == {"weights": "uniform"}


def test_other_optimisers_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"optimizer = 'adam': must be sgd for per-fedavg"):
        Config.parse(federation(tmp_path) | {"method": "per-fedavg", "optimizer": "adam"})
