"""``tune-epochs``: a copy of the client's model is trained before it is tested, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import FEW_SAMPLES, NO_PLAIN_MODEL, check_recorded, each_method, simulate
from torch import nn
from torch.nn import functional as F

from fedpfl.api.runs import Run
from fedpfl.methods import methods
from fedpfl.methods.base import adapts_itself
from fedpfl.models.registry import BaseHeadModel
from fedpfl.setup.config import Config
from fedpfl.training.phase import Batch

QUICK = {"num_server_rounds": 1, "local_epochs": 1, "learning_rate": 0.005, **FEW_SAMPLES}
OWN = ["fedala", "fedbabu", "per-fedavg", "pfedfda"]


def kept(folder):
    """Return what clients have stored, by path."""
    paths = sorted((folder / "state").glob("*/client-*/*.safetensors"))
    return [(path.name, load_file(path)) for path in paths]


@pytest.mark.parametrize(
    "method", each_method(without=[name for name, method in methods().items() if adapts_itself(method)])
)
def test_it_changes_what_clients_predict_and_leaves_no_trace(tmp_path, method):
    settings = {**QUICK, "method": method, "feddecomp_lora_epochs": 0, "fedreg_augmentation": "none"}
    plain = simulate(tmp_path / "plain", 2, **settings)
    tuned = simulate(tmp_path / "tuned", 2, tune_epochs=3, **settings)
    (before,), (after,) = plain.metrics(), tuned.metrics()
    assert after["personalised"]["loss"] != before["personalised"]["loss"]
    assert after["train_loss"] == before["train_loss"]
    if "global" in before:
        assert after["global"] == before["global"]
    for name, array in plain.checkpoint()[1].items():
        assert np.array_equal(tuned.checkpoint()[1][name], array), name
    for (path, arrays), (other, same) in zip(kept(tmp_path / "plain"), kept(tmp_path / "tuned"), strict=True):
        assert path == other
        assert arrays.keys() == same.keys()
        assert all(np.array_equal(arrays[name], same[name]) for name in arrays)
    if method not in NO_PLAIN_MODEL:
        check_recorded(Run(tuned))


@pytest.mark.parametrize("method", OWN)
def test_a_method_with_an_adaptation_of_its_own_keeps_it_and_says_so(tmp_path, method):
    settings = {**QUICK, "method": method}
    plain = simulate(tmp_path / "plain", 2, **settings)
    told = simulate(tmp_path / "told", 2, tune_epochs=3, **settings)
    assert told.metrics()[0]["personalised"] == plain.metrics()[0]["personalised"]
    remark = f"tune-epochs = 3 changes nothing: {method} adapts models to a test in its own way"
    assert remark in told.task()["remarks"]
    assert remark not in plain.task()["remarks"]


def test_a_model_adapts_at_the_unscheduled_rate(tmp_path):
    """A schedule that ends near 0 would otherwise leave the models of the last rounds as they are."""
    settings = {**QUICK, "method": "fedavg", "tune_epochs": 3, "num_server_rounds": 2}
    run = simulate(tmp_path, 2, learning_rate_schedule="exponential", learning_rate_decay=1e-4, **settings)
    first, last = (line["global"]["loss"] - line["personalised"]["loss"] for line in run.metrics())
    assert first > 0
    assert last > first / 2


def test_no_other_method_says_so():
    assert {name for name in methods() if adapts_itself(methods().get(name))} == set(OWN)


@pytest.mark.parametrize("batch_loss", ["mean", "sum"])
def test_what_takes_no_part_in_the_prediction_stands_still(batch_loss):
    ditto = Config.parse({"method": "ditto", "batch-loss": batch_loss}).method
    torch.manual_seed(0)
    model = ditto.build(BaseHeadModel(nn.Flatten(), nn.Linear(4, 3)))
    batch = Batch(torch.randn(5, 4), torch.arange(5) % 3, torch.arange(5))
    names, params = zip(*model.named_parameters(), strict=True)
    loss, grads = ditto._tuning_gradient(model, batch, names, params)
    of_v = F.cross_entropy(model.personal(batch.x), batch.y, reduction=batch_loss)
    expected = dict(zip(["weight", "bias"], torch.autograd.grad(of_v, list(model.personal.parameters())), strict=True))
    assert float(loss) == pytest.approx(float(F.cross_entropy(model.personal(batch.x), batch.y)))
    assert list(names) == ["head.weight", "head.bias", "personal.head.weight", "personal.head.bias"]
    for name, grad in zip(names, grads, strict=True):
        wanted = expected[name.rsplit(".", 1)[1]] if name.startswith("personal.") else torch.zeros_like(grad)
        torch.testing.assert_close(grad, wanted)


def test_the_model_that_was_just_trained_is_tuned_for_its_test_too(tmp_path):
    # With a single client the mean is what it has trained.
    (line,) = simulate(tmp_path, 1, method="fedavg", tune_epochs=2, evaluate_trained=True, **QUICK).metrics()
    assert line["trained"] == line["personalised"]
