"""Exported models are plain models that predict what the personalised ones predict."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from support import FEW_SAMPLES, simulate
from torch import nn

import fedpfl
from fedpfl import models
from fedpfl.client.state import ClientState
from fedpfl.core.errors import ConfigError, FedpflError, StateError
from fedpfl.data.federation import federated_data
from fedpfl.results.export import FORMS, as_onnx, export_personal
from fedpfl.results.run_folder import RunFolder
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

# torch.onnx takes seconds to import: the tests that need it are in one process.
pytestmark = pytest.mark.xdist_group("onnx")

SHAPE, CLASSES = (3, 16, 16), 5


def stored_run(tmp_path, method="feddecomp", model="resnet8", **settings):
    values = {"run-name": "r", "output-dir": str(tmp_path / "runs"), "state-dir": str(tmp_path / "state")}
    more = {key.replace("_", "-"): value for key, value in settings.items()}
    config = Config.parse({**values, "method": method, "model": model, **more})
    folder = RunFolder.create(config)
    folder.describe(SHAPE, [CLASSES] * 3)
    return config, folder


def trained(config, seed):
    """Return a model with arrays of its own, and its sharing."""
    model, sharing = assemble(config, SHAPE, CLASSES)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for array in model.state_dict().values():
            if array.is_floating_point():
                array.copy_(torch.rand(array.shape, generator=generator) * 0.2 + 0.01)
    return model, sharing


def checkpoint(folder, number, shared, personal_round):
    arrays = {"shared": shared, "personal_round": np.array(personal_round, np.int64)}
    save_file(arrays, folder.path / "checkpoint" / f"round-{number:06d}.safetensors")


def test_exported_models_predict_the_same(tmp_path):
    config, folder = stored_run(tmp_path)
    expected = {}
    for client in (0, 2):
        _, sharing = trained(config, 1)  # the same shared arrays for both
        shared = sharing.get_shared()
        other, personal = trained(config, 10 + client)
        personal.set_shared(shared)
        ClientState(tmp_path / "state", folder.task()["state_key"], client).save(personal.get_personal(), 4, 0)
        x = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
        expected[client] = (x, config.method.personalised(other.eval())(x).detach())
    # Client 2 trained once more, for a reply that was lost: what counts is what the checkpoint counts.
    ClientState(tmp_path / "state", folder.task()["state_key"], 2).save(trained(config, 99)[1].get_personal(), 5, 4)
    checkpoint(folder, 4, shared, [4, 0, 4])
    written = export_personal(folder)
    assert [path.name for path in written] == ["client-00000.safetensors", "client-00002.safetensors"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in written)  # personal, as in state-dir
    for path, (x, logits) in zip(written, expected.values(), strict=True):
        plain = models.build("resnet8", SHAPE, CLASSES)
        state = load_file(path)
        plain.load_state_dict(state)
        assert torch.allclose(plain.eval()(x), logits, atol=1e-5)
        counters = [array for name, array in state.items() if name.endswith("num_batches_tracked")]
        assert counters
        assert all(array == 0 for array in counters)


def test_a_client_without_state_is_named(tmp_path):
    config, folder = stored_run(tmp_path)
    _, sharing = trained(config, 1)
    checkpoint(folder, 1, sharing.get_shared(), [0, 1, 0])
    ClientState(tmp_path / "state", folder.task()["state_key"], 1).save(sharing.get_personal(), 1, 0)
    assert [path.name for path in export_personal(folder, [1])] == ["client-00001.safetensors"]
    with pytest.raises(ConfigError, match="client = 0"):
        export_personal(folder, [0])
    for number in (-1, 3):
        with pytest.raises(ConfigError, match=f"client = {number}: run r has clients 0 … 2"):
            export_personal(folder, [number])
    with pytest.raises(ConfigError, match="client = 'nobody': run r has no client of this name"):
        export_personal(folder, ["nobody"])


def test_local_models_need_no_shared_arrays(tmp_path):
    config, folder = stored_run(tmp_path, method="local")
    _, sharing = trained(config, 1)
    checkpoint(folder, 1, np.zeros(0, np.float32), [1, 0, 0])
    ClientState(tmp_path / "state", folder.task()["state_key"], 0).save(sharing.get_personal(), 1, 0)
    models.build("resnet8", SHAPE, CLASSES).load_state_dict(load_file(export_personal(folder)[0]))


def test_nothing_to_export_without_personal_arrays(tmp_path):
    config, folder = stored_run(tmp_path, method="fedavg")
    checkpoint(folder, 1, trained(config, 0)[1].get_shared(), [1, 1, 1])
    assert export_personal(folder) == []


def test_a_shared_model_of_other_arrays_is_exported_as_the_plain_one(tmp_path):
    config, folder = stored_run(tmp_path, feddecomp_variant="all-shared")
    model, sharing = trained(config, 1)
    checkpoint(folder, 1, sharing.get_shared(), [1, 0, 1])
    written = export_personal(folder)
    assert [path.name for path in written] == [f"client-0000{client}.safetensors" for client in range(3)]
    plain, x = models.build("resnet8", SHAPE, CLASSES), torch.rand(2, *SHAPE)
    plain.load_state_dict(load_file(written[1]))
    assert torch.allclose(plain.eval()(x), model.eval()(x), atol=1e-5)


def test_damaged_files_are_named(tmp_path):
    _, folder = stored_run(tmp_path)
    with pytest.raises(StateError, match="no round was finished"):
        export_personal(folder)
    (folder.path / "checkpoint" / "round-000001.safetensors").write_bytes(b"rubbish")
    with pytest.raises(StateError, match=r"round-000001\.safetensors: is damaged or was changed"):
        export_personal(folder)
    (folder.path / "task.json").write_text("{")
    with pytest.raises(StateError, match=r"task\.json"):
        export_personal(folder)


def right(outputs, y):
    return float((outputs.argmax(1) == y).mean())


@pytest.mark.parametrize(("method", "form"), [("fedper", "onnx"), ("fedavg", "torchscript")])
def test_programs_have_the_recorded_accuracy(tmp_path, method, form):
    runtime = pytest.importorskip("onnxruntime")
    run = simulate(tmp_path, 2, method=method, num_server_rounds=1, **FEW_SAMPLES)
    (path,) = export_personal(run, [1] if method == "fedper" else None, form)
    assert path.name == f"{'client-00001' if method == 'fedper' else 'global'}{FORMS[form]}"
    about = json.loads(path.with_suffix(".json").read_text())
    assert (about["method"], about["scaling"], about["input-shape"]) == (method, "pixels", [1, 8, 8])
    config = Config.parse(run.config())
    x, y = federated_data(config.data, 2, config.run.seed).test(1)
    if form == "torchscript":
        outputs = torch.jit.load(str(path))(x).detach().numpy()
    else:
        outputs = runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x.numpy()})[0]
    assert right(outputs, y.numpy()) == pytest.approx(run.history().last_test()["1"])


@pytest.mark.parametrize(
    ("model", "shape", "vocabulary"), [("gru", (9, 32), 0), ("char-lstm", (20,), 50), ("mlp", (5,), 0)]
)
def test_onnx_holds_series_texts_and_tables(model, shape, vocabulary):
    runtime = pytest.importorskip("onnxruntime")
    plain = models.original_module(models.build(model, shape, 3, vocabulary)).eval()
    rng = np.random.default_rng(1)
    x = torch.from_numpy(
        rng.integers(0, vocabulary, (4, *shape)) if vocabulary else rng.random((4, *shape), np.float32)
    )
    content, why = as_onnx(plain, x[:2])
    assert why == ""
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": x.numpy()})[0] == pytest.approx(plain(x).detach().numpy(), abs=1e-4)


def test_without_its_packages_onnx_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FedpflError, match=r"pip install 'fedpfl\[onnx\]'"):
        as_onnx(torch.nn.Identity(), torch.zeros(2, 3))


def people():
    """Return three clients whose features lie elsewhere and on other scales, and have gaps."""
    rng, clients = np.random.default_rng(0), {}
    for place, name in ((1, "ann"), (5, "ben"), (3, "cat")):
        x = rng.normal(size=(80, 3)) * [1, place, 3] + [2 * place, 0, 4]
        y = np.where(x[:, 0] > 2 * place, "ill", "well")
        x[::7, 2] = np.nan
        clients[name] = x.astype(np.float32), y
    return clients


@pytest.mark.parametrize(
    ("method", "standardize"), [("fedper", "client"), ("fedavg", "client"), ("fedavg", "all"), ("fedper", "none")]
)
def test_models_take_samples_as_the_data_have_them(elsewhere, method, standardize):
    few = {"model": "mlp", "num_server_rounds": 1, "local_epochs": 1, "workers": 0, "quiet": True}
    data = people()
    run = fedpfl.run(method, data=data, standardize=standardize, impute="mean", **few)
    runtime = pytest.importorskip("onnxruntime")
    with run.objects():
        rows = [federated_data(run._folder.parsed().data, 3, 1).arrays(client) for client in range(3)]
    for number, (name, row) in enumerate(zip(data, rows, strict=True)):
        x, y = row["x_test"], row["y_test"]
        recorded = pytest.approx(run.clients.loc[(1, number), "accuracy"])
        assert right(run.model(client=name)(torch.from_numpy(x)).detach().numpy(), y) == recorded
        script = run.export("torchscript", client=name)[0]
        if (name, method, standardize) == ("ben", "fedper", "client"):  # an export takes seconds
            session = runtime.InferenceSession(run.export("onnx", client=name)[0], providers=["CPUExecutionProvider"])
            assert right(session.run(None, {"x": x})[0], y) == recorded
        assert right(torch.jit.load(script)(torch.from_numpy(x)).detach().numpy(), y) == recorded
        loaded = fedpfl.load_model(script.with_suffix(".safetensors"))
        assert right(loaded.predict(x), y) == recorded
        assert loaded.about["class-names"] == ["ill", "well"]
        text = script.with_suffix(".json").read_text()
        assert not any(other in text for other in data if other != name)
        assert json.loads(text)["client-name"] == name and json.loads(text)["tested"]["accuracy"] == recorded
    with pytest.raises(ConfigError, match=r"client = 'bne': .* has no client of this name; did you mean ben"):
        run.export("onnx", client="bne")
    with pytest.raises(ConfigError, match=r"client = 'zoe': .* of this name; they are ann, ben, cat$"):
        run.export("onnx", client="zoe")
    with pytest.raises(ConfigError, match="form = 'onn': must be one of state-dict, torchscript, onnx"):
        run.export("onn")


def test_a_run_s_folder_alone_is_enough_to_load_and_export(elsewhere):
    run = fedpfl.run("fedper", data=people(), standardize="client", impute="mean", model="mlp", num_server_rounds=1,
                     state_dir="state", quiet=True, workers=0)  # fmt: skip
    expected = run.model(client="ben").state_dict()
    moved = shutil.copytree(run.path, elsewhere / "handed" / "over")
    shutil.rmtree("state")
    shutil.rmtree(run.path)
    again = fedpfl.load(moved)
    assert all(torch.equal(expected[name], array) for name, array in again.model(client="ben").state_dict().items())
    assert again.export("torchscript", client="ben")[0].is_file()
    shutil.rmtree(moved / "personal")
    with pytest.raises(ConfigError, match=r"client = 'ben': has no stored state of run over in .*, and no model in"):
        again.model(client="ben")


class Shifted(fedpfl.Method):
    """Logits are shifted by what the client's data say, before training and before each test."""

    name = "shifted"

    def build(self, model):
        classes = fedpfl.class_by_width(model)[0]
        model.register_buffer("shift", torch.zeros(classes))
        return model

    def is_shared(self, name, model):
        return name != "shift"

    def prepare(self, local):
        local.model.shift.copy_(torch.from_numpy(local.class_counts).float() - local.round)

    def personalised(self, model):
        return lambda x: model(x) + model.shift

    def export(self, model):
        arrays = {name: array for name, array in model.state_dict().items() if name != "shift"}
        return {**arrays, "head.bias": arrays["head.bias"] + model.shift}


class Unshifted(Shifted):
    """It exports another model than it predicts with."""

    name = "unshifted"

    def export(self, model):
        return {name: array for name, array in model.state_dict().items() if name != "shift"}


def normalised(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(np.prod(input_shape), 8), nn.BatchNorm1d(8), nn.Linear(8, num_classes))


def test_what_a_method_of_the_user_s_prepares_is_in_the_exported_model(elsewhere):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(3, 42, 3)).astype(np.float32), rng.integers(0, 3, (3, 42))
    clients = [(x[i, :30], y[i, :30], x[i, 30:], y[i, 30:]) for i in range(3)]
    settings = {"model": normalised, "data": clients, "num_server_rounds": 2, "local_epochs": 1, "quiet": True}
    first, second = (fedpfl.run(method=Shifted, workers=workers, **settings) for workers in (0, 2))
    for client, (_, _, x_test, y_test) in enumerate(clients):
        model, arrays = first.model(client=client), second.model(client=client).state_dict()
        recorded = pytest.approx(first.clients.loc[(2, client), "accuracy"])
        assert right(model(torch.from_numpy(x_test)).detach().numpy(), y_test) == recorded
        assert all(torch.equal(array, arrays[name]) for name, array in model.state_dict().items())
        assert arrays["2.num_batches_tracked"] == 0, "a process counts the batches of all its clients"
    wrong = fedpfl.run(method=Unshifted, workers=0, **settings)
    with pytest.raises(fedpfl.NoPlainModel, match="unshifted exports another model than it predicts with"):
        wrong.model(client=0)
