"""The "must hold" lines of FedDecomp, through the whole of server, strategy and client."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import FEW_SAMPLES, federation, simulate

from fedpfl.client.engines import engine_for
from fedpfl.client.message_handler import handle
from fedpfl.core.errors import ConfigError
from fedpfl.core.payload import Payload
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config


def shared(folder):
    return load_file(folder.path / "global.safetensors")


def schedule(config):
    return config.method.schedule(SimpleNamespace(model=assemble(config, (1, 8, 8), 10)[0], notes={}))


TAU_ONLY = {"method": "feddecomp", "feddecomp_variant": "tau-only", "model": "small-cnn-bn", "local_epochs": 1}


@pytest.mark.parametrize("init", ["paper", "code"])
def test_without_sigma_epochs_nothing_of_sigma_changes_but_the_running_statistics(tmp_path, init):
    settings = {**TAU_ONLY, **FEW_SAMPLES}
    run = simulate(tmp_path, 2, feddecomp_init=init, num_server_rounds=2, learning_rate=0.02, **settings)
    first, last = _initial(tmp_path, 2, feddecomp_init=init, **settings), shared(run)
    moved = {name for name in first if not np.array_equal(first[name], last[name])}
    assert moved == {name for name in first if name.endswith(("running_mean", "running_var"))}


@pytest.mark.parametrize(("epochs", "expected"), [(2, 1), (3, 1), (4, 2), (5, 2), (10, 4), (20, 8)])
def test_the_default_leaves_epochs_to_tau_and_to_sigma(epochs, expected):
    tau, sigma = schedule(Config.parse({"method": "feddecomp", "local-epochs": epochs}))
    assert (tau.epochs, sigma.epochs) == (expected, epochs - expected)


@pytest.mark.parametrize("variant", ["alternating", "reverse"])
def test_a_sigma_that_would_never_train_is_refused(variant):
    values = {"method": "feddecomp", "feddecomp-variant": variant, "local-epochs": 2, "feddecomp-lora-epochs": 2}
    with pytest.raises(ConfigError, match=r"feddecomp-lora-epochs = 2: must be below local-epochs = 2, or σ never"):
        Config.parse(values)


def test_a_tau_that_never_trains_or_hardly_moves_is_said():
    def remarks(init, **settings):
        config = Config.parse({"method": "feddecomp", "feddecomp-init": init, **settings})
        return config.method.remarks(assemble(config, (1, 8, 8), 10)[0], clients=4, rounds=5)

    assert remarks("paper", **{"feddecomp-scale": 1.0}) == remarks("paper") == []
    assert remarks("paper", **{"feddecomp-scale": 1.0, "feddecomp-lora-epochs": 0}) == [
        "feddecomp: feddecomp-lora-epochs = 0: τ never trains and stays 0"
    ]
    (asleep,) = remarks("code")
    assert asleep.startswith("feddecomp: τ sleeps in base.conv2, base.fc1, head: a first step moves it less than 0.01")


def test_a_scale_of_the_programs_start_is_refused():
    Config.parse({"method": "feddecomp", "feddecomp-init": "paper", "feddecomp-scale": 0.5})
    with pytest.raises(ConfigError, match=r'feddecomp-scale = 0.5: must be left out with feddecomp-init = "code"'):
        Config.parse({"method": "feddecomp", "feddecomp-init": "code", "feddecomp-scale": 0.5})


def test_reverse_trains_tau_first_as_ever_and_keeps_sigma(tmp_path):
    settings = {"feddecomp_variant": "reverse", "local_epochs": 5, "feddecomp_lora_epochs": 2}
    config = Config.parse(federation(tmp_path, 2, method="feddecomp", **settings))
    model, sharing = assemble(config, (1, 8, 8), 10)
    tau, sigma = schedule(config)
    names = [name for name, _ in model.named_parameters()]
    of_tau = {name for name in names if ".tau_" in name}
    assert {name for name in names if tau.train(name)} == of_tau == set(sharing.shared)
    assert {name for name in names if sigma.train(name)} == set(names) - of_tau == set(sharing.personal)
    assert (tau.epochs, sigma.epochs) == (2, 3)


def test_controls_share_both_parts_or_none(tmp_path):
    settings = {"num_server_rounds": 1, "local_epochs": 1, "method": "feddecomp", **FEW_SAMPLES}
    runs = {v: simulate(tmp_path / v, 2, feddecomp_variant=v, **settings) for v in ("all-shared", "all-local")}
    together, local = (run.metrics()[0] for run in runs.values())
    assert {name.rpartition(".")[2] for name in shared(runs["all-shared"])} >= {"tau_a", "tau_b", "bias"}
    assert together["global"]["accuracy"] == together["personalised"]["weighted"]
    assert local["bytes_up"] < 2_000 < together["bytes_up"]
    assert "global" not in local
    # From the same start on the same batches: the one client alone is what the mean of one is.
    one, alone = (simulate(tmp_path / f"one-{v}", 1, feddecomp_variant=v, **settings) for v in runs)
    assert one.metrics()[0]["personalised"] == alone.metrics()[0]["personalised"]


def test_absent_clients_can_count_with_the_last_mean(tmp_path):
    settings = {"method": "feddecomp", "fraction_train": 0.5, "num_server_rounds": 1, **FEW_SAMPLES}
    skip = simulate(tmp_path / "skip", 4, **settings)
    last = simulate(tmp_path / "last", 4, feddecomp_absent_clients="last", **settings)
    first = _initial(tmp_path, 4, **settings)
    for name, array in shared(last).items():
        half = (shared(skip)[name].astype(np.float64) + first[name]) / 2
        np.testing.assert_allclose(array, half, rtol=1e-6, atol=1e-7)


def _initial(tmp_path, num_clients, **settings):
    """Return the arrays that every client starts from, by name."""
    values = federation(tmp_path, num_clients, **settings)
    handle("query", Payload(), values, {"partition-id": 0, "num-partitions": num_clients})
    engine = engine_for(Config.parse(values), num_clients, "", 0)
    _, sharing = assemble(engine.config, engine.data.input_shape, engine.data.num_classes)
    return sharing.layout.unflatten(sharing.get_shared())
