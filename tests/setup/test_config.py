from __future__ import annotations

import pickle
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedpfl
from fedpfl.core.errors import ConfigError
from fedpfl.core.option import TaskFacts
from fedpfl.core.settings import by_key
from fedpfl.methods import methods
from fedpfl.methods.feddecomp.low_rank import INITS
from fedpfl.methods.fedreg import THRESHOLDS
from fedpfl.methods.settings import ALIASES, SETTINGS
from fedpfl.setup import reference
from fedpfl.setup.all_settings import all_settings, check_keys, owners, require_absolute, unused
from fedpfl.setup.config import Config
from fedpfl.training.losses import KINDS
from fedpfl.training.optim import OPTIMIZERS

ROOT = Path(__file__).parents[2]


def test_keys_are_unique_kebab_case():
    keys = list(all_settings())
    assert len(keys) == len(set(keys))
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key) for key in keys)


def test_pyproject_and_the_reference_pages_are_what_the_code_says():
    assert reference.pyproject_block() in (ROOT / "pyproject.toml").read_text()
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    assert page == reference.settings_page()
    assert "|  |" not in page, "what the setting allows belongs into its form"
    assert (ROOT / "fedpfl" / "api" / "settings.pyi").read_text() == reference.settings_stub()
    assert (ROOT / "fedpfl" / "strategies.pyi").read_text() == reference.strategies_stub()
    assert reference.hooks_table() in (ROOT / "docs" / "reference" / "hooks.md").read_text()


@pytest.mark.parametrize("key", ["output-dir", "state-dir", "data-dir", "data"])
def test_places_must_not_depend_on_the_working_directory(key):
    require_absolute({key: "/absolute"})
    require_absolute({key: "~/in/the/home"})
    require_absolute({key: ""})
    with pytest.raises(ConfigError, match=rf"{key} = 'runs': must be absolute or start with ~"):
        require_absolute({key: "runs"})


def test_pyproject_defaults_are_the_code_s_defaults():
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert list(written) == list(all_settings())
    flat = Config.parse({}).flat()
    assert {key: written[key] for key in flat} == flat
    assert all(type(written[key]) is type(flat[key]) for key in flat)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("method", "fedmagic", "must be one of "),
        ("dirichlet-alpha", 0, "must be > 0"),
        ("dirichlet-alpha", -1.5, "must be > 0"),
        ("dirichlet-alpha", float("nan"), "must be > 0"),
        ("learning-rate", float("inf"), "must be finite"),
        ("fraction-train", 1.5, "must be > 0 and at most 1"),
        ("fraction-train", 0.0, "must be > 0 and at most 1"),
        ("feddecomp-rank-conv", 0.0, "must be > 0 and at most 1"),
        ("feddecomp-rank-linear", 1.01, "must be > 0 and at most 1"),
        ("feddecomp-lora-epochs", 5, "must be below local-epochs = 5"),
        ("feddecomp-lora-epochs", -2, "must be at least -1"),
        ("num-server-rounds", 0, "must be at least 1"),
        ("num-server-rounds", 2.5, "must be a whole number"),
        ("num-server-rounds", True, "must be a whole number"),
        ("batch-size", "20", "must be a whole number"),
        ("seed", -1, "must be at least 0"),
        ("momentum", 1.0, "must be at least 0 and at most"),
        ("model", "resnet1000", "must be one of"),
        ("wire-dtype", "int8", "must be one of float32, float16"),
        ("run-name", "../../etc", "must be letters, digits"),
        ("resume", True, "needs run-name"),
        ("resume", "yes", "must be true or false"),
    ],
)
def test_a_wrong_value_is_one_line_with_key_value_and_what_is_allowed(key, value, allowed):
    with pytest.raises(ConfigError) as error:
        Config.parse({"method": "feddecomp", "local-epochs": 5, key: value})
    line = str(error.value)
    assert line.startswith(f"{key} = {value!r}: ")
    assert allowed in line
    assert "\n" not in line


def test_unknown_keys_are_named_with_the_nearest_known():
    with pytest.raises(ConfigError, match="did you mean learning-rate"):
        check_keys({"learning-rates": 0.1})
    check_keys(Config.parse({}).flat())


def test_methods_that_share_a_setting_describe_it_alike():
    fields = all_settings()
    for key, names in owners().items():
        for name in names:
            field = by_key(methods()[name].Settings, name)[key]
            assert field.default == fields[key].default and field.metadata["doc"] == fields[key].metadata["doc"], key
            assert field.metadata["limits"].describe() == fields[key].metadata["limits"].describe(), key
    assert owners()["head-layers"] == ("fedbabu", "fedper", "fedreg", "fedrep", "lg-fedavg")
    assert unused({"head-layers": 2}, "fedavg") == [
        "settings of other methods, which fedavg does not use: head-layers of fedbabu, fedper, fedreg, fedrep, "
        "lg-fedavg"
    ]


def test_the_settings_of_methods_are_those_in_their_table():
    assert {name: method.Settings for name, method in methods().items()} == SETTINGS
    assert {alias: name for name, method in methods().items() for alias in method.aliases} == ALIASES
    fields = all_settings()
    for key, choices in (("fedreg-threshold", THRESHOLDS), ("feddecomp-init", INITS),
                         ("optimizer", ("sgd", *OPTIMIZERS)), ("loss", KINDS)):  # fmt: skip
        assert fields[key].metadata["limits"].choices() == tuple(choices), key


def test_aliases_use_the_method_s_own_settings():
    config = Config.parse({"method": "fedlora", "feddecomp-rank-conv": 0.25})
    assert config.method.name == "feddecomp"
    assert config.method.settings.rank_conv == 0.25


def test_settings_of_other_methods_do_not_matter():
    assert Config.parse({"method": "fedavg", "feddecomp-lora-epochs": 99, "local-epochs": 1}).method.name == "fedavg"


def test_settings_of_other_methods_are_named_where_they_were_given():
    defaults = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert unused(defaults, "fedavg") == []
    values = {**defaults, "ditto-pull": 3.0, "fedprox-mu": 1, "fedavg-weights": "uniform"}
    assert unused(values, "fedavg") == [
        "settings of other methods, which fedavg does not use: ditto-pull of ditto; fedprox-mu of fedprox"
    ]


@pytest.mark.parametrize(
    ("settings", "simulated", "on_devices"),
    [
        ({"new-nodes": "join"}, "new-nodes = join does nothing: all clients of a simulation are there", ""),
        ({"server-learning-rate": 0.1, "server-momentum": 0.5}, *2 * ["= none: server-learning-rate, server-momentum"]),
        ({"server-optimizer": "yogi", "server-learning-rate": 0.1, "method": "fedavg"}, "", ""),
        ({"robust-false-share": 0.3}, *2 * ["not used with robust-aggregation = none: robust-false-share"]),
        ({"dp-clip-norm": 2.0, "dp-where": "server"}, *2 * ["dp-noise-multiplier = 0.0: dp-clip-norm, dp-where"]),
        ({"dp-clip-norm": 2.0, "dp-noise-multiplier": 1.0, "method": "fedavg"}, "", ""),
        ({"model": "timm:resnet10t", "download-weights": True}, *2 * ['expect normalize = "imagenet", not half']),
        ({"model": "timm:resnet10t", "download-weights": True, "normalize": "imagenet"}, "", ""),
    ],
)
def test_settings_of_the_rounds_that_change_nothing_are_named(settings, simulated, on_devices):
    config = Config.parse(settings)
    for real, message in ((False, simulated), (True, on_devices)):
        remarks = config.remarks(TaskFacts(None, 3, 99, real))
        assert len(remarks) == bool(message)
        assert message in " ".join(remarks)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("robust-aggregation", "clip"), ("update-norm-limit", 0.0), ("max-weight-share", 0.5), ("dp-epsilon", 4.0),
        ("dp-noise-multiplier", 1.0), ("server-optimizer", "adam"),
    ],
)  # fmt: skip
def test_settings_of_what_clients_send_are_refused_where_nothing_is_shared(key, value, tmp_path):
    assert Config.parse({"method": "fedavg", key: value}).flat()[key] == value
    with pytest.raises(ConfigError, match=f"{key} = .*: must be .* for local: its clients share nothing"):
        Config.parse({"method": "local", key: value})
    data = [(np.random.default_rng(i).normal(size=(30, 2)).astype(np.float32), np.arange(30) % 2) for i in range(2)]
    few = {"data": data, "model": "mlp", "workers": 0, "quiet": True}
    mine = type("Mine", (fedpfl.Method,), {"name": "mine", "is_shared": lambda self, name, model: False})
    with pytest.raises(ConfigError, match=f"{key} = .*: must be .* for mine: its clients share nothing"):
        fedpfl.run(mine, output_dir=tmp_path, **few, **{key.replace("-", "_"): value})


def test_no_value_makes_an_error_of_its_own_length():
    long = "x" * 10**6
    for settings in (
        {"metrics": long},
        {"method": long},
        {long: 1},
        {"loss": long},
        {"partitioner": long},
        {"seed": long},
    ):
        with pytest.raises(ConfigError) as told:
            check_keys(settings)
            Config.parse(settings)
        assert len(str(told.value)) < 10_000
    path = "/" + "folder/" * 500
    with pytest.raises(ConfigError, match=path):
        raise ConfigError("data", path, "no such folder")


def test_config_errors_cross_processes():
    error = pickle.loads(pickle.dumps(ConfigError("seed", -1, "must be at least 0")))
    assert str(error) == "seed = -1: must be at least 0"
