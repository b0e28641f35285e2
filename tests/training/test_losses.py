"""Losses other than for classes: targets that are numbers, and labels of which several can be right."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, each_method, quick, simulate
from torch import nn
from torch.nn import functional as F

import fedpfl
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.core.samples import Samples
from fedpfl.core.server_view import Client
from fedpfl.engine.reply_numbers import problems
from fedpfl.methods import methods
from fedpfl.results.export import export_personal
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting
from fedpfl.training.loop import evaluate

ALLOWED = [name for name, method in methods().items() if "loss" not in method.refuses]


def file(path, targets):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 6)).astype(np.float32)
    y = x @ rng.normal(size=(6, 2))
    np.savez(path, x=x, y=y if targets else (y > 0).astype(np.float32), client=np.arange(160) % 4)
    return {
        "dataset": "npz", "data": str(path), "partitioner": "natural", "model": "mlp", "local_epochs": 3,
        "num_server_rounds": 3, "batch_size": 10, "learning_rate": 0.02, "loss": "mse" if targets else "multi-label",
    }  # fmt: skip


def test_scores_are_torchmetrics(tmp_path):
    metrics = pytest.importorskip("torchmetrics")
    rng = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(400, 3, generator=rng), torch.randn(400, 3, generator=rng)
    score = evaluate(lambda x: x, Samples(outputs, y), "mse")
    assert score.samples == 1200
    assert score.correct / score.samples == pytest.approx(float(metrics.functional.r2_score(outputs, y)), abs=1e-5)
    mse = float(metrics.functional.mean_squared_error(outputs, y))
    assert score.loss_sum / score.samples == pytest.approx(mse, rel=1e-5)
    labels = (y > 0).float()
    several = evaluate(lambda x: x, Samples(outputs, labels), "multi-label")
    wanted = metrics.functional.classification.multilabel_accuracy(outputs, labels.long(), 3, average="micro")
    assert several.correct / several.samples == pytest.approx(float(wanted), abs=1e-6)
    assert isinstance(several.correct, int)


def test_targets_without_variance_have_a_score():
    y = torch.ones(5, 1)
    assert evaluate(lambda x: x, Samples(y, y), "mse").correct == 5
    assert evaluate(lambda x: x + 1, Samples(y, y), "mse").correct == 0


def test_one_sample_has_no_variance_to_explain():
    y = torch.ones(1, 1)
    assert evaluate(lambda x: x, Samples(y, y), "mse")[:3] == (0, 0.0, 0)


def with_log_softmax(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes), nn.LogSoftmax(1))


def without_log_softmax(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


def test_a_loss_of_logarithms_of_probabilities_needs_a_model_that_gives_them():
    few = {"dataset": "digits", "num_clients": 2, "num_server_rounds": 1, "local_steps": 1, "workers": 0, "quiet": True}
    for model, loss in [(with_log_softmax, F.nll_loss), (without_log_softmax, F.cross_entropy)]:
        fedpfl.run("fedavg", model=model, loss=loss, **few)
    for model in ("mlp", without_log_softmax):
        with pytest.raises(ConfigError, match=r"has no least value for logits: end the model in nn\.LogSoftmax"):
            fedpfl.run("fedavg", model=model, loss=F.nll_loss, **few)
    with pytest.raises(ConfigError, match=r"has a log-softmax behind its nn\.Linear '1', which cross-entropy does"):
        fedpfl.run("fedper", model=with_log_softmax, **few)


@pytest.mark.parametrize("method", ["fedala", "fedavg", "moon", "per-fedavg"])
def test_methods_learn_targets_and_labels(tmp_path, method):
    for targets in (True, False):
        folder = tmp_path / str(targets)
        folder.mkdir()
        run = simulate(folder, 4, method=method, **{**quick(method), **file(folder / "data.npz", targets)})
        first, last = run.metrics()[0], run.metrics()[-1]
        assert last["train_loss"] < first["train_loss"]
        assert last["personalised"]["accuracy"] <= 1
        assert "accuracy means" in " ".join(run.task()["remarks"])


@pytest.mark.parametrize("method", sorted(set(methods()) - set(ALLOWED)))
def test_methods_that_need_classes_refuse_in_one_line(method):
    with pytest.raises(ConfigError, match=f"loss = 'mse': must be cross-entropy for {method}: it "):
        Config.parse({"method": method, "loss": "mse"})


def test_no_method_is_forgotten(tmp_path):
    settings = {**file(tmp_path / "data.npz", True), "num_server_rounds": 1, "local_epochs": 2, "learning_rate": 0.002}
    for method in ALLOWED:
        folder = tmp_path / method
        run = simulate(folder, 2, method=method, **{**quick(method), **settings, "validation_fraction": 0.2})
        assert np.isfinite(run.metrics()[-1]["personalised"]["accuracy"]), method


def test_a_regression_is_exported_and_adapts(tmp_path):
    run = simulate(tmp_path, 4, method="fedper", tune_epochs=1, **file(tmp_path / "data.npz", True))
    assert len(export_personal(run)) == 4


def test_loss_and_data_have_to_fit(tmp_path):
    with pytest.raises(ConfigError, match="loss = 'mse': does not fit digits, which has classes; targets are"):
        simulate(tmp_path, 2, method="fedavg", loss="mse")
    settings = file(tmp_path / "data.npz", True)
    with pytest.raises(ConfigError, match="loss = 'cross-entropy': does not fit data, which has numbers as targets"):
        simulate(tmp_path, 4, method="fedavg", **{**settings, "loss": "cross-entropy"})
    with pytest.raises(ConfigError, match="partitioner = 'dirichlet': divides by classes, but data has numbers"):
        simulate(tmp_path, 4, method="fedavg", **{**settings, "partitioner": "dirichlet"})
    with pytest.raises(ConfigError, match="permute-labels = True: must be false for data, which has targets"):
        simulate(tmp_path, 4, method="fedavg", **{**settings, "permute_labels": True})
    simulate(tmp_path, 4, method="fedavg", **{**settings, "partitioner": "iid", "num_server_rounds": 1})


@pytest.mark.parametrize("value", [2, -1, 0.5])
def test_labels_of_which_several_are_right_lie_between_0_and_1(value):
    x = np.random.default_rng(0).normal(size=(2, 30, 4)).astype(np.float32)
    y = (x[..., :2] > 0).astype(np.float32)
    y[1, 3, 1] = value
    few = {"data": [*zip(x, y)], "model": "mlp", "loss": "multi-label", "num_server_rounds": 1, "quiet": True,
           "workers": 0}  # fmt: skip
    if value == 0.5:
        assert len(fedpfl.run("fedavg", **few).rounds) == 1
        return
    with pytest.raises(fedpfl.FedpflError, match=rf"label 1 of training sample 33 is {value}: .* a label is 0 or 1"):
        fedpfl.run("fedavg", **few)


def test_a_score_may_be_negative_but_not_a_count():
    reply = {"personalised-correct": -3.5, "personalised-samples": 4, "personalised-loss-sum": 1.0}
    client = Client(0, 8, 4)

    def wrong(counted=False, **numbers):
        return list(problems({**reply, **numbers}, (), client, counted))

    assert wrong(counted=True) == ["personalised-correct"]
    assert wrong() == []
    assert wrong(**{"personalised-correct": 4.5}) == ["personalised-correct"]
    assert wrong(**{"personalised-correct": float("nan")}) == ["personalised-correct"]


def focal(outputs, y):
    losses = F.cross_entropy(outputs, y, reduction="none")
    return (1 - (-losses).exp()) ** 2 * losses


@pytest.mark.parametrize("method", each_method())
def test_every_method_trains_with_a_loss_of_one_s_own(tmp_path, method):
    small = {"num_server_rounds": 1, "local_epochs": 2, "learning_rate": 0.001, "validation_fraction": 0.2}
    settings = {**quick(method), **small, **FEW_SAMPLES, "method": method}
    with as_setting("loss", focal) as loss:
        custom, plain = (
            simulate(tmp_path, 2, run_name=n, **settings, **also) for n, also in (("a", {"loss": loss}), ("b", {}))
        )
    assert custom.metrics()[-1]["train_loss"] != plain.metrics()[-1]["train_loss"]
    assert np.isfinite(custom.metrics()[-1]["personalised"]["loss"])


def test_tests_measure_the_kind_s_loss_and_exports_name_it(tmp_path):
    same = as_setting("loss", lambda outputs, y: F.mse_loss(outputs, y))
    settings = {"method": "fedper", **file(tmp_path / "data.npz", True)}
    with same as text:
        custom = simulate(tmp_path, 4, run_name="own", **{**settings, "loss": f"mse:{text}"})
    plain = simulate(tmp_path, 4, run_name="plain", **settings)
    assert custom.metrics()[-1]["personalised"] == plain.metrics()[-1]["personalised"]
    export_personal(custom)
    assert json.loads((custom.path / "personal" / "client-00000.json").read_text())["loss"] == "mse"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda outputs, y: 1.0, "returns a float; it must return the mean, or a value for each sample"),
        (lambda outputs, y: outputs, r"returns a tensor of \(2, 10\); it must"),
        (lambda outputs, y: outputs.sum().detach(), "must be finite and have a gradient"),
        (lambda outputs, y: outputs.sum() * float("nan"), "must be finite and have a gradient"),
        (lambda outputs, y: outputs[:, 99].mean(), "raises IndexError"),
        ("focal", "is a str, and must be a function"),
        (nn.CrossEntropyLoss, r"is a class: give an instance of it, such as CrossEntropyLoss\(\)"),
        (
            nn.CrossEntropyLoss(reduction="sum"),
            r'is a sum over the samples; it must return the mean \(reduction="mean"',
        ),
        (F.mse_loss, r"raises UserWarning: Using a target size \(torch.Size\(\[2\]\)\) that is different"),
    ],
)
def test_a_loss_that_is_none_is_refused_before_round_1(tmp_path, function, message):
    with as_setting("loss", function) as text, pytest.raises(ConfigError, match=f"loss = .*{message}"):
        simulate(tmp_path, 2, method="fedavg", loss=text)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, lambda outputs, y: (outputs - y).square().mean()])
def test_shapes_that_fit_by_accident_are_refused_before_round_1(classes, loss):
    x = np.random.default_rng(0).normal(size=(2, 30, 4)).astype(np.float32)
    with pytest.raises(
        ConfigError, match=r"loss = .*raises (UserWarning: Using a target size|RuntimeError: The size of)"
    ):
        fedpfl.run(
            "fedavg", data=[(one, np.arange(30) % classes) for one in x], model="mlp", loss=loss, quiet=True, workers=0
        )


def pinball(y_true, y_pred):
    error = y_true - y_pred
    return torch.maximum(0.9 * error, -0.1 * error).mean()


def test_a_loss_that_takes_the_truth_first_gets_it_first():
    x = np.random.default_rng(0).normal(size=(2, 30, 4)).astype(np.float32)
    few = {"data": [(one, one[:, :1]) for one in x], "model": "mlp", "learning_rate": 0.005, "quiet": True,
           "workers": 0, "num_server_rounds": 2}  # fmt: skip
    first = fedpfl.run("fedavg", loss={"mse": pinball}, **few)
    usual = fedpfl.run("fedavg", loss={"mse": lambda outputs, y: pinball(y, outputs)}, **few)
    assert first.rounds.train_loss.tolist() == usual.rounds.train_loss.tolist()


@pytest.mark.parametrize(
    ("loss", "fits"),
    [
        (lambda outputs, y: (outputs.squeeze(1) - y).square().mean(), False),
        (lambda outputs, y: (outputs - y.squeeze(1)).abs().mean(), False),
        (lambda outputs, y: (outputs - y).square().mean(), True),
        (lambda outputs, y: (outputs.squeeze(1) - y.squeeze(1)).square(), True),
        (lambda outputs, y: outputs.square().mean(), True),  # does not look at y
    ],
)
def test_targets_that_are_broadcast_are_refused_before_round_1(loss, fits):
    x = np.random.default_rng(0).normal(size=(2, 30, 4)).astype(np.float32)
    few = {"data": [(one, one[:, 0]) for one in x], "model": "mlp", "learning_rate": 0.005, "quiet": True,
           "workers": 0, "num_server_rounds": 1}  # fmt: skip
    if fits:
        assert fedpfl.run("fedavg", loss={"mse": loss}, **few).summary["rounds"] == 1
        return
    with pytest.raises(ConfigError, match=r"loss = .*is the same whichever sample a target belongs to"):
        fedpfl.run("fedavg", loss={"mse": loss}, **few)


def test_objects_without_a_name_are_called_as_their_function_or_class():
    x = np.random.default_rng(0).normal(size=(2, 30, 4)).astype(np.float32)

    class Share:
        def __call__(self, outputs, y):
            return float((outputs.argmax(1) == y).float().mean())

    def weighed(outputs, y, weight):
        return weight * float((outputs.argmax(1) == y).float().mean())

    few = {"data": [(one, np.arange(30) % 2) for one in x], "model": "mlp", "quiet": True, "workers": 0}
    run = fedpfl.run("fedavg", metrics=[Share(), partial(weighed, weight=0.5)], num_server_rounds=1, **few)
    assert {*run.summary["metrics"]} == {"Share", "weighed"}


def test_only_a_loss_of_each_sample_can_be_mixed(tmp_path):
    with as_setting("loss", lambda outputs, y: F.cross_entropy(outputs, y)) as text:
        run = {"method": "fedem", "loss": text, "min_replies": 1}
        with pytest.raises(FedpflError, match="a value for each sample: this method weighs samples"):
            simulate(tmp_path, 2, **run)


def test_methods_for_classes_refuse_a_loss_of_targets():
    with pytest.raises(ConfigError, match="must be cross-entropy for knn-per"):
        Config.parse({"method": "knn-per", "loss": "mse:parts:huber"})
    for wrong in ("parts", "cross-entropy:parts:focal", "multi:parts:focal"):
        with pytest.raises(ConfigError, match="loss"):
            Config.parse({"method": "fedavg", "loss": wrong})


def test_a_client_with_one_test_sample_is_named_as_untested():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5)).astype(np.float32)
    data = [(x, x[:, :1], x[:count], x[:count, :1]) for count in (20, 1, 15)]
    run = fedpfl.run("fedper", model="mlp", data=data, loss="mse", num_server_rounds=1, workers=0, quiet=True)
    assert run.summary["untested"] == [1] and set(run._folder.metrics()[-1]["personalised"]["each"]) == {"0", "2"}
