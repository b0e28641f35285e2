"""The model that a client keeps: the bits of `fedpfl export`, the accuracy that it notes, and damaged files."""

import shutil
import stat

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, NO_PLAIN_MODEL, LocalGrid, each_method, federation, quick, run_federation

import fedpfl
from fedpfl.client.device_model import best_score, load_model, traced, write_model
from fedpfl.client.engine import Engine
from fedpfl.client.state import ClientState
from fedpfl.client.tested_model import score_of
from fedpfl.core.checksummed_files import from_json_line, json_line
from fedpfl.core.errors import DamagedFile, DataError, NoPlainModel, StateError
from fedpfl.data.federation import federated_data
from fedpfl.results.export import trained_model
from fedpfl.setup.config import Config
from fedpfl.training.loop import Score

CLIENTS = 2
# The gate computes other weights for each batch, by PyTorch's call with other parameters, which cannot be traced.
WITHOUT = {"pfedgate"}


def kept(tmp_path, method, grid=LocalGrid, **settings):
    """Run a federation whose clients have a state folder each, and return its folder and the folders of state."""
    defaults = {"num_server_rounds": 2, "local_epochs": 2, "device_models": "always", "model": "mlp", **FEW_SAMPLES}
    values = federation(tmp_path, CLIENTS, method=method, **{**defaults, **quick(method), **settings})

    class Apart(grid):
        def answer(self, kind, payload, node_config):
            mine = {**self.run_config, "state-dir": str(tmp_path / f"device-{node_config['partition-id']}")}
            shared, self.run_config = self.run_config, mine
            try:
                return super().answer(kind, payload, node_config)
            finally:
                self.run_config = shared

    folder = run_federation(Apart(CLIENTS, values), values)
    return folder, [next((tmp_path / f"device-{client}").glob("*/client-*"), None) for client in range(CLIENTS)]


def correct(model, config, client):
    """Return how many of a client's test samples a loaded model predicts right, given as files have them."""
    data = federated_data(config.data, CLIENTS, config.run.seed)
    arrays = data.arrays(client)
    return int((model.predict(arrays["x_test"]).argmax(1) == arrays["y_test"]).sum())


@pytest.mark.parametrize("method", each_method(also=NO_PLAIN_MODEL))
def test_a_device_s_model_is_the_exported_one_and_has_the_recorded_accuracy(tmp_path, method):
    folder, devices = kept(tmp_path, method)
    config = Config.parse(folder.config())
    for client, device in enumerate(devices):
        if method in WITHOUT:
            with pytest.raises(NoPlainModel, match=f"round-000002.json: there is no model: {method} .*TorchScript"):
                load_model(device)
            continue
        model = load_model(device)
        assert (model.about["method"], model.about["round"], model.about["client"]) == (method, 2, client)
        assert model.about["run"] == folder.task()["state_key"]
        tested = model.about["tested"]
        assert correct(model, config, client) == tested["correct"]
        assert tested["samples"] == len(federated_data(config.data, CLIENTS, 3).test(client).y)
        assert tested["correct"] / tested["samples"] == folder.metrics()[-1]["personalised"]["each"][str(client)]
        if model.about["kind"] == "weights":
            assert same_as_exported(tmp_path, folder, client, device, model.module)
        assert (model.about["kind"] == "torchscript") == bool(model.about["why"])


def same_as_exported(tmp_path, folder, client, device, module):
    """Return whether a module is what `fedpfl export` makes where shared and personal arrays are on one machine."""
    there = ClientState(tmp_path / "state", folder.task()["state_key"], client).folder
    shutil.copytree(device, there)
    exported, arrays = trained_model(folder, client).state_dict(), module.state_dict()
    return exported.keys() == arrays.keys() and all(torch.equal(arrays[name], exported[name]) for name in arrays)


def one(tmp_path, **settings):
    """Return the folder of client 0's state after a run of two rounds."""
    return kept(tmp_path, "fedper", **settings)[1][0] / "model"


def test_only_this_user_can_read_it_and_the_latest_are_kept(tmp_path):
    folder = one(tmp_path, num_server_rounds=4, early_stop=9, validation_fraction=0.2)
    names = [f"round-00000{number}.{ending}" for number in (3, 4) for ending in ("json", "safetensors")]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert load_model(folder).about["round"] == 4
    assert load_model(folder / "round-000003.safetensors").about["round"] == 3


def test_devices_write_it_and_simulations_do_not(tmp_path):
    class Devices(LocalGrid):
        devices = True

    for place, grid, options, written in (
        ("devices", Devices, {"device_models": "auto"}, True),
        ("simulated", LocalGrid, {"device_models": "auto"}, False),
        ("never", Devices, {"device_models": "never", "early_stop": 9, "validation_fraction": 0.2}, False),
    ):
        _, devices = kept(tmp_path / place, "fedper", grid, **options)
        assert [(device / "model").is_dir() for device in devices] == [written] * CLIENTS


def test_the_run_has_the_same_bits_with_and_without_it(tmp_path):
    results = []
    for choice in ("never", "always"):
        settings = {"device_models": choice, "tune_epochs": 1, "evaluate_every": 1, "num_server_rounds": 3}
        folder, _ = kept(tmp_path / choice, "fedavg", early_stop=9, validation_fraction=0.2, **settings)
        lines = [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in folder.metrics()]
        results.append((folder.checkpoint()[1]["shared"].tobytes(), lines))
    assert results[0] == results[1]


def test_class_names_follow_the_client_s_own_numbering(tmp_path):
    rng = np.random.default_rng(0)
    x, names = rng.normal(size=(200, 4)).astype(np.float32), np.array(["ash", "birch", "elm", "oak"])
    np.savez(tmp_path / "trees.npz", x=x, y=np.arange(200) % 4, classes=names)
    settings = {"dataset": "npz", "data": str(tmp_path / "trees.npz"), "model": "mlp", "permute_labels": True}
    folder, devices = kept(tmp_path, "fedper", **settings)
    config = Config.parse(folder.config())
    data = federated_data(config.data, CLIENTS, config.run.seed)
    for client, device in enumerate(devices):
        about = load_model(device).about
        mine, theirs = data.test(client).y.tolist(), data.arrays(client)["y_test"]
        assert [about["class-names"][label] for label in mine] == names[theirs].tolist()
        assert about["scaling"] == "none"


@pytest.mark.parametrize("tune_epochs", [0, 1])
def test_writing_a_model_costs_no_test(tmp_path, monkeypatch, tune_epochs):
    tested, score = [], Engine.score

    def counted(engine, forward, *rest):
        tested.append(forward)
        return score(engine, forward, *rest)

    monkeypatch.setattr(Engine, "score", counted)
    kept(tmp_path, "fedper", evaluate_every=0, num_server_rounds=1, tune_epochs=tune_epochs)
    assert len(tested) == CLIENTS


def test_a_failed_write_does_not_cost_the_round(tmp_path, monkeypatch, caplog):
    def full(*arguments):
        raise OSError(28, "No space left on device", "round-000002.json")

    monkeypatch.setattr("fedpfl.client.tested_model.write_model", full)
    folder, _ = kept(tmp_path, "fedper")
    assert not folder.metrics()[-1].get("failed")
    reason = "[Errno 28] No space left on device: 'round-000002.json'"
    assert f"client 1: its model was not written: {reason}" in caplog.text
    # And the server is told.
    assert f"client 1 could not write its model: {reason}" in caplog.text
    assert folder.metrics()[-1]["unwritten"] == {str(client): reason for client in range(CLIENTS)}
    summary = (folder.path / "summary.md").read_text()
    assert f"device models that could not be written | {CLIENTS}: client 0: {reason}; client 1: " in summary


def test_a_method_whose_export_does_not_fit_costs_no_round(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpfl.methods.fedper.FedPer.export", lambda self, model: {})
    folder, devices = kept(tmp_path, "fedper")
    assert not folder.metrics()[-1].get("failed")
    about = load_model(devices[0]).about
    assert about["kind"] == "torchscript"
    assert "fedper exports no plain model: StateError: the method's export lacks 'base." in about["why"]


def test_a_method_that_exports_another_model_than_it_predicts_with_keeps_what_predicts(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpfl.methods.fedper.FedPer.personalised", lambda self, model: lambda x: -model(x))
    folder, devices = kept(tmp_path, "fedper")
    model = load_model(devices[0])
    assert (model.about["kind"], model.about["why"]) == (
        "torchscript", "fedper exports another model than it predicts with"
    )  # fmt: skip
    assert correct(model, Config.parse(folder.config()), 0) == model.about["tested"]["correct"]
    shutil.copytree(devices[0], ClientState(tmp_path / "state", folder.task()["state_key"], 0).folder)
    with pytest.raises(NoPlainModel, match="fedper exports another model than it predicts with"):
        trained_model(folder, 0)


def test_adapters_and_frozen_arrays_are_in_it(tmp_path):
    folder, devices = kept(tmp_path, "fedavg", trainable="head")
    for client, device in enumerate(devices):
        assert same_as_exported(tmp_path, folder, client, device, load_model(device).module)


def rewritten(file, **changes):
    """Replace entries of the JSON, with a right checksum."""
    about = dict(from_json_line(file.read_bytes(), file, "format"))
    file.write_text(json_line({**about, **changes}))


def test_a_model_of_standardised_features_takes_numbers_as_the_data_have_them(tmp_path):
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(80, 3)) * [1, 50, 3] + [0, 900, 7]).astype(np.float32)
    np.savez(tmp_path / "people.npz", x=x, y=(x[:, 1] > 900).astype(np.int64), client=np.repeat([0, 1], 40))
    settings = {"dataset": "npz", "data": str(tmp_path / "people.npz"), "model": "mlp", "partitioner": "natural"}
    folder, devices = kept(tmp_path, "fedper", standardize="client", **settings)
    config = Config.parse(folder.config())
    for client, device in enumerate(devices):
        model = load_model(device)
        scaling = federated_data(config.data, CLIENTS, config.run.seed).scaling(client)
        assert np.allclose(model.about["mean"], scaling.mean) and np.allclose(
            model.about["deviation"], scaling.deviation
        )
        assert correct(model, config, client) == model.about["tested"]["correct"]
    (file,) = (devices[0] / "model").glob("round-*.json")
    about = {**from_json_line(file.read_bytes(), file, "format"), "mean": [1.0, 2.0]}
    file.write_text(json_line(about))
    with pytest.raises(DamagedFile, match=r"mean is '\[1.0, 2.0\]'|mean is \[1.0, 2.0\]"):
        load_model(devices[0])


def test_damaged_files_are_refused_in_one_line(tmp_path):
    folder = one(tmp_path, model="small-cnn")
    about, weights = folder / "round-000002.json", folder / "round-000002.safetensors"
    line, content = about.read_bytes(), weights.read_bytes()
    middle = len(content) // 2
    for damaged in (content[:-1], b"", content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]):
        weights.write_bytes(damaged)
        refused(folder, r"round-000002\.safetensors: is damaged or was changed")
    weights.unlink()
    refused(folder, r"round-000002\.safetensors: cannot be read \(No such file")
    weights.write_bytes(content)
    for damaged in (line[:50], b"", b"{}", line.replace(b"fedper", b"fedavg"), b"\xff" * 80):
        about.write_bytes(damaged)
        refused(folder, r"round-000002\.json: is damaged or was changed")
    for key, value in (
        ("num-classes", 10**9), ("num-classes", 50_000), ("num-classes", "10"), ("input-shape", [2**20, 2**20]),
        ("input-shape", [1]), ("input-shape", []), ("class-names", ["a"]), ("class-names", [1] * 10),
        ("kind", "pickle"),
        ("kind", []), ("loss", "x"), ("bytes", -1), ("vocabulary", 7), ("file-sha256", "0"), ("model", None),
        ("scaling", "tokens"),
    ):  # fmt: skip
        about.write_bytes(line)
        rewritten(about, **{key: value, **({"class-names": ["a"] * 50_000} if value == 50_000 else {})})
        named = "scaling" if key == "vocabulary" or value == [1] else key
        refused(folder, rf"round-000002\.json: is damaged or was changed.*{named}")
    about.write_bytes(line)
    rewritten(about, model="resnet8")
    with pytest.raises(StateError, match=r"round-000002\.safetensors: does not fit model resnet8"):
        load_model(folder)
    with pytest.raises(StateError, match="holds no model of a client"):
        load_model(tmp_path)
    with pytest.raises(StateError, match="no such model"):
        load_model(tmp_path / "nothing.json")


def refused(folder, message):
    with pytest.raises(StateError, match=message) as raised:
        load_model(folder)
    assert "\n" not in str(raised.value)


def test_damaged_torchscript_is_refused(tmp_path):
    folder = write_model(
        tmp_path, {**load_model(one(tmp_path / "run")).about, "why": "a test"}, b"no archive", 1
    ).parent
    with pytest.raises(DamagedFile, match=r"round-000002\.pt: is damaged"):
        load_model(folder)


def test_what_cannot_be_traced_is_told(tmp_path):
    model = torch.nn.Linear(3, 2)
    content, reason = traced(lambda x: model(x) * len(x), model, torch.ones(1, 3))
    assert (content, reason) == (None, "its TorchScript export predicts something else")
    content, reason = traced(lambda x: str(x), model, torch.ones(1, 3))
    assert content is None
    assert reason.startswith("TorchScript cannot hold it (")


def test_samples_of_another_kind_are_refused(tmp_path):
    model = load_model(one(tmp_path))
    with pytest.raises(DataError, match="samples are float32 1×8×8×1; the model takes uint8 n×8×8×1"):
        model.predict(np.zeros((1, 8, 8, 1), np.float32))
    with pytest.raises(DataError, match="samples are uint8 1×8×9×1"):
        model.predict(np.zeros((1, 8, 9, 1), np.uint8))


def test_loading_leaves_the_random_numbers_of_the_caller(tmp_path):
    folder, state = one(tmp_path), torch.random.get_rng_state()
    assert fedpfl.load_model(folder).about["round"] == 2
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_model_knows_how_its_pixels_were_normalised(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (300, 8, 8, 3), dtype=np.uint8), np.arange(300) % 3
    np.savez(tmp_path / "colours.npz", x_train=x, y_train=y, x_test=x[:90], y_test=y[:90])
    data = {"dataset": "npz", "data": str(tmp_path / "colours.npz"), "normalize": "cifar-100"}
    folder, devices = kept(tmp_path, "fedper", **data)
    config = Config.parse(folder.config())
    model = load_model(devices[0])
    assert model.about["normalize"] == "cifar-100"
    plain = {**model.about, "normalize": "half"}
    samples = federated_data(config.data, CLIENTS, config.run.seed).arrays(0)["x_test"]
    assert not np.allclose(model.predict(samples), model._replace(about=plain).predict(samples))
    assert correct(model, config, 0) == model.about["tested"]["correct"]


@pytest.mark.parametrize(("by", "key"), [("accuracy", "each"), ("f1-macro", "each-f1-macro")])
def test_a_device_keeps_the_model_of_the_round_that_is_best_on_its_own_validation_samples(tmp_path, by, key):
    settings = {"validation_fraction": 0.4, "choose_by": by, "num_server_rounds": 6, "learning_rate": 0.1}
    more = {"metrics": "f1-macro"} if by == "f1-macro" else {}
    folder, devices = kept(tmp_path, "fedper", **settings, **more)
    for client, device in enumerate(devices):
        curve = [line["validation"][key][str(client)] for line in folder.metrics()]
        best = load_model(device / "best")
        assert best.about["round"] == 1 + curve.index(max(curve))
        assert best.about["validation"] == pytest.approx(max(curve))
        assert correct(best, Config.parse(folder.config()), client) == best.about["tested"]["correct"]
        assert len([*(device / "best").glob("*.json")]) == 1
        assert load_model(device).about["round"] == 6


def test_higher_is_better_of_what_a_round_is_chosen_by():
    score = Score(3, 2.0, 4, {"f1-macro": (0.6, 2.0), "auroc": (0.0, 0.0), "mae": (6.0, 4.0)})
    scores = [score_of(score, by) for by in ("accuracy", "loss", "f1-macro", "auroc", "mae")]
    assert scores == [0.75, -0.5, 0.3, None, -1.5]


def test_a_damaged_best_model_is_replaced_and_without_validation_samples_there_is_none(tmp_path):
    _, devices = kept(tmp_path / "none", "fedper")
    assert not (devices[0] / "best").exists()
    folder = kept(tmp_path / "some", "fedper", validation_fraction=0.3)[1][0]
    (file,) = (folder / "best").glob("*.json")
    assert best_score(folder) == load_model(folder / "best").about["validation"]
    file.write_bytes(b"{")
    assert best_score(folder) is None
