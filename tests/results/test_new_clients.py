"""Clients that were held out: drawn by the seed, never trained, tested on what the run left."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from in_process import call_fedpfl
from safetensors.torch import load_file
from support import FEW_SAMPLES, simulate, simulate_and_listen

from fedpfl import models
from fedpfl.client.engine import Engine
from fedpfl.client.options.after_the_end import of_personal_part
from fedpfl.core.errors import ConfigError, DataError
from fedpfl.core.server_view import new_clients
from fedpfl.data.federation import federated_data
from fedpfl.layers.memory import in_twin
from fedpfl.results.export import export_personal
from fedpfl.results.new_clients import MODES, Simulation, try_new_clients
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.training.phase import Phase

QUICK = {**FEW_SAMPLES, "num_server_rounds": 2, "local_epochs": 1, "new_clients": 0.25, "evaluate_every": 0}


def held_out(run):
    """Return the new ones of four clients."""
    return new_clients(run.seed, run.new_clients, 4)


def test_they_are_drawn_by_the_seed_and_never_all():
    def drawn(share, seed=1, clients=20):
        return new_clients(seed, share, clients)

    assert drawn(0.0) == []
    assert len(drawn(0.1)) == 2
    assert drawn(0.1) == drawn(0.1) != drawn(0.1, seed=2)
    assert len(drawn(0.9, clients=1)) == 0


def test_they_get_no_message_but_the_query(tmp_path):
    folder, grid = simulate_and_listen(tmp_path, 4, method="fedavg", **QUICK)
    new = held_out(Config.parse(folder.config()).run)
    assert len(new) == 1
    assert {kind for kind, client, _, _ in grid.log if client in new} == {"query"}
    assert folder.metrics()[-1]["clients"] == [i for i in range(4) if i not in new]
    assert str(new[0]) not in folder.metrics()[-1]["personalised"]["each"]


@pytest.mark.parametrize("method", ["fedavg", "local", "feddecomp", "fedsplit", "fedfac"])
def test_every_mode_tests_them(tmp_path, method):
    settings = {"feddecomp_lora_epochs": 1} if method == "feddecomp" else {}
    run = simulate(tmp_path, 4, method=method, **{**QUICK, "local_epochs": 2, **settings})
    for mode in MODES:
        result = try_new_clients(run, mode)
        assert list(result["each"]) == [str(i) for i in held_out(Config.parse(run.config()).run)]
        assert 0 <= result["weighted"] <= 1
    assert result == try_new_clients(run, mode)


def test_the_ensemble_is_the_mean_of_the_exported_models_outputs(tmp_path):
    run = simulate(tmp_path, 4, method="fedfac", **QUICK)
    config = Config.parse(run.config())
    new = held_out(config.run)[0]
    x, y = federated_data(config.data, 4, config.run.seed).test(new)
    outputs = []
    for path in export_personal(run, [i for i in range(4) if i != new]):
        model = models.build("small-cnn", (1, 8, 8), 10).eval()
        model.load_state_dict(load_file(path))
        with torch.no_grad():
            outputs.append(model(x))
    expected = float((torch.stack(outputs).mean(0).argmax(1) == y).float().mean())
    assert try_new_clients(run, "ensemble")["accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("variant", "setting", "options"),
    [
        ("static", 0.1, {}),
        ("dynamic", 0.1, {}),
        ("dynamic", 0.0, {"weight_decay": 0.1}),
        ("static", 0.1, {"optimizer": "adamw"}),
    ],
)
def test_local_training_leaves_what_is_shared_alone(tmp_path, variant, setting, options):
    run = simulate(tmp_path, 4, method="fedfac", fedfac_variant=variant, weight_decay=setting, **QUICK)
    config, task = Config.parse(run.config()), run.task()
    engine = Engine(config, federated_data(config.data, 4, config.run.seed), 4)
    last, stored = run.checkpoint()
    left = Simulation(engine, task, last, stored)
    local = left.load(held_out(config.run)[0])
    before = {name: array.detach().clone() for name, array in engine.model.state_dict().items()}
    personal = engine.sharing.personal_elements()
    assert set(personal) == {"base.conv2.weight", "base.conv2.bias"}
    phases = of_personal_part([Phase(train=lambda name: True, epochs=1, **options)], engine.sharing, engine.model)
    engine.run_phases(phases, local, "batches")
    for name, array in engine.model.state_dict().items():
        shared = ~personal[name] if name in personal else torch.ones_like(array, dtype=torch.bool)
        assert torch.equal(array[shared], before[name][shared])
        assert name not in personal or not torch.equal(array[personal[name]], before[name][personal[name]])
    split = stored["split"]
    assert np.array_equal(personal["base.conv2.bias"].numpy(), split == 0)


def test_statistics_that_are_personal_become_those_of_the_new_client(tmp_path, monkeypatch):
    settings = {**QUICK, "num_server_rounds": 1, "model": "resnet8", "fedavg_share_buffers": False}
    run = simulate(tmp_path, 4, method="fedavg", **settings)
    tested = models_tested(monkeypatch)
    try_new_clients(run, "local-train")
    ((engine, after),) = tested
    common = engine.sharing.layout.unflatten(run.checkpoint()[1]["shared"])
    assert all(np.array_equal(after[name].numpy(), array) for name, array in common.items())
    statistics = {name: array for name, array in after.items() if name not in common}
    assert {name.rpartition(".")[2] for name in statistics} >= {"running_mean", "running_var"}
    assert all(array.abs().sum() > 0 for name, array in statistics.items() if name.endswith("running_mean"))


def models_tested(monkeypatch):
    """Collect (engine, state dict) of every model that is tested."""
    tested_models = []
    score = Engine.score

    def recorded(engine, forward, local, samples):
        tested_models.append((engine, {name: array.clone() for name, array in local.model.state_dict().items()}))
        return score(engine, forward, local, samples)

    monkeypatch.setattr(Engine, "score", recorded)
    return tested_models


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_local_training_is_that_of_the_run_s_optimiser(tmp_path, monkeypatch, optimizer):
    settings = {**QUICK, "model": "mlp", "weight_decay": 0.5, "clip_norm": 0.5, "momentum": 0.5, "batch_size": 1000}
    run = simulate(tmp_path, 4, method="lg-fedavg", optimizer=optimizer, **{**settings, "local_epochs": 3})
    config = Config.parse(run.config())
    new = held_out(config.run)[0]
    tested = models_tested(monkeypatch)
    try_new_clients(run, "local-train")
    ((engine, after),) = tested
    model, sharing = assemble(config, (1, 8, 8), 10)
    sharing.set_shared(run.checkpoint()[1]["shared"])
    kept = [array for name, array in model.named_parameters() if name in sharing.personal]
    rate, decay = config.training.learning_rate, 0.5
    by_hand = {
        "sgd": lambda: torch.optim.SGD(kept, rate, momentum=0.5, weight_decay=decay),
        "adam": lambda: torch.optim.Adam(kept, rate, (0.5, 0.999), weight_decay=decay),
        "adamw": lambda: torch.optim.AdamW(kept, rate, (0.5, 0.999), weight_decay=decay),
    }[optimizer]()
    x, y = engine.data.train(new)
    for _ in range(3):
        by_hand.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(kept, 0.5)
        by_hand.step()
    for name, array in model.state_dict().items():
        assert (after[name] - array).abs().mean() < 1e-5, name  # single ones are noise where a gradient is near 0


def test_what_was_trained_locally_is_what_is_tested(tmp_path, monkeypatch):
    run = simulate(tmp_path, 4, method="fedfac", **QUICK)  # dynamic: the server has the mean of personal channels, too
    tested_models = models_tested(monkeypatch)
    try_new_clients(run, "local-train")
    (engine, tested), = tested_models  # fmt: skip
    personal = engine.sharing.personal_elements()
    engine.sharing.set_shared(run.checkpoint()[1]["shared"])
    received = engine.model.state_dict()
    for name, array in tested.items():
        where = personal.get(name, torch.zeros_like(array, dtype=torch.bool))
        assert torch.equal(array[~where], received[name][~where])
        assert name not in personal or (array[where] != received[name][where]).any()


def test_a_fine_tuned_model_is_concluded_before_it_is_tested(tmp_path, monkeypatch):
    run = simulate(tmp_path, 4, method="pfedsd", **QUICK)
    tested_models = models_tested(monkeypatch)
    try_new_clients(run, "fine-tune")
    ((_, tested),) = tested_models
    twins = {name: array for name, array in tested.items() if in_twin(name)}
    assert twins
    assert all(torch.equal(array, tested[name.split(".", 1)[1]]) for name, array in twins.items())


def test_fedavg_has_nothing_to_train_but_can_be_fine_tuned(tmp_path, monkeypatch):
    run = simulate(tmp_path, 4, method="fedavg", **QUICK)
    shared = try_new_clients(run, "local-train")
    assert shared == {**try_new_clients(run, "ensemble"), "mode": "local-train"}
    tested_models = models_tested(monkeypatch)
    try_new_clients(run, "fine-tune")
    ((_, tuned),) = tested_models
    received = load_file(run.path / "global.safetensors")
    assert received.keys() == tuned.keys()
    assert not any(torch.equal(array, received[name]) for name, array in tuned.items())


def test_the_command(tmp_path):
    run = simulate(tmp_path, 4, method="fedsplit", num_clients=4, **QUICK)

    def command(*arguments):
        return call_fedpfl(*arguments[:1], str(run.path), *arguments[1:])

    assert json.loads(command("personalise", "--mode", "ensemble", "--json").stdout)["mode"] == "ensemble"
    result = json.loads(command("personalise", "--workers", "0", "--json").stdout)
    assert result.items() >= try_new_clients(run, "local-train").items()
    output = command("personalise", "--workers", "0").stdout
    assert "local-train, 1 new client: mean " in output
    wrong = command("personalise", "--mode", "vote")
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
    assert "must be one of local-train, ensemble, fine-tune" in wrong.stderr


def test_a_run_without_new_clients_is_told_so(tmp_path):
    run = simulate(tmp_path, 2, method="fedavg", num_server_rounds=1, local_epochs=1)
    with pytest.raises(ConfigError, match=r"new-clients = 0.0: the run held out no clients"):
        try_new_clients(run, "ensemble")


def test_data_that_are_divided_differently_here_are_not_used(tmp_path):
    run = simulate(tmp_path, 4, method="fedavg", **QUICK)
    task = run.task()
    assert "division" in task
    (run.path / "task.json").write_text(json.dumps({**task, "division": task["division"] + 1}))
    with pytest.raises(DataError, match="this machine's partition differs"):
        try_new_clients(run, "ensemble")
