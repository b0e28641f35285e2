"""``evaluate-global``: the mean of the clients' whole models, for methods that have no global model."""

from __future__ import annotations

import numpy as np
import pytest
from support import FEW_SAMPLES, LocalGrid, federation, run_federation, simulate

from fedpfl.core.errors import ConfigError
from fedpfl.core.layout import Layout
from fedpfl.core.payload import EVALUATION_ONLY
from fedpfl.data.federation import federated_data
from fedpfl.methods.local import Local
from fedpfl.rules.mean import Mean
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.training.loop import evaluate

# Methods with personal arrays and no global model: one that shares nothing, one that shares a part.
METHODS = [{"method": "local"}, {"method": "feddecomp", "feddecomp_variant": "reverse"}]
QUICK = {**FEW_SAMPLES, "num_server_rounds": 2, "local_epochs": 2, "learning_rate": 0.05}


def run(tmp_path, clients=3, grid=LocalGrid, **settings):
    values = federation(tmp_path, clients, **{**QUICK, **settings})
    played = grid(clients, values)
    return run_federation(played, values), played, Config.parse(values)


def sent(grid, kind, replies=True):
    """Return the arrays, by name, of the replies to (or the messages of) one kind, in order."""
    contents = [reply if replies else message for k, _, message, reply in grid.log if k == kind]
    return [{name: a.numpy() for name, a in content.array_records.get("arrays", {}).items()} for content in contents]


@pytest.mark.parametrize("settings", METHODS, ids=lambda s: s["method"])
def test_the_mean_of_whole_models_is_tested_on_the_union_of_the_test_sets(tmp_path, settings):
    done, grid, config = run(tmp_path, evaluate_global=True, num_server_rounds=1, **settings)
    task = done.task()
    model, sharing = assemble(config, tuple(task["input_shape"]), task["num_classes"])
    samples = [reply.metric_records["metrics"]["train-samples"] for kind, _, _, reply in grid.log if kind == "train"]
    personal = [arrays[EVALUATION_ONLY].astype(np.float64) for arrays in sent(grid, "train")]
    mean = np.average(personal, axis=0, weights=samples).astype(np.float32)
    for arrays in sent(grid, "evaluate", replies=False):
        np.testing.assert_allclose(arrays[EVALUATION_ONLY], mean, rtol=1e-6, atol=1e-7)

    layout = Layout.of([(name, array.shape) for name, array in sharing.get_personal().items()])
    sharing.set_personal(layout.unflatten(mean))
    sharing.set_shared(done.checkpoint()[1]["shared"])
    data = federated_data(config.data, 3, config.run.seed)
    scores = [evaluate(config.method.personalised(model.eval()), data.test(i)) for i in range(3)]
    expected = sum(score.correct for score in scores) / sum(score.samples for score in scores)
    assert done.metrics()[-1]["global"]["accuracy"] == expected


@pytest.mark.parametrize("settings", METHODS, ids=lambda s: s["method"])
def test_it_changes_nothing_else_and_without_it_nothing_is_sent(tmp_path, settings):
    off, without, _ = run(tmp_path / "off", **settings)
    on, _, _ = run(tmp_path / "on", evaluate_global=True, **settings)
    for kind in ("query", "train", "evaluate"):
        for replies in (True, False):
            assert all(set(arrays) <= {"shared"} for arrays in sent(without, kind, replies))
    for a, b in zip(off.metrics(), on.metrics(), strict=True):
        assert "global" not in a
        assert "bytes_evaluation_only" not in a
        assert a["personalised"] == b["personalised"]
        # A reply to an evaluate message has three more numbers and their names; no array counts.
        assert a["bytes_down"] == b["bytes_down"]
        assert 0 < b["bytes_up"] - a["bytes_up"] < 3 * 200
        assert b["bytes_evaluation_only"] > 6 * 4 * 100
    assert np.array_equal(off.checkpoint()[1]["shared"], on.checkpoint()[1]["shared"])
    assert "the mean of the clients' whole models" in (on.path / "summary.md").read_text()


def test_personal_arrays_travel_only_in_rounds_with_a_test(tmp_path):
    settings = {"method": "local", "evaluate_global": True, "num_server_rounds": 3, "evaluate_every": 2}
    done, grid, _ = run(tmp_path, 2, **settings)
    assert [EVALUATION_ONLY in arrays for arrays in sent(grid, "train")] == [False, False, True, True, True, True]
    assert ["global" in line for line in done.metrics()] == [False, True, True]


def test_a_method_with_a_global_model_of_its_own_sends_nothing_more(tmp_path):
    done, grid, _ = run(tmp_path, 2, method="fedreg", evaluate_global=True, num_server_rounds=1)
    assert all(set(arrays) == {"shared"} for arrays in sent(grid, "train"))
    assert "global" in done.metrics()[0]


def test_a_method_may_leave_arrays_out(tmp_path, monkeypatch):
    monkeypatch.setattr(Local, "in_mean_model", lambda self, name: name.startswith("head."))
    _, grid, _ = run(tmp_path, 2, method="local", evaluate_global=True, num_server_rounds=1)
    assert {len(arrays[EVALUATION_ONLY]) for arrays in sent(grid, "train")} == {64 * 10 + 10}


def test_a_client_that_sends_no_or_other_personal_arrays_failed(tmp_path):
    from flwr.app import Array

    class Odd(LocalGrid):
        def arriving(self, kind, client, reply):
            if kind == "train":
                arrays = reply.content.array_records["arrays"]
                if client == 1:
                    del arrays[EVALUATION_ONLY]
                if client == 2:
                    arrays[EVALUATION_ONLY] = Array(np.full(arrays[EVALUATION_ONLY].shape, np.nan, np.float32))
            return reply

    done, _, _ = run(tmp_path, grid=Odd, method="local", evaluate_global=True, num_server_rounds=1)
    line = done.metrics()[0]
    assert line["clients"] == [0]
    assert line["failed"]["1"] == "a reply without the array 'evaluation-only' arrived"
    assert line["failed"]["2"] == "array 'evaluation-only' arrived with values that are not finite"


def test_a_model_for_each_client_has_no_mean(tmp_path, monkeypatch):
    monkeypatch.setattr(Mean, "one_model", False)
    with pytest.raises(ConfigError, match="evaluate-global = True: local has no mean"):
        simulate(tmp_path, 2, method="local", evaluate_global=True)


def test_a_resumed_run_tests_the_same_mean(tmp_path):
    settings = {**QUICK, "method": "local", "evaluate_global": True, "fraction_train": 0.5}
    simulate(tmp_path / "a", 4, **{**settings, "num_server_rounds": 1})
    resumed = simulate(tmp_path / "a", 4, resume=True, **settings)
    whole = simulate(tmp_path / "b", 4, **settings)
    assert [line["global"] for line in resumed.metrics()] == [line["global"] for line in whole.metrics()]
