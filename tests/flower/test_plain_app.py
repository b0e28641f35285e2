"""Strategies on an app that knows nothing of fedpfl, and in Flower's wrappers."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flower_apps import AppGrid, Net, flowers_app, initial, plain_app, samples
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg

import fedpfl
from fedpfl import strategies


def shared_names(strategy, **options):
    grid = AppGrid(plain_app(**options))
    result = strategy.start(grid, initial(), num_rounds=2)
    return set(result.arrays), grid, result


@pytest.mark.parametrize(
    ("strategy", "personal", "whole"),
    [
        (lambda: strategies.FedPer(head="fc1"), ("fc1.",), True),
        (lambda: strategies.FedPer(keep="norm"), ("norm.", "fc2."), False),
        (lambda: strategies.FedBN(personal="fc2.*"), ("norm.", "fc2."), True),
    ],
)
def test_personal_arrays_never_reach_the_server(strategy, personal, whole):
    wanted = {name for name in Net().state_dict() if not name.startswith(personal)}
    names, grid, _ = shared_names(strategy(), personal=personal, whole=whole)
    assert names == wanted
    for _, _, message in grid.sent:
        assert set(message.content.array_records["arrays"]) == wanted
        assert message.content.config_records["config"]["server-round"] in (1, 2)
    kept = [context.state.array_records["own"] for context in grid.contexts]
    first = next(iter(kept[0]))
    assert not np.array_equal(kept[0][first].numpy(), kept[1][first].numpy())


def test_nodes_are_drawn_by_flowers_numbers_and_the_seed():
    def asked(**settings):
        grid = AppGrid(plain_app(), num_nodes=6)
        strategies.FedAvg(fraction_train=0.5, **settings).start(grid, initial(), num_rounds=3)
        return [client for kind, client, _ in grid.sent if kind == "train"], grid

    drawn, grid = asked(seed=5)
    assert len(drawn) == 9
    assert drawn == asked(seed=5)[0] != asked(seed=6)[0]
    assert sum(kind == "evaluate" for kind, _, _ in grid.sent) == 18
    assert len(asked(min_train_nodes=4)[0]) == 12


def test_no_evaluation_and_no_training():
    grid = AppGrid(plain_app())
    strategies.FedAvg(fraction_evaluate=0.0).start(grid, initial(), num_rounds=1)
    assert {kind for kind, _, _ in grid.sent} == {"train"}
    grid = AppGrid(plain_app())
    strategies.FedAvg(fraction_train=0.0).start(grid, initial(), num_rounds=1)
    assert {kind for kind, _, _ in grid.sent} == {"evaluate"}


def test_flowers_own_names_of_records_and_functions():
    seen = []

    def means(contents, key):
        seen.append((len(contents), key))
        return MetricRecord({"mine": 1.0})

    app = ClientApp()

    @app.train()
    def train(message, context):
        assert list(message.content.array_records) == ["weights"]
        metrics = MetricRecord({"size": 2 + context.node_config["partition-id"]})
        return Message(RecordDict({"weights": message.content["weights"], "m": metrics}), reply_to=message)

    strategy = strategies.FedAvg(
        fraction_evaluate=0.0, weighted_by_key="size", arrayrecord_key="weights", configrecord_key="told",
        train_metrics_aggr_fn=means,
    )  # fmt: skip
    grid = AppGrid(app)
    result = strategy.start(grid, initial(), num_rounds=1)
    assert seen == [(3, "size")]
    assert result.train_metrics_clientapp[1]["mine"] == 1.0
    assert grid.sent[0][2].content.config_records["told"]["server-round"] == 1


def test_evaluate_fn_gets_whole_models_in_which_the_initial_head_stands(caplog):
    """Flower's quickstart loads what it gets strictly."""
    seen = []
    strategies.FedPer().start(
        AppGrid(plain_app(personal=("fc2.",))), initial(), num_rounds=2,
        evaluate_fn=lambda number, arrays: seen.append((number, [*arrays])),
    )  # fmt: skip
    assert seen == [(number, [*initial()]) for number in (0, 1, 2)]
    assert caplog.text.count("evaluate_fn gets the shared arrays and the initial personal ones") == 1


# -- what goes wrong on one client -------------------------------------------------------------------------------------


def reply(message, arrays=None, **metrics):
    record = message.content.array_records["arrays"] if arrays is None else ArrayRecord(arrays)
    content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 40, **metrics})})
    return Message(content, reply_to=message)


def changed(message, name, array):
    arrays = {key: Array(value.numpy()) for key, value in message.content.array_records["arrays"].items()}
    return reply(message, {**arrays, name: array if isinstance(array, Array) else Array(array)})


def without(message, name):
    arrays = message.content.array_records["arrays"]
    return reply(message, {key: value for key, value in arrays.items() if key != name})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda m: changed(m, "fc1.bias", np.full(8, np.nan, np.float32)), "not finite"),
        (lambda m: changed(m, "fc1.bias", np.zeros(9, np.float32)), "'fc1.bias' must be floats of shape (8,)"),
        (lambda m: changed(m, "fc1.bias", np.zeros(8, np.int64)), "'fc1.bias' must be floats of shape (8,)"),
        (lambda m: changed(m, "fc1.bias", np.full(8, 1e30, np.float32)), "norm"),
        (lambda m: without(m, "fc1.bias"), "array 'fc1.bias' is missing"),
        (lambda m: reply(m, **{"num-examples": -1}), "num-examples = -1: must be a number from 0"),
        (lambda m: reply(m, **{"num-examples": [40]}), "no number num-examples (weighted_by_key), by which it would"),
        (
            lambda m: changed(m, "fc1.bias", Array("float32", (8,), "numpy.ndarray", b"xx")),
            "'fc1.bias' cannot be read (its bytes are no NumPy array)",
        ),
        (lambda m: Message(RecordDict({"arrays": m.content["arrays"]}), reply_to=m), "0 MetricRecords"),
        (lambda m: Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=m), "0 ArrayRecords"),
    ],
)
def test_a_reply_that_cannot_be_used_costs_one_line_and_nothing_else(wrong, said, caplog):
    def broken(kind, client, message):
        return wrong(message) if kind == "train" and client == 1 else None

    seen = []
    strategy = strategies.FedAvg(train_metrics_aggr_fn=lambda metrics, key: seen.append(len(metrics)))
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(AppGrid(plain_app(), broken=broken), initial(), num_rounds=2)
    assert seen == [2, 2]
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    lines = [record.getMessage() for record in caplog.records if "client 1 (node 101)" in record.getMessage()]
    assert len(lines) == 2
    assert said in lines[0]
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize("names", [["z"], ["z", "fc2.bias"]])
def test_arrays_of_a_reply_that_the_initial_ones_lack_are_told_once(names, caplog):
    def with_more(kind, client, message):
        arrays = {**message.content.array_records["arrays"], **{name: Array(np.ones(3, np.float32)) for name in names}}
        return reply(message, arrays) if kind == "train" else None

    result = strategies.FedPer(head="fc2").start(AppGrid(plain_app(("fc2.",)), broken=with_more), initial(), 2)
    assert caplog.text.count("client 0 (node 100) sends z, which initial_arrays do not have: left out") == 1
    assert "which initial_arrays" in caplog.text and "z" not in result.arrays


def from_changed(model=None, **changes):
    app = plain_app() if model is None else strategies.client_app(model=Net, data=lambda context: samples(0))
    named = {name.replace("__", "."): Array(array) for name, array in changes.items()}
    return lambda: strategies.FedAvg(model=model).start(AppGrid(app), ArrayRecord({**initial(), **named}), num_rounds=1)


NOT_FINITE = np.full((8, 6), np.nan, np.float32)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (from_changed(fc1__weight=NOT_FINITE), "initial_arrays = 'fc1.weight': holds values that are not finite"),
        (from_changed(Net, fc1__weight=NOT_FINITE), "initial_arrays = 'fc1.weight': holds values that are not finite"),
        (from_changed(fc2__bias=np.full(3, 1e39)), "initial_arrays = 'fc2.bias': holds values beyond those of float32"),
        (from_changed(fc2__bias=np.ones(3, np.longdouble)), "floats may have at most 64 bits"),
        (from_changed(norm__running_var=-np.ones(8, np.float32)), "'norm.running_var': has negative variances"),
        (
            from_changed(Net, fc3__bias=np.ones(3)),
            "initial_arrays = 'fc3.bias': is no array of the model; did you mean",
        ),
        (lambda: strategies.FedPer(state_key="a/b"), "state-key = 'a/b': must be letters, digits"),
    ],
)
def test_a_beginning_from_which_no_client_can_start_is_one_line_that_blames_no_client(start, said, caplog):
    with pytest.raises(fedpfl.FedpflError) as error:
        start()
    assert said in str(error.value)
    assert "client" not in caplog.text


def test_what_a_subclass_makes_of_the_arrays_has_to_be_finite():
    class Broken(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return ArrayRecord({**arrays, "fc1.weight": Array(NOT_FINITE)}), metrics

    with pytest.raises(
        fedpfl.ConfigError, match="changed by a wrapper or a subclass': hold values that are not finite"
    ):
        Broken().start(AppGrid(plain_app()), initial(), num_rounds=2)


def test_what_a_subclass_changes_is_sent_also_whole_numbers_or_refused():
    class Changed(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return ArrayRecord({**arrays, changed: Array(np.asarray(1000.0))}), metrics

    class InPlace(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            arrays["fc1.bias"] = Array(np.full(8, 50, np.float32))
            return arrays, metrics

    changed = "norm.num_batches_tracked"
    Changed().start(grid := AppGrid(plain_app()), initial(), num_rounds=2)
    assert grid.sent[-1][2].content["arrays"][changed].numpy().tolist() == 1000
    strategy, grid = InPlace(), AppGrid(plain_app())
    first = strategy.start(grid, initial(), num_rounds=1)
    in_another_order = ArrayRecord(dict(reversed(first.arrays.items())))
    strategy.start(grid, in_another_order, num_rounds=1)
    sent = grid.sent[6][2].content
    assert sent["arrays"]["fc1.bias"].numpy().tolist() == [50.0] * 8 and sent["config"]["round"] == 2
    changed = "control"
    with pytest.raises(fedpfl.ConfigError, match="arrays = 'control': is none of those that super"):
        Changed().start(AppGrid(plain_app()), initial(), num_rounds=1)


def test_too_few_replies_of_nodes_that_all_answered_is_no_matter_of_their_training():
    with pytest.raises(
        fedpfl.FedpflError, match=r"3 of at least 9 clients trained; no other was asked \(min-replies\)$"
    ):
        strategies.FedAvg(min_replies=9).start(AppGrid(plain_app()), initial(), num_rounds=1)


def test_a_reply_that_a_subclass_leaves_out_is_not_called_late(caplog):
    class WithoutTheLast(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, list(replies)[:-1])

    with caplog.at_level(logging.WARNING, "flwr"):
        WithoutTheLast().start(AppGrid(plain_app()), initial(), num_rounds=1)
    assert "(node 102): no reply in time, or left out by aggregate_train of WithoutTheLast" in caplog.text


def test_a_start_that_goes_on_counts_no_rounds_backwards():
    grid, strategy = AppGrid(flowers_app([strategies.keep()])), strategies.FedPer(head="fc2")
    first = strategy.start(grid, initial(), num_rounds=1)
    for rounds in (-1, 0, True):
        with pytest.raises(fedpfl.ConfigError, match=f"num-server-rounds = {rounds}"):
            strategy.start(grid, first.arrays, num_rounds=rounds)


def test_nodes_come_and_go():
    grid = AppGrid(plain_app(), num_nodes=4)
    grid.gone = {3}
    counts = []

    def coming(kind, client, message):
        if kind == "evaluate" and client == 0:
            number = message.content.config_records["config"]["server-round"]
            grid.gone = {1: {2}, 2: {0, 1}}.get(number, set())
        return None

    grid.broken = coming
    strategy = strategies.FedAvg(train_metrics_aggr_fn=lambda metrics, key: counts.append(len(metrics)))
    strategy.start(grid, initial(), num_rounds=3)
    assert counts == [3, 3, 2]
    assert {client for kind, client, _ in grid.sent if kind == "train"} == {0, 1, 2, 3}


def test_a_round_without_a_single_good_reply_changes_nothing():
    def broken(kind, client, message):
        fails = kind == "train" and message.content.config_records["config"]["server-round"] == 1
        return without(message, "fc1.bias") if fails else None

    result = strategies.FedAvg().start(AppGrid(plain_app(), broken=broken), initial(), num_rounds=2)
    assert list(result.train_metrics_clientapp) == [2]


# -- Flower's wrappers -------------------------------------------------------------------------------------------------


def float_arrays():
    return ArrayRecord({name: array for name, array in initial().items() if "tracked" not in name})


def float_app(mods=None):
    """Send back what came, with each value moved by its client's number."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message, context):
        moved = 0.2 + 0.1 * context.node_config["partition-id"]
        arrays = message.content.array_records["arrays"]
        return reply(message, {name: Array(array.numpy() + np.float32(moved)) for name, array in arrays.items()})

    return app


@pytest.mark.parametrize(
    "wrapper", [DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping]
)
@pytest.mark.parametrize("strategy", [strategies.FedAvg, strategies.FedPer])
def test_flowers_privacy_clips_and_disturbs(wrapper, strategy):
    inner, other = strategy(fraction_evaluate=0.0), strategy(fraction_evaluate=0.0)
    first = inner.shared(float_arrays())
    assert other.shared(float_arrays()) == first
    mods = [fixedclipping_mod] if wrapper is DifferentialPrivacyClientSideFixedClipping else None
    noisy = wrapper(inner, noise_multiplier=0.1, clipping_norm=1.0, num_sampled_clients=3)
    quiet = wrapper(other, noise_multiplier=0.0, clipping_norm=1.0, num_sampled_clients=3)
    grid = AppGrid(float_app(mods))
    result = noisy.start(grid, first, num_rounds=2)
    exact = quiet.start(AppGrid(float_app(mods)), first, num_rounds=1)
    assert set(result.arrays) == set(first)
    moved = np.concatenate([(exact.arrays[name].numpy() - first[name].numpy()).ravel() for name in first])
    assert np.linalg.norm(moved) == pytest.approx(1, rel=1e-4)  # all updates point the same way
    # The noise of round 1 is what round 2 starts from.
    second = [message for kind, _, message in grid.sent if kind == "train"][-1].content.array_records["arrays"]
    noise = np.concatenate([(second[name].numpy() - exact.arrays[name].numpy()).ravel() for name in first])
    assert 0.01 < noise.std() < 0.1


def test_a_method_whose_clients_get_arrays_of_their_own_refuses_a_wrapper_that_changes_the_shared_ones():
    noisy = DifferentialPrivacyServerSideFixedClipping(strategies.ClusteredFL(fraction_evaluate=0.0), 0.1, 1.0, 3)
    with pytest.raises(fedpfl.ConfigError, match="clustered-fl sends each client arrays of its own"):
        noisy.start(AppGrid(float_app()), float_arrays(), num_rounds=2)


# -- the classes -------------------------------------------------------------------------------------------------------


def test_each_method_has_a_class_that_shows_its_settings():
    import inspect

    from fedpfl.methods import methods

    for method in methods().values():
        strategy = getattr(strategies, method.__name__)
        assert issubclass(strategy, Strategy)
        assert method.paper in strategy.__doc__
        assert method.shares in strategy.__doc__
        parameters = inspect.signature(strategy).parameters
        assert {"fraction_train", "min_available_nodes", "model"} <= parameters.keys()
    assert "tau" in inspect.signature(strategies.FedFac).parameters
    assert set(dir(strategies)) >= {"FedFac", "FedReG", "client_app", "fit", "keep", "of"}
    with pytest.raises(AttributeError, match="no attribute 'FedPr'"):
        strategies.FedPr  # noqa: B018


def started(*first, name="FedPer", arrays=None, timeout=3600.0, rounds=None, train_config=None, **settings):
    """Return what makes a strategy and starts it."""
    arrays, more = initial() if arrays is None else arrays, {"timeout": timeout, "train_config": train_config}
    return lambda: getattr(strategies, name)(*first, **settings).start(AppGrid(plain_app()), arrays, rounds, **more)


WRONG = {
    "taw = 1: fedfac has no such setting; did you mean tau": started(name="FedFac", taw=1),
    "fedfac-variant = 'none': must be one of static, dynamic": started(name="FedFac", variant="none"),
    "fedprox-mu = -1.0: must be at least 0": started(name="FedProx", mu=-1.0),
    "local-epoch = 2: there is no such setting; did you mean local-epochs": started(local_epoch=2),
    "lr = 0.1: is no setting here: it is learning_rate": started(lr=0.1),
    "fraction_train = 2: must be at least 0 and at most 1": started(fraction_train=2),
    "fraction_train = 'fc2': must be at least 0": started("fc2"),
    "fraction_evaluate = True: must be at least 0 and at most": started(fraction_evaluate=True),
    "min_train_nodes = 1.5: must be a whole number of at least 0": started(min_train_nodes=1.5),
    "min_available_nodes = -1: must be a whole number of at": started(min_available_nodes=-1),
    "weighted_by_key = '': must be a name": started(weighted_by_key=""),
    "arrayrecord_key = 'extras': is a record of fedpfl's own": started(arrayrecord_key="extras"),
    "'arrays': must not be arrayrecord_key as well": started(configrecord_key="arrays"),
    "train_metrics_aggr_fn = 3: must be a function of the": started(train_metrics_aggr_fn=3),
    "keep = 3: must be a name of arrays or of a layer": started(keep=["fc1", 3]),
    "keep = None: must be a name of arrays or of a layer": started(keep=None),
    "head = None: must be the name of a layer": started(head=None),
    "listeners = 'None': must be a list of fedpfl.Listener objects": started(listeners=None),
    "keep = 'fc': no array is": started(keep=("fc",)),
    "must name what stays, as fedper keeps a head and no layer of q.lora_A": started(
        arrays=ArrayRecord({f"q.lora_{matrix}.weight": Array(np.ones((2, 2), np.float32)) for matrix in "AB"})
    ),
    "keep = (): must name what": started(arrays=ArrayRecord([np.ones((2, 3)), np.ones(2)])),
    "head = 'fc9': must be a layer": started(head="fc9"),
    "state-dir = 'kept': is each node's own: give it to keep, fit or client_app there": started(state_dir="kept"),
    "tokenizer = 'words.json': is each node's own: give it to fit or client_app there": started(
        model=Net, tokenizer="words.json"
    ),
    "num-server-rounds = -1: must be at least 1": started(rounds=-1),
    "num-server-rounds = '3': must be a whole number": started(rounds="3"),
    "train_config = 3: must be a ConfigRecord": started(train_config=3),
    "round-timeout = -1: must be > 0": started(timeout=-1),
    "round-timeout = inf: must be finite": started(timeout=float("inf")),
    "must be an ArrayRecord: ArrayRecord(mod": started(arrays=Net().state_dict()),
    "must be the state dict of the model": started(name="FedAvg", arrays=ArrayRecord()),
    "run_federation(grid) is fedpfl's own loop": lambda: strategies.FedAvg().start(AppGrid(plain_app())),
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_settings_are_one_line_before_round_1(said):
    with pytest.raises(fedpfl.ConfigError) as error:
        WRONG[said]()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_listener_sees_the_rounds_of_flowers_loop():
    seen = []

    class Seen(fedpfl.Listener):
        def round_ended(self, rule, done, state):
            seen.append((done.line["round"], done.line["clients"], rule.shared.shape))
            return False

    strategies.FedAvg(listeners=[Seen()]).start(AppGrid(plain_app()), initial(), num_rounds=2)
    assert seen == [(1, [0, 1, 2], (115,)), (2, [0, 1, 2], (115,))]


def test_a_subclass_may_change_the_arrays():
    class Halved(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return ArrayRecord({name: Array(array.numpy() / 2) for name, array in arrays.items()}), metrics

    grid = AppGrid(float_app())
    Halved(fraction_evaluate=0.0).start(grid, float_arrays(), num_rounds=2)
    first = grid.sent[0][2].content.array_records["arrays"]["fc1.bias"].numpy()
    second = grid.sent[3][2].content.array_records["arrays"]["fc1.bias"].numpy()
    np.testing.assert_allclose(second, (first + 0.3) / 2, rtol=1e-6)


def test_flowers_settings_have_flowers_defaults():
    import inspect

    ours, theirs = (inspect.signature(cls).parameters for cls in (strategies.FedAvg, FlowersFedAvg))
    assert {name: ours[name].default for name in theirs} == {name: one.default for name, one in theirs.items()}
    assert list(ours)[: len(theirs)] == list(theirs)


def of_ones_own(hook):
    """Return a strategy with a hook of its own that never calls the method's."""

    def configure_train(self, server_round, arrays, config, grid):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": server_round})})
        return [Message(content, node, "train") for node in grid.get_node_ids()]

    def aggregate_train(self, server_round, replies):
        first, *_ = [reply.content["arrays"] for reply in replies]
        return first, MetricRecord({})

    def configure_evaluate(self, server_round, arrays, config, grid):
        return [Message(RecordDict({"arrays": arrays}), node, "evaluate") for node in grid.get_node_ids()]

    return type("Own", (strategies.FedAvg,), {hook: locals()[hook]})


@pytest.mark.parametrize("hook", ["configure_train", "aggregate_train", "configure_evaluate"])
def test_a_hook_of_ones_own_that_leaves_out_the_methods_is_refused(hook):
    with pytest.raises(
        fedpfl.ConfigError, match=f"strategy = 'Own': its {hook} was not called, so that no reply"
    ) as one:
        of_ones_own(hook)().start(AppGrid(plain_app()), initial(), num_rounds=1)
    assert "\n" not in str(one.value)


def test_a_test_of_ones_own_is_left_alone():
    hook = lambda self, number, replies: MetricRecord({"n": len([*replies])})  # noqa: E731
    kind = type("Own", (of_ones_own("configure_evaluate"),), {"aggregate_evaluate": hook})
    result = kind().start(AppGrid(plain_app()), initial(), num_rounds=2)
    assert [dict(metrics) for metrics in result.evaluate_metrics_clientapp.values()] == [{"n": 3}, {"n": 3}]
    assert len(result.train_metrics_clientapp) == 2


def test_a_strategy_that_shares_nothing_since_keep_covers_all_is_told(caplog):
    strategies.FedAvg(keep="*").start(AppGrid(flowers_app([strategies.keep()])), initial(), num_rounds=1)
    assert "keep = ('*',) covers all arrays: none is shared, and each node trains alone" in caplog.text
