"""Methods of a user's own, with settings: known wherever the class comes from, by every way to start a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import call_fedpfl
from support import DOUBLE
from torch import nn

import fedpfl
from fedpfl.api.comparisons import Runs
from fedpfl.cli.common import load_app, prepare
from fedpfl.core import user_code
from fedpfl.setup import reference
from fedpfl.study.run_store import Store
from fedpfl.study.sweep import SweepGrid

FEW = {
    "num_server_rounds": 2, "local_epochs": 1, "batch_size": 32, "num_clients": 2, "partitioner": "dirichlet-client",
    "train_samples": 64, "test_samples": 32, "model": "mlp", "quiet": True, "output_dir": "runs",
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(elsewhere):
    (elsewhere / "far.py").write_text(DOUBLE)
    return elsewhere


def made():
    """Return a class that no other process can import."""

    @dataclass(frozen=True)
    class Settings:
        factor: float = fedpfl.setting(2.0, "How many times the learning rate.", above=0)

    class Double(fedpfl.Method):
        name = "double"

        def schedule(self, local):
            (phase,) = super().schedule(local)
            rate = self.settings.factor * self.training.learning_rate
            return [fedpfl.Phase(phase.train, phase.epochs, learning_rate=rate)]

    Double.Settings = Settings
    return Double


def head(run):
    return run.model(0).head.weight


def test_a_class_has_its_settings_at_once():
    rate = {"learning_rate": 0.01, "workers": 0}
    plain = fedpfl.run(method="fedavg", **{**FEW, **rate, "learning_rate": 0.03})
    doubled = fedpfl.run(method=made(), double_factor=3.0, **FEW, **rate)
    assert torch.equal(head(doubled), head(plain))
    with pytest.raises(
        fedpfl.ConfigError, match=r"double-facto = 3.0: there is no such setting; did you mean double-f"
    ):
        fedpfl.run(method=made(), double_facto=3.0, **FEW)


def test_a_method_in_any_file_has_its_settings_in_a_sweep_of_processes_and_in_a_resumed_run():
    one = fedpfl.run(method="far:Double", double_factor=3.0, workers=0, **FEW)
    assert one.settings["double-factor"] == 3.0
    swept = fedpfl.sweep({"double_factor": [3.0]}, method="far:Double", **FEW)
    assert not swept.failed and torch.equal(head(swept.runs[0]), head(one))
    more = fedpfl.run(resume=one, double_factor=3.0, num_server_rounds=3, quiet=True)
    assert more.summary["rounds"] == 3
    with pytest.raises(fedpfl.ConfigError, match="there is no such setting"):
        fedpfl.run(resume=one, double_facto=3.0, quiet=True)


def test_an_app_s_settings_have_those_of_its_method(elsewhere):
    (elsewhere / "pyproject.toml").write_text(
        f'[tool.flwr.app]\n{reference.BEGIN}\n[tool.flwr.app.config]\nmethod = "far:Double"\n{reference.END}\n'
    )
    load_app()
    reference.update(elsewhere)
    text = (elsewhere / "pyproject.toml").read_text()
    assert "double-factor = 2.0" in text and 'method = "far:Double"' in text
    for texts, name in ((["double-factor=4"], "double"), (['method="fedavg"'], "fedavg")):
        user_code.set_folder(None)  # as in a new process
        assert prepare(Path(), texts, 2, None).config.method.name == name


def test_the_command_compares_a_method_of_this_folder(elsewhere, monkeypatch):
    asked = []
    monkeypatch.setattr(Runs, "run", lambda self, grid: asked.extend(grid.wanted()) or {})
    arguments = ["compare", "far:Double", "FedBN", "--seeds", "1", "--output-dir", "runs", "-c", "double-factor=3"]
    done = call_fedpfl(*arguments)
    assert done.exit_code == 0, done.output
    assert [(run.settings["method"], run.settings.get("double-factor")) for run in asked] == [
        ("far:Double", 3.0), ("fedbn", None),
    ]  # fmt: skip


def test_every_command_finds_the_code_of_this_folder(elsewhere):
    run = fedpfl.run(method="far:Double", workers=0, **{**FEW, "output_dir": "grid/runs"}).path.absolute()
    sweep = elsewhere / "grid" / "tables" / "sweeps" / "mine"
    sweep.mkdir(parents=True)
    (sweep / "runs.json").write_text(json.dumps({run.name: []}))
    for arguments in (
        ["analyse", "per-client", "--sweep", "mine", "--output-dir", "grid"], ["analyse", "per-client", str(run)],
        ["show", str(run)], ["export", str(run)],
    ):  # fmt: skip
        user_code.set_folder(None)  # as in a new process: modules of the folder are forgotten
        done = call_fedpfl(*arguments)
        assert done.exit_code == 0, (arguments, done.output)


def test_python_objects_are_swept_in_this_process(elsewhere):
    pytest.importorskip("pandas")
    Own = made()

    def net(input_shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

    class Count(fedpfl.Listener):
        rounds = 0

        def round_ended(self, rule, done, state):
            self.rounds += 1
            return False

    count = Count()
    settings = {**FEW, "model": net, "num_server_rounds": 1, "workers": 0, "callbacks": [count]}
    swept = fedpfl.sweep({"method": [Own, "fedavg"], "double_factor": [1.0, 2.0]}, **settings)
    assert [point.get("double-factor") for point in swept.points] == [1.0, 2.0, None]
    assert swept.points[0]["method"] is Own and count.rounds == 3
    assert sorted(swept.table["method"]) == ["Double", "Double", "fedavg"]
    one = next(run for run in swept.runs if run.settings.get("double-factor") == 1.0)
    plain = next(run for run in swept.runs if run.settings["method"] == "fedavg")
    assert torch.equal(one.model(0)[1].weight, plain.model(0)[1].weight)
    pytest.importorskip("matplotlib")
    both = fedpfl.compare(Own, "FedAvg", seeds=1, new_clients=0.5, **settings)
    assert sorted(both.table["method"]) == ["double", "fedavg"] and both.table["new clients, %"].between(0, 100).all()


def test_methods_are_tuned_compared_and_told_apart(elsewhere):
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")

    def net(input_shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

    settings = {**FEW, "model": net, "num_server_rounds": 1, "workers": 0, "metrics": ["f1-macro"]}
    comparison = fedpfl.compare(
        [made(), "local"], tune={"learning_rate": [0.01, 0.1], "double_factor": [1.0]}, seeds=2, target=0.01, **settings
    )
    assert comparison.chosen["double"]["double-factor"] == 1.0 and set(comparison.chosen["local"]) == {"learning-rate"}
    assert len(comparison.runs) == 4 and {run.settings["validation-fraction"] for run in comparison.runs} == {0.2}
    assert sorted(comparison.table["method"]) == ["double", "local"] and "f1-macro" in comparison.table
    assert len(comparison.pairs) == 1 and comparison.pairs["p"].between(0, 1).all()
    assert list(comparison.until["reached"]) == ["2/2", "2/2"] and (comparison.until["rounds"] == 1).all()
    assert (
        "after Holm's correction" in comparison.conclusion
        and "both ways" not in comparison.conclusion
        and comparison.conclusion in repr(comparison)
    )
    with pytest.raises(fedpfl.ConfigError, match=r"ditto-pull = \[1.0\]: is a setting of ditto, and the method is"):
        fedpfl.compare([made(), "local"], tune={"ditto_pull": [1.0]}, **settings)
    with pytest.raises(fedpfl.ConfigError, match="must be methods alone, or runs alone without settings"):
        fedpfl.compare([comparison.runs[0], "local"])


def test_what_failed_of_a_sweep_says_why(elsewhere, capsys):
    pytest.importorskip("pandas")

    class Broken(made()):
        name = "broken"

        def schedule(self, local):
            raise ValueError("no such thing")

    settings = {**FEW, "workers": 0, "num_server_rounds": 1}
    swept = fedpfl.sweep({"method": ["fedavg", Broken]}, **settings)
    assert len(swept.runs) == 1 and "no such thing" in next(iter(swept.failed.values()))
    errors = swept.table.set_index("method")["error"]
    assert "no such thing" in errors["Broken"] and errors.isna()["fedavg"]
    with pytest.raises(fedpfl.FedpflError, match=r"no run of the sweep finished; Broken-.*no such thing"):
        fedpfl.sweep({"method": [Broken]}, **settings)
    with pytest.raises(fedpfl.FedpflError, match="no such thing"):
        fedpfl.compare(["fedavg", Broken], seeds=1, **settings)


def test_settings_of_a_method_that_comes_later_on_the_grid_are_its_own(elsewhere):
    user_code.set_folder(elsewhere)
    base = {"num-clients": 2, "num-server-rounds": 1}
    grid = {"method": ["fedprox", "far:Double"], "double-factor": [1.0, 2.0]}
    planned = SweepGrid(base, grid, 1, Store(elsewhere))
    assert [point.get("double-factor") for point in planned.points] == [None, 1.0, 2.0]


def test_a_run_on_python_objects_is_resumed_by_the_sentence_that_it_prints(elsewhere):
    rng = np.random.default_rng(1)
    data = [(rng.normal(size=(30, 1, 8, 8)).astype(np.float32), np.arange(30) % 3) for _ in range(2)]

    def net(input_shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

    class Stop(fedpfl.Listener):
        def round_ended(self, rule, done, state):
            raise KeyboardInterrupt

    settings = {
        key: value for key, value in FEW.items() if "samples" not in key and key not in ("model", "partitioner")
    }
    settings = {**settings, "num_clients": None, "method": "fedavg", "model": net, "data": data, "workers": 0}
    with pytest.raises(KeyboardInterrupt) as stopped:
        fedpfl.run(run_name="one", callbacks=[Stop()], **settings)
    sentence = str(stopped.value).partition("with the same objects: ")[2]
    assert sentence.endswith("data=data, model=net)")
    run = eval(sentence, {"fedpfl": fedpfl, "net": net, "data": data})
    whole = fedpfl.run(run_name="two", **settings)
    assert run.summary["rounds"] == 2
    assert torch.equal(run.model(0)[1].weight, whole.model(0)[1].weight)
    again = fedpfl.run(resume=run.path, model=net, data=data, num_server_rounds=3, quiet=True)
    assert again.summary["rounds"] == 3
    with pytest.raises(fedpfl.ConfigError, match="is a Python object of the process that made the run; give it again"):
        fedpfl.run(resume=run.path, model=net, num_server_rounds=4, quiet=True)


def test_what_is_given_to_a_resumed_run_takes_the_place_of_what_it_had(elsewhere):
    def data(factor):
        x = factor * np.random.default_rng(1).normal(size=(2, 30, 6)).astype(np.float32)
        return [(one, np.arange(30) % 3) for one in x]

    def other_model(input_shape, num_classes):
        return nn.Sequential(nn.Linear(input_shape[0], num_classes), nn.Tanh(), nn.Linear(num_classes, num_classes))

    def model(input_shape, num_classes):
        return nn.Sequential(nn.Linear(input_shape[0], 5), nn.ReLU(), nn.Linear(5, num_classes))

    few = {"num_server_rounds": 1, "quiet": True, "workers": 0}
    first = fedpfl.run("fedavg", data=data(1), model=model, **few)
    more = {**few, "num_server_rounds": 2}
    for again in (first, str(first.path)):
        with pytest.raises(fedpfl.FedpflError, match="the samples are not those of the run to resume"):
            fedpfl.run(resume=again, data=data(2), model=model, **more)
        with pytest.raises(fedpfl.ConfigError, match="has other arrays than the run to resume: a vector of shape"):
            fedpfl.run(resume=again, data=data(1), model=other_model, **more)
    # Nothing is given: all that a Run has is kept, also for what is asked of the resumed one.
    second = fedpfl.run(resume=first, **more)
    assert second.summary["rounds"] == 2 and second.model()[2].out_features == 3


def test_a_client_s_exception_is_the_cause_and_is_told_once(elsewhere):
    class Broken(made()):
        name = "broken"

        def schedule(self, local):
            raise ValueError("no such thing")

    with pytest.raises(fedpfl.FedpflError) as error:
        fedpfl.run(method=Broken, workers=0, **FEW)
    cause = error.value.__cause__
    assert isinstance(cause, ValueError)
    last = cause.__traceback__
    while last.tb_next:
        last = last.tb_next
    assert last.tb_frame.f_code.co_name == "schedule"
    assert str(error.value).count("no such thing") == 1
    with pytest.raises(fedpfl.FedpflError) as error:
        fedpfl.run(method=Broken, workers=2, **FEW)
    assert str(error.value).count("no such thing") == 1


def test_one_epoch_is_enough_for_feddecomp(elsewhere):
    run = fedpfl.run("feddecomp", workers=0, **FEW)
    assert run.summary["rounds"] == 2
    assert any("local-epochs = 1: τ and σ train together" in text for text in run._folder.task()["remarks"])
    together = fedpfl.run("feddecomp", workers=0, feddecomp_variant="simultaneous", **FEW)
    assert torch.equal(head(run), head(together))


def test_a_run_in_which_nobody_has_trained_does_not_end_well():
    class Idle(fedpfl.Method):
        name = "idle"

        def schedule(self, local):
            return []

    with pytest.raises(fedpfl.FedpflError, match=r"no client has trained in any round: idle\.schedule lists no phase"):
        fedpfl.run(Idle, workers=0, **FEW)

    class TrainsByHand(Idle):
        name = "by-hand"

        def prepare(self, local):
            with torch.no_grad():
                next(iter(local.model.parameters())).mul_(0.5)

    assert fedpfl.run(TrainsByHand, workers=0, **FEW).rounds["train_loss"].isna().all()


def test_a_method_knows_the_number_of_rounds():
    class Tells(fedpfl.Method):
        name = "tells"

        def conclude(self, local):
            return fedpfl.Payload(metrics={"left": local.rounds - local.round})

    run = fedpfl.run(Tells, **FEW)
    assert run.rounds["left"].tolist() == [1, 0]


def with_rule(**hooks):
    """Return a method whose rule is the mean with other hooks."""
    rule = type("Pull", (fedpfl.Mean,), {"name": "pull", **hooks})
    return type("Own", (fedpfl.Method,), {"name": "own-rule", "aggregation": fedpfl.Aggregation(rule)})


def made_of_mean(change):
    """Return a hook that makes something else of the mean."""

    def finish(self):
        fedpfl.Mean.finish(self)
        self.shared = change(self.shared)

    return finish


def in_place(self, client):
    self.shared *= 0.5
    return self.shared


def raising(self, *arguments):
    return {}["left"]


def weighing(value):
    return lambda self, client, reply=None: value


@pytest.mark.parametrize(
    ("hook", "function", "said"),
    [
        ("attachments", lambda *_: None, "Pull.attachments': returns None, and must return the class Payload"),
        ("outgoing", lambda *_: [1.0], "Pull.outgoing': returns a list, and must return the class ndarray"),
        *((hook, raising, f"Pull.{hook}': raises KeyError: 'left'") for hook in ("begin", "attachments", "finish")),
        ("add", lambda self, client, shared, reply: raising(self), "Pull.add': raises KeyError: 'left'"),
        ("outgoing", in_place, "Pull.outgoing': raises ValueError: output array is read-only"),
        ("attachments", lambda *_: fedpfl.Payload(config={"round": 9}),
         "Pull.attachments': returns the config 'round', which is a name of fedpfl's own in messages"),
        *(("weight", weighing(value), f"Pull.weight': returns {value!r}, and must")
          for value in ("2", float("nan"), -1.0, None, float("inf"))),
        ("weight", weighing(0), "Pull.weight': returns 0 for every client of the round"),
        *(("finish", made_of_mean(change), f"Pull.finish': leaves self.shared as {said}") for change, said in (
            (lambda mean: mean * np.nan, "one with values that are not finite"),
            (lambda mean: np.stack([mean, mean]), r"float32 of shape \(2, \d+\); it must be a vector"),
            (lambda mean: mean[:-1], r"float32 of shape \(\d+,\); it must be a vector of \d+ floats"),
            (lambda mean: mean.astype(int), "int64 of shape"),
            (lambda mean: mean.tolist(), "a list; it must be a vector"),
            (lambda mean: np.full_like(mean, 1e38), r"one with the value 1e\+38; must stay below 1e\+30"),
        )),
        ("finish", made_of_mean(lambda mean: np.full_like(mean, 1e29)),
         r"the training diverged.*; the rule Pull made the largest shared value 1e\+29, of 0\.\d+ before"),
    ],
)  # fmt: skip
def test_a_hook_of_a_rule_that_fails_is_named_in_one_line(hook, function, said):
    with pytest.raises(fedpfl.FedpflError, match=said) as caught:
        fedpfl.run(method=with_rule(**{hook: function}), workers=0, **FEW)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (1e60, r"server-learning-rate = 1e\+60: leads to a shared value of inf, and no model computes"),
        (1e30, r"the training diverged.*; the server's step made the largest shared value"),
    ],
)
def test_values_that_no_model_trains_from_are_their_makers_fault(rate, said):
    with pytest.raises(fedpfl.FedpflError, match=said):
        fedpfl.run("fedavg", workers=0, server_optimizer="adam", server_learning_rate=rate, **FEW)


def test_a_methods_numbers_have_names_of_their_own():
    for more in (
        {"metrics": {"train-loss": 0.0}}, {"metrics": {"train-samples": 1}}, {"metrics": {"num-examples": 1}},
        {"metrics": {"gradients": 1}}, {"config": {"layout": "all"}},
    ):  # fmt: skip

        class Own(fedpfl.Method):
            name = "own-numbers"

            def conclude(self, local, more=more):
                return fedpfl.Payload(**more)

        ((reserved, *_),) = more.values()
        message = f"conclude returns '{reserved}', which is a name of fedpfl's own in replies"
        with pytest.raises(fedpfl.FedpflError, match=message):
            fedpfl.run(method=Own, workers=0, diagnostics=True, **FEW)


def test_what_a_rule_makes_of_a_reply_is_not_what_the_client_said():
    def add(self, client, shared, reply):
        fedpfl.Mean.add(self, client, shared, reply)
        reply.metrics["train-loss"] = "none"

    usual, changed = (fedpfl.run(method=with_rule(**hooks), workers=0, **FEW) for hooks in ({}, {"add": add}))
    assert changed.rounds.train_loss.tolist() == usual.rounds.train_loss.tolist()


def counting(self):
    fedpfl.Mean.finish(self)
    self.rounds = getattr(self, "rounds", 0) + 1


@pytest.mark.parametrize("remembers", [False, True])
def test_what_a_rule_keeps_without_remembering_is_noticed(capfd, remembers):
    def state(self):
        return {**fedpfl.Rule.state(self), "rounds": np.array(self.rounds)}

    hooks = {"finish": counting, **({"state": state} if remembers else {})}
    fedpfl.run(method=with_rule(**hooks), workers=0, **{**FEW, "quiet": False})
    assert ("the rule Pull keeps rounds from round to round" in "".join(capfd.readouterr())) != remembers


def test_a_rule_whose_first_round_changes_nothing_is_noticed(capfd):
    fedpfl.run(method=with_rule(finish=lambda self: None), workers=0, **FEW)
    assert "".join(capfd.readouterr()).count("the rule Pull leaves self.shared as it was in its first round") == 1
