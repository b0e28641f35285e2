"""The client's half of strategies: `client_app`, and `personal` around training functions of one's own."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from apps import CLIENTS, FEATURES, AppGrid, Net, accuracy, initial, loader, samples, training
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from support import QUICK_OF_METHOD, each_method
from torch import nn

import fedpfl
from fedpfl import strategies
from fedpfl.data.federation import federated_data
from fedpfl.engine.server_run import run_federation
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.methods import methods
from fedpfl.results.earlier_run import EarlierRun
from fedpfl.setup.config import Config

DIGITS = {
    "dataset": "digits", "model": "mlp", "num-clients": CLIENTS, "num-server-rounds": 2, "local-epochs": 2,
    "batch-size": 32, "seed": 3, "partitioner": "dirichlet-client", "train-samples": 64, "test-samples": 32,
}  # fmt: skip
NEEDED = {
    "fedsa-lora": {"trainable": "lora"}, "flexlora": {"trainable": "lora"}, "fedfomo": {"validation_fraction": 0.2},
    "fedreg": {"augmentation": "none"},
}  # fmt: skip


def of_method(name):
    """Return the settings of a method by fedpfl's keys, and as a strategy's keywords."""
    keys = {key.replace("_", "-"): value for key, value in QUICK_OF_METHOD.get(name, {}).items()}
    keys = {key: value for key, value in keys.items() if key != "fedreg-augmentation"}
    own = {f"fedreg-{key}" if name == "fedreg" else key.replace("_", "-"): value
           for key, value in NEEDED.get(name, {}).items()}  # fmt: skip
    keys.update(own)
    words = {key.removeprefix(f"{name}-").replace("-", "_"): value for key, value in keys.items()}
    return keys, words


@pytest.mark.parametrize("name", each_method())
def test_a_strategy_makes_the_bits_of_fedpfl_run(name, tmp_path):
    keys, words = of_method(name)
    places = {"output-dir": str(tmp_path / "runs"), "state-dir": str(tmp_path / "state"), "run-name": "run"}
    config = Config.parse({**DIGITS, **places, **keys, "method": name})
    with SimulationTransport(config, workers=0) as transport:
        folder = run_federation(transport, config)
    wanted = EarlierRun(folder.path).last_intact(config.run.state_dir)[1]
    divided = federated_data(config.data, CLIENTS, 3)

    def data(context):
        mine = divided.arrays(context.node_config["partition-id"])
        return mine["x_train"], mine["y_train"], mine["x_test"], mine["y_test"]

    app = strategies.client_app(model="mlp", data=data, num_classes=10)
    strategy = getattr(strategies, methods()[name].__name__)(
        model="mlp", local_epochs=2, seed=3, **{"batch_size": 32, **words}
    )
    grid = AppGrid(app)
    result = strategy.start(grid, ArrayRecord(), num_rounds=2)
    found = strategy._loop.state()
    assert found.keys() >= wanted.keys() - {"silent_rounds"}
    for key in wanted:
        np.testing.assert_array_equal(found[key], wanted[key], err_msg=key)
    # The same tests: here the mean over samples, there also the mean over clients.
    said = folder.metrics()[-1]["personalised"]["weighted"]
    assert result.evaluate_metrics_clientapp[2]["personalised-accuracy"] == pytest.approx(said, abs=1e-9)


# -- client_app --------------------------------------------------------------------------------------------------------


def mine(context):
    return loader(context.node_config["partition-id"])


def test_an_own_model_and_loaders_and_named_arrays():
    app = strategies.client_app("fedper", model=Net, data=lambda context: (mine(context), mine(context)))
    grid = AppGrid(app)
    strategy = strategies.FedPer(model=Net, local_epochs=5, learning_rate=0.1)
    result = strategy.start(grid, initial(), num_rounds=3)
    floats = {"fc1.weight", "fc1.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"}
    assert set(result.arrays) == floats
    trained = [message.content for kind, _, message in grid.sent if kind == "train"]
    assert set(trained[0].array_records["arrays"]) == floats
    np.testing.assert_array_equal(trained[0]["arrays"]["fc1.weight"].numpy(), initial()["fc1.weight"].numpy())
    model = Net()
    model.load_state_dict(result.arrays.to_torch_state_dict(), strict=False)
    assert result.evaluate_metrics_clientapp[3]["personalised-accuracy"] > 0.7
    # The heads are in Flower's Context, of the last two rounds alone.
    assert all(len(context.state.array_records) == 2 for context in grid.contexts)


class OfTwo(torch.nn.Module):
    """Takes numbers and tokens by name."""

    def __init__(self):
        super().__init__()
        self.tokens, self.out = torch.nn.Embedding(9, 4), torch.nn.Linear(3 + 4, 2)

    def forward(self, numbers, ids):
        return self.out(torch.cat([numbers, self.tokens(ids).mean(1)], 1))


@pytest.mark.parametrize("model", [OfTwo, OfTwo()], ids=["class", "module"])
def test_a_model_of_several_inputs(model):
    def data(context):
        rng = np.random.default_rng(context.node_config["partition-id"])
        return {"numbers": rng.normal(size=(20, 3)), "ids": rng.integers(0, 9, (20, 5))}, np.arange(20) % 2

    def run(**head):
        app = strategies.client_app("fedper", model=model, data=data, **head)
        return strategies.FedPer(model=model, **head).start(AppGrid(app), ArrayRecord(), num_rounds=1)

    result = run()
    assert set(result.arrays) == {"tokens.weight"}
    assert result.evaluate_metrics_clientapp[1]["personalised-loss"] > 0
    with pytest.raises(fedpfl.FedpflError, match="head = 'out': must be empty where samples have several inputs"):
        run(head="out")


def test_personal_arrays_below_a_folder(tmp_path):
    app = strategies.client_app(model=Net, data=mine, state_dir=tmp_path)
    grid = AppGrid(app)
    strategies.FedPer(model=Net).start(grid, initial(), num_rounds=2)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2 * CLIENTS
    assert not any(context.state for context in grid.contexts)


def test_fedpfls_own_loop_over_the_same_clients(tmp_path):
    app = strategies.client_app(model=Net, data=mine)
    strategy = strategies.FedPer(model=Net, local_epochs=2, output_dir=str(tmp_path), run_name="own")
    result = strategy.start(AppGrid(app), num_rounds=2)
    assert strategy.folder.path == tmp_path / "own"
    assert strategy.folder.finished
    assert set(result.arrays) == {name for name in Net().state_dict() if "fc2" not in name and "tracked" not in name}
    assert list(result.train_metrics_clientapp) == [1, 2]
    lines = strategy.folder.metrics()
    assert result.evaluate_metrics_clientapp[2]["personalised-accuracy"] == lines[1]["personalised"]["accuracy"]
    # The same bits as Flower's loop.
    again = strategies.FedPer(model=Net, local_epochs=2)
    other = again.start(AppGrid(strategies.client_app(model=Net, data=mine)), ArrayRecord(), num_rounds=2)
    for name in result.arrays:
        np.testing.assert_array_equal(result.arrays[name].numpy(), other.arrays[name].numpy())


class Mine(fedpfl.Method):
    """Keeps the first layer."""

    name = "mine"
    paper = "none"
    shares = "all but the first layer"

    def is_shared(self, name, model):
        return "fc1" not in name


def test_a_method_of_ones_own():
    app = strategies.client_app(Mine, model=Net, data=mine)
    result = strategies.of(Mine)(model=Net).start(AppGrid(app), initial(), num_rounds=1)
    assert "fc2.weight" in result.arrays
    assert "fc1.weight" not in result.arrays


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (lambda: strategies.client_app("fedbn", model=Net, data=mine), "the strategy's method is fedper"),
        (lambda: strategies.client_app(model=Net, data=lambda c: 1 / 0), "raises ZeroDivisionError"),
        (lambda: strategies.client_app(model=lambda: 3, data=mine), "makes an int; it must make a torch.nn.Module"),
        (lambda: strategies.client_app(model=Net, data=mine, head="fc7"), "has no nn.Linear called 'fc7'"),
    ],
)
def test_what_is_wrong_on_the_clients_ends_the_run_in_one_line(app, said):
    with pytest.raises(fedpfl.FedpflError) as error:
        strategies.FedPer(model=Net, node_timeout=1.0).start(AppGrid(app()), initial(), num_rounds=1)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "sent",
    [
        {"state-dir": "/"}, {"data": "/etc/passwd"}, {"augmentation": "os:system"}, {"metrics": "os:system"},
        {"model": "mlp"}, {"method": "os:system"}, {"local-epochs": "1"}, {"no-such-setting": 1},
    ],
)  # fmt: skip
def test_a_server_can_set_no_place_and_name_no_code(sent):
    import json

    def false(kind, client, message):
        record = message.content.config_records["config"]
        record["fedpfl"] = json.dumps({"method": "fedper", **sent})
        return None

    grid = AppGrid(strategies.client_app(model=Net, data=mine), broken=false)
    with pytest.raises(fedpfl.FedpflError) as error:
        strategies.FedPer(model=Net, node_timeout=1.0).start(grid, initial(), num_rounds=1)
    assert next(iter(sent)) in str(error.value)


def test_a_node_that_has_lost_its_context_says_what_keeps_it(caplog):
    grid = AppGrid(strategies.client_app(model=Net, data=mine))

    def forgets(kind, client, message):
        number = message.content.config_records["config"].get("server-round")
        if kind == "train" and client == 1 and number == 2:
            grid.contexts[1].state = RecordDict()
        return None

    grid.broken = forgets
    with caplog.at_level(logging.WARNING, "flwr"):
        strategies.FedPer(model=Net).start(grid, initial(), num_rounds=2)
    assert "personal arrays of round 1 are not here" in caplog.text
    assert "give state_dir" in caplog.text


# -- personal ----------------------------------------------------------------------------------------------------------


def asked(app, model=Net):
    """Have an app answer the question of a strategy that has the model."""

    @app.query()
    def query(message, context):
        with strategies.personal(message, context, model) as local:
            return local.describe(mine(context))

    return app


def own_loop(**options):
    """An app whose own loop trains, by `personal`."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        batches = mine(context)
        torch.manual_seed(context.node_config["partition-id"])
        model = Net()
        with strategies.personal(message, context, model, **options) as local:
            loss = training(model, batches)
        return local.reply({"train_loss": loss, "num-examples": len(batches.dataset)})

    @app.evaluate()
    def evaluate(message, context):
        batches, model = mine(context), Net()
        with strategies.personal(message, context, model, **options) as local:
            found = accuracy(model, batches)
        return local.reply({"accuracy": found, "num-examples": len(batches.dataset)})

    return app


def by_fit(model=Net, **options):
    """An app that trains by the method's phases."""
    app = asked(ClientApp(), model)

    @app.train()
    def train(message, context):
        with strategies.personal(message, context, model, **options) as local:
            local.fit(mine(context))
        return local.reply()

    @app.evaluate()
    def evaluate(message, context):
        batches = mine(context)
        with strategies.personal(message, context, model, **options) as local:
            found = local.evaluate(batches, train=batches)
        return local.reply(found)

    return app


@pytest.mark.parametrize(
    ("strategy", "personal"),
    [("FedAvg", ()), ("FedPer", ("fc2.",)), ("FedBN", ("norm.",)), ("LGFedAvg", ("fc1.", "norm."))],
)
def test_a_loop_of_ones_own(strategy, personal):
    grid = AppGrid(own_loop())
    result = getattr(strategies, strategy)().start(grid, initial(), num_rounds=6)
    wanted = {name for name in Net().state_dict() if not name.startswith(personal or "-")}
    assert set(result.arrays) == wanted
    scores = [metrics["accuracy"] for metrics in result.evaluate_metrics_clientapp.values()]
    assert scores[-1] > scores[0]
    if strategy in ("FedPer", "LGFedAvg"):
        assert scores[-1] > 0.7
    kept = [context.state.array_records for context in grid.contexts]
    for records in kept:
        for record in records.values():
            assert set(record) == {
                f"head.{name[4:]}" if name.startswith("fc2.") else f"base.{name}"
                for name in Net().state_dict() if name.startswith(personal) and "tracked" not in name
            }  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("FedPer", {}), ("FedBN", {}), ("LGFedAvg", {}), ("FedRep", {"p_epochs": 1}), ("Ditto", {"p_epochs": 1}),
        ("FedDecomp", {"lora_epochs": 1}), ("FedFac", {}), ("FedReG", {"augmentation": "none"}),
    ],
)  # fmt: skip
def test_the_methods_own_phases_in_a_function_of_ones_own(strategy, settings):
    made = getattr(strategies, strategy)(model=Net, local_epochs=4, learning_rate=0.1, **settings)
    grid = AppGrid(by_fit())
    result = made.start(grid, initial(), num_rounds=4)
    assert len(result.train_metrics_clientapp) == 4
    assert result.evaluate_metrics_clientapp[4]["personalised-accuracy"] > 0.4
    # The same bits as the app that does it all.
    whole = getattr(strategies, strategy)(model=Net, local_epochs=4, learning_rate=0.1, **settings)
    app = strategies.client_app(model=Net, data=lambda context: (mine(context), mine(context)))
    other = whole.start(AppGrid(app), initial(), num_rounds=4)
    assert result.arrays.keys() == other.arrays.keys()
    for name in result.arrays:
        np.testing.assert_array_equal(result.arrays[name].numpy(), other.arrays[name].numpy())


def test_the_users_model_predicts_like_the_method_after_fit():
    seen = []
    app = asked(ClientApp())

    @app.train()
    def train(message, context):
        model, batches = Net(), mine(context)
        with strategies.personal(message, context, model) as local:
            local.fit(batches)
        seen.append(accuracy(model, batches))
        return local.reply({"mine": 1.0})

    strategy = strategies.Ditto(model=Net, local_epochs=8, learning_rate=0.1, fraction_evaluate=0.0)
    result = strategy.start(AppGrid(app), initial(), num_rounds=2)
    assert min(seen[-CLIENTS:]) > 0.8
    assert result.train_metrics_clientapp[2]["mine"] == 1.0


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("FedRep", "method = 'fedrep': trains in phases of its own, which a loop of your own does not: call fit"),
        ("Ditto", "method = 'ditto': changes the model"),
    ],
)
def test_a_method_with_phases_of_its_own_says_to_use_fit(strategy, said):
    class Caught(AppGrid):
        def push_messages(self, messages):
            try:
                return super().push_messages(messages)
            except fedpfl.FedpflError as error:
                self.error = str(error)
                return []

    grid = Caught(asked(own_loop()))
    made = getattr(strategies, strategy)(model=Net, fraction_evaluate=0.0)
    made.start(grid, initial(), num_rounds=1)
    assert said in grid.error
    assert "fit" in grid.error


def one_message(strategy=None):
    """Return a message to train, and its context."""
    grid = AppGrid(ClientApp(), broken=lambda kind, client, message: Message(RecordDict(), reply_to=message))
    (strategy or strategies.FedPer()).start(grid, initial(), num_rounds=1)
    return grid.sent[0][2], grid.contexts[0]


def test_training_another_module_is_noticed():
    message, context = one_message()
    changed = pytest.raises(fedpfl.ConfigError, match="none of its arrays changed")
    with changed, strategies.personal(message, context, Net()):
        training(Net(), loader(0))


def test_an_error_in_the_training_keeps_nothing():
    message, context = one_message()
    with pytest.raises(ZeroDivisionError), strategies.personal(message, context, Net()) as local:
        training(local.model, loader(0))
        _ = 1 / 0
    assert not context.state


def test_a_diverged_loop_keeps_nothing():
    message, context = one_message()
    diverged = pytest.raises(fedpfl.FedpflError, match="diverged in round 1")
    with diverged, strategies.personal(message, context, Net()) as local, torch.no_grad():
        local.model.fc2.weight.fill_(torch.nan)
    assert not context.state


def test_a_class_begins_with_the_same_personal_arrays_everywhere():
    message, context = one_message()
    heads = []
    for _ in range(2):
        torch.rand(3)
        with strategies.personal(message, context, Net, "fedper") as local:
            heads.append(local.model.fc2.weight.detach().clone())
            training(local.model, loader(0))
    assert torch.equal(*heads)


def test_a_class_that_draws_from_numpy_begins_alike_too():
    class Drawn(Net):
        def __init__(self):
            super().__init__()
            with torch.no_grad():
                self.fc2.bias.copy_(torch.from_numpy(np.random.rand(3).astype("float32")))

    message, context = one_message()
    biases = []
    for _ in range(2):
        np.random.rand(5)
        with strategies.personal(message, context, Drawn) as local:
            biases.append(local.model.fc2.bias.detach().clone())
            training(local.model, loader(0))
    assert torch.equal(*biases)


def test_a_message_of_another_strategy_and_a_reply_without_its_weight():
    message, context = one_message()
    with strategies.personal(message, context, Net()) as local:
        training(local.model, loader(0))
    with pytest.raises(fedpfl.ConfigError, match="must have num-examples"):
        local.reply({"loss": 1.0})
    other = pytest.raises(fedpfl.ConfigError, match="the strategy's method is fedper")
    with other, strategies.personal(message, context, Net(), strategies.FedBN):
        pass
    plain = Message(RecordDict({"arrays": initial(), "config": ConfigRecord({"server-round": 1})}), 1, "train")
    other = pytest.raises(fedpfl.LayoutError, match="no strategy of fedpfl sent this message")
    with other, strategies.personal(plain, context, Net()):
        pass


class Several(nn.Module):
    """Has two heads, a buffer of whole numbers and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.tensor([2**40, 7]))
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU())
        self.main, self.aux = nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x):
        return self.main(self.body(x)) * self.temperature


def test_several_heads_whole_numbers_and_a_parameter_without_a_layer():
    app = ClientApp()

    @app.train()
    def train(message, context):
        model = Several()
        with strategies.personal(message, context, model, head="main") as local:
            training(model, mine(context))
        return local.reply({"num-examples": 40})

    first = ArrayRecord(Several().state_dict())
    grid = AppGrid(app)
    result = strategies.FedPer(head="main", fraction_evaluate=0.0).start(grid, first, num_rounds=2)
    assert set(result.arrays) == {name for name in first if not name.startswith("main.")}
    assert result.arrays["seen"].numpy().tolist() == [2**40, 7]
    assert samples(0)[0].dtype == np.float32
    assert isinstance(result.arrays["temperature"], Array)
