"""Data larger than the memory: samples are read when a batch needs them, and the numbers stay the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedpfl
import fedpfl.data.datasets.python_objects as by_name
from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import DataSettings, FederatedData
from fedpfl.data.datasets import client_files
from fedpfl.data.datasets.folder import read_image_folder
from fedpfl.data.datasets.lazy import LazyArray, LazyInputs
from fedpfl.data.datasets.python_objects import CustomLoader


class Made(torch.utils.data.Dataset):
    """Samples made of their numbers; it notes which were read."""

    def __init__(self, kind="pixels", count=90, first=0):
        self.kind, self.count, self.first, self.read = kind, count, first, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        rng, label = np.random.default_rng(self.first + index), index % 3
        if self.kind == "pixels":
            return (rng.integers(150, size=(8, 8, 3)) + 50 * label).astype(np.uint8), label
        if self.kind == "planes":
            return torch.from_numpy(rng.normal(label, 1, (3, 8, 8)).astype(np.float32)), label
        if self.kind == "targets":
            return rng.normal(size=5), np.float32(label) / 3
        return rng.normal(label, 1, size=5), label


@pytest.fixture
def made(monkeypatch):
    """Return a function that divides a Python object among clients."""

    def make(source, num_clients=2, **settings):
        loader = CustomLoader("data", source)
        monkeypatch.setattr("fedpfl.data.federation.load_once", lambda options, seed=0: loader(options, seed))
        return FederatedData(DataSettings(**{"dataset": "clients", **settings}), num_clients, 1)

    by_name._kept.clear()
    return make


def numbers(data, **settings):
    defaults = {"partitioner": "iid", "num_clients": 3, "num_server_rounds": 2, "local_epochs": 1, "batch_size": 8,
                **settings}  # fmt: skip
    run = fedpfl.run(data=data, quiet=True, **defaults)
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in run.rounds.to_dict("records")]


@pytest.mark.parametrize("method", ["fedavg", "fedreg", "fedas", "fedfomo"])
def test_a_run_has_the_same_bits(method):
    options = {"method": method, "model": "small-cnn", "validation_fraction": 0.2, "workers": 0}
    assert numbers(fedpfl.Lazy(Made()), **options) == numbers(Made(), **options)


@pytest.mark.parametrize(("kind", "model"), [("planes", "small-cnn"), ("features", "mlp"), ("targets", "mlp")])
def test_other_samples_in_workers_and_clients_that_could_train_at_once(kind, model):
    loss = "mse" if kind == "targets" else "cross-entropy"
    expected = numbers(Made(kind), model=model, loss=loss, workers=0)
    assert numbers(fedpfl.Lazy(Made(kind)), model=model, loss=loss, workers=2) == expected
    # Tests of clients at once differ by rounding; training is of one client after the other.
    at_once = numbers(fedpfl.Lazy(Made(kind)), model=model, loss=loss, workers=0, clients_at_once=2)
    assert [row["train_loss"] for row in at_once] == [row["train_loss"] for row in expected]


def test_only_what_a_batch_needs_is_read(made):
    source = Made(count=60)
    data = made(fedpfl.Lazy(source, np.arange(60) % 3), partitioner="iid")
    assert set(source.read) <= set(range(60))  # those that a run is known by
    source.read.clear()
    x, y = data.train(0)
    assert isinstance(x, LazyInputs) and x.nbytes == 0 and len(x) == len(y) and not source.read
    batch = x[torch.tensor([5, 0, 3])]
    assert batch.shape == (3, 3, 8, 8) and len(source.read) == 3
    everything = made(Made(count=60), partitioner="iid")
    assert torch.equal(batch, everything.train(0).x[[5, 0, 3]]) and torch.equal(y, everything.train(0).y)
    for part in ("train", "test"):
        assert torch.equal(getattr(data, part)(1).x[:], getattr(everything, part)(1).x)
        assert np.array_equal(data.arrays(1)[f"x_{part}"], everything.arrays(1)[f"x_{part}"])


def test_labels_alone_are_read_where_they_are_not_given(made):
    source = Made(count=30)
    data = made(fedpfl.Lazy(source), partitioner="iid")
    assert set(source.read) == set(range(30)) and data.num_classes == 3
    assert made(fedpfl.Lazy(Made(count=30), ["abc"[index % 3] for index in range(30)])).class_names == ("a", "b", "c")


def test_clients_and_parts(made):
    def both(kind):
        wrap = fedpfl.Lazy if kind else (lambda samples: samples)
        each = {
            name: (wrap(Made(first=first)), wrap(Made(first=first + 9, count=12)))
            for name, first in (("a", 0), ("b", 99))
        }
        whole = {"train": wrap(Made()), "val": wrap(Made(first=5, count=15)), "test": wrap(Made(first=7, count=30))}
        return made(each), made(whole)

    for lazy, eager in zip(both(True), both(False), strict=True):
        assert lazy.client_names == eager.client_names
        for part in ("train", "validation", "test"):
            for client in range(2):
                actual, expected = getattr(lazy, part)(client), getattr(eager, part)(client)
                assert torch.equal(actual.x[:], expected.x) and torch.equal(actual.y, expected.y)


class Jittered(Made):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(5).numpy(), y


def test_random_transforms_are_drawn_anew_and_from_the_seed(made):
    data = made(fedpfl.Lazy(Jittered("features")))
    assert not torch.equal(data.train(0).x[:4], data.train(0).x[:4])
    first, second, other = (
        numbers(fedpfl.Lazy(Jittered("features")), model="mlp", seed=seed, workers=workers)
        for seed, workers in ((1, 0), (1, 2), (2, 0))
    )
    assert first == second != other


class Noisy(Made):
    """Draws from a generator of its own, which no seed of a run reaches."""

    own = np.random.default_rng()

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + self.own.normal(size=5), y


def test_labels_beside_samples_that_have_others_are_told(made):
    source = Made("features", count=40)
    labels = np.array([int(source[index][1]) for index in range(40)])
    told = "labels that were compared are not those of the data set's samples"
    assert any(f"8 of 8 {told}" in remark for remark in made(fedpfl.Lazy(source, labels + 1)).remarks)
    for right in (labels, labels.astype(float), np.array(["one", "two", "three"])[labels]):
        assert not any(told in remark for remark in made(fedpfl.Lazy(source, right), partitioner="iid").remarks)


def test_inputs_that_are_read_later_count_in_what_a_run_is_known_by(made):
    def contents(source):
        return made(fedpfl.Lazy(source, np.arange(source.count) % 3)).contents

    assert contents(Made("features", count=900)) == contents(Made("features", count=900))
    assert contents(Made("features", count=900)) != contents(Made("features", count=900, first=1))
    assert contents(Made("features", count=50)) != contents(Made("targets", count=50))
    # Random transforms follow from the seed of each reading.
    assert contents(Jittered("features")) == contents(Jittered("features")) != contents(Jittered("features", first=1))
    assert contents(Noisy("features")) == contents(Noisy("features"))
    for source, part in ((Jittered("features"), "64 of their inputs"), (Noisy("features"), "no input, since each")):
        assert any(part in remark for remark in made(fedpfl.Lazy(source, np.arange(90) % 3)).remarks)


def test_a_run_of_other_inputs_that_are_read_later_is_not_resumed(tmp_path):
    few = {"quiet": True, "workers": 0}
    labels = np.arange(90) % 3
    options = {"model": "mlp", "num_clients": 3, "num_server_rounds": 1, **few}
    first = fedpfl.run("fedavg", data=fedpfl.Lazy(Made("features"), labels), **options)
    with pytest.raises(DataError, match="the samples are not those of the run to resume"):
        fedpfl.run(resume=first, data=fedpfl.Lazy(Made("features", first=5), labels), num_server_rounds=2, **few)
    again = fedpfl.run(resume=first, data=fedpfl.Lazy(Made("features"), labels), num_server_rounds=2, **few)
    assert again.summary["rounds"] == 2


class Broken(Made):
    def __getitem__(self, index):
        if index == 17:
            return np.zeros((9, 8, 3), np.uint8), 0
        return super().__getitem__(index)


def test_what_does_not_fit_is_refused(made):
    with pytest.raises(DataError, match=r"takes a torch Dataset.*of a DataLoader give its dataset"):
        fedpfl.Lazy(torch.utils.data.DataLoader(Made()))
    with pytest.raises(DataError, match=r"sample 17 has the shape \(9, 8, 3\), and of sample 0 \(8, 8, 3\)"):
        made(fedpfl.Lazy(Broken()))
    with pytest.raises(DataError, match="has 7 labels for 90 samples"):
        made(fedpfl.Lazy(Made(), np.zeros(7, int)))
    with pytest.raises(DataError, match="no samples"):
        made(fedpfl.Lazy(Made(count=0)))
    with pytest.raises(DataError, match="cannot be laid next to others in memory"):
        np.stack([made(fedpfl.Lazy(Made()))._data.x_train] * 2)
    with pytest.raises(ConfigError, match="must be none for data, whose samples are read one by one"):
        made(fedpfl.Lazy(Made("features")), standardize="client")


def photographs(root, modes, side=12):
    """Write images of two classes, with a test set."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(1)
    for number in range(36):
        place = root / ("test" if number % 3 == 0 else "train") / "ab"[number % 2] / f"{number:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        mode = modes[number % len(modes)]
        shape = (side, side, 3) if mode == "RGB" else (side, side)
        image.fromarray(rng.integers(256, size=shape, dtype=np.uint8)).convert(mode).save(place)
    return root


@pytest.mark.parametrize("modes", [("L",), ("RGB",), ("L", "RGB"), ("RGB", "L", "1")])
@pytest.mark.parametrize("size", [0, 7])
def test_a_folder_of_many_images_is_read_when_it_is_needed(tmp_path, modes, size):
    root = photographs(tmp_path / "photographs", modes)
    held, later = read_image_folder(root, size), read_image_folder(root, size, held=0)
    for part in ("x_train", "x_test"):
        wanted, actual = getattr(held, part), getattr(later, part)
        assert isinstance(actual, LazyArray) and actual.shape == wanted.shape and actual.dtype == wanted.dtype
        assert np.array_equal(actual.rows(None, np.arange(len(actual))), wanted)
    assert np.array_equal(held.y_train, later.y_train) and held.input_shape == later.input_shape


def test_an_image_that_does_not_fit_is_named_before_any_is_decoded(tmp_path):
    image = pytest.importorskip("PIL.Image")
    root = photographs(tmp_path / "photographs", ("L",))
    image.new("L", (5, 12)).save(root / "train" / "b" / "odd.png")
    with pytest.raises(DataError, match=r"odd.png is 5×12 pixels but \d+.png is 12×12: image-size resizes"):
        read_image_folder(root, held=0)
    (root / "train" / "b" / "odd.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"odd.png: not a readable image"):
        read_image_folder(root, held=0)


def test_folders_of_grey_and_colour_clients_have_the_same_bits_when_read_later(tmp_path, monkeypatch):
    photographs(tmp_path / "people" / "ann", ("L",))
    photographs(tmp_path / "people" / "ben", ("RGB",))
    results = []
    for most in (client_files.MAX_HELD, 36 * 12 * 12 * 3 * 2, 0):
        monkeypatch.setattr(client_files, "MAX_HELD", most)
        (tmp_path / "people" / f".{most}").touch()  # read again: the folder has changed
        run = fedpfl.run(
            "fedavg", dataset="clients", data=tmp_path / "people", model="mlp", num_server_rounds=2, quiet=True,
            workers=0, output_dir=tmp_path / "runs",
        )  # fmt: skip
        results.append([run.clients["accuracy"].tolist(), run.rounds["personalised_loss"].tolist()])
    assert results[0] == results[1] == results[2]


def test_grey_and_colour_arrays_and_loaders_of_clients_become_colour(made):
    grey, colours = np.arange(20 * 64, dtype=np.int64).reshape(20, 8, 8) % 256, Made(count=30)
    labels = np.arange(20) % 3
    data = made([(grey.astype(np.uint8), labels), fedpfl.Lazy(colours), colours])
    assert data.input_shape == (3, 8, 8)
    assert data._data.x_train.shape == (80, 8, 8, 3)
    assert np.array_equal(data._data.x_train.read(3), np.repeat(grey[3, :, :, None], 3, axis=2))
    with pytest.raises(DataError, match="client 1: its samples are uint8 8×8×4, those of client 0 uint8 8×8×1"):
        made([(grey.astype(np.uint8), labels), (np.zeros((20, 8, 8, 4), np.uint8), labels)])


def test_clients_in_memory_and_others_read_later_go_together(made):
    together, apart = made([fedpfl.Lazy(Made()), Made()]), made([Made(), Made()])
    for client in (0, 1):
        one, other = together.train(client), apart.train(client)
        assert torch.equal(one.x[:], other.x[:]) and torch.equal(one.y, other.y)
