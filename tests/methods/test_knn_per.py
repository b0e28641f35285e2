"""kNN-Per: weights that clients choose, and how it goes with few samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import linear_round

from fedpfl.methods import knn_per
from fedpfl.methods.knn_per import KNNPer, KNNPerSettings
from fedpfl.training.settings import TrainingSettings


def probabilities(x, y, points, **settings):
    method = KNNPer(KNNPerSettings(**settings), TrainingSettings())
    local = linear_round(method, x, y, 3)
    method.prepare(local)
    return method.personalised(local.model)(torch.tensor(points)).exp().detach().numpy()


def test_neighbours_alone_predict_what_the_samples_say(monkeypatch):
    rng = np.random.default_rng(0)
    x, y, points = rng.normal(size=(20, 4)), np.repeat([0, 1, 1, 2, 2], 4), rng.normal(size=(7, 4))
    monkeypatch.setattr(knn_per, "NEIGHBOURS", 1)
    nearest = probabilities(x, y, points, weight=1.0)
    apart = np.linalg.norm(points[:, None] - x, axis=2)
    assert (nearest.argmax(1) == y[apart.argmin(1)]).all()
    assert nearest.max(1) == pytest.approx(np.ones(7))
    # More neighbours than there are samples, all of them alike: the shares of the classes.
    monkeypatch.setattr(knn_per, "SCALE", 1e9)
    monkeypatch.setattr(knn_per, "NEIGHBOURS", 1000)
    alike = probabilities(x, y, points, weight=1.0)
    assert alike == pytest.approx(np.tile([0.2, 0.4, 0.4], (7, 1)), abs=1e-6)


def test_samples_that_are_far_from_all_others_have_neighbours_too():
    x, y = np.eye(4), np.array([0, 1, 2, 1])
    predicted = probabilities(x, y, x[:1] + 1e6, weight=1.0)
    assert np.isfinite(predicted).all()
    assert predicted.sum() == pytest.approx(1, rel=1e-6)
