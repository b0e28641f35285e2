"""pFedSD: the distillation by hand, and who teaches."""

from __future__ import annotations

import numpy as np
import torch
from support import head, linear_round, softmax, train

from fedpfl.layers.memory import twin
from fedpfl.methods.pfedsd import PFedSD, PFedSDSettings
from fedpfl.training.settings import TrainingSettings


def test_steps_follow_cross_entropy_and_distillation():
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(5, 2)), rng.integers(0, 3, 5)
    training = TrainingSettings(local_epochs=2, batch_size=5, learning_rate=0.4, momentum=0.0)
    method = PFedSD(PFedSDSettings(distillation=0.7), training)
    local = linear_round(method, x, y, 3, trained=1)
    teacher = rng.normal(size=(3, 2)), rng.normal(size=3)
    for parameter, value in zip(twin(local.model).parameters(), teacher, strict=True):
        parameter.data.copy_(torch.tensor(value))
    weight, bias = head(local.model)
    taught = softmax((x @ teacher[0].T + teacher[1]) / 3)
    train(method, local)
    for _ in range(2):
        z = x @ weight.T + bias
        error = (softmax(z) - np.eye(3)[y] + 0.7 * 3 * (softmax(z / 3) - taught)) / 5  # λτ²·KL has slope λτ·(p_τ − t)
        weight, bias = weight - 0.4 * error.T @ x, bias - 0.4 * error.sum(0)
    for ours, reference in zip(head(local.model), (weight, bias), strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-12)
    assert np.array_equal(head(twin(local.model))[0], head(local.model)[0])  # the next round's teacher


def test_the_mean_is_the_global_model():
    method = PFedSD(PFedSDSettings(), TrainingSettings())
    local = linear_round(method, [[1.0]], [0], 2)
    assert method.global_model(local.model) is local.model
    assert method.personalised(local.model) is twin(local.model)
    assert method.sharing(local.model).shared == ["head.weight", "head.bias"]
