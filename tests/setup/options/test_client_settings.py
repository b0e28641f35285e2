"""Clients that train with settings of their own, and weigh more or less in the mean."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support import FEW_SAMPLES, LocalGrid, federation, run_federation, simulate
from typer.testing import CliRunner

import fedpfl
from fedpfl.cli import app
from fedpfl.core.errors import ConfigError
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.setup.config import Config

GIVEN = {"method": "ditto", "local_epochs": 1, "num_server_rounds": 2, "model": "mlp", **FEW_SAMPLES}
UNLIKE = {0: {"local_epochs": 3}, 2: {"learning_rate": 0.1, "batch_size": 4}}


EPOCHS = {"local_epochs": 3}


def shared(folder):
    return (folder.path / "global.safetensors").read_bytes()


def personal(run, tmp_path, client):
    (folder,) = (tmp_path / "state").glob(f"*/client-{client:05}")
    return sorted(folder.glob("round-*.safetensors"))[-1].read_bytes()


@pytest.mark.parametrize(
    ("client", "options"), [(0, {"local_epochs": 3}), (1, {"learning_rate": 0.1, "batch_size": 4})]
)
def test_a_client_trains_as_it_would_if_all_had_its_settings(tmp_path, client, options):
    settings = {**GIVEN, "num_server_rounds": 1}
    some = simulate(tmp_path / "some", 3, client_settings={client: options}, **settings)
    every = simulate(tmp_path / "every", 3, **{**settings, **options})
    plain = simulate(tmp_path / "plain", 3, **settings)
    for other in range(3):
        like = ("every", every) if other == client else ("plain", plain)
        assert personal(some, tmp_path / "some", other) == personal(like[1], tmp_path / like[0], other)


def test_it_is_the_same_over_flower_and_for_any_number_of_workers(tmp_path):
    values = federation(tmp_path / "a", 4, client_settings=UNLIKE, **GIVEN)
    runs = [run_federation(SimulationTransport(Config.parse({**values, "num-clients": 4}), workers=2), values)]
    runs.append(simulate(tmp_path / "b", 4, client_settings=UNLIKE, **GIVEN))
    runs.append(simulate(tmp_path / "c", 4, LocalGrid, client_settings=UNLIKE, **GIVEN))
    assert len({shared(run) for run in runs}) == 1
    assert shared(runs[0]) != shared(simulate(tmp_path / "d", 4, **GIVEN))


def test_clients_of_one_batch_train_as_they_do_alone(tmp_path):
    runs = [simulate(tmp_path / f"{n}", 4, client_settings=UNLIKE, clients_at_once=n, **GIVEN) for n in (1, 4)]
    ours, theirs = (run.checkpoint()[1]["shared"] for run in runs)
    assert np.allclose(ours, theirs, atol=1e-5)


def test_weights_are_factors_of_the_samples(tmp_path):
    settings = {**GIVEN, "num_server_rounds": 1, "method": "fedavg"}
    alone = [simulate(tmp_path / f"{i}", 2, client_settings={1 - i: {"weight": 0}}, **settings) for i in (0, 1)]
    both = simulate(tmp_path / "both", 2, client_settings={1: {"weight": 3}}, **settings)
    samples = [train for train, _ in both.task()["samples"]]
    first, second = (run.checkpoint()[1]["shared"].astype(np.float64) for run in alone)
    wanted = (samples[0] * first + 3 * samples[1] * second) / (samples[0] + 3 * samples[1])
    assert np.allclose(both.checkpoint()[1]["shared"], wanted, atol=1e-6)


def test_clients_have_names_and_files_have_tables(tmp_path, elsewhere):
    rng = np.random.default_rng(0)
    data = {name: (rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 2, 40)) for name in ("ann", "ben", "2")}
    small = {"method": "local", "model": "mlp", "num_server_rounds": 1, "local_epochs": 1, "quiet": True, "workers": 0}
    # The client named "2" comes before the one with this number.
    adjusted = fedpfl.run(**small, data=data, client_settings={"ben": {"local_epochs": 4}, "2": {"local_epochs": 2}})
    assert json.loads(adjusted.settings["client-settings"])["ben"] == {"local-epochs": 4}
    for name, epochs in (("ann", 1), ("ben", 4), ("2", 2)):
        same = fedpfl.run(**{**small, "local_epochs": epochs}, data=data)
        assert all((adjusted.model(name).state_dict()[k] == v).all() for k, v in same.model(name).state_dict().items())
    # Where names are numbers, a number in Python is still a number, as in run.model(client=1), and a text a name.
    for key, changed in ((1, "2"), ("1", "1"), ("#2", "3")):
        ids = {name: (rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 2, 40)) for name in "123"}
        usual, adjusted = (fedpfl.run(**small, data=ids, **more) for more in ({}, {"client_settings": {key: EPOCHS}}))
        states = [[run.model(name).state_dict() for name in "123"] for run in (usual, adjusted)]
        differ = [name for name, a, b in zip("123", *states, strict=True) if any((a[k] != b[k]).any() for k in a)]
        assert differ == [changed]
    for refused, message in (
        ({"0": EPOCHS}, "are 1, 2, 3, and #0 is the one"),
        ({"1": EPOCHS, 0: EPOCHS}, "is the same client as 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            fedpfl.run(**small, data=ids, client_settings=refused)
    file = tmp_path / "own.toml"
    file.write_text('method = "local"\nmodel = "mlp"\nnum-server-rounds = 1\n[client-settings.1]\nlocal-epochs = 2\n')
    done = CliRunner().invoke(app, ["run", "-q", "-c", str(file), "-c", "client-settings={1={local-epochs=3}}"])
    assert done.exit_code == 0, done.output
    assert json.loads(fedpfl.load(done.stdout.strip().split("/")[-1]).settings["client-settings"]) == {
        "1": {"local-epochs": 3}
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be a table of settings for each client"),
        ("[1]", "must be a table of settings for each client"),
        ('{"0": 3}', "must be a table of settings for each client"),
        ('{"0": {"epochs": 3}}', "client-settings = '0': epochs of client 0: must be one of .*local-epochs"),
        ('{"0": {"local-epochs": 0}}', "client-settings = '0': local-epochs = 0: must be at least 1"),
        ('{"0": {"weight": -1}}', "weight = -1: must be a number of at least 0"),
        ('{"0": {"weight": true}}', "weight = True: must be a number of at least 0"),
        ('{"0": {"momentum": 0.5}}', "momentum = 0.5: is not used by Rprop"),
    ],
)
def test_what_is_no_setting_of_a_client_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        Config.parse({"method": "fedavg", "optimizer": "Rprop", "client-settings": text})


def test_clients_that_there_are_not_and_weights_without_a_mean_are_refused_before_round_1(tmp_path):
    for options, message in (
        ({7: {"local_epochs": 2}}, "is no client; they are 0 … 1"),
        ({"ann": {}}, "client-settings = 'ann': run .* has no client of this name"),
    ):
        with pytest.raises(ConfigError, match=message):
            simulate(tmp_path / next(iter(map(str, options))), 2, client_settings=options, **GIVEN)
    with pytest.raises(ConfigError, match="weight: must be 1 for fedamp, whose rule is more than a mean"):
        simulate(tmp_path, 2, client_settings={0: {"weight": 2}}, **{**GIVEN, "method": "fedamp"})
    with pytest.raises(ConfigError, match="weight: must be 1 for local, of which nothing is combined"):
        simulate(tmp_path / "local", 2, client_settings={0: {"weight": 2}}, **{**GIVEN, "method": "local"})
    for more, message in (
        ({"dp-noise-multiplier": 1.0, "dp-where": "server"}, "must be 1 with dp-where = server"),
        ({"robust-aggregation": "median"}, "must be 1 with robust-aggregation = median: all weigh alike"),
        ({"robust-aggregation": "trimmed-mean"}, "must be 1 with robust-aggregation = trimmed-mean"),
        ({"robust-aggregation": "krum"}, "must be 1 with robust-aggregation = krum"),
    ):
        with pytest.raises(ConfigError, match=message):
            Config.parse({"method": "fedavg", "client-settings": '{"0": {"weight": 2}}', **more})
    clipped = {"method": "fedavg", "client-settings": '{"0": {"weight": 2}}', "robust-aggregation": "clip"}
    assert Config.parse(clipped).flat()["robust-aggregation"] == "clip"
