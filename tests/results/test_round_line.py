"""A round's line: which clients its means are over, what a training loss is, and how far one client's loss counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from torch.nn import functional as F

import fedpfl
from fedpfl.core.errors import FedpflError
from fedpfl.results.history import History, Patience
from fedpfl.results.round_line import LOSSES_OVER_MEDIAN, in_words, over_whom, summarise
from fedpfl.results.round_record import Round

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 60, 4)).astype("float32")
DATA = list(zip(X, (X[..., 0] > 0).astype("int64"), strict=True))
FEW = {"data": DATA, "model": "mlp", "local_epochs": 2, "workers": 0, "quiet": True}


def scores(correct, loss=1.0, samples=10):
    names = ("personalised", "validation")
    return {
        key: value for name in names
        for key, value in ((f"{name}-correct", correct), (f"{name}-loss-sum", loss * samples),
                           (f"{name}-samples", samples))
    }  # fmt: skip


def line(number, evaluated, asked=(0, 1, 2, 3)):
    return summarise(Round(number, evaluated=evaluated, asked_to_test=list(asked)))


def test_a_round_says_whose_tests_are_missing():
    of_round = line(1, {0: scores(9), 1: scores(7), 2: scores(8)})
    assert of_round["untested"] == [3] and of_round["personalised"]["accuracy"] == pytest.approx(0.8)
    assert over_whom(of_round) == "3 of 4 clients" and "personalised 80.0 %, 3 of 4 clients" in in_words(of_round)
    assert "untested" not in line(1, {0: scores(9)}, asked=[0]) and over_whom(line(1, {0: scores(9)}, asked=[0])) == ""


def test_a_round_without_its_worst_client_is_no_better_one_and_ends_no_run():
    whole = {client: scores(correct) for client, correct in enumerate((9, 9, 9, 3))}
    others = {client: scores(10) for client in range(3)}
    lines = [line(1, whole), *(line(number, others) for number in range(2, 6))]
    history, patience = History(lines), Patience(2, "accuracy")
    for one in lines:
        patience.add(one)
    assert history.best_validated()["round"] == 1 and not patience.over
    assert history.best("personalised.accuracy") == pytest.approx(0.75) == history.chosen("validation.accuracy")
    assert history.last("personalised.accuracy") == 1.0  # and says over whom it is
    # Where a client is never there, all rounds are alike.
    assert History(lines[1:]).best("personalised.accuracy") == 1.0


@pytest.mark.parametrize("loss", [9e28, 1e300, 2 * LOSSES_OVER_MEDIAN])
def test_the_loss_of_one_client_does_not_hide_those_of_the_others(loss):
    usual = {client: scores(5, loss=0.5) for client in range(3)}
    of_round = line(1, {**usual, 3: scores(5, loss=loss)})
    assert of_round["validation"]["loss"] == pytest.approx((3 * 0.5 + LOSSES_OVER_MEDIAN) / 4)
    better = line(2, {**usual, **{client: scores(9, loss=0.1) for client in range(3)}, 3: scores(5, loss=loss)})
    assert better["validation"]["loss"] <= of_round["validation"]["loss"]
    assert line(1, {c: scores(5, loss=900.0 + c) for c in range(4)})["validation"]["loss"] == pytest.approx(901.5)


def test_a_client_that_diverged_is_in_the_means_of_all_methods_alike():
    wild = [(x if client < 3 else 1e20 * x, y) for client, (x, y) in enumerate(DATA)]
    for method in ("local", "knn-per"):
        run = fedpfl.run(method, **{**FEW, "data": wild}, num_server_rounds=1)
        of_round = run._folder.metrics()[0]
        assert sorted(of_round["personalised"]["each"]) == ["0", "1", "2", "3"] and "untested" not in of_round
        assert math.isfinite(of_round["personalised"]["loss"]) and "3" in of_round["failed"]


def test_clients_that_failed_to_train_are_named_beside_the_means_that_have_their_earlier_models():
    def a_round(number, trained, failed=(), tested=(0, 1, 2)):
        test = {"each": {str(client): 0.5 for client in tested}}
        return {"round": number, "clients": [*trained], "failed": {str(client): "no" for client in failed},
                "personalised": test if tested else {}}  # fmt: skip

    lines = [a_round(1, (0, 2), (1,)), a_round(2, (0,), tested=()), a_round(3, (0,)), a_round(4, (1,), (0,), (1, 2))]
    assert [History(lines[:last]).untrained() for last in (1, 2, 3, 4)] == [[1], [1], [1], []]
    assert History([*lines, a_round(5, (2,))]).untrained() == [0]
    # Who has trained and failed its test is no such client.
    assert History([a_round(1, (0, 1), (1,), (0,)), a_round(2, (0,))]).untrained() == []
    wild = [(x if client < 3 else 1e20 * x, y) for client, (x, y) in enumerate(DATA)]
    run = fedpfl.run("fedper", **{**FEW, "data": wild}, num_server_rounds=1)
    assert run.summary["untrained"] == [3] and run.summary["untested"] == []
    page = (run.path / "summary.md").read_text(encoding="utf-8")
    assert "| clients whose training failed, in the means with an earlier model | 3 |" in page
    compared = fedpfl.compare([run, fedpfl.run("fedavg", **FEW, num_server_rounds=1)])
    assert any("the training of client 3 failed" in note for note in compared.notes)


def test_the_training_loss_is_that_of_the_last_epoch_of_each_client():
    seen = []

    def loss(outputs, y):
        value = F.cross_entropy(outputs, y)
        if outputs.requires_grad and len(y) == 10:  # the first call tries the loss with a few samples
            seen.append(float(value))
        return value

    run = fedpfl.run("fedavg", **{**FEW, "data": DATA[:1]}, loss=loss, num_server_rounds=1, batch_size=10)
    batches = 48 // 10
    assert len(seen) == 2 * batches
    assert run.rounds.train_loss.iloc[0] == pytest.approx(np.mean(seen[batches:]), rel=1e-6)
    assert run.rounds.train_loss.iloc[0] != pytest.approx(np.mean(seen), rel=1e-3)
    parts = {i: {"train-loss": float(i), "train-samples": 10**i} for i in (1, 2, 3)}
    assert summarise(Round(1, trained=parts))["train_loss"] == 2.0  # of clients, not of samples
    assert summarise(Round(1, trained={1: {"train-samples": 3}}))["train_loss"] is None


def test_a_schedule_that_trains_no_parameter_is_no_training():
    class Misspelt(fedpfl.Method):
        name = "misspelt"

        def schedule(self, local):
            return [fedpfl.Phase(train=lambda name: name.startswith("haed."), epochs=1)]

    with pytest.raises(FedpflError, match=r"method = 'misspelt': no phase of its schedule trains a parameter"):
        fedpfl.run(Misspelt, **FEW, num_server_rounds=1)


def test_a_loss_of_one_s_own_may_be_negative():
    def gauss(outputs, y):
        return -F.cosine_similarity(outputs, F.one_hot(y, outputs.shape[1]).float(), dim=1).mean()

    run = fedpfl.run("fedavg", **FEW, loss=gauss, num_server_rounds=2)
    assert (run.rounds.train_loss < 0).all() and np.isfinite(run.rounds.train_loss).all()


def test_r2_goes_by_its_name():
    y = [(3 * c + x[:, 0]).astype("float32") for c, x in enumerate(X)]
    few = {**FEW, "data": list(zip(X, y, strict=True)), "update_norm_limit": 0.0}
    run = fedpfl.run("fedavg", **few, loss="mse", learning_rate=0.001, num_server_rounds=1)
    page = (run.path / "summary.md").read_text(encoding="utf-8")
    score = f"{run.summary['personalised_accuracy']:.4f}"
    assert f"| personalised R² | {score} |" in page and "| global R² | " in page
    assert f"personalised R² {score}>" in repr(run)
