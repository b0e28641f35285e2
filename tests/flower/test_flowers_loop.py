"""What Flower's loop cannot do is said; what it does is right: weights, means, random numbers, splits."""

from __future__ import annotations

import logging
import math
import sys

import numpy as np
import pytest
from flower_apps import AppGrid, Net, between, data_of, initial, moved, plain_app, samples
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

import fedpfl
from fedpfl import strategies
from fedpfl.core.privacy_accounting import epsilon
from fedpfl.flower.reported_numbers import mean_of_metrics


def zeros():
    return ArrayRecord({"a.weight": Array(np.zeros((2, 3), np.float32)), "a.bias": Array(np.zeros(2, np.float32))})


def moving(by, weights, extra=lambda client: {}):
    """Return an app whose client i sends what it got, plus by[i], and tests."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        arrays = message.content["arrays"].items()
        moved = ArrayRecord({name: Array(array.numpy() + np.float32(by[client])) for name, array in arrays})
        metrics = MetricRecord({"num-examples": weights[client], **extra(client)})
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        client = context.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": weights[client], **extra(client)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


class Follows(fedpfl.Listener):
    def run_ended(self, *_):
        raise AssertionError("never called in Flower's loop")


# -- what has no effect is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dp_noise_multiplier": 1.0}, "dp-where = 'client': needs model=, and fit or client_app on the nodes"),
        ({"dp_epsilon": 5.0, "dp_where": "server"}, "must be 0 where norm.num_batches_tracked, an array of whole"),
        ({"evaluate_global": True}, "evaluate-global = True: has no effect"),
        ({"early_stop": 1, "validation_fraction": 0.2}, "early-stop = 1: has no effect"),
        ({"test_at": "start"}, "test-at = 'start': has no effect"),
        ({"run_name": "mine"}, "run-name = 'mine': has no effect"),
        *(
            ({key: "x"}, "use run_federation, or hand samples over on the nodes: data= of fit or client_app")
            for key in ("data", "data_dir", "division_file")
        ),
        ({"initial_weights": "w.safetensors"}, "initial-weights = 'w.safetensors': needs model="),
        ({"evaluate_trained": True}, "evaluate-trained = True: needs model="),
        ({"keep_momentum": True, "momentum": 0.9}, "keep-momentum = True: needs model="),
        ({"download_weights": True}, "download-weights = True: needs model="),
        ({"min_clients": 2}, "min-clients = 2: needs model="),
        ({"local_epochs": 50}, "local-epochs = 50: needs model="),
        ({"loss": "mine:loss"}, "loss = 'mine:loss': needs model="),
        ({"node_timeout": 5.0}, "node-timeout = 5.0: needs model="),
        ({"listeners": [dict]}, "listeners = 'the class dict': must be a list of fedpfl.Listener"),
        ({"listeners": [Follows()]}, "listeners = 'Follows': has run_ended, which Flower's loop never calls"),
    ],
)
def test_what_flowers_loop_has_no_place_for_is_refused(settings, message):
    grid = AppGrid(plain_app())
    with pytest.raises(fedpfl.ConfigError) as caught:
        strategies.FedAvg(**settings).start(grid, initial())
    assert message in str(caught.value) and not grid.sent


@pytest.mark.parametrize(
    "settings",
    [
        {"fraction_evaluate": 0.0}, {"min_available_nodes": 50}, {"weighted_by_key": "n"},
        {"evaluate_metrics_aggr_fn": lambda contents, key: MetricRecord()}, {"fraction_train": 0.0},
    ],
)  # fmt: skip
def test_what_fedpfls_loop_has_no_place_for_is_refused(settings, tmp_path):
    grid = AppGrid(strategies.client_app(model=Net, data=data_of))
    with pytest.raises(fedpfl.ConfigError) as caught:
        strategies.FedAvg(model=Net, output_dir=str(tmp_path), **settings).run_federation(grid)
    assert str(caught.value).startswith(next(iter(settings))) and not grid.sent


@pytest.mark.parametrize("name", ["round", "initial", "phases"])
def test_names_of_fedpfls_own_in_the_config_are_refused(name):
    with pytest.raises(fedpfl.ConfigError, match=f"config = '{name}': is a name of fedpfl's own"):
        strategies.FedAvg().start(AppGrid(plain_app()), initial(), train_config=ConfigRecord({name: True}))


@pytest.mark.parametrize("loop", ["start", "run_federation"])
def test_the_number_of_rounds_is_that_of_the_strategy_unless_an_argument_says_it(loop, tmp_path):
    app = strategies.client_app(model=Net, data=data_of)
    for settings, arguments, wanted in (({}, {}, 3), ({"num_server_rounds": 1}, {}, 1), ({}, {"num_rounds": 2}, 2)):
        more = {} if loop == "start" else {"output_dir": str(tmp_path)}
        strategy = strategies.FedAvg(model=Net, round_timeout=7.0, **more, **settings)
        first = [ArrayRecord()] if loop == "start" else []
        result = getattr(strategy, loop)(AppGrid(app), *first, **arguments)
        assert list(result.train_metrics_clientapp) == list(range(1, wanted + 1))
        assert strategy.config.run.round_timeout == 7.0


def test_train_config_acts_on_nodes_with_fit():
    def trained(config, **settings):
        grid = AppGrid(strategies.client_app(model=Net, data=data_of))
        strategy = strategies.FedPer(model=Net, fraction_evaluate=0.0, **settings)
        result = strategy.start(grid, ArrayRecord(), num_rounds=1, train_config=ConfigRecord(config))
        return result.arrays["fc1.weight"].numpy()

    np.testing.assert_array_equal(trained({"learning-rate": 0.1}), trained({}, learning_rate=0.1))
    np.testing.assert_array_equal(trained({"local_epochs": 2}), trained({}, local_epochs=2))
    assert not np.array_equal(trained({"learning-rate": 0.1}), trained({}))
    of_strategy = ({"update-norm-limit": 1.0}, {"num-server-rounds": 9}, {"evaluate-every": 2},
                   {"robust-aggregation": "median"}, {"dp-noise-multiplier": 1.0})  # fmt: skip
    for wrong in ({"lr": 5.0}, {"learning-rate": -1.0}, {"state-dir": "/"}, *of_strategy):
        with pytest.raises(fedpfl.ConfigError, match=f"{next(iter(wrong))} = "):
            trained(wrong)
    with pytest.raises(fedpfl.ConfigError, match=r"lr = 5\.0: is no setting here: it is learning_rate"):
        trained({"lr": 5.0})


@pytest.mark.parametrize("where", ["client", "server"])
def test_a_budget_makes_the_same_noise_and_ends_the_run_in_both_loops(where, tmp_path):
    """Noise for as many rounds as an argument says; with a z of one's own, no round that might spend more."""
    for more, rounds, made in (({}, 4, 4), ({"dp_noise_multiplier": 1.0}, 5, 2)):
        spent = []
        for loop in ("start", "run_federation"):
            app = strategies.client_app(model=Net, data=data_of, state_dir=str(tmp_path / loop))
            settings = {"dp_epsilon": 8.0, "dp_where": where, "dp_clip_norm": 0.1, "local_epochs": 1, **more}
            settings |= {"state_dir": str(tmp_path)} | ({} if loop == "start" else {"output_dir": str(tmp_path)})
            first = [ArrayRecord()] if loop == "start" else []
            grid = AppGrid(app)
            result = getattr(strategies.FedPer(model=Net, **settings), loop)(grid, *first, num_rounds=rounds)
            assert sum(kind == "train" for kind, _, _ in grid.sent) == 3 * made
            assert list(result.evaluate_metrics_clientapp) == list(range(1, made + 1))
            spent.append([one["privacy-epsilon"] for one in result.train_metrics_clientapp.values()])
        assert spent[0] == spent[1] and len(spent[0]) == made
        assert spent[0][-1] == pytest.approx(8.0, rel=1e-9) if not more else spent[0][-1] < 8.0


def test_a_server_adds_noise_to_what_any_app_sends(tmp_path):
    arrays = ArrayRecord({"a.weight": Array(np.zeros((100, 100), np.float32))})
    settings = {"dp_where": "server", "dp_clip_norm": 2.0, "dp_noise_multiplier": 3.0, "fraction_evaluate": 0.0}
    strategy = strategies.FedAvg(state_dir=str(tmp_path), **settings)
    changed = strategy.start(AppGrid(moving([5, 0, 0], [10, 1, 1])), arrays, num_rounds=1).arrays["a.weight"].numpy()
    assert changed.std() == pytest.approx(3 * 2 / 3, rel=0.03), "of three clients that count alike"
    assert abs(changed.mean()) < 0.1, "an update of length 500 is cut to 2"


def test_nodes_that_come_back_as_others_have_spent_what_they_may_have_spent(tmp_path):
    grid = AppGrid(moving([0] * 3, [1] * 3))
    made = between(strategies.FedAvg, {3: lambda: [moved(grid, node, node + 700) for node in (100, 101, 102)]})
    strategy = made(dp_where="server", dp_noise_multiplier=3.0, state_dir=str(tmp_path), fraction_evaluate=0.0)
    result = strategy.start(grid, zeros(), num_rounds=3)
    spent = [metrics["privacy-epsilon"] for metrics in result.train_metrics_clientapp.values()]
    assert spent == pytest.approx([epsilon(math.sqrt(rounds) / 3, 1e-5) for rounds in (1, 2, 3)])


def test_hooks_that_are_overridden_are_refused_in_the_loop_that_never_calls_them():
    class Scheduled(strategies.FedPer):
        def configure_train(self, server_round, arrays, config, grid):
            return super().configure_train(server_round, arrays, config, grid)

    with pytest.raises(fedpfl.ConfigError, match="overrides configure_train, which fedpfl's own loop never calls"):
        Scheduled(model=Net).run_federation(AppGrid(plain_app()))


@pytest.mark.parametrize("settings", [{}, {"num_server_rounds": 4}])
def test_a_wrapper_does_not_tell_how_many_rounds_a_schedule_has(settings):
    app = moving([0.01] * 3, [10] * 3)
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategies.FedAvg(evaluate_every=2, **settings), 0.0, 100.0, 3)
    if not settings:
        with pytest.raises(fedpfl.ConfigError, match=r"evaluate-every .* needs the number of rounds"):
            wrapped.start(AppGrid(app), zeros(), num_rounds=4)
        return
    assert list(wrapped.start(AppGrid(app), zeros(), num_rounds=4).evaluate_metrics_clientapp) == [2, 4]


def test_arrays_that_have_no_mean_are_refused_and_those_that_lose_digits_told(caplog):
    arrays = {**zeros(), "b.scale": Array(np.ones(2, np.complex64))}
    with pytest.raises(fedpfl.ConfigError, match=r"array 'b.scale' is complex64, but shared arrays travel as float32"):
        strategies.FedAvg().start(AppGrid(plain_app()), ArrayRecord(arrays))
    arrays["b.scale"] = Array(np.ones(2))
    result = strategies.FedAvg().start(AppGrid(moving([1] * 3, [10] * 3)), ArrayRecord(arrays), num_rounds=1)
    assert result.arrays["b.scale"].numpy().tolist() == [2, 2] and result.arrays["b.scale"].dtype == "float64"
    assert "arrays of float64 (b.scale) are averaged as float32" in caplog.text


# -- what it does ------------------------------------------------------------------------------------------------------


def test_metrics_that_some_nodes_send_have_the_mean_of_these():
    app = moving([0] * 3, [10, 10, 30], lambda client: {"acc": 1.0} if client == 0 else {"f1": client / 2})
    result = strategies.FedAvg().start(AppGrid(app), zeros(), num_rounds=1)
    assert dict(result.evaluate_metrics_clientapp[1]) == {"acc": 1.0, "f1": pytest.approx((0.5 * 10 + 1 * 30) / 40)}


def of(**metrics):
    return RecordDict({"metrics": MetricRecord(metrics)})


def test_a_mean_of_metrics_cannot_be_broken_by_one_node(caplog):
    good = [of(n=2, loss=1.0, each=[1.0, 3.0]), of(n=6, loss=2.0, each=[5.0, 3.0])]
    assert dict(mean_of_metrics(good, "n")) == {"each": [4.0, 3.0], "loss": 1.75}
    assert mean_of_metrics([*good, of(n=1, each=[1.0]), of(n=1, each=2.0)], "n")["each"] == [4.0, 3.0]
    assert "one node: each has another length than that of most nodes; left out" in caplog.text
    assert "each" not in mean_of_metrics([good[0], of(n=1, each=[1.0])], "n") and "several lengths" in caplog.text
    for name in ("accuracy", "eval_acc", "val_accuracy", "balanced-accuracy"):
        shares = [of(n=1, **{name: 0.4}), of(n=1, **{name: 0.2}), of(n=1, **{name: 98.0})]
        assert mean_of_metrics(shares, "n", nodes=["a", "b", "c"])[name] == pytest.approx(0.3)
        assert f"c: {name} = 98: most nodes send at most 1, not percent; left out" in caplog.text
    percents = [of(n=1, accuracy=value) for value in (40.0, 0.5, 98.0)]
    assert mean_of_metrics(percents, "n")["accuracy"] == pytest.approx(138.5 / 3)
    assert not mean_of_metrics([of(n=1, **{"privacy-epsilon": 0.1})], "n")
    of_part = {"part-n": [1, 2], "part-acc": 1.0}
    assert mean_of_metrics([of(n=1, **{"part-n": 3, "part-acc": 0.0}), of(n=3, **of_part)], "n")["part-acc"] == 0.5
    for wrong in ({"loss": 1e300}, {"loss": float("nan")}, {"val-accuracy": -5.0}, {"eval_acc": 500.0}):
        assert not mean_of_metrics([of(n=1, **wrong)], "n"), wrong
    caplog.clear()
    long = {"x" * 10**6: 1.0, "red\x1b[31m": 1.0, **{f"accuracy{number}": float("nan") for number in range(1000)}}
    assert dict(mean_of_metrics([of(n=1, loss=1.0, **long)], "n")) == {"loss": 1.0}
    assert len(caplog.text) < 500 and "\x1b" not in caplog.text and "left out, and 1001 more" in caplog.text
    claimed = [of(n=1, accuracy=0.0), of(n=1, accuracy=0.0), of(n=1e6, accuracy=1.0)]
    assert mean_of_metrics(claimed, "n")["accuracy"] == 100 / 102
    assert mean_of_metrics(claimed, "n", 0.4)["accuracy"] == pytest.approx(0.4)
    endless = mean_of_metrics([of(n=1, **{"val-n": float("inf"), "val-loss": 2.0})], "n")
    assert dict(endless) == {"val-loss": 2.0} and "val-n = inf: must be from" in caplog.text
    assert not mean_of_metrics([of(n=0, loss=1.0)], "n") and "loss has no mean: all replies that have it count 0" in (
        caplog.text
    )
    assert not mean_of_metrics([of(loss=1.0)], "n")


def test_validation_counts_by_its_own_samples():
    sizes, tests = [100, 20, 20], [10, 20, 80]

    def data(context):
        client = context.node_config["partition-id"]
        return *samples(client, sizes[client]), *samples(client, tests[client])

    replies = []

    def means(contents, key):
        replies.extend(dict(content["metrics"]) for content in contents)
        return mean_of_metrics(contents, key)

    strategy = strategies.FedAvg(model=Net, validation_fraction=0.3, evaluate_metrics_aggr_fn=means)
    grid = AppGrid(strategies.client_app(model=Net, data=data))
    mean = strategy.start(grid, ArrayRecord(), num_rounds=1).evaluate_metrics_clientapp[1]
    weights = [one["validation-num-examples"] for one in replies]
    assert weights == [30, 6, 6]
    each = [one["validation-accuracy"] for one in replies]
    assert mean["validation-accuracy"] == pytest.approx(np.average(each, weights=weights))
    each = [one["personalised-accuracy"] for one in replies]
    assert mean["personalised-accuracy"] == pytest.approx(np.average(each, weights=tests))


def test_both_loops_tell_the_mean_over_samples(tmp_path):
    def data(context):
        client = context.node_config["partition-id"]
        return *samples(client), *samples(client, (10, 20, 80)[client])

    settings = {"model": Net, "local_epochs": 3, "learning_rate": 0.1}
    app = strategies.client_app(model=Net, data=data, state_dir=str(tmp_path / "state"))
    flowers = strategies.FedPer(**settings).start(AppGrid(app), ArrayRecord(), num_rounds=1)
    ours = strategies.FedPer(**settings, output_dir=str(tmp_path)).run_federation(AppGrid(app), num_rounds=1)
    for name in ("personalised-accuracy", "personalised-loss"):
        values = [result.evaluate_metrics_clientapp[1][name] for result in (flowers, ours)]
        assert values[0] == pytest.approx(values[1])
    values = [result.train_metrics_clientapp[1]["train-loss"] for result in (flowers, ours)]
    assert values[0] == pytest.approx(values[1])


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_both_loops_ask_the_same_clients_and_make_the_same_means_and_bits_for_any_fraction(share, tmp_path):
    results, told = [], []
    for loop in ("start", "run_federation"):
        grid = AppGrid(strategies.client_app(model=Net, data=data_of, state_dir=str(tmp_path / loop)), num_nodes=7)
        settings = {"model": Net, "fraction_train": share, "local_epochs": 1}
        settings |= {} if loop == "start" else {"output_dir": str(tmp_path)}
        first = [ArrayRecord()] if loop == "start" else []
        result = getattr(strategies.FedPer(**settings), loop)(grid, *first, num_rounds=2)
        asked = [client for kind, client, _ in grid.sent if kind == "train"]
        arrays = {name: array.numpy().tobytes() for name, array in result.arrays.items()}
        of_training, of_tests = result.train_metrics_clientapp[2], result.evaluate_metrics_clientapp[2]
        means = [of_training["train-loss"], of_tests["personalised-accuracy"], of_tests["personalised-loss"]]
        results.append((sorted(asked), arrays))
        told.append(means)
    assert results[0] == results[1] and told[0] == pytest.approx(told[1], rel=1e-12)


@pytest.mark.parametrize("weights", [[0, 0, 0], [0, 10, 10]])
def test_a_client_that_trained_on_nothing_does_not_count(weights, caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        grid = AppGrid(moving([9, 1, 3], weights))
        if any(weights):
            result = strategies.FedAvg().start(grid, zeros(), num_rounds=1)
            assert result.arrays["a.bias"].numpy().tolist() == [2, 2]
        else:
            with pytest.raises(fedpfl.FedpflError, match="no round counted: round 2: no client trained"):
                strategies.FedAvg().start(grid, zeros(), num_rounds=2)
    assert "num-examples = 0: it has trained on nothing" in caplog.text


def test_the_weight_is_what_a_reply_says():
    result = strategies.FedAvg(weighted_by_key="size").start(
        AppGrid(moving([1, 2, 3], [7] * 3, lambda client: {"size": (1, 1, 98)[client]})), zeros(), num_rounds=1
    )
    np.testing.assert_allclose(result.arrays["a.bias"].numpy(), (1 + 2 + 3 * 98) / 100, rtol=1e-5)
    grid = AppGrid(strategies.client_app(model=Net, data=data_of))
    result = strategies.FedPer(model=Net, weighted_by_key="size").start(grid, ArrayRecord(), num_rounds=1)
    assert 0 < result.evaluate_metrics_clientapp[1]["personalised-accuracy"] <= 1


def test_no_single_node_decides_an_array_of_whole_numbers():
    arrays = ArrayRecord({**zeros(), "a.steps": Array(np.array([4, 4]))})

    def liar(kind, client, message):
        if kind == "train" and client == 2:
            content = {**message.content["arrays"], "a.steps": Array(np.array([10**9, 0]))}
            metrics = MetricRecord({"num-examples": 10})
            return Message(RecordDict({"arrays": ArrayRecord(content), "metrics": metrics}), reply_to=message)
        return None

    grid = AppGrid(moving([1] * 3, [10] * 3), broken=liar)
    result = strategies.FedAvg(fraction_evaluate=0.0).start(grid, arrays, num_rounds=1)
    assert result.arrays["a.steps"].numpy().tolist() == [5, 5] and result.arrays["a.steps"].dtype == "int64"


def test_whole_numbers_of_a_refused_reply_are_not_taken():
    def broken(kind, client, message):
        if kind != "train" or client != 1:
            return None
        arrays = {name: Array(array.numpy() * np.nan) for name, array in message.content["arrays"].items()
                  if "tracked" not in name}  # fmt: skip
        arrays["norm.num_batches_tracked"] = Array(np.array(200))
        metrics = MetricRecord({"num-examples": 40})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    result = strategies.FedAvg().start(AppGrid(plain_app(), broken=broken), initial(), num_rounds=1)
    assert result.arrays["norm.num_batches_tracked"].numpy() == 4


def test_where_clients_get_arrays_of_their_own_the_result_is_their_mean():
    strategy = strategies.ClusteredFL(fraction_evaluate=0.0, update_norm_limit=0.0)
    result = strategy.start(AppGrid(moving([1, 3, 5], [10] * 3)), zeros(), num_rounds=1)
    np.testing.assert_allclose(result.arrays["a.bias"].numpy(), 3.0)


def test_a_split_of_ones_own_needs_loops_of_ones_own(caplog):
    app = strategies.client_app(model=Net, data=data_of)
    with pytest.raises(fedpfl.FedpflError, match="no round counted"):
        strategies.FedPer(keep=("norm.", "fc2.")).start(AppGrid(app), initial(), num_rounds=1)
    assert "model = None: must be given to the strategy, whose nodes then train by fit or client_app" in caplog.text


@pytest.mark.parametrize(("settings", "told"), [({}, True), ({"head": "fc2"}, False), ({"keep": "fc2"}, False)])
def test_a_head_that_nobody_named_is_told(settings, told, caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        strategies.FedPer(**settings).start(AppGrid(plain_app(("fc2.",))), initial(), num_rounds=1)
    assert ("'fc2' is taken as the head, the last layer that may be linear: name it by head=" in caplog.text) == told


@pytest.mark.parametrize("stored", [True, False])
def test_a_node_that_comes_back_under_another_id_is_asked_which_client_it_is(stored, tmp_path, caplog, monkeypatch):
    """And a stranger, which has another secret, takes no number."""
    monkeypatch.delitem(sys.modules, "ray", raising=False)  # of another test's: a simulation's nodes have no secrets
    folder = {"state_dir": str(tmp_path)} if stored else {}
    grid = AppGrid(strategies.client_app(model=Net, data=data_of, **folder))
    made = between(strategies.FedPer, {2: lambda: [moved(grid, old, old + 700) for old in (100, 101, 102)]})(model=Net)
    with caplog.at_level(logging.INFO, "flwr"):
        result = made.start(grid, ArrayRecord(), num_rounds=4)
    assert "client 1 is back as node 801" in caplog.text
    # Who has no folder has lost its head, and one round with it.
    assert list(result.train_metrics_clientapp) == ([1, 2, 3, 4] if stored else [1, 3, 4])
    assert ("has lost its personal arrays, and begins again" in caplog.text) != stored
    if stored:
        stranger = AppGrid(strategies.client_app(model=Net, data=data_of, state_dir=str(tmp_path / "other")))
        honest = stranger.app

        def replaced():
            moved(stranger, 101, 666)
            stranger.app = strategies.client_app(model=Net, data=data_of, state_dir=str(tmp_path / "evil"))

        made = between(strategies.FedPer, {2: replaced})(model=Net)
        made.start(stranger, ArrayRecord(), num_rounds=2)
        assert honest is not stranger.app and "another node has had this number in this run" in caplog.text
        assert not any(kind == "train" and client == 566 for kind, client, _ in stranger.sent)


def test_frozen_parameters_are_neither_sent_nor_asked_for_on_clients_of_fedpfl():
    def frozen():
        model = Net()
        model.fc1.requires_grad_(False)
        return model

    app = strategies.client_app(model=frozen, data=data_of)
    result = strategies.FedAvg(model=frozen).start(AppGrid(app), ArrayRecord(), num_rounds=1)
    assert list(result.train_metrics_clientapp) == [1] and "fc1.weight" not in result.arrays


def test_the_metrics_that_a_setting_names_are_sent():
    strategy = strategies.FedAvg(model=Net, metrics="balanced-accuracy")
    grid = AppGrid(strategies.client_app(model=Net, data=data_of))
    mean = strategy.start(grid, ArrayRecord(), num_rounds=1).evaluate_metrics_clientapp[1]
    assert 0 < mean["personalised-balanced-accuracy"] <= 1


def test_a_run_with_a_module_of_ones_own_is_resumed(tmp_path):
    def start(rounds, **more):
        app = strategies.client_app(model=Net, data=data_of, state_dir=str(tmp_path / "state"))
        strategy = strategies.FedPer(model=Net, output_dir=str(tmp_path), run_name="mine", **more)
        return strategy.run_federation(AppGrid(app), num_rounds=rounds)

    start(2)
    ended = start(3, resume=True)
    assert list(ended.evaluate_metrics_clientapp) == [3]
    again = start(3, resume=True)  # has no round left
    assert again.arrays.keys() == ended.arrays.keys() and not again.evaluate_metrics_clientapp
    assert all(np.array_equal(again.arrays[name].numpy(), array.numpy()) for name, array in ended.arrays.items())


def test_a_method_that_shares_no_array_of_the_model_has_had_its_rounds(tmp_path, caplog):
    app = strategies.client_app(model=Net, data=data_of)
    result = strategies.FedProto(model=Net, output_dir=str(tmp_path)).run_federation(AppGrid(app), num_rounds=1)
    assert not result.arrays and list(result.evaluate_metrics_clientapp) == [1]
    assert "no round was left" not in caplog.text


@pytest.mark.parametrize("loop", ["start", "run_federation"])
def test_a_setting_of_both_sides_is_refused_unless_they_agree(loop, tmp_path):
    for rate, message in ((0.5, "learning-rate = 0.5: the strategy sets 0.1: give it there alone"), (0.1, "")):
        app = strategies.client_app(model=Net, data=data_of, learning_rate=rate)
        more, first = ({}, [ArrayRecord()]) if loop == "start" else ({"output_dir": str(tmp_path)}, [])
        strategy = strategies.FedAvg(model=Net, learning_rate=0.1, node_timeout=10.0, **more)
        if message:
            with pytest.raises(fedpfl.FedpflError, match=message):
                getattr(strategy, loop)(AppGrid(app), *first, num_rounds=1)
        else:
            assert getattr(strategy, loop)(AppGrid(app), *first, num_rounds=1).arrays


@pytest.mark.parametrize("model", [None, Net])
def test_what_a_node_says_of_its_samples_is_bounded_by_its_answer_before_round_1_or_told(model, caplog):
    app = plain_app() if model is None else strategies.client_app(model=Net, data=data_of)

    def boasting(kind, client, message):
        reply = app(message, grid.contexts[client])
        if client == 2 and kind != "query":
            next(iter(reply.content.metric_records.values()))["num-examples"] = 1_000_000
        return reply

    grid = AppGrid(app, broken=boasting)
    with caplog.at_level(logging.WARNING, "flwr"):
        strategies.FedAvg(model=model).start(grid, initial(), num_rounds=1)
    says = "(node 102) says num-examples = 1e+06, counts as 4000, and so is "
    says = (
        says if model is None else "num-examples = 1000000: must be a number from 0 to 40 (what it said before round 1)"
    )
    assert caplog.text.count(says) == 2  # trained and tested
    # Of 40, 40 and a hundred times that.
    told = "98 % of the mean; max_weight_share= or max_client_samples= bounds what nodes say"
    assert caplog.text.count(told) == 2 * (model is None)


def test_no_reply_counts_for_more_than_the_share_that_a_strategy_allows(caplog):
    """Nobody has said before round 1 how many samples there are: the replies of a round say it."""

    def boasting(kind, client, message):
        counts = {"loss": client, "num-examples": [40, 80, 4000][client]}
        if kind != "train":
            return Message(RecordDict({"metrics": MetricRecord(counts)}), reply_to=message)
        arrays = {name: Array(np.full_like(array.numpy(), client)) for name, array in message.content["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(counts)}), reply_to=message)

    def mean(**settings):
        grid = AppGrid(plain_app(), broken=boasting)
        result = strategies.FedAvg(**settings).start(grid, initial(), num_rounds=1)
        value = float(result.arrays["fc1.weight"].numpy()[0, 0])
        for metrics in (result.train_metrics_clientapp[1], result.evaluate_metrics_clientapp[1]):
            assert metrics["loss"] == pytest.approx(value)
        return value

    with caplog.at_level(logging.WARNING, "flwr"):
        assert mean(max_weight_share=0.5) == pytest.approx((0 * 40 + 1 * 80 + 2 * 120) / 240)
    assert "of the mean" not in caplog.text
    assert mean() == pytest.approx((80 + 8000) / 4120)
    assert mean(max_weight_share=0.01) == pytest.approx(1)


def test_a_weight_that_is_cut_is_told_also_of_two_nodes(caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategies.FedAvg().start(AppGrid(moving([0, 1], [1, 1000]), 2), zeros(), num_rounds=1)
    assert result.arrays["a.bias"].numpy()[0] == pytest.approx(100 / 101)
    assert caplog.text.count("says num-examples = 1000, counts as 100, and so is 99 % of the mean") == 2


def test_who_counts_as_all_others_is_no_longer_told_once_it_was(caplog):
    def boasting(kind, client, message):
        reply = app(message, grid.contexts[client])
        next(iter(reply.content.metric_records.values()))["num-examples"] = 800 if client == 2 else 40
        return reply

    app = plain_app()
    grid = AppGrid(app, broken=boasting)
    with caplog.at_level(logging.WARNING, "flwr"):
        strategies.FedAvg(fraction_evaluate=0.0).start(grid, initial(), num_rounds=3)
        strategies.FedAvg(fraction_evaluate=0.0, robust_aggregation="median").start(grid, initial(), num_rounds=1)
        strategies.FedAvg(fraction_evaluate=0.0, weights="uniform").start(grid, initial(), num_rounds=1)
    assert caplog.text.count("says num-examples = 800, and so is 91 % of the mean") == 1
