"""What clients get: normalisation, memory layout, labels, the bounded cache, a device's own data, pictures."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from real_data import real_data_dir
from support import federation

from fedpfl.client.engines import engine_for
from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import (
    DataSettings,
    FederatedData,
    default_clients,
    federated_data,
    load,
    partition_counts,
    with_partitioner,
)
from fedpfl.data.dataset import Dataset
from fedpfl.data.datasets.client_files import own_data
from fedpfl.data.partitioners import Share, label_permutation
from fedpfl.data.plot import as_text, bubble_chart
from fedpfl.data.settings import in_words
from fedpfl.setup.config import Config
from fedpfl.training.augment import pixels_of


@pytest.fixture
def colours(tmp_path: Path) -> DataSettings:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (400, 6, 5, 3), dtype=np.uint8)
    z = rng.integers(0, 256, (100, 6, 5, 3), dtype=np.uint8)
    np.savez(tmp_path / "c.npz", x_train=x, y_train=np.arange(400) % 4, x_test=z, y_test=np.arange(100) % 4)
    return DataSettings(dataset="npz", data=str(tmp_path / "c.npz"), partitioner="iid", split="mixed")


@pytest.mark.parametrize("split", ["mixed", "given"])
def test_images_are_normalised_channels_last_and_the_right_ones(colours: DataSettings, split: str) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    usual = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])
    settings = dataclasses.replace(colours, split=split)
    data, raw = FederatedData(settings, 5, 0), load(settings)
    pixels, labels = np.concatenate([raw.x_train, raw.x_test]), np.concatenate([raw.y_train, raw.y_test])
    assert (data.num_clients, data.num_classes, data.input_shape) == (5, 4, (3, 6, 5)) and data.is_image
    for i in range(5):
        share = data.share(i)
        assert data.sizes(i) == (len(data.train(i).y), len(data.test(i).y)) == (len(share.train), len(share.test))
        for (x, y), where in ((data.train(i), share.train), (data.test(i), share.test)):
            assert x.dtype == torch.float32 and y.dtype == torch.int64
            assert x.shape[1:] == data.input_shape and x.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(x, torch.stack([usual(image) for image in pixels[where]])), "bit for bit"
            assert y.tolist() == labels[where].tolist()
        assert data.labels(i).tolist() == data.train(i).y.tolist()


def test_grey_images_and_features(tmp_path: Path) -> None:
    digits = federated_data(DataSettings(), 4, 0)
    x = digits.train(0).x
    assert x.shape[1:] == (1, 8, 8) and x.min() == -1 and x.max() == 1
    assert x.is_contiguous(memory_format=torch.channels_last)
    waves = np.random.default_rng(0).normal(size=(40, 2, 16)).astype(np.float32)
    np.savez(tmp_path / "w.npz", x=waves, y=np.arange(40) % 2)
    data = FederatedData(DataSettings(dataset="npz", data=str(tmp_path / "w.npz"), partitioner="iid"), 2, 0)
    assert data.input_shape == (2, 16) and not data.is_image
    assert np.array_equal(data.test(1).x.numpy(), waves[data.share(1).test]), "not normalised"


def test_permuted_labels() -> None:
    plain, permuted = (FederatedData(DataSettings(permute_labels=on), 6, 0) for on in (False, True))
    for i in range(6):
        order = label_permutation(i, 10)
        assert np.array_equal(permuted.labels(i), order[plain.labels(i)])
        assert np.array_equal(permuted.test(i).y.numpy(), order[plain.test(i).y.numpy()])
        assert torch.equal(permuted.test(i).x, plain.test(i).x)


def test_cache_is_bounded(colours: DataSettings) -> None:
    size = sum(t.numel() * t.element_size() for t in FederatedData(colours, 5, 0).train(0))
    assert size == 75 * (6 * 5 * 3 * 4 + 8)
    data = FederatedData(colours, 5, 0, cache_bytes=2 * size)
    first, second = data.train(0), data.train(1)
    assert data.train(0) is first
    data.train(2)  # client 1 was not asked for the longest time
    assert data.train(0) is first and data.train(1) is not second
    assert len(data._cache.keys()) == 2 and data._cache.bytes_left == 0
    tiny = FederatedData(colours, 5, 0, cache_bytes=size - 1)
    assert torch.equal(tiny.train(3).x, data.train(3).x)
    assert not tiny._cache.keys() and tiny._cache.bytes_left == size - 1


def test_testing_prepares_no_training_samples(colours: DataSettings) -> None:
    data = FederatedData(colours, 5, 0)
    assert data.test(1) is data.test(1)
    assert data._cache.keys() == [(1, "test")]


def test_one_process_reads_and_divides_once(colours: DataSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedpfl.data.reading as module

    calls = []
    monkeypatch.setattr(module, "load", lambda settings: calls.append(settings) or load(settings))
    a = federated_data(colours, 5, 0)
    assert federated_data(dataclasses.replace(colours), 5, 0) is a
    assert federated_data(dataclasses.replace(colours, partitioner="dirichlet"), 5, 1) is not a
    assert len(calls) == 1, "another division of the same data does not read them again"


def test_the_checksum_tells_divisions_apart(colours: DataSettings) -> None:
    first = FederatedData(colours, 3, seed=1)
    assert first.checksum == FederatedData(colours, 3, seed=1).checksum
    assert first.checksum != FederatedData(colours, 3, seed=2).checksum
    moved = FederatedData(colours, 3, seed=1)
    (a, b, *_) = moved._shares
    moved._shares[:2] = [Share(np.append(a.train, b.train[0]), a.test), Share(b.train[1:], b.test)]
    assert moved.checksum != first.checksum


def test_no_such_client(colours: DataSettings) -> None:
    data = FederatedData(colours, 5, 0)
    for i in (-1, 5):
        with pytest.raises(DataError, match=rf"client {i}: the data are divided among 5 clients"):
            data.train(i)


# -- a device's own data -----------------------------------------------------------------------------------------------


def test_own_file_is_one_clients_share(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 6, 5), dtype=np.uint8)
    path = tmp_path / "mine.npz"
    np.savez(path, x=x, y=np.arange(40) % 3)
    settings = DataSettings(test_fraction=0.2, permute_labels=True)
    data = own_data(settings, str(path), client=3, seed=7, num_classes=10)
    assert data.num_clients == 1 and data.num_classes == 10 and data.sizes(0) == (32, 8)
    assert np.array_equal(np.sort(np.concatenate(data.share(0))), np.arange(40))
    assert np.array_equal(data.labels(0), label_permutation(3, 10)[(np.arange(40) % 3)[data.share(0).train]])
    again, other = own_data(settings, str(path), 3, 7, 10), own_data(settings, str(path), 4, 7, 10)
    assert np.array_equal(again.share(0).test, data.share(0).test)
    assert not np.array_equal(other.share(0).test, data.share(0).test)
    with pytest.raises(DataError, match=r"mine\.npz: has 40 samples, min-samples is 50"):
        own_data(DataSettings(min_samples=50), str(path), 0, 0)
    with pytest.raises(DataError, match="labels must be 0 … 1"):
        own_data(settings, str(path), 0, 0, num_classes=2)
    with pytest.raises(DataError, match="nowhere: no such file"):
        own_data(settings, str(tmp_path / "nowhere"), 0, 0)


def test_own_file_with_a_test_set_and_own_folder(tmp_path: Path, colours: DataSettings) -> None:
    data = own_data(colours, colours.data, 0, 0)
    assert data.sizes(0) == (400, 100) and data.share(0).test[0] == 400
    image = pytest.importorskip("PIL.Image")
    for i in range(12):
        folder = tmp_path / "pictures" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((4, 4), 20 * i, np.uint8)).save(folder / f"{i}.png")
    pictures = own_data(DataSettings(), str(tmp_path / "pictures"), 0, 0, num_classes=2)
    assert pictures.sizes(0) == (9, 3) and pictures.class_names == ("a", "b")
    with pytest.raises(DataError, match="has 2 classes, the federation has 5"):
        own_data(DataSettings(), str(tmp_path / "pictures"), 0, 0, num_classes=5)


# -- data that name their owners ---------------------------------------------------------------------------------------


@pytest.fixture
def people(tmp_path: Path) -> DataSettings:
    """Return the settings of a file with samples of five people, one of whom has too few."""
    owner = np.repeat([10, 20, 30, 40, 50], [30, 25, 4, 20, 15])
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "p.npz", x=rng.random((94, 3), np.float32), y=rng.permutation(94) % 4, client=owner)
    return DataSettings(dataset="npz", data=str(tmp_path / "p.npz"))


def test_natural_clients_are_the_default_where_the_data_name_them(people: DataSettings, tmp_path: Path) -> None:
    assert default_clients(people) == 4
    assert with_partitioner(people).partitioner == "natural"
    data = FederatedData(people, 4, 0)
    assert [sum(data.sizes(i)) for i in range(4)] == [30, 25, 20, 15]
    few = "p: 1 of 5 owners has fewer than min-samples = 10 samples and is left out: 30"
    assert data.remarks == [few] and data.client_names == ("10", "20", "40", "50")
    assert data.checksum == FederatedData(dataclasses.replace(people, partitioner="natural"), 4, 0).checksum
    assert FederatedData(people, 3, 0).remarks == ["p: 3 of 4 natural clients take part (num-clients)", few]


def test_owners_do_not_matter_to_a_partitioner_that_was_asked_for(people: DataSettings) -> None:
    asked = dataclasses.replace(people, partitioner="iid")
    assert default_clients(asked) is None and with_partitioner(asked) is asked
    data = FederatedData(asked, 2, 0)
    assert [sum(data.sizes(i)) for i in range(2)] == [47, 47] and data.remarks == []


def test_without_owners_the_default_is_dirichlet() -> None:
    assert default_clients(DataSettings()) is None
    assert with_partitioner(DataSettings()).partitioner == "dirichlet"
    dirichlet = dataclasses.replace(DataSettings(), partitioner="dirichlet")
    assert FederatedData(DataSettings(), 4, 0).checksum == FederatedData(dirichlet, 4, 0).checksum


def test_classes_without_samples_are_named(tmp_path: Path) -> None:
    x, y = np.arange(160, dtype=np.float32).reshape(80, 2) / 160, np.tile([0, 1, 3, 4], 20)
    np.savez(tmp_path / "g.npz", x=x, y=y)
    settings = DataSettings(dataset="npz", data=str(tmp_path / "g.npz"))
    assert FederatedData(settings, 2, 0).remarks == ["g: no sample has label 2: the models tell 5 classes apart"]
    assert own_data(settings, settings.data, 0, 0).remarks == [], "a device may lack a class"
    np.savez(tmp_path / "h.npz", x=x, y=y, classes=list("abcde"))
    assert FederatedData(dataclasses.replace(settings, data=str(tmp_path / "h.npz")), 2, 0).remarks == []


def test_what_is_said_of_a_division_is_what_it_depends_on(people: DataSettings) -> None:
    natural = dataclasses.replace(people, partitioner="natural", split="given")
    assert {"dirichlet-alpha", "classes-per-client", "train-samples", "test-fraction"}.isdisjoint(natural.division())
    assert natural.division()["min-samples"] == 10
    assert DataSettings(partitioner="dirichlet-client").division()["train-samples"] == 500
    assert in_words(DataSettings(partitioner="dirichlet", dirichlet_alpha=0.1)) == "dirichlet, α 0.1"
    assert in_words(DataSettings(partitioner="pathological")) == "pathological, S 2"
    assert in_words(natural) == "natural"


# -- real data ---------------------------------------------------------------------------------------------------------


def test_har_by_person() -> None:
    settings = DataSettings(dataset="npz", data=str(real_data_dir() / "har.npz"), partitioner="natural")
    data = FederatedData(settings, 30, 0)
    assert sum(sum(data.sizes(i)) for i in range(30)) == 10299
    assert data.train(29).x.shape[1:] == (9, 128)
    with pytest.raises(ConfigError, match="num-clients = 31: must be at most 30"):
        FederatedData(settings, 31, 0)


def test_a_thousand_clients_of_fashion_mnist() -> None:
    settings = DataSettings(dataset="fashion-mnist", data_dir=str(real_data_dir()))
    data = FederatedData(settings, 1000, 0)
    counts = partition_counts(data)
    assert not data._cache.keys(), "nobody's pictures are prepared for it"
    assert counts.shape == (1000, 10) and 52000 < counts.sum() < 53000
    assert sum(sum(data.sizes(i)) for i in range(1000)) == 70000


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_counts() -> None:
    data = federated_data(DataSettings(), 5, 0)
    counts = partition_counts(data)
    assert counts.shape == (5, 10)
    assert counts.sum(axis=1).tolist() == [data.sizes(i)[0] for i in range(5)]
    assert counts[2].tolist() == [int((data.train(2).y == c).sum()) for c in range(10)]


@pytest.mark.parametrize("shape", [(1, 2), (10, 10), (100, 10)])
def test_bubble_chart(tmp_path: Path, shape: tuple[int, int]) -> None:
    pytest.importorskip("matplotlib")
    before = "matplotlib.pyplot" in sys.modules
    counts = np.random.default_rng(0).integers(0, 50, shape)
    picture = bubble_chart(counts, tmp_path / "deep" / "chart.png", "ten clients")
    image = pytest.importorskip("PIL.Image").open(picture)
    assert image.width > 200 and image.height > 200 and len(np.unique(np.asarray(image.convert("L")))) > 20
    assert ("matplotlib.pyplot" in sys.modules) == before, "no global state"


def test_bubble_chart_endings(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert bubble_chart(np.zeros((2, 3), int), tmp_path / "c.svg").read_text().startswith("<?xml")
    with pytest.raises(ConfigError, match=r"must end in .png, .svg or .pdf"):
        bubble_chart(np.zeros((2, 3), int), tmp_path / "c.doc")


def test_table_for_terminals() -> None:
    assert as_text(np.array([[3, 0], [10, 200]])).splitlines() == [
        "client  training  classes   0    1",
        "     0         3        1   3    .",
        "     1       210        2  10  200",
    ]
    # Names come from files: one line of printable characters.
    named = as_text(np.array([[3, 0], [10, 200]]), ["anna", "ben\n"], ["no", "yes"]).splitlines()
    assert [line.split()[:2] for line in named[1:3]] == [["0", "anna"], ["1", "ben"]]
    assert named[3:] == ["classes: 0 no, 1 yes"]
    wide = np.zeros((2, 30), int)
    wide[0, [4, 7, 9, 20]] = [1, 9, 5, 5]
    assert as_text(wide).splitlines()[1].split() == ["0", "20", "4", "7:", "9,", "9:", "5,", "20:", "5"]


@pytest.mark.parametrize(
    ("normalize", "mean", "deviation"),
    [
        ("cifar-10", (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
        ("cifar-100", (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("svhn", (0.438, 0.444, 0.473), (0.1751, 0.1771, 0.1744)),
    ],
)
def test_pixels_are_normalised_as_the_setting_says_and_found_again(
    colours: DataSettings, normalize: str, mean: tuple[float, ...], deviation: tuple[float, ...]
) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    usual = transforms.Normalize(mean, deviation)
    settings = dataclasses.replace(colours, normalize=normalize)
    data, raw = FederatedData(settings, 5, 0), load(settings)
    share = data.share(2)
    pixels = np.concatenate([raw.x_train, raw.x_test])[share.train]
    wanted = torch.stack([usual(transforms.ToTensor()(image)) for image in pixels])
    x = data.train(2).x
    torch.testing.assert_close(x, wanted)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(pixels_of(x, normalize).permute(0, 2, 3, 1).numpy(), pixels)
    assert np.array_equal(pixels_of(FederatedData(colours, 5, 0).train(2).x).permute(0, 2, 3, 1).numpy(), pixels)
    assert settings.division() == colours.division()
    with pytest.raises(
        ConfigError, match=rf"normalize = .{normalize}.: must be half for digits, which holds no images of"
    ):
        FederatedData(DataSettings(normalize=normalize), 4, 0)


@pytest.mark.parametrize("permute", [False, True])
def test_clients_are_tested_on_the_test_samples_of_all(permute: bool) -> None:
    separate, both = (FederatedData(DataSettings(test_on=on, permute_labels=permute), 5, 0) for on in ("own", "all"))
    everyone = np.unique(np.concatenate([separate.share(i).test for i in range(5)]))
    labels = load(DataSettings()).y_train[everyone]
    for i in range(5):
        assert both.sizes(i) == (separate.sizes(i)[0], len(everyone))
        x, y = both.test(i)
        assert torch.equal(x, both.test(0).x) and len(y) == len(everyone)
        assert np.array_equal(y.numpy(), label_permutation(i, 10)[labels] if permute else labels)
        assert torch.equal(both.train(i).x, separate.train(i).x)
    assert separate.checksum == both.checksum and all(
        map(np.array_equal, separate.division().values(), both.division().values())
    )


def test_clients_with_another_task_are_not_tested_on_its_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (3000, 4, 4, 3), dtype=np.uint8), np.arange(3000) % 100
    np.savez(tmp_path / "cifar100.npz", x_train=x, y_train=y, x_test=x[:300], y_test=y[:300])
    settings = DataSettings(dataset="npz", data=str(tmp_path / "cifar100.npz"), partitioner="domains", min_samples=2)
    separate, both = (FederatedData(dataclasses.replace(settings, test_on=on), 10, 0) for on in ("own", "all"))
    for first in range(0, 10, 2):  # two clients have a domain
        positions = np.unique(np.concatenate([separate.share(first + i).test for i in range(2)]))
        assert {both.sizes(first + i)[1] for i in range(2)} == {len(positions)}
        assert both.test(first).y.max() < 10
    assert sum(both.sizes(i)[1] for i in range(10)) == 2 * sum(separate.sizes(i)[1] for i in range(10))


def test_a_device_s_own_data_are_all_that_it_can_be_tested_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 4), np.float32), y=np.arange(40) % 2)
    with pytest.raises(ConfigError, match=r"test-on = .all.: must be own or server where clients hold their own data"):
        own_data(DataSettings(test_on="all"), str(tmp_path / "a.npz"), 0, 0)
    with pytest.raises(ConfigError, match=r"split = .given.: .*a\.npz has no separate test set"):
        own_data(DataSettings(split="given"), str(tmp_path / "a.npz"), 0, 0)


@pytest.mark.parametrize("kind", ["file", "folder", "own file", "own folder"])
def test_files_that_have_changed_are_read_again_and_others_are_not(tmp_path, kind):
    def write(shift):
        rows = "".join(f"{shift},{row % 2}\n" for row in range(20))
        for name in ("train", "test"):
            np.savez(tmp_path / "files" / f"{name}.npz", x=np.full((20, 3), shift, np.float32), y=np.arange(20) % 2)
            (tmp_path / "tables" / f"{name}.csv").write_text(f"a,label\n{rows}")

    def read():
        if kind.startswith("own"):
            place = tmp_path / ("tables" if kind == "own folder" else "files/train.npz")
            return own_data(DataSettings(), str(place), 0, 1)
        folder = kind == "folder"
        place = tmp_path / ("files" if folder else "files/train.npz")
        return federated_data(DataSettings(dataset="clients" if folder else "npz", data=str(place)), 2, 1)

    for folder in ("files", "tables"):
        (tmp_path / folder).mkdir()
    write(1.0)
    first = read()
    assert read() is first
    write(2.0)
    assert float(read().train(0).x.max()) == 2.0


def test_a_device_that_stays_on_reads_its_data_again_as_a_run_begins_and_not_within_one(tmp_path):
    values = federation(tmp_path, 1, dataset="table", model="mlp", min_samples=2, num_clients=1, partitioner="auto")
    values["num-classes"] = 2
    path = tmp_path / "a.csv"

    def largest(kind):
        engine = engine_for(Config.parse(values), 1, str(path), 0, begins="run" if kind == "query" else None)
        return float(engine.data.train(0).x.max())

    def write(number):
        path.write_text("a,label\n" + f"{number},0\n{number},1\n" * 10)

    write(1)
    assert largest("query") == largest("train") == 1
    write(22)
    assert largest("train") == 1
    assert largest("query") == largest("train") == 22


def test_images_of_floats_are_not_written_to_a_file_that_nobody_reads():
    data = Dataset.of("made", np.zeros((20, 3, 8, 8), np.float32), np.arange(20) % 2)
    with pytest.raises(DataError, match="made: files have images of uint8, and these are of float32"):
        FederatedData.of_client(data, DataSettings(), 0, 1).arrays(0)
