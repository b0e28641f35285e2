"""The mod `keep`: an app with the functions of Flower's quickstart becomes personal, and nothing is lost or swapped."""

from __future__ import annotations

import contextlib
import logging

import numpy as np
import pytest
import torch
from flower_apps import AppGrid, Net, accuracy, between, flowers_app, initial, loader, moved, samples, training
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import message_size_mod
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg

import fedpfl
from fedpfl import strategies
from fedpfl.strategies import keep


def by_hand(personal, rounds):
    """Return the shared arrays and accuracies of a method that shares by names, written by hand."""
    start = initial().to_torch_state_dict()
    heads = [{name: array.clone() for name, array in start.items() if name.startswith(personal)} for _ in range(3)]
    shared, accuracies = {name: array for name, array in start.items() if not name.startswith(personal)}, []
    for _ in range(rounds):
        sent = []
        for client in range(3):
            model = Net()
            model.load_state_dict({**shared, **heads[client]})
            training(model, loader(client))
            state = {name: array.clone() for name, array in model.state_dict().items()}
            heads[client] = {name: state[name] for name in heads[client]}
            sent.append(state)
        for name, array in shared.items():
            if array.is_floating_point():
                total = sum(np.float64(40) * one[name].double().numpy() for one in sent)
                shared[name] = torch.tensor(np.asarray(total / 120), dtype=torch.float32)
            else:
                shared[name] = sent[0][name]
        scores = []
        for client in range(3):
            model = Net()
            model.load_state_dict({**shared, **heads[client]})
            scores.append(accuracy(model, loader(client)))
        accuracies.append(np.mean(scores))
    return shared, accuracies


@pytest.mark.parametrize(
    ("strategy", "personal"),
    [
        (lambda: strategies.FedAvg(), ("-",)), (lambda: strategies.FedPer(head="fc2"), ("fc2.",)),
        (lambda: strategies.FedPer(personal=("fc2.weight", "*2.bias")), ("fc2.",)),
        (lambda: strategies.FedBN(), ("norm.",)), (lambda: strategies.FedBN(keep="fc2.*"), ("norm.", "fc2.")),
        (lambda: strategies.LGFedAvg(), ("fc1.", "norm.")),
    ],
)  # fmt: skip
def test_an_unchanged_app_of_flowers_does_what_a_program_by_hand_does(strategy, personal):
    grid = AppGrid(flowers_app([keep()]))
    result = strategy().start(grid, initial(), num_rounds=4)
    shared, scores = by_hand(personal, 4)
    assert [*result.arrays] == [name for name in Net().state_dict() if not name.startswith(personal)]
    for name, array in shared.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), array.numpy(), rtol=0, atol=1e-7)
    assert [one["accuracy"] for one in result.evaluate_metrics_clientapp.values()] == pytest.approx(scores)
    for kind, _, message in grid.sent:
        assert kind != "train" or message.content["arrays"]["fc1.bias"].dtype == "float32"


def test_a_mod_that_is_not_there_and_one_under_flowers_own_strategy_change_nothing():
    results = [
        strategy.start(AppGrid(flowers_app(mods)), initial(), num_rounds=2).arrays
        for strategy, mods in ((strategies.FedAvg(), []), (strategies.FedAvg(), [keep()]), (FlowersFedAvg(), [keep()]))
    ]
    for name in ("fc1.weight", "fc2.bias"):
        np.testing.assert_array_equal(results[0][name].numpy(), results[1][name].numpy())
        np.testing.assert_allclose(results[0][name].numpy(), results[2][name].numpy(), atol=1e-6)


def test_order_and_types_are_those_of_the_initial_arrays_also_of_lists():
    arrays = ArrayRecord(
        [np.ones((6, 8)), np.arange(3), np.zeros(8, np.float32), np.ones((8, 3), np.float16), np.zeros(3)]
    )
    seen, app = [], ClientApp(mods=[keep(), message_size_mod])

    @app.train()
    def train(message, context):
        received = message.content["arrays"].to_numpy_ndarrays()
        seen.append([(array.shape, array.dtype) for array in received])
        received[-1] = received[-1] + 1 + context.node_id
        metrics = MetricRecord({"num-examples": 5_000_000, "val loss": 1.0, "_x": float("nan")})
        return Message(RecordDict({"arrays": ArrayRecord(received), "metrics": metrics}), reply_to=message)

    strategy = strategies.FedPer(keep=("3", "4"), fraction_evaluate=0.0)
    result = strategy.start(AppGrid(app), arrays, num_rounds=2)
    assert all(one == [(a.numpy().shape, a.numpy().dtype) for a in arrays.values()] for one in seen) and len(seen) == 6
    assert [(n, a.numpy().dtype) for n, a in result.arrays.items()] == [(n, arrays[n].numpy().dtype) for n in "012"]
    assert dict(result.train_metrics_clientapp[2]) == {"val loss": 1.0}


@pytest.mark.parametrize("stored", [True, False])
def test_a_node_that_comes_back_under_another_id_keeps_its_head_in_state_dir(stored, tmp_path, caplog):
    seen = []
    grid = AppGrid(flowers_app([keep(tmp_path if stored else None)], seen=seen))
    strategy = between(strategies.FedPer, {3: lambda: moved(grid, 101, 777)})(head="fc2")
    with caplog.at_level(logging.INFO, "flwr"):
        strategy.start(grid, initial(), num_rounds=4)
    last = [head for node, head in seen if node == 101][-1]
    back = next(head for node, head in seen if node == 777)
    first = initial()["fc2.weight"].numpy()
    assert np.array_equal(back, first) != stored
    assert not np.array_equal(back, last)  # it has trained in the round before
    assert "client 1 (node 101) is gone" in caplog.text and "node 777 is new, as client 3" in caplog.text
    assert ("client 3 (node 777) goes on from the arrays of node 101" in caplog.text) == stored


def test_a_node_that_has_lost_its_arrays_says_so_and_begins_anew(caplog):
    grid = AppGrid(flowers_app([keep()]))

    def forget():
        grid.contexts[1].state = RecordDict()

    strategy = between(strategies.FedPer, {2: forget})(head="fc2")
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, initial(), num_rounds=3)
    assert "client 1 (node 101) has lost its personal arrays, and begins again" in caplog.text
    assert "give state_dir to keep them" in caplog.text and list(result.train_metrics_clientapp) == [1, 2, 3]
    trained = [client for kind, client, _ in grid.sent if kind == "train"]
    assert trained.count(1) == 3


def test_a_function_that_sets_a_new_context_state_loses_nothing_of_what_is_kept(caplog):
    def note(message, context, call_next):
        reply = call_next(message, context)
        round_number = int(message.content["config"]["server-round"])
        mine, newer = ConfigRecord({"node": context.node_id}), ConfigRecord({"round": round_number})
        context.state = RecordDict({"mine": mine, "fedpfl/newer": newer})
        return reply

    plain, grid = AppGrid(flowers_app([keep()])), AppGrid(flowers_app([keep(), note]))
    expected, result = (strategies.FedPer(head="fc2").start(nodes, initial(), num_rounds=3) for nodes in (plain, grid))
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array.numpy())
    assert result.evaluate_metrics_clientapp == expected.evaluate_metrics_clientapp
    assert [context.state["mine"]["node"] for context in grid.contexts] == [100, 101, 102]
    assert [context.state["fedpfl/newer"]["round"] for context in grid.contexts] == [3, 3, 3]
    assert "lost" not in caplog.text


def test_two_nodes_of_one_partition_and_folder_never_swap_heads(tmp_path, caplog):
    seen = []
    batches = lambda context: loader(context.node_id)  # noqa: E731
    grid = AppGrid(flowers_app([keep(tmp_path)], batches, seen))
    for context in grid.contexts:
        context.node_config = {"partition-id": 0, "num-partitions": 3}
    strategies.FedPer(head="fc2").start(grid, initial(), num_rounds=3)
    assert {node for node, _ in seen} == {100}
    assert "keeps its arrays in the same state_dir: give each node its own" in caplog.text


def test_two_strategies_in_one_app_keep_their_arrays_apart():
    grid = AppGrid(flowers_app([keep()]))
    one, other = (strategies.FedPer(head="fc2"), strategies.FedBN())
    a = b = initial()
    for _ in range(3):
        a = one.start(grid, a, num_rounds=1).arrays
        b = other.start(grid, b, num_rounds=1).arrays
    alone = strategies.FedPer(head="fc2").start(AppGrid(flowers_app([keep()])), initial(), num_rounds=3).arrays
    for name in alone:
        np.testing.assert_array_equal(a[name].numpy(), alone[name].numpy())


def test_rounds_are_counted_over_starts_also_from_a_saved_copy():
    def drawn(copy):
        grid = AppGrid(flowers_app([keep()]), num_nodes=8)
        strategy, arrays = strategies.FedPer(head="fc2", fraction_train=0.25, fraction_evaluate=0.0), initial()
        for _ in range(5):
            arrays = copy(strategy.start(grid, arrays, num_rounds=1).arrays)
        return [node for kind, node, _ in grid.sent if kind == "train"], arrays

    grid = AppGrid(flowers_app([keep()]), num_nodes=8)
    strategy = strategies.FedPer(head="fc2", fraction_train=0.25, fraction_evaluate=0.0)
    whole = strategy.start(grid, initial(), num_rounds=5).arrays
    wanted = [node for kind, node, _ in grid.sent if kind == "train"]
    for copy in (lambda arrays: arrays, lambda arrays: ArrayRecord(arrays.to_torch_state_dict())):
        nodes, arrays = drawn(copy)
        assert nodes == wanted
        for name in whole:
            np.testing.assert_array_equal(arrays[name].numpy(), whole[name].numpy())


def test_a_named_state_key_goes_on_in_another_program(tmp_path):
    app, heads = flowers_app([keep(tmp_path)]), []
    first = strategies.FedPer(head="fc2", state_key="fleet-a").start(AppGrid(app), initial(), num_rounds=3)
    saved = ArrayRecord(first.arrays.to_torch_state_dict())
    again = AppGrid(flowers_app([keep(tmp_path)], seen=heads))
    result = strategies.FedPer(head="fc2", state_key="fleet-a").start(again, saved, num_rounds=2)
    assert not any(np.array_equal(head, initial()["fc2.weight"].numpy()) for _, head in heads)
    whole = strategies.FedPer(head="fc2").start(AppGrid(flowers_app([keep()])), initial(), num_rounds=5).arrays
    for name in whole:
        np.testing.assert_array_equal(result.arrays[name].numpy(), whole[name].numpy())
    for more in ({"head": "fc2"}, {"keep": "fc2"}):
        with pytest.raises(fedpfl.ConfigError, match=r"start with {\*\*model.state_dict\(\), \*\*saved}$"):
            strategies.FedPer(**more).start(again, saved)


@pytest.mark.parametrize("strategy", [lambda **key: strategies.FedPer(head="fc2", **key), strategies.FedBN])
def test_a_saved_result_that_is_filled_goes_on_in_another_program(strategy, caplog):
    """With the same key each node has its own arrays; without one it begins with the filled ones."""
    grid = AppGrid(flowers_app([keep()]))
    saved = strategy(state_key="fleet-a").start(grid, initial(), num_rounds=2).arrays.to_torch_state_dict()
    filled = ArrayRecord({**initial().to_torch_state_dict(), **saved})
    result = strategy(state_key="fleet-a").start(grid, filled, num_rounds=2)
    whole = strategy().start(AppGrid(flowers_app([keep()])), initial(), num_rounds=4)
    for name in whole.arrays:
        np.testing.assert_array_equal(result.arrays[name].numpy(), whole.arrays[name].numpy())
    assert strategy().start(AppGrid(flowers_app([keep()])), filled, num_rounds=1).arrays
    with caplog.at_level(logging.WARNING, "flwr"), pytest.raises((fedpfl.FedpflError, RuntimeError)):
        strategies.FedBN().start(grid, ArrayRecord({n: a for n, a in saved.items() if "norm" not in n}), num_rounds=1)
    assert "this model has no trainable BatchNorm: nothing is personal, and fedbn equals fedavg" in caplog.text


def test_what_a_node_has_kept_never_leaves_it(caplog):
    """A server whose split no longer covers the head is refused by the node."""
    grid = AppGrid(flowers_app([keep()]))

    def greedy(kind, client, message):
        config = message.content["config"]
        if kind == "train" and config["server-round"] == 2:
            config["keep"], config["places"] = ["norm.weight"], [2]
        return None

    grid.broken = greedy
    with pytest.raises(fedpfl.FedpflError):
        between(strategies.FedPer, {})(head="fc2", min_replies=2).start(grid, initial(), num_rounds=2)
    assert "does not cover fc2.bias, which this node has kept so far and does not send" in caplog.text


def test_functions_with_names_of_ones_own_and_replies_made_of_the_message_keep_the_head_here():
    """Flower routes `train.warm` to `@app.train("warm")`; a test may answer with the content that it has got."""
    grid = AppGrid(flowers_app([keep()]))
    wanted = strategies.FedPer(head="fc2").start(grid, initial(), num_rounds=2)

    class Named(strategies.FedPer):
        def configure_train(self, *rest):
            for message in super().configure_train(*rest):
                message.metadata.message_type = "train.warm"
                yield message

        def configure_evaluate(self, *rest):
            messages = [*super().configure_evaluate(*rest)]
            for message in messages:
                message.metadata.message_type = "evaluate.warm"
            return messages

    def answered(half):
        def function(message, context):
            model, batches = Net(), loader(context.node_config["partition-id"])
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            metrics = {"num-examples": 40, "accuracy": accuracy(model, batches)}
            if half == "train":
                training(model, batches)
                message.content["arrays"] = ArrayRecord(model.state_dict())
            message.content["metrics"] = MetricRecord(metrics)
            return Message(message.content, reply_to=message)

        return function

    app = ClientApp(mods=[keep()])
    app.train("warm")(answered("train"))
    app.evaluate("warm")(answered("evaluate"))
    replies = []

    def noted(kind, client, message):
        replies.append(app(message, grid.contexts[client]))
        return replies[-1]

    grid = AppGrid(app, broken=noted)
    result = Named(head="fc2").start(grid, initial(), num_rounds=2)
    assert len(replies) == 12
    for reply in replies:
        assert not any(name.startswith("fc2.") for record in reply.content.array_records.values() for name in record)
    for name, array in wanted.arrays.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array.numpy())
    assert result.evaluate_metrics_clientapp[2] == wanted.evaluate_metrics_clientapp[2]


def test_a_test_without_the_mod_is_refused_where_the_training_has_it(caplog):
    """Loaded loosely, its model would have a head that nobody has trained."""
    app, whole = ClientApp(), flowers_app([keep()])
    app.train(mods=[keep()])(flowers_app())

    @app.evaluate()
    def evaluate(message, context):
        Net().load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
        metrics = MetricRecord({"accuracy": 0.5, "num-examples": 40})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    result = strategies.FedPer(head="fc2").start(AppGrid(app), initial(), num_rounds=1)
    assert result.train_metrics_clientapp and not result.evaluate_metrics_clientapp
    assert "its reply was made without the mod keep, which others of its replies had" in caplog.text
    assert strategies.FedAvg().start(AppGrid(app), initial(), num_rounds=1).evaluate_metrics_clientapp
    assert strategies.FedPer(head="fc2").start(AppGrid(whole), initial(), num_rounds=1).evaluate_metrics_clientapp


def test_the_last_result_filled_with_other_heads_begins_anew_and_is_told(caplog):
    """Someone loads each result into a model and starts with its state dict: all heads are the initial ones again."""
    grid, strategy = AppGrid(flowers_app([keep()])), strategies.FedPer(head="fc2")
    saved = strategy.start(grid, initial(), num_rounds=1).arrays
    assert "filled" not in caplog.text
    strategy.start(grid, ArrayRecord({**initial(), **saved}), num_rounds=1)
    assert "initial_arrays are the last result, filled: nodes begin with the personal arrays there" in caplog.text


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda state: state["fc2.weight"].fill_(torch.nan), "the training diverged in round 1: arrays that stay"),
        (lambda state: state.pop("fc2.weight"), "the reply lacks 'fc2.weight', which stays on this node"),
    ],
)
def test_what_cannot_be_kept_is_one_line_and_nothing_is_kept(change, error, caplog):
    app = ClientApp(mods=[keep()])

    @app.train()
    def train(message, context):
        state = message.content["arrays"].to_torch_state_dict()
        change(state)
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

    grid = AppGrid(app)
    with pytest.raises(fedpfl.FedpflError, match="no round counted: round 1: no client trained"):
        strategies.FedPer(head="fc2", fraction_evaluate=0.0).start(grid, initial(), num_rounds=1)
    assert error in caplog.text
    assert not any(name for context in grid.contexts for name in context.state.array_records)


@pytest.mark.parametrize("name", ["arrays", "weights"])
def test_records_of_ones_own_beside_the_model_s_are_not_kept_as_the_head(name):
    """Control variates have the names of the model's arrays, and may come first, in messages and in replies."""

    class Controlled(strategies.FedPer):
        def configure_train(self, *rest):
            for message in super().configure_train(*rest):
                message.content = RecordDict({"variates": initial(), **message.content})
                yield message

        def aggregate_train(self, server_round, replies):
            for reply in (replies := [*replies]):
                del reply.content["variates"]
            return super().aggregate_train(server_round, replies)

    app = ClientApp(mods=[keep()])

    @app.train()
    def train(message, context):
        assert [*message.content["variates"]] == [*message.content[name]] == [*initial()]
        trained = {key: Array(np.asarray(array.numpy() + 1)) for key, array in message.content[name].items()}
        records = {"variates": initial(), name: ArrayRecord(trained), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(records), reply_to=message)

    strategy = Controlled(head="fc2", fraction_evaluate=0.0, arrayrecord_key=name)
    strategy.start(grid := AppGrid(app), initial(), num_rounds=2)
    kept = [record for key, record in grid.contexts[0].state.array_records.items() if key.endswith("round-2")]
    np.testing.assert_array_equal(kept[0]["fc2.bias"].numpy(), initial()["fc2.bias"].numpy() + 1 + 1)


@pytest.mark.parametrize("stored", [True, False])
def test_arrays_of_the_other_byte_order_are_kept_and_shared(stored, tmp_path):
    def swapped(array):
        return Array(array.numpy().astype(array.numpy().dtype.newbyteorder()))

    def start(change):
        app = ClientApp(mods=[keep(tmp_path / change.__name__ if stored else None)])

        @app.train()
        def train(message, context):
            made = {
                name: change(Array(np.asarray(array.numpy() + 1))) for name, array in message.content["arrays"].items()
            }
            content = {"arrays": ArrayRecord(made), "metrics": MetricRecord({"num-examples": 1})}
            return Message(RecordDict(content), reply_to=message)

        strategy = strategies.FedPer(head="fc2", fraction_evaluate=0.0)
        arrays = ArrayRecord({name: change(array) for name, array in initial().items()})
        return strategy.start(AppGrid(app), arrays, num_rounds=2).arrays.to_numpy_ndarrays()

    def same(array):
        return array

    for one, other in zip(start(swapped), start(same), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_function_that_returns_no_reply_is_told_in_one_line(kind, caplog):
    app = flowers_app([keep()])
    del app._registered_funcs[f"{kind}.default"]
    getattr(app, kind)()(lambda message, context: None)
    with contextlib.suppress(fedpfl.FedpflError):
        strategies.FedPer(head="fc2").start(AppGrid(app), initial(), num_rounds=1)
    assert f"reply = None: must be a Message, which the app's {kind} function has to return" in caplog.text


@pytest.mark.parametrize("place", ["", " ", 3, [], b"kept", "a\0b"])
def test_a_folder_that_is_none_is_refused_where_it_is_named(place):
    for made in (keep, lambda state_dir: strategies.client_app(model=Net, data=samples, state_dir=state_dir)):
        with pytest.raises(fedpfl.ConfigError, match=r"state_dir = .*: must be the path of a folder"):
            made(state_dir=place)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, caplog):
    (tmp_path / "file").touch()
    app = flowers_app([keep(tmp_path / "file" / "kept")])
    with pytest.raises(fedpfl.FedpflError, match="no file can be written there: File exists"):
        strategies.FedPer(head="fc2").start(AppGrid(app), initial(), num_rounds=1)


def test_the_owner_of_a_node_may_refuse(tmp_path, monkeypatch, caplog):
    (tmp_path / "policy.toml").write_text('methods = ["fedavg"]\n')
    monkeypatch.setenv("FEDPFL_POLICY", str(tmp_path / "policy.toml"))
    with pytest.raises(fedpfl.FedpflError, match="no round counted"):
        strategies.FedPer(head="fc2").start(AppGrid(flowers_app([keep()])), initial(), num_rounds=1)
    assert "refuses method = 'fedper': methods has fedavg" in caplog.text
    assert strategies.FedAvg().start(AppGrid(flowers_app([keep()])), initial(), num_rounds=1).arrays


@pytest.mark.parametrize("loop", ["own loops", "fit"])
def test_the_owner_of_a_node_bounds_how_often_it_answers(loop, tmp_path, monkeypatch, caplog):
    """The three clients of this test are one device's."""
    (tmp_path / "policy.toml").write_text(f'most-releases = 4\nstate-folders = ["{tmp_path}"]\n')
    monkeypatch.setenv("FEDPFL_POLICY", str(tmp_path / "policy.toml"))
    is_own = loop == "own loops"
    data = lambda context: (loader(context.node_config["partition-id"]),) * 2  # noqa: E731
    apps = [flowers_app([keep(tmp_path)]), strategies.client_app(model=Net, data=data, state_dir=tmp_path)]
    strategy = strategies.FedPer(**({"head": "fc2"} if is_own else {"model": Net}), fraction_evaluate=0.0)
    result = strategy.start(AppGrid(apps[not is_own]), initial() if is_own else ArrayRecord(), num_rounds=3)
    assert list(result.train_metrics_clientapp) == [1, 2]
    assert "it has answered 4 times, and most-releases is 4" in caplog.text


def test_adapters_by_their_names():
    """FedSA-LoRA on arrays of a model that has its adapters: A is shared, B and the head stay."""
    names = ("q.lora_A.weight", "q.lora_B.weight", "classifier.weight", "classifier.bias")
    shapes = ((2, 6), (6, 2), (3, 6), (3,))
    arrays = ArrayRecord({n: Array(np.ones(s, np.float32)) for n, s in zip(names, shapes, strict=True)})
    app = ClientApp(mods=[keep()])

    @app.train()
    def train(message, context):
        assert [*message.content["arrays"]] == list(names)
        moved = {n: Array(a.numpy() + np.float32(0.1)) for n, a in message.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)

    for strategy in (strategies.FedSALoRA, lambda **more: strategies.FedPer(keep=("*lora_B*", "classifier"), **more)):
        result = strategy(fraction_evaluate=0.0).start(AppGrid(app), arrays, num_rounds=2)
        assert [*result.arrays] == ["q.lora_A.weight"]


@pytest.mark.parametrize("loop", ["start", "run_federation"])
def test_an_evaluate_fn_that_is_none_is_refused_before_anything_runs(loop):
    first = [initial()] if loop == "start" else []
    with pytest.raises(fedpfl.ConfigError, match="evaluate_fn = 3: must be a function of the round and the arrays"):
        getattr(strategies.FedPer(model=Net), loop)(AppGrid(flowers_app()), *first, evaluate_fn=3)


def test_the_mod_is_around_a_function_once():
    with pytest.raises(fedpfl.FedpflError, match="mods = 'keep': is around this function twice: in ClientApp"):
        strategies.FedPer(head="fc2").start(AppGrid(flowers_app([keep(), keep()])), initial(), num_rounds=1)


@pytest.mark.parametrize(("kept", "shared"), [("fc2", "fc1"), ("fc1", "fc2"), (("fc1", "fc2"), ""), ((), "")])
def test_tied_weights_are_kept_or_shared_together(kept, shared):
    """A whole state dict has one array under both names, and loading it takes the last one for both."""
    app = ClientApp(mods=[keep()])

    def load(message):
        model = torch.nn.ModuleDict({"fc1": torch.nn.Linear(4, 4), "mid": torch.nn.Linear(4, 4)})
        model["fc2"] = torch.nn.Linear(4, 4)
        model["fc2"].weight = model["fc1"].weight
        if message is not None:
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        return model

    @app.train()
    def train(message, context):
        model = load(message)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    def start():
        strategy = strategies.FedAvg(keep=kept, fraction_evaluate=0.0)
        return strategy.start(AppGrid(app), ArrayRecord(load(None).state_dict()), num_rounds=1)

    if not shared:
        assert start().arrays
        return
    message = rf"keeps {kept}\.weight and shares {shared}\.weight, which are one array \(tied weights\): keep or share"
    with pytest.raises(fedpfl.FedpflError, match=message):
        start()


def test_the_app_of_a_script_is_pickled_as_flowers_simulation_does():
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    app = ClientApp(mods=[strategies.keep()])

    @app.train()
    def train(message, context):
        return message

    assert isinstance(cloudpickle.loads(cloudpickle.dumps(lambda: app))(), ClientApp)
