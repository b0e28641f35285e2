"""Metrics of a run: sent, checked, recorded, chosen by."""

from __future__ import annotations

import json
from statistics import fmean

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, simulate
from torch import nn
from torch.nn import functional as F

import fedpfl
from fedpfl.core.errors import ConfigError
from fedpfl.core.server_view import Client
from fedpfl.engine.reply_numbers import leave_out, problems
from fedpfl.results.history import History, of_clients
from fedpfl.study.analysis import ANALYSES

FEW = {"model": "mlp", "local_epochs": 1, "num_server_rounds": 2, "output_dir": "runs", "workers": 0, "quiet": True}


pytestmark = pytest.mark.usefixtures("elsewhere")


def test_a_run_records_metrics_of_every_tested_model_and_chooses_by_one(elsewhere):
    pytest.importorskip("pandas")

    def hits(outputs, y):
        return int((outputs.argmax(1) == y).sum()), len(y)

    def negative(outputs, y):
        return -float(len(y))

    settings = {"method": "fedper", "num_clients": 3, **FEW_SAMPLES, **FEW, "evaluate_global": True}
    run = fedpfl.run(
        metrics=["accuracy", "f1-macro", hits, negative], validation_fraction=0.2, choose_by="hits", **settings
    )
    line = fedpfl.load(run.path)._folder.metrics()[-1]
    scores = line["personalised"]
    assert {"f1-macro", "hits", "hits-pooled", "negative", "each-f1-macro"} <= scores.keys()
    assert "f1-macro-pooled" not in scores, "a mean over clients alone"
    assert scores["f1-macro"] == pytest.approx(fmean(scores["each-f1-macro"].values()))
    assert scores["hits"] == pytest.approx(scores["accuracy"]) and scores["hits-pooled"] == pytest.approx(
        scores["weighted"]
    )
    assert line["global"]["hits"] == pytest.approx(line["global"]["accuracy"])
    assert line["validation"]["hits"] == pytest.approx(line["validation"]["accuracy"])
    assert "details" not in line
    names = ("hits", "hits-pooled", "f1-macro", "negative")
    assert run.summary["metrics"] == {name: scores[name] for name in names}
    assert run.rounds.loc[2, "personalised_f1_macro"] == scores["f1-macro"]
    assert run.clients.loc[(2, 1), "hits"] == scores["each-hits"]["1"]
    assert "| f1-macro, personalised | " in (run.path / "summary.md").read_text()
    history = run._folder.history()
    # A user's own number is the better the larger it is.
    assert history.best_validated()["validation"]["hits"] == max(history.curve("validation.hits").values())
    plain = fedpfl.run(**settings)
    assert plain.rounds["personalised_accuracy"].iloc[0] != 0
    with pytest.raises(ConfigError, match=r"metrics = '.*give it again"):
        fedpfl.run(resume=str(run.path), num_server_rounds=3, quiet=True)
    again = fedpfl.run(resume=run, num_server_rounds=3, metrics=["accuracy", "f1-macro", hits, negative], quiet=True)
    assert again.summary["rounds"] == 3


class UndefinedFarOut(nn.Linear):
    """Computes no numbers for inputs far from those that it was made for."""

    def forward(self, x):
        return super().forward(x) if self.training else super().forward(x) * torch.where(x[:, :1] > 5, torch.nan, 1)


@pytest.mark.parametrize("test_on", ["own", "server"])
def test_outputs_that_are_no_numbers_are_wrong_and_their_loss_is_a_number(elsewhere, test_on):
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32) + 9
    data = x, np.arange(60) % 2, x[:20], np.arange(20) % 2
    made = {**FEW, "model": lambda: UndefinedFarOut(3, 2), "num_clients": 3, "partitioner": "iid"}
    line = fedpfl.run("fedavg", data=data, test_on=test_on, **made)._folder.metrics()[-1]
    assert line["global"]["accuracy"] == 0 and 1e20 < line["global"]["loss"] <= 1e30


def test_names_of_persons_and_classes_stay_in_the_run_s_folder(elsewhere):
    pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    data = {name: (rng.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for name in ("anna", "ben")}
    run = fedpfl.run(method="fedper", data=data, standardize="client", **{**FEW, "num_server_rounds": 1})
    task = run._folder.task()
    assert task["client_names"] == ["anna", "ben"] and "class_names" not in task
    assert [sum(counts) for counts in task["class_counts"]] == [train for train, _ in task["samples"]]
    assert run.clients.loc[(1, 1), "name"] == "ben"
    about = (run.path / "personal" / "client-00001.json").read_text()
    assert json.loads(about)["client-name"] == "ben" and "anna" not in about
    text = ANALYSES["per-client"].make([run._folder]).tables[0].markdown()
    assert "| client | name | fedper |" in text and "| 1 | ben |" in text


def test_accuracies_do_not_depend_on_metrics(tmp_path):
    settings = {"method": "fedper", "num_server_rounds": 1, **FEW_SAMPLES}
    plain, more = (
        simulate(tmp_path / str(number), 2, metrics=metrics, **settings).metrics()[0]["personalised"]
        for number, metrics in enumerate(("", "auroc"))
    )
    assert more["each-auroc"].keys() == {"0", "1"}
    assert plain == {key: value for key, value in more.items() if "auroc" not in key}


def test_what_a_users_function_changes_in_place_is_its_own():
    x = np.random.default_rng(1).normal(size=(2, 40, 4)).astype(np.float32)

    def right(outputs, y):
        return float((outputs.argmax(1) == y).float().mean())

    def right_and_clears(outputs, y):
        share = right(outputs, y)
        outputs.zero_(), y.zero_()
        return share

    def first_class_last(outputs, y):
        return F.cross_entropy(outputs, 2 - y, reduction="none")

    def first_class_last_in_place(outputs, y):
        return F.cross_entropy(outputs, y.mul_(-1).add_(2), reduction="none")

    def scores(metric, loss):
        run = fedpfl.run(
            "fedem", data=[(one, (one[:, 0] > 0) + (one[:, 1] > 1).astype(int)) for one in x], model="mlp", workers=0,
            metrics=[metric, "f1-macro"], loss=loss, num_server_rounds=3, local_epochs=1, quiet=True,
        )  # fmt: skip
        return run.rounds.filter(regex="^(?!seconds|bytes)").rename(
            columns=lambda name: name.replace("_and_clears", "")
        )

    usual = scores(right, first_class_last)
    assert scores(right_and_clears, first_class_last_in_place).equals(usual)


def reply(**claims):
    score = {"personalised-correct": 5, "personalised-loss-sum": 1.0, "personalised-samples": 10}
    return {**score, **{f"personalised-{key.replace('_', '-')}": value for key, value in claims.items()}}


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ({"auroc_metric_sum": 1.5, "auroc_metric_count": 1}, "must be from 0 to 1 times its count"),
        ({"auroc_metric_sum": 0.5, "auroc_metric_count": 21}, "must be a number from 0 to 20"),
        ({"auroc_metric_sum": 5.0, "auroc_metric_count": 10}, "must be 0 or 1, as this metric is a mean over clients"),
        ({"auroc_metric_sum": 0.5}, "must be a number from 0 to 20"),
        ({"auroc_metric_sum": float("nan"), "auroc_metric_count": 1}, "must be a number from"),
        ({"f1_macro_metric_sum": 0.5, "f1_macro_metric_count": 1}, "is not a metric of this run"),
    ],
)
def test_a_false_claim_is_left_out_with_its_other_half(claim, reason):
    client = Client(0, 10, 10)
    metrics = reply(**claim)
    wrong = problems(metrics, ("personalised-correct",), client, asked=["auroc"])
    assert reason in "; ".join(wrong.values())
    leave_out(metrics, wrong)
    assert metrics == reply()


def test_an_honest_claim_is_believed():
    honest = reply(auroc_metric_sum=1.0, auroc_metric_count=1)
    # Samples for validation may be more than those for testing.
    honest.update({"validation-auroc-metric-sum": 1.0, "validation-auroc-metric-count": 1})
    assert problems(honest, ("personalised-correct",), Client(0, 10, 10), asked=["auroc"]) == {}


def test_the_best_round_and_early_stop_go_by_choose_by():
    def line(number, mae):
        scores = {"accuracy": number / 10, "loss": 1.0, "mae": mae}
        return {"round": number, "validation": scores, "personalised": {**scores, "each": {}}}

    lines = [line(place + 1, mae) for place, mae in enumerate((3.0, 1.0, 2.0, 2.5))]
    assert History(lines).best_validated()["round"] == 4 and not History(lines).stalled(2)
    by = History(lines, "mae")
    assert by.best_validated()["round"] == 2 and by.chosen("validation.mae") == 1.0
    assert by.stalled(2) and not by.stalled(3)
    undefined = {"each": {"0": 0.5, "1": 0.5}, "each-mae": {"0": 0.1}, "mae": 0.1}
    lines[2]["validation"] |= undefined  # of one of two clients alone
    assert by.best_validated()["round"] == 2 and by.stalled(2)
    some = History([{**one, "personalised": {**one["personalised"], "each": {"0": 0.5, "1": 0.7},
                                             "each-mae": {"0": 1.0, "1": 3.0}}} for one in lines])  # fmt: skip
    assert of_clients(some, [1]).lines[0]["personalised"]["mae"] == 3.0
    assert np.isclose(of_clients(some, [1]).lines[0]["personalised"]["accuracy"], 0.7)


def test_floats_of_three_dimensions_are_not_taken_for_pixels(elsewhere):
    pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    data = [(rng.normal(size=(20, 1, 8, 8)).astype(np.float32), np.arange(20) % 2) for _ in range(2)]
    run = fedpfl.run(method="fedper", data=data, **{**FEW, "num_server_rounds": 1})
    about = json.loads((run.path / "personal" / "client-00000.json").read_text())
    assert (about["scaling"], about["input-shape"]) == ("none", [1, 8, 8])


def test_clients_without_r2_are_told_and_count_in_other_metrics(elsewhere, capsys):
    pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    data = []
    for tests in (5, 1, 6):
        x = draw.normal(size=(20 + tests, 3)).astype("float32")
        data.append((x[:20], x[:20, :1], x[20:], x[20:, :1]))
    run = fedpfl.run("fedper", data=data, loss="mse", metrics=["mae"], **{**FEW, "quiet": False})
    told = "1 of 3 clients have one test sample, of which there is no R²: they are in no mean of R² and of the loss"
    assert told in capsys.readouterr().err
    last = run.clients.loc[2]
    assert run.summary["personalised_accuracy"] == pytest.approx(last["accuracy"].loc[[0, 2]].mean())
    assert np.isnan(last["accuracy"].loc[1]) and run.summary["metrics"]["mae"] == pytest.approx(last["mae"].mean())
