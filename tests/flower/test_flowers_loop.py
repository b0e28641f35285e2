"""What Flower's loop cannot do is said; what it does is right: weights, means, random numbers, splits."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from apps import AppGrid, Net, initial, loader, plain_app, samples, training
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

import fedpfl
from fedpfl import strategies
from fedpfl.flower.flowers_loop import mean_of_metrics


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


def own_data(context):
    both = samples(context.node_config["partition-id"])
    return *both, *both


class Follows(fedpfl.Listener):
    def run_ended(self, *_):
        raise AssertionError("never called in Flower's loop")


# -- what has no effect is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dp_noise_multiplier": 1.0}, "dp-noise-multiplier = 1.0: has no effect in Flower's loop: start without"),
        ({"dp_noise_multiplier": 1.0, "dp_where": "server"}, "dp-noise-multiplier = 1.0: has no effect"),
        ({"evaluate_global": True}, "evaluate-global = True: has no effect"),
        ({"early_stop": 1, "validation_fraction": 0.2}, "early-stop = 1: has no effect"),
        ({"test_at": "start"}, "test-at = 'start': has no effect"),
        ({"run_name": "mine"}, "run-name = 'mine': has no effect"),
        ({"initial_weights": "w.safetensors"}, "initial-weights = 'w.safetensors': needs model="),
        ({"max_weight_share": 0.5}, "max-weight-share = 0.5: needs model="),
        ({"listeners": [Follows()]}, "listeners = 'Follows': has run_ended, which Flower's loop never calls"),
    ],
)
def test_what_flowers_loop_has_no_place_for_is_refused(settings, words):
    grid = AppGrid(plain_app())
    with pytest.raises(fedpfl.ConfigError) as caught:
        strategies.FedAvg(**settings).start(grid, initial())
    assert words in str(caught.value) and not grid.sent


@pytest.mark.parametrize(
    "settings",
    [
        {"fraction_evaluate": 0.0}, {"min_available_nodes": 50}, {"min_train_nodes": 3}, {"weighted_by_key": "n"},
        {"evaluate_metrics_aggr_fn": lambda contents, key: MetricRecord()}, {"fraction_train": 0.0},
    ],
)  # fmt: skip
def test_what_fedpfls_loop_has_no_place_for_is_refused(settings, tmp_path):
    grid = AppGrid(strategies.client_app(model=Net, data=own_data))
    with pytest.raises(fedpfl.ConfigError) as caught:
        strategies.FedAvg(model=Net, output_dir=str(tmp_path), **settings).start(grid)
    assert str(caught.value).startswith(next(iter(settings))) and not grid.sent


def test_names_of_fedpfls_own_in_the_config_are_refused():
    with pytest.raises(fedpfl.ConfigError, match="config = 'frozen': is a name of fedpfl's own"):
        strategies.FedAvg().start(AppGrid(plain_app()), initial(), train_config=ConfigRecord({"frozen": True}))


@pytest.mark.parametrize("given", [{}, {"num_server_rounds": 4}])
def test_a_wrapper_does_not_tell_how_many_rounds_a_schedule_has(given):
    rates = []
    app = moving([0.01] * 3, [10] * 3)
    strategy = strategies.FedAvg(learning_rate_schedule="cosine", **given)
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 100.0, 3)
    seen = lambda kind, client, message: rates.append(message.content["config"]["fedpfl"])  # noqa: E731
    if not given:
        with pytest.raises(fedpfl.ConfigError, match=r"learning-rate-schedule .* needs the number of rounds"):
            wrapped.start(AppGrid(app), zeros(), num_rounds=4)
        return
    wrapped.start(AppGrid(app, broken=seen), zeros(), num_rounds=4)
    assert all('"num-server-rounds":4' in text for text in rates)


def test_functions_that_are_not_sent_are_told(caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        strategies.FedAvg(loss="mine:loss").start(AppGrid(plain_app()), initial(), num_rounds=1)
    assert "loss = 'mine:loss' is code, and is not sent: give it to client_app or personal" in caplog.text


@pytest.mark.parametrize("kind", [np.float64, np.complex64])
def test_arrays_that_would_not_stay_what_they_are_are_refused(kind):
    arrays = ArrayRecord({**zeros(), "b.scale": Array(np.ones(2, kind))})
    with pytest.raises(fedpfl.ConfigError, match=f"array 'b.scale' is {np.dtype(kind)}; what is shared travels as flo"):
        strategies.FedAvg().start(AppGrid(plain_app()), arrays)


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
    assert "each" not in mean_of_metrics([*good, of(n=1, each=[1.0])], "n") and "several lengths" in caplog.text
    of_part = {"part-n": [1, 2], "part-acc": 1.0}
    assert mean_of_metrics([of(n=1, **{"part-n": 3, "part-acc": 0.0}), of(n=3, **of_part)], "n")["part-acc"] == 0.5
    assert not mean_of_metrics([of(n=0, loss=1.0)], "n") and not mean_of_metrics([of(loss=1.0)], "n")


def test_validation_counts_by_its_own_samples():
    sizes, tests = [100, 20, 20], [10, 20, 80]

    def data(context):
        client = context.node_config["partition-id"]
        return *samples(client, sizes[client]), *samples(client, tests[client])

    found = []

    def means(contents, key):
        found.extend(dict(content["metrics"]) for content in contents)
        return mean_of_metrics(contents, key)

    strategy = strategies.FedAvg(model=Net, validation_fraction=0.3, evaluate_metrics_aggr_fn=means)
    grid = AppGrid(strategies.client_app(model=Net, data=data))
    mean = strategy.start(grid, ArrayRecord(), num_rounds=1).evaluate_metrics_clientapp[1]
    weights = [one["validation-num-examples"] for one in found]
    assert weights == [30, 6, 6]
    each = [one["validation-accuracy"] for one in found]
    assert mean["validation-accuracy"] == pytest.approx(np.average(each, weights=weights))
    each = [one["personalised-accuracy"] for one in found]
    assert mean["personalised-accuracy"] == pytest.approx(np.average(each, weights=tests))


def test_the_metrics_that_a_setting_names_are_sent():
    strategy = strategies.FedAvg(model=Net, metrics="balanced-accuracy")
    grid = AppGrid(strategies.client_app(model=Net, data=own_data))
    mean = strategy.start(grid, ArrayRecord(), num_rounds=1).evaluate_metrics_clientapp[1]
    assert 0 < mean["personalised-balanced-accuracy"] <= 1


def test_both_loops_tell_the_mean_over_samples(tmp_path):
    def data(context):
        client = context.node_config["partition-id"]
        return *samples(client), *samples(client, (10, 20, 80)[client])

    settings = {"model": Net, "local_epochs": 3, "learning_rate": 0.1}
    app = strategies.client_app(model=Net, data=data, state_dir=str(tmp_path / "state"))
    flowers = strategies.FedPer(**settings).start(AppGrid(app), ArrayRecord(), num_rounds=1)
    ours = strategies.FedPer(**settings, output_dir=str(tmp_path)).start(AppGrid(app), num_rounds=1)
    for name in ("personalised-accuracy", "personalised-loss"):
        given = [result.evaluate_metrics_clientapp[1][name] for result in (flowers, ours)]
        assert given[0] == pytest.approx(given[1])


@pytest.mark.parametrize("weights", [[0, 0, 0], [0, 10, 10]])
def test_a_client_that_trained_on_nothing_does_not_count(weights, caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy = strategies.FedAvg(update_norm_limit=0.0)
        result = strategy.start(AppGrid(moving([9, 1, 3], weights)), zeros(), num_rounds=1)
    moved = [array.numpy().tolist() for name, array in result.arrays.items() if name == "a.bias"]
    assert moved == ([[2, 2]] if any(weights) else [])  # Flower's result has no arrays if no round had any
    assert "num-examples = 0: it has trained on nothing" in caplog.text


@pytest.mark.parametrize("model", [None, Net])
def test_the_weight_is_what_a_reply_says(model):
    app = ClientApp()

    @app.query()
    def query(message, context):
        with strategies.personal(message, context, Net) as local:
            return local.describe(loader(context.node_config["partition-id"]))

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        with strategies.personal(message, context, Net) as local, torch.no_grad():
            for array in local.model.parameters():
                array.add_(client + 1.0)
        return local.reply({"num-examples": (1, 1, 98)[client]})

    strategy = strategies.FedAvg(model=model, fraction_evaluate=0.0, update_norm_limit=0.0)
    result = strategy.start(AppGrid(app), initial(), num_rounds=1)
    moved = result.arrays["fc1.bias"].numpy() - initial()["fc1.bias"].numpy()
    np.testing.assert_allclose(moved, (1 + 2 + 3 * 98) / 100, rtol=1e-5)


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


def test_a_strategy_that_starts_again_starts_anew_unless_it_goes_on():
    strategy = strategies.FedPer(personal=("a.bias",), fraction_evaluate=0.0)
    app = ClientApp()
    heads = []

    @app.train()
    def train(message, context):
        model = torch.nn.Sequential()
        model.add_module("a", torch.nn.Linear(3, 2))
        with torch.no_grad():
            model.a.bias.zero_()
        with strategies.personal(message, context, model):
            heads.append(float(model.a.bias[0].detach()))
            with torch.no_grad():
                model.a.bias.add_(1)
                model.a.weight.add_(1)
        return reply(message, model)

    def reply(message, model):
        arrays = ArrayRecord({"a.weight": Array(model.a.weight.detach().numpy())})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    grid = AppGrid(app, num_nodes=2)
    result = strategy.start(grid, zeros(), num_rounds=2)
    strategy.start(grid, result.arrays, num_rounds=1)
    strategy.start(grid, zeros(), num_rounds=1)
    assert heads == [0, 0, 1, 1, 2, 2, 0, 0]


def test_a_split_of_ones_own_holds_on_clients_of_fedpfl_and_fit_refuses_it(caplog):
    app = ClientApp()
    split = ("norm.", "fc2.")

    @app.train()
    def train(message, context):
        model = Net()
        with strategies.personal(message, context, model) as local:
            training(model, loader(local.client))
        return local.reply({"num-examples": 40})

    grid = AppGrid(app)
    with caplog.at_level(logging.INFO, "flwr"):
        result = strategies.FedPer(personal=split, fraction_evaluate=0.0).start(grid, initial(), num_rounds=2)
    assert set(result.arrays) == {"fc1.weight", "fc1.bias"} and list(result.train_metrics_clientapp) == [1, 2]
    assert "personal, each client begins with its own: norm.weight, norm.bias" in caplog.text
    app = strategies.client_app(model=Net, data=own_data)
    with caplog.at_level(logging.WARNING, "flwr"):
        strategies.FedPer(personal=split).start(AppGrid(app), initial(), num_rounds=1)
    assert "is a split of the strategy's own: train and test in loops of your own" in caplog.text


@pytest.mark.parametrize(("given", "told"), [({}, True), ({"head": "fc2"}, False), ({"personal": ("fc2.",)}, False)])
def test_a_head_that_nobody_named_is_told(given, told, caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        strategies.FedPer(**given).start(AppGrid(plain_app(("fc2.",))), initial(), num_rounds=1)
    assert ("'fc2' is taken as the head, the last layer that may be linear: name it by head=" in caplog.text) == told


def test_a_node_that_comes_late_is_told_where_it_cannot_take_part(caplog):
    grid = AppGrid(strategies.client_app(model=Net, data=own_data))
    ids = [100, 101, 102]
    grid.get_node_ids = lambda: list(ids)

    def restarted(kind, client, message):
        ids[:] = [100, 101, 202] if kind == "evaluate" else ids

    grid.broken = restarted
    with caplog.at_level(logging.WARNING, "flwr"):
        strategies.FedPer(model=Net).start(grid, initial(), num_rounds=3)
    said = "node 202 came late and does not take part: with model= nodes are asked before round 1"
    assert caplog.text.count(said) == 1


def test_a_run_with_a_module_of_ones_own_is_resumed(tmp_path):
    def start(rounds, **more):
        app = strategies.client_app(model=Net, data=own_data, state_dir=str(tmp_path / "state"))
        strategy = strategies.FedPer(model=Net, output_dir=str(tmp_path), run_name="mine", **more)
        return strategy.start(AppGrid(app), num_rounds=rounds)

    start(2)
    assert list(start(3, resume=True).evaluate_metrics_clientapp) == [3]


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.dec.weight = self.enc.weight

    def forward(self, x):
        return self.dec(torch.relu(self.enc(x)))


def test_tied_weights_are_one_parameter_on_clients_of_fedpfl():
    app = ClientApp()

    @app.train()
    def train(message, context):
        with strategies.personal(message, context, Tied()) as local:
            training(local.model, loader(local.client))
        return local.reply({"num-examples": 40})

    start = ArrayRecord(Tied().state_dict())
    result = strategies.FedAvg(fraction_evaluate=0.0).start(AppGrid(app), start, num_rounds=2)
    assert list(result.train_metrics_clientapp) == [1, 2]
    assert np.array_equal(result.arrays["enc.weight"].numpy(), result.arrays["dec.weight"].numpy())
    assert not np.array_equal(result.arrays["enc.weight"].numpy(), start["enc.weight"].numpy())
    words = r"shares only one of enc\.weight and dec\.weight, which are one parameter of the model \(tied weights\)"
    with pytest.raises(fedpfl.ConfigError, match=words):
        strategies.FedPer(fraction_evaluate=0.0).start(AppGrid(app), start)


def test_frozen_parameters_need_a_strategy_with_the_model(caplog):
    def frozen():
        model = Net()
        model.fc1.requires_grad_(False)
        return model

    app = strategies.client_app(model=frozen, data=own_data)
    with caplog.at_level(logging.WARNING, "flwr"):
        strategies.FedAvg().start(AppGrid(app), initial(), num_rounds=1)
    assert "(requires_grad=False) need a strategy with model=" in caplog.text
    result = strategies.FedAvg(model=frozen).start(AppGrid(app), ArrayRecord(), num_rounds=1)
    assert list(result.train_metrics_clientapp) == [1]


# -- clients -----------------------------------------------------------------------------------------------------------


def personal_app(make, seen):
    app = ClientApp()

    @app.train()
    def train(message, context):
        model = make()
        before = torch.get_rng_state()
        with strategies.personal(message, context, model) as local:
            drawn = torch.randperm(8).tolist(), np.random.rand(), torch.rand(1).item()
            seen.append((local.round, local.client, drawn))
            training(local.model, loader(local.client))
        assert torch.equal(before, torch.get_rng_state())
        return local.reply({"num-examples": 40})

    return app


def test_random_numbers_of_ones_own_loop_follow_from_seed_client_and_round():
    found = []
    for make in (lambda: Net, lambda: Net(), lambda: Net):
        seen = []
        strategy = strategies.FedAvg(fraction_evaluate=0.0)
        strategy.start(AppGrid(personal_app(make, seen), num_nodes=2), initial(), num_rounds=2)
        found.append(seen)
    assert found[0] == found[1] == found[2]
    assert len({str(drawn) for _, _, drawn in found[0]}) == 4


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (lambda: strategies.FedBABU(model=Net), "train = None: must be the training samples: fedbabu adapts to them"),
        (lambda: strategies.KNNPer(model=Net), "must be the training samples: knn-per"),
        (lambda: strategies.FedAvg(model=Net, tune_epochs=2), "fedavg adapts the model before a test (tune-epochs)"),
    ],
)
def test_a_test_needs_the_samples_that_the_method_adapts_to(strategy, words):
    app = ClientApp()

    @app.query()
    def query(message, context):
        with strategies.personal(message, context, Net) as local:
            return local.describe(loader(0))

    @app.train()
    def train(message, context):
        with strategies.personal(message, context, Net) as local:
            local.fit(loader(local.client))
        return local.reply()

    @app.evaluate()
    def evaluate(message, context):
        with strategies.personal(message, context, Net) as local:
            found = local.evaluate(loader(local.client))
        return local.reply(found)

    with pytest.raises(fedpfl.ConfigError) as caught:
        strategy().start(AppGrid(app), ArrayRecord(), num_rounds=1)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"dp_noise_multiplier": 1.0}, "train", "adds noise (dp-noise-multiplier), which a loop of your own does not"),
        ({"tune_epochs": 1}, "evaluate", "adapts the model before a test (tune-epochs), which a loop of your own"),
    ],
)
def test_a_loop_of_ones_own_that_leaves_something_out_is_refused(settings, kind, words):
    app = ClientApp()

    def answer(message, context):
        with strategies.personal(message, context, Net(), **settings) as local:
            training(local.model, loader(0))
        return local.reply({"num-examples": 1})

    app.train()(answer)
    app.evaluate()(answer)

    def only(asked, client, message):
        return None if asked == kind else plain_app()(message, grid.contexts[client])

    grid = AppGrid(app)
    grid.broken = only
    with pytest.raises(fedpfl.ConfigError) as caught:
        strategies.FedAvg().start(grid, initial(), num_rounds=1)
    assert words in str(caught.value)
