"""The client's half of strategies as a whole app: `client_app`."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
from flower_apps import CLIENTS, AppGrid, Net, initial, loader
from flwr.app import ArrayRecord, RecordDict
from support import ADAPTERS, QUICK_OF_METHOD, each_method, needed
from torch import nn

import fedpfl
from fedpfl import strategies
from fedpfl.data.federation import federated_data
from fedpfl.engine.server_run import run_federation
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.methods import methods
from fedpfl.results.resumed_run import ResumedRun
from fedpfl.setup.config import Config

DIGITS = {
    "dataset": "digits", "model": "mlp", "num-clients": CLIENTS, "num-server-rounds": 2, "local-epochs": 2,
    "batch-size": 32, "seed": 3, "partitioner": "dirichlet-client", "train-samples": 64, "test-samples": 32,
}  # fmt: skip
NEEDED = {
    **{name: needed(name) for name in ADAPTERS},
    "fedfomo": {"validation_fraction": 0.2},
    "fedreg": {"augmentation": "none"},
}


def of_method(name):
    """Return the settings of a method by fedpfl's keys, and as a strategy's keywords."""
    keys = {key.replace("_", "-"): value for key, value in QUICK_OF_METHOD.get(name, {}).items()}
    keys = {key: value for key, value in keys.items() if key != "fedreg-augmentation"}
    options = {f"fedreg-{key}" if name == "fedreg" else key.replace("_", "-"): value
           for key, value in NEEDED.get(name, {}).items()}  # fmt: skip
    keys.update(options)
    keywords = {key.removeprefix(f"{name}-").replace("-", "_"): value for key, value in keys.items()}
    return keys, keywords


@pytest.mark.parametrize("name", each_method())
def test_a_strategy_makes_the_bits_of_fedpfl_run(name, tmp_path):
    require_the_same_bits(name, *of_method(name), tmp_path)


@pytest.mark.parametrize("name", ["fedrolex", "heterofl"])
def test_slices_have_the_same_bits_in_flower_s_loop(name, tmp_path):
    widths = "1:@0.5,2:@0.25"
    require_the_same_bits(name, {"client-models": widths}, {}, tmp_path, client_models=widths)


def test_widths_are_given_to_the_nodes():
    strategy = strategies.HeteroFL(model="mlp", client_models="1:@0.5")
    grid = AppGrid(strategies.client_app(model=Net, data=mine))
    with pytest.raises(fedpfl.ConfigError, match=r"each node.s own: give it to fit or client_app"):
        strategy.start(grid, ArrayRecord(), num_rounds=1)


def require_the_same_bits(name, keys, keywords, tmp_path, **of_clients):
    places = {"output-dir": str(tmp_path / "runs"), "state-dir": str(tmp_path / "state"), "run-name": "run"}
    config = Config.parse({**DIGITS, **places, **keys, "method": name})
    with SimulationTransport(config, workers=0) as transport:
        folder = run_federation(transport, config)
    wanted = ResumedRun(folder.path).last_intact(config.run.state_dir)[1]
    divided = federated_data(config.data, CLIENTS, 3)

    def data(context):
        mine = divided.arrays(context.node_config["partition-id"])
        return mine["x_train"], mine["y_train"], mine["x_test"], mine["y_test"]

    app = strategies.client_app(model="mlp", data=data, num_classes=10, **of_clients)
    strategy = getattr(strategies, methods()[name].__name__)(
        model="mlp", local_epochs=2, seed=3, **{"batch_size": 32, **keywords}
    )
    grid = AppGrid(app)
    result = strategy.start(grid, ArrayRecord(), num_rounds=2)
    state = strategy._loop.state()
    assert state.keys() >= wanted.keys() - {"silent_rounds"}
    for key in wanted:
        np.testing.assert_array_equal(state[key], wanted[key], err_msg=key)
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


@pytest.mark.parametrize("name", ["fedfac", "scaffold"])
def test_each_message_may_come_to_another_copy_of_the_app(name):
    # As in Flower's simulation, whose actors are processes: what a node has is in its Context alone.
    cloudpickle = pytest.importorskip("cloudpickle")
    app = strategies.client_app(model=Net, data=lambda context: (mine(context), mine(context)))
    packed, results = cloudpickle.dumps(app), []
    for each in (app, lambda message, context: pickle.loads(packed)(message, context)):
        strategy = getattr(strategies, methods()[name].__name__)(model=Net, local_epochs=2, learning_rate=0.1)
        results.append(strategy.start(AppGrid(each), initial(), num_rounds=3))
    one, other = results
    scores = [
        [round_["personalised-accuracy"] for round_ in result.evaluate_metrics_clientapp.values()] for result in results
    ]
    assert scores[0] == scores[1]
    for key, array in one.arrays.items():
        np.testing.assert_array_equal(array.numpy(), other.arrays[key].numpy(), err_msg=key)


def test_fedpfls_own_loop_over_the_same_clients(tmp_path):
    app = strategies.client_app(model=Net, data=mine)
    strategy = strategies.FedPer(model=Net, local_epochs=2, output_dir=str(tmp_path), run_name="own")
    result = strategy.run_federation(AppGrid(app), num_rounds=2)
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


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 2)

    def forward(self, x):
        return self.out(x)


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (lambda: strategies.client_app("fedbn", model=Net, data=mine), "the strategy's method is fedper"),
        (lambda: strategies.client_app(model=Net, data=lambda c: 1 / 0), "raises ZeroDivisionError"),
        (lambda: strategies.client_app(model=lambda: 3, data=mine), "makes an int; it must make a torch.nn.Module"),
        (lambda: strategies.client_app(model=Net, data=mine, head="fc7"), "has no nn.Linear called 'fc7'"),
        (lambda: strategies.client_app(model=Small, data=mine), "model = 'Small': gives 2 numbers for a sample; the"),
        (
            lambda: strategies.client_app(model=Net, data=mine, train_samples=5),
            "train-samples = 5: has no effect here with partitioner = natural",
        ),
    ],
)
def test_what_is_wrong_on_the_clients_ends_the_run_in_one_line(app, said):
    with pytest.raises(fedpfl.FedpflError) as error:
        strategies.FedPer(model=Net, node_timeout=1.0).start(AppGrid(app()), initial(), num_rounds=1)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["data_dir", "dataset", "division_file", "num_clients", "partitioner"])
def test_settings_of_data_are_refused_where_a_function_hands_them_over(key):
    value = 2 if key == "num_clients" else "iid"
    with pytest.raises(fedpfl.ConfigError, match=f"{key.replace('_', '-')} = '?{value}'?: has no effect here: "):
        strategies.client_app(model=Net, data=mine, **{key: value})


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
