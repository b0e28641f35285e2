"""Segmentation: a class for each pixel, from data to metrics and the model that a run gives back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support import ADAPTERS, each_method, refusing
from torch import nn
from torch.nn import functional as F

import fedpfl
from fedpfl.core.errors import ConfigError, DataError, FedpflError
from fedpfl.core.metrics import MASKS
from fedpfl.data import DataSettings, FederatedData
from fedpfl.data.datasets.npz import read_npz
from fedpfl.training.loop import evaluate
from fedpfl.training.losses import KINDS
from fedpfl.training.measure import find, measured

SIZE = 8
# Those that need one class for a sample, or a linear layer as head.
NEED_CLASSES = refusing("loss")
NEED_LINEAR = {"fedcp", "feddbe", "fedmrl", "floco", *ADAPTERS}


def masked(seed, count=20):
    """Return images in which one of two bars is bright, and their masks, whose first row does not count."""
    rng = np.random.default_rng(seed)
    images, masks = rng.normal(0, 0.1, (count, 1, SIZE, SIZE)).astype(np.float32), np.zeros((count, SIZE, SIZE), int)
    for image, mask in zip(images[:, 0], masks, strict=True):
        middle, lying = rng.integers(1, SIZE - 1), rng.integers(2)
        bar = np.s_[middle, :] if lying else np.s_[:, middle]
        mask[bar], image[bar] = 1 + lying, 1
    masks[:, 0] = 255
    return images, masks


def network(input_shape, num_classes):
    return nn.Sequential(nn.Conv2d(input_shape[0], 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, num_classes, 1))


def train(data=None, method="fedavg", **settings):
    data = [masked(1), masked(2)] if data is None else data
    options = {"model": network, "loss": MASKS, "metrics": "iou,dice", "num_server_rounds": 1, "local_epochs": 1}
    return fedpfl.run(method, data=data, quiet=True, **{**options, "workers": 0, **settings})


def numbers(run):
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in run.rounds.to_dict("records")]


def test_loss_and_accuracy_are_of_the_pixels_that_count():
    torch.manual_seed(1)
    outputs, y = torch.randn(5, 3, 4, 4), torch.randint(3, (5, 4, 4)).to(torch.uint8)
    y[0], y[1, 2:] = 255, 255
    loss = KINDS[MASKS].criterion
    assert loss(outputs, y) == pytest.approx(float(F.cross_entropy(outputs, y.long(), ignore_index=255)))
    each = loss(outputs, y, reduction="none")
    assert each[0] == 0 and each[2] == pytest.approx(float(F.cross_entropy(outputs[2:3], y[2:3].long())))
    assert loss(outputs, y, reduction="sum") == pytest.approx(float(each.sum()))
    assert loss(outputs[:1], y[:1]) == 0  # no pixel counts
    samples = fedpfl.Samples(torch.arange(5), y)
    score = evaluate(lambda x: outputs[x], samples, MASKS, find("iou"))
    right = ((outputs.argmax(1) == y) & (y != 255)).sum() / (y != 255).sum()
    assert score.correct / score.samples == pytest.approx(float(right)) and score.samples == 5
    assert evaluate(lambda x: outputs[x], fedpfl.Samples(torch.arange(1), y[:1]), MASKS).samples == 0


@pytest.mark.parametrize("seed", range(3))
def test_iou_and_dice_are_sklearn_s(seed):
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    said, truth = rng.integers(0, 5, (4, 6, 6)), rng.integers(0, 4, (4, 6, 6))
    there = rng.random(truth.shape) < 0.7
    y = torch.from_numpy(np.where(there, truth, 255).astype(np.uint8))
    scores = measured(find("iou,dice"), torch.from_numpy(said.astype(np.uint8)), y, MASKS)
    assert scores["iou"] == (pytest.approx(sklearn.jaccard_score(truth[there], said[there], average="macro")), 1)
    assert scores["dice"] == (pytest.approx(sklearn.f1_score(truth[there], said[there], average="macro")), 1)


@pytest.mark.parametrize("method", each_method(also=NEED_CLASSES | NEED_LINEAR))
def test_each_method_trains_or_refuses_in_a_line_before_round_1(method, tmp_path):
    if method in NEED_CLASSES | NEED_LINEAR:
        with pytest.raises(ConfigError, match="must be cross-entropy" if method in NEED_CLASSES else "Linear|adapters"):
            train(method=method, output_dir=tmp_path)
        assert not any((run / "metrics.jsonl").exists() for run in tmp_path.iterdir())
        return
    row = train(method=method, learning_rate=0.005, validation_fraction=0.2).rounds.iloc[-1]
    assert 0 <= row["personalised_iou"] <= row["personalised_dice"] <= 1 and 0 <= row["personalised_accuracy"] <= 1


def test_a_model_learns_and_predicts_as_recorded_wherever_it_trains():
    settings = {"method": "fedper", "num_server_rounds": 6, "local_epochs": 5, "learning_rate": 0.2}
    run = train(**settings)
    last = run.clients.loc[6]
    assert last["iou"].min() > 0.5
    images, masks = masked(2)
    with torch.no_grad():
        said = run.model(client=1)(torch.from_numpy(images)).argmax(1).numpy()
    assert (said == masks)[masks != 255].mean() > 0.9
    assert numbers(train(**settings, workers=2)) == numbers(run)
    at_once = train(**settings, clients_at_once=2)
    assert at_once.clients["iou"].to_numpy() == pytest.approx(run.clients["iou"].to_numpy(), abs=0.02)


def test_the_same_masks_in_other_forms():
    expected = numbers(train())
    sets = [torch.utils.data.TensorDataset(*map(torch.from_numpy, masked(seed))) for seed in (1, 2)]
    assert numbers(train(sets)) == numbers(train([fedpfl.Lazy(one) for one in sets])) == expected
    assert numbers(train([(x, y.astype(np.uint8)[:, None]) for x, y in (masked(1), masked(2))])) == expected


def test_a_file_names_the_classes_and_the_answers_are_masks(tmp_path):
    from fedpfl.bench.device.predict import answers
    from fedpfl.client.device_model import load_model

    x, y = masked(1, 40)
    pixels = (100 + 100 * x.transpose(0, 2, 3, 1)).clip(0, 255).astype(np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=y, client=np.arange(40) % 2, classes=["nothing", "standing", "lying"])
    run = train(
        str(tmp_path / "a.npz"), dataset="npz", device_models="always", state_dir=str(tmp_path / "state"),
        method="fedper",
    )  # fmt: skip
    about = json.loads((run.path / "personal" / "client-00000.json").read_text())
    assert about["class-names"] == ["nothing", "standing", "lying"] and about["loss"] == MASKS
    model = load_model(next(tmp_path.glob("state/*/client-00001")))
    assert model.predict(pixels[:2]).sum(1) == pytest.approx(np.ones((2, SIZE, SIZE)), abs=1e-5)
    assert np.shape(answers(model, pixels[:2])[1]["mask"]) == (SIZE, SIZE)
    # A client's own file has the highest class or not, and other names are other numbers.
    assert read_npz(tmp_path / "a.npz", num_classes=3).num_classes == 3


def test_classes_of_clients_files_are_the_same_by_name(tmp_path):
    x, y = masked(1)
    folder = tmp_path / "cameras"
    folder.mkdir()
    np.savez(folder / "a.npz", x=x[:, 0, :, :, None].astype(np.uint8), y=y, classes=["nothing", "standing", "lying"])
    swapped = np.array([0, 2, 1, *[255] * 253])[y]
    np.savez(
        folder / "b.npz", x=x[:, 0, :, :, None].astype(np.uint8), y=swapped, classes=["nothing", "lying", "standing"]
    )
    data = FederatedData(DataSettings(dataset="clients", data=str(folder), partitioner="natural"), 2, 1)
    first, second = (torch.cat([data.train(client).y, data.test(client).y]) for client in (0, 1))
    assert data.class_names == ("lying", "nothing", "standing")
    assert [int((first == c).sum()) for c in (0, 1, 2, 255)] == [int((second == c).sum()) for c in (0, 1, 2, 255)]


def test_a_loss_and_a_metric_of_one_s_own_get_whole_numbers():
    def overlap(outputs, y):
        assert outputs.dtype == y.dtype == torch.int64 and outputs.shape == y.shape
        return ((outputs == y) & (y != 255)).sum(), (y != 255).sum()

    def plain(outputs, y):
        return F.cross_entropy(outputs, y, ignore_index=255)

    row = train(loss={MASKS: plain}, metrics=[overlap]).rounds.iloc[-1]
    assert row["personalised_overlap"] == pytest.approx(row["personalised_accuracy"])


def test_a_comparison_goes_by_iou():
    comparison = fedpfl.compare(
        ["local", "fedavg"], data=[masked(seed) for seed in range(2)], model=network, loss=MASKS, metrics="iou",
        choose_by="iou", seeds=1, num_server_rounds=1, workers=0, quiet=True,
    )  # fmt: skip
    assert "iou" in comparison.table.columns and "accuracy" not in comparison.conclusion


def of(x, y):
    return [(x, y), (x, y)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": masked(1, 40), "partitioner": "dirichlet"}, "has masks: use iid, natural"),
        ({"augmentation": "flip-crop"}, "must be none: masks"),
        ({"loss": "cross-entropy", "metrics": ""}, "which has masks; use segmentation"),
        ({"class_weights": "balanced"}, "must be none for loss = segmentation"),
        ({"permute_labels": True}, "which has targets and no classes"),
        ({"model": "mlp"}, "gives numbers for each sample, but loss = segmentation"),
        ({"data": of(masked(1)[0], masked(1)[1][:, 3, 3])}, "which has classes"),
        (
            {"data": of(masked(1)[0], masked(1)[1].astype(float))},
            "must be whole numbers, one for each sample, or for each pixel",
        ),
        ({"data": of(masked(1)[0], masked(1)[1] - 1)}, "holds -1: the labels of masks are 0"),
        ({"data": of(masked(1)[0], masked(1)[1][:, :4])}, r"masks of \(4, 8\) do not fit inputs of \(1, 8, 8\)"),
        ({"num_classes": 2}, r"label 2: labels must be 0 … 1"),
        ({"metrics": "auroc"}, "must be one of accuracy, iou, dice"),
    ],
)
def test_what_does_not_fit_is_refused(settings, message):
    with pytest.raises(FedpflError, match=message) as refused:
        train(**settings)
    assert isinstance(refused.value, (ConfigError, DataError)) and "\n" not in str(refused.value)


def test_the_last_convolution_is_the_head_where_the_model_ends_in_it():
    def scaled(input_shape, num_classes):
        return nn.Sequential(nn.Conv2d(input_shape[0], 8, 3, padding=1), nn.Conv2d(8, num_classes, 1), nn.Softsign())

    assert {name.partition(".")[0] for name in train(method="fedrep").model(client=0).state_dict()} == {"0", "2"}
    assert len(train(model=scaled).rounds) == 1
    with pytest.raises(ConfigError, match=r"does not end in its last nn.Conv2d, '1'; the method needs a head"):
        train(model=scaled, method="fedrep")
