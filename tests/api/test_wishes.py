"""What users wished for, as they would write it: public names alone, their own data, models and functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from in_process import InProcess, call_fedpfl
from torch import nn

import fedpfl

pytestmark = pytest.mark.usefixtures("elsewhere")

FEW = {
    "method": "fedper", "model": "mlp", "num_server_rounds": 2, "local_epochs": 1, "batch_size": 16, "num_clients": 2,
    "partitioner": "dirichlet-client", "train_samples": 32, "test_samples": 16, "quiet": True, "workers": 0,
}  # fmt: skip
OWN = {key: value for key, value in FEW.items() if not key.endswith("_samples") and key != "partitioner"}


WISHES = (
    {"optimizer": "adamw", "learning_rate": 0.003},
    {"optimizer": "RMSprop", "learning_rate": 0.003},
    {"learning_rate_schedule": "cosine", "learning_rate_warm_up": 1},
    {"learning_rate_schedule": "exponential", "learning_rate_decay": 0.5},
    {"clip_norm": 0.1},
    {"class_weights": "balanced"},
    {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5, *[1] * 8]))},
    {"loss": lambda outputs, y: nn.functional.multi_margin_loss(outputs, y)},
    {"augmentation": "flip-crop"},
    {"augmentation": lambda x, rng: x + torch.from_numpy(rng.normal(size=x.shape)).float()},
    {"local_steps": 3},
)


def test_what_is_wished_for_training_changes_it():
    plain = fedpfl.run(**FEW).model(0).head.weight
    for wish in WISHES:
        run = fedpfl.run(**{**FEW, **wish})
        assert np.isfinite(run.rounds["train_loss"]).all()
        assert not torch.equal(plain, run.model(0).head.weight), wish


def test_metrics_of_classes():
    def wrong(outputs, y):
        return int((outputs.argmax(1) != y).sum()), len(y)

    run = fedpfl.run(**FEW, metrics=["f1-macro", "auroc", wrong])
    last = run.rounds.iloc[-1]
    assert last["personalised_wrong"] == pytest.approx(1 - last["personalised_accuracy"])
    assert 0 <= last["personalised_f1_macro"] <= 1 and 0 <= last["personalised_auroc"] <= 1


def test_metrics_of_targets():
    x = np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32)
    y = x @ np.float32([[1], [2], [3]])
    run = fedpfl.run(**OWN, data=[(x, y, x, y)] * 2, loss="mse", metrics="mae,rmse,r2")
    last = run.rounds.iloc[-1]
    assert last["personalised_mae"] <= last["personalised_rmse"]
    with torch.no_grad():
        residuals = run.model(0)(torch.from_numpy(x)) - torch.from_numpy(y)
    assert run.clients.loc[(2, 0), "mae"] == pytest.approx(float(residuals.abs().mean()), rel=1e-4)
    assert run.report("targets.html").stat().st_size > 1000


def test_a_callback_sees_every_round():
    class Losses(fedpfl.Listener):
        def __init__(self):
            self.seen = []

        def round_ended(self, rule, done, state):
            self.seen.append(done.line["train_loss"])
            return False

    losses = Losses()
    run = fedpfl.run(**FEW, callbacks=[losses])
    assert losses.seen == list(run.rounds["train_loss"])


def table():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    columns = {
        "client": ["anna", "ben"] * 20,
        "age": rng.integers(20, 60, 40).astype(float),
        "label": [0, 0, 1, 1] * 10,
    }
    frame = pandas.DataFrame({**columns, "weight": 70 + 10 * rng.normal(size=40)})
    frame.loc[3, "age"] = np.nan
    return frame


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index % 2


@pytest.mark.parametrize(
    "data",
    [
        table,
        Pairs,
        lambda: torch.utils.data.DataLoader(Pairs(), batch_size=7),
        lambda: {name: (np.ones((20, 3), np.float32), np.arange(20) % 2) for name in ("anna", "ben")},
        lambda: [Pairs(), Pairs()],
    ],
    ids=["DataFrame", "Dataset", "DataLoader", "dict", "list"],
)
def test_data(data):
    run = fedpfl.run(**OWN, data=data(), standardize="client", impute="mean", min_samples=4)
    assert run.summary["rounds"] == 2 and run.clients["samples"].gt(0).all()


def test_images_of_mixed_sizes(elsewhere):
    image = pytest.importorskip("PIL.Image")
    for number in range(40):
        path = elsewhere / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((8 + number, 12), 120 * (number % 2), np.uint8)).save(path)
    settings = {**OWN, "dataset": "image-folder", "data": elsewhere / "photos", "partitioner": "iid", "min_samples": 4}
    with pytest.raises(fedpfl.DataError, match="image-size resizes all to one size"):
        fedpfl.run(**settings)
    assert fedpfl.run(**settings, image_size=8).model(0)(torch.zeros(1, 1, 8, 8)).shape == (1, 2)


def test_a_head_that_is_no_linear_layer():
    def net(num_classes):
        head = nn.Sequential(nn.Conv2d(4, num_classes, 6), nn.Flatten())
        return fedpfl.BaseHeadModel(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), head)

    first, second = (fedpfl.run(**{**FEW, "model": net}).model(client) for client in (0, 1))
    assert torch.equal(first.base[0].weight, second.base[0].weight)
    assert not torch.equal(first.head[0].weight, second.head[0].weight)
    with pytest.raises(fedpfl.ConfigError, match="model = 'net': has a Sequential as its head; the method needs"):
        fedpfl.run(**{**FEW, "model": net, "method": "fedproto"})


def test_a_run_of_a_sweep_is_loaded_by_its_name(monkeypatch):
    monkeypatch.setattr("fedpfl.study.execution.Process", InProcess)
    swept = fedpfl.sweep({"learning_rate": [0.01]}, **{**FEW, "num_server_rounds": 1})
    assert fedpfl.load(swept.runs[0].name).summary == swept.runs[0].summary


def test_a_text_is_a_name_before_it_is_a_number():
    rng = np.random.default_rng(1)
    clients = {name: (rng.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for name in (2, 0, 7)}
    run = fedpfl.run(**{**OWN, "method": "Local", "num_clients": 3}, data=clients)
    weights = {client: next(run.model(client).parameters()) for client in (0, 1, 2, "2", "0", "7", "#1")}
    for name, number in (("2", 0), ("0", 1), ("7", 2), ("#1", 1)):
        assert torch.equal(weights[name], weights[number])
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])
    paths = [run.export(client=client)[0].name for client in (2, "2")]
    assert paths == ["client-00002.safetensors", "client-00000.safetensors"]
    for path in (run.path / "personal").iterdir():
        path.unlink()
    assert call_fedpfl("export", str(run.path), "--client", "0").exit_code == 0
    assert [path.name for path in (run.path / "personal").glob("*.safetensors")] == ["client-00001.safetensors"]
    with pytest.raises(fedpfl.ConfigError, match=r"client = '1': run .* has no client of this name; they are 2, 0, 7"):
        run.model("1")  # nobody is called 1, and a number would be #1


def test_a_method_s_name_may_have_capitals(monkeypatch):
    monkeypatch.setattr("fedpfl.study.execution.Process", InProcess)
    run = fedpfl.run(**{**FEW, "method": "FedAvg", "num_server_rounds": 1})
    assert run.settings["method"] == "fedavg"
    swept = fedpfl.sweep({"method": ["FedAvg", "Local"]}, **{**FEW, "method": None, "num_server_rounds": 1})
    assert {point["method"] for point in swept.points} == {"fedavg", "local"}
    settings = 'method="FedAvg" model="mlp" num-clients=2 num-server-rounds=1 local-epochs=1 run-name="capitals"'
    assert call_fedpfl("run", "-q", "-c", settings).exit_code == 0
    assert fedpfl.load("capitals").settings["method"] == "fedavg"


def test_an_error_shows_no_array():
    wrong = np.zeros((50, 4))
    for value, message in (
        (wrong, r"nonsense = \(ndarray of shape \(50, 4\)\): there is no such setting"),
        (torch.zeros(3), r"nonsense = \(Tensor of shape \(3,\)\)"),
        ([0.25] * 1000, r"nonsense = \(list\): there"),
        ("text", "nonsense = 'text': there"),
    ):
        with pytest.raises(fedpfl.ConfigError, match=message):
            fedpfl.run(dataset="digits", nonsense=value)
