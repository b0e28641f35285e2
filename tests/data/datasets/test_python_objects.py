"""Data that users bring as Python objects, gaps and scales: what each client sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedpfl.data.datasets.python_objects as custom
from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import Dataset, DataSettings, FederatedData, partition_counts
from fedpfl.data.datasets.client_files import own_data, read_own
from fedpfl.data.datasets.folder import read_image_folder
from fedpfl.data.datasets.python_objects import CustomLoader


@pytest.fixture
def made(monkeypatch):
    """Return a function that divides a Python object among clients."""

    def make(source, num_clients, **settings):
        loader = CustomLoader("data", source)
        monkeypatch.setattr("fedpfl.data.federation.load_once", lambda options, seed=0: loader(options, seed))
        return FederatedData(DataSettings(**{"dataset": "clients", **settings}), num_clients, 1)

    custom._kept.clear()
    return make


def arrays(seed, n=20, shape=(3,)):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, *shape)).astype(np.float32), np.arange(n) % 2


class Pairs(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return torch.from_numpy(self.x[index]), int(self.y[index])


def same(data, client, x):
    """Whether a client's samples are these, in some order."""
    rows = torch.cat([data.train(client).x, data.test(client).x]).numpy()
    assert np.array_equal(rows[np.lexsort(rows.T)], x[np.lexsort(x.T)])


def test_a_dict_of_arrays_names_the_clients(made):
    clients = {"anna": arrays(1), "ben": {"x": arrays(2)[0], "y": arrays(2)[1]}, "eve": Pairs(*arrays(3))}
    data = made(clients, 3)
    assert data.client_names == ("anna", "ben", "eve")
    for client in range(3):
        same(data, client, arrays(client + 1)[0])


def test_arrays_are_one_data_set(made):
    pandas = pytest.importorskip("pandas")
    x, y = arrays(1, 60)
    for source in (
        (x, y),
        (x, y > 0),
        {"x": x, "y": y},
        (pandas.DataFrame(x), pandas.Series(y)),
        (torch.from_numpy(x), y),
    ):
        data = made(source, 2, partitioner="iid")
        assert sum(sum(data.sizes(client)) for client in range(2)) == 60 and data.num_classes == 2
    assert made((x, x[:, 0]), 2, partitioner="iid").has_targets
    four = made((*arrays(1, 60), *arrays(2, 20)), 2, partitioner="iid", split="given")
    assert [sum(sizes) for sizes in zip(*map(four.sizes, range(2)), strict=True)] == [60, 20]


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ({"anna": arrays(1), "ben": 3}, "client ben is an int; it must be (x_train, y_train, x_test, y_test)"),
        ({"anna": {"x": 1}}, "client anna has x; it must have x_train, y_train, x_test, y_test, or x, y"),
        ([Pairs(np.array([np.zeros(2), np.zeros(3)], object), np.zeros(2))], "x of sample 0|sample 1 has the shape"),
        ([[3, 4]], "data is a list of single samples"),
        ({"anna": ((arrays(1)[0], arrays(2)[0]), arrays(1)[1])}, "anna: x is a tuple of arrays, and a model takes one"),
        ({"anna": ({"a": arrays(1)[0]}, arrays(1)[1])}, "anna: x is a dict of arrays, and a model takes one"),
        ([[((x, x), y) for x, y in zip(*arrays(1))]], "client 0"),
    ],
)
def test_what_is_no_data_is_one_line(made, source, messages):
    with pytest.raises(DataError) as error:
        made(source, 1)
    assert any(word in str(error.value) for word in messages.split("|"))


def frame(**columns):
    pandas = pytest.importorskip("pandas")
    n = 24
    rng = np.random.default_rng(1)
    content = {
        "client": ["anna"] * (n // 2) + ["ben"] * (n // 2), "age": rng.integers(20, 60, n),
        "height": rng.normal(size=n), "label": ["sits", "walks"] * (n // 2), **columns,
    }  # fmt: skip
    return pandas.DataFrame(content)


def test_a_data_frame_is_a_table(made):
    data = made(frame(), 2)
    assert data.client_names == ("anna", "ben") and data.class_names == ("sits", "walks")
    assert data.input_shape == (2,) and sum(data.sizes(0)) == 12
    same(data, 1, frame()[["age", "height"]].to_numpy(np.float32)[12:])
    parts = {name: rows.drop(columns="client") for name, rows in frame().groupby("client")}
    by_name = made(parts, 2)
    assert by_name.client_names == ("anna", "ben")
    same(by_name, 0, frame()[["age", "height"]].to_numpy(np.float32)[:12])
    with pytest.raises(DataError, match=r"column 'job': holds .*, not numbers; ignore-columns = .job. leaves out"):
        made(frame(job="x"), 2)


def test_numbers_with_decimals_are_targets(made):
    pandas = pytest.importorskip("pandas")
    x, _ = arrays(1, 40)
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": 2.0 * x[:, 2].round(1)})
    data = made(frame, 2, partitioner="iid")
    assert data.has_targets and data.num_classes == 1
    assert partition_counts(data).tolist() == [[len(data.train(client).y)] for client in range(2)]
    targets = torch.cat([part(client).y for client in range(2) for part in (data.train, data.test)])
    np.testing.assert_array_equal(np.sort(targets.numpy().ravel()), np.sort(frame["label"].to_numpy(np.float32)))
    with pytest.raises(DataError, match=r"'1\.5' is not a class"):
        made(frame.assign(label=[0, 1, 2, 1.5] * 10), 2, partitioner="iid")


def test_empty_cells_become_the_mean_of_the_client_s_own_training_samples(made):
    heights = np.arange(24.0)
    heights[[0, 3, 20]] = np.nan
    with pytest.raises(DataError, match=r"row 1, column 'height': is empty, .*; impute = \"mean\""):
        made(frame(height=heights), 2)
    data = made(frame(height=heights), 2, impute="mean")
    for client in range(2):
        share, part = data.share(client), slice(12 * client, 12 * client + 12)
        mean = np.nanmean(heights[data._part(client, "train")])
        assert np.isfinite(data.train(client).x.numpy()).all()
        expected = np.where(np.isnan(heights[part]), mean, heights[part])
        positions = np.concatenate(share) - part.start
        column = np.concatenate([data.train(client).x.numpy()[:, 1], data.test(client).x.numpy()[:, 1]])
        np.testing.assert_allclose(column, expected[positions], rtol=1e-6)
    empty = made(frame(height=np.full(24, np.nan)), 2, impute="mean")
    assert not empty.train(0).x.numpy()[:, 1].any()


def test_empty_cells_of_a_file_are_filled(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("client,age,label\n" + "ann,30,0\nann,,1\n" * 10)
    with pytest.raises(DataError, match=r"line 3, column 'age': is empty, .*; impute = \"mean\" fills empty cells"):
        read_own(path, DataSettings(dataset="table"), alone=False)
    data = read_own(path, DataSettings(dataset="table", impute="mean"), alone=False)
    assert np.isnan(data.x_train[1::2]).all() and data.client_names == ("ann",)


@pytest.mark.parametrize("shape", [(3,), (2, 5)])
def test_features_are_standardised_by_the_client_or_by_all(made, shape):
    clients = [
        tuple(part + 3 * seed * (part.dtype.kind == "f") for part in arrays(seed, shape=shape)) for seed in range(3)
    ]
    axes = (0, *range(2, len(shape) + 1))
    data = made(clients, 3, standardize="client", validation_fraction=0.2)
    for client in range(3):
        x = data.train(client).x.double()
        np.testing.assert_allclose(x.mean(axes), 0, atol=1e-5)
        np.testing.assert_allclose(x.std(axes, unbiased=False), 1, atol=1e-5)
        scaling = data.scaling(client)
        raw = data.arrays(client)["x_test"]
        np.testing.assert_allclose(data.test(client).x, scaling.applied(raw), rtol=1e-6)
    everyone = made(clients, 3, standardize="all")
    x = torch.cat([everyone.train(client).x for client in range(3)]).double()
    np.testing.assert_allclose(x.mean(axes), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axes, unbiased=False), 1, atol=1e-5)
    assert "in a real federation these numbers would leave the clients" in " ".join(everyone.remarks)
    constant = made([(np.ones((20, 3), np.float32), arrays(1)[1])] * 2, 2, standardize="client")
    assert not constant.train(0).x.any()


@pytest.mark.parametrize("more", [{"standardize": "client"}, {"impute": "mean"}])
def test_the_tests_of_all_are_prepared_with_each_client_s_own_numbers(made, more):
    clients = [(x + 5 * place, y) for place, (x, y) in enumerate(map(arrays, range(2)))]
    for x, _ in clients:
        x[::3, 0] = np.nan if "impute" in more else 1
    everyone = made(clients, 2, test_on="all", **more)
    raw = np.concatenate([clients[place][0][everyone.share(place).test - 20 * place] for place in range(2)])
    for client in range(2):
        mine = clients[client][0][everyone.share(client).train - 20 * client]
        mean, deviation = np.nanmean(mine, 0), np.nanstd(mine, 0)
        expected = np.where(np.isnan(raw), mean, raw) if "impute" in more else (raw - mean) / deviation
        np.testing.assert_allclose(everyone.test(client).x, expected, rtol=1e-4, atol=1e-5)


def test_the_tests_of_all_are_prepared_once_if_there_is_no_gap_to_fill(made):
    everyone = made([arrays(0), arrays(1)], 2, test_on="all", impute="mean")
    first, second = (everyone.test(client).x for client in range(2))
    assert first.data_ptr() == second.data_ptr()


def test_one_class_is_nothing_to_tell_apart(made):
    x, bits = np.zeros((40, 1, 6, 6), np.float32), np.random.default_rng(1).integers(0, 2, (40, 6, 6))
    for masks, count, hint in (
        (255 * bits, 1, "of masks of 0 and 255 take mask // 255"),
        (0 * bits + 255, 0, "255 marks pixels that do not count"),
        (0 * bits, 1, "num-classes sets the number"),
    ):
        with pytest.raises(DataError, match=f"data: number of classes: is {count}, must be at least 2; .*{hint}"):
            made(lambda mask=masks: Dataset.of("data", x, mask.astype(np.uint8)), 2, partitioner="iid")
    assert made(lambda: Dataset.of("data", x, bits.astype(np.uint8)), 2, partitioner="iid").num_classes == 2
    said = made(lambda: Dataset.of("data", x, np.array(["a"] * 40)), 2, partitioner="iid").remarks
    assert said[0] == "data: there is one class, so every model is right: num-classes sets the number"
    assert made(lambda: Dataset.of("data", x, np.zeros(40, int), num_classes=2), 2, partitioner="iid").num_classes == 2


def owned(x, y, train, test=None):
    return lambda: Dataset.of("data", x, y, x, y, np.array(train), None if test is None else np.array(test))


def test_a_client_that_is_only_tested_has_no_numbers_of_its_own_to_be_scaled_by(made):
    x, y = arrays(1, 60)
    source = owned(x, y, [0] * 30 + [1] * 30, [0] * 20 + [1] * 20 + [2] * 20)
    with pytest.raises(ConfigError, match="'client': needs training samples of each client, and 1 of 3 have only test"):
        made(source, 3, split="given", standardize="client")
    assert made(source, 3, split="given", standardize="all").sizes(2) == (0, 20)
    with pytest.raises(ConfigError, match="num-clients = 4: must be at most 3, the number of natural clients"):
        made(source, 4, split="given")
    assert made(source, 2, split="given", standardize="client").sizes(1) == (30, 20)


def test_samples_that_nobody_owns_are_counted(made):
    x, y = arrays(1, 60)
    mixed, kept = (made(owned(x, y, [0] * 30 + [1] * 30), 2, split=split) for split in ("mixed", "given"))
    said = "data: nobody owns the 60 samples of the test set, and they are left out: name their owners (client_test)"
    assert [said in " ".join(data.remarks) for data in (mixed, kept)] == [True, False]
    assert sum(map(sum, map(mixed.sizes, range(2)))) == 60
    assert sum(map(sum, map(kept.sizes, range(2)))) == 120
    everything = made(owned(x, y, [0] * 30 + [1] * 30), 2, partitioner="iid")
    assert said not in " ".join(everything.remarks) and sum(map(sum, map(everything.sizes, range(2)))) == 120


def test_images_are_not_standardised_and_a_device_has_no_other_s_data(made, tmp_path):
    with pytest.raises(ConfigError, match="standardize = 'client': must be none for digits, whose samples are images"):
        FederatedData(DataSettings(standardize="client"), 2, 1)
    with pytest.raises(ConfigError, match="standardize = 'all': needs the data of all clients"):
        own_data(DataSettings(standardize="all"), str(tmp_path), 0, 1)


def test_an_owner_s_number_is_a_name_where_it_is_not_that_of_the_client(made):
    x, y = arrays(1, 60)
    names = {
        owners: made(Dataset.of("data", x, y, client_train=np.repeat(owners, 20)), 3).client_names
        for owners in ((1, 2, 3), (0, 1, 2), (0, 2, 40))
    }
    assert names == {(1, 2, 3): ("1", "2", "3"), (0, 1, 2): (), (0, 2, 40): ("0", "2", "40")}


@pytest.mark.parametrize("form", ["arrays", "frames", "own", "torch"])
def test_settings_of_columns_that_arrays_do_not_have_are_told(made, form):
    x, y = arrays(1, 60)
    pandas = pytest.importorskip("pandas")
    forms = {
        "arrays": [(x, y)], "frames": [(pandas.DataFrame(x), pandas.Series(y))], "own": Dataset.of("data", x, y),
        "torch": torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)),
    }  # fmt: skip
    settings = {"group_column": "patient", "window_length": 4, "client_column": "", "label_column": "label"}
    assert "data: not used with arrays: group-column, window-length" in made(forms[form], 1, **settings).remarks


def test_owners_with_few_samples_are_named(made):
    rows = frame()
    rows.loc[20:, "client"] = "cleo"
    data = made(rows, 1, min_samples=9)
    message = "data: 2 of 3 owners have fewer than min-samples = 9 samples and are left out: ben, cleo"
    assert message in data.remarks
    assert data.client_names == ("anna",)


def test_a_column_of_persons_is_asked_about(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("person_id,age,label\n" + "1,30,0\n2,40,1\n" * 10)
    with pytest.raises(DataError) as error:
        read_own(path, DataSettings(dataset="table"), alone=False)
    assert "column 'person_id' seems to name the owner of each row: client-column = \"person_id\"" in str(error.value)
    for settings, features in (({"client_column": "person_id"}, 1), ({"client_column": ""}, 2),
                               ({"ignore_columns": "person_id"}, 1)):  # fmt: skip
        data = read_own(path, DataSettings(dataset="table", **settings), alone=False)
        assert data.x_train.shape[1] == features
        assert (data.client_names == ("1", "2")) == (settings.get("client_column") == "person_id")


def test_images_of_mixed_sizes_are_brought_to_one(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, size in (("a", (20, 30)), ("b", (40, 10))):
        folder = tmp_path / name
        folder.mkdir()
        image.fromarray(np.full((size[1], size[0]), 7, np.uint8)).save(folder / "one.png")
    with pytest.raises(DataError, match="image-size resizes all to one size"):
        read_image_folder(tmp_path)
    data = read_image_folder(tmp_path, 8)
    assert data.x_train.shape == (2, 8, 8, 1) and (data.x_train == 7).all()


@pytest.mark.parametrize("label", [int, float, str, np.int64, np.str_, np.array, torch.tensor])
@pytest.mark.parametrize(
    ("wrap", "where"),
    [
        (lambda samples: samples, "data is a list"), (tuple, "data is a tuple"),
        (lambda samples: {"a": samples, "b": samples}, "data: client a is a list"),
        (lambda samples: [samples, samples], "data: client 0 is a list"),
        (lambda samples: {"train": samples, "test": samples}, "data: a part of it is a list"),
        (lambda samples: (samples, samples), "data: its first part is a list"),
        (lambda samples: [{"x": x, "y": y} for x, y in samples], "data is a list"),
    ],
)  # fmt: skip
def test_a_list_of_single_samples_is_no_list_of_clients(made, label, wrap, where):
    samples = [(np.zeros((1, 4, 4), np.float32), label(row % 2)) for row in range(20)]
    with pytest.raises(
        DataError, match=f"{where} of single samples .x, y.: give arrays of all of them, .*stack"
    ) as error:
        made(wrap(samples), 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrap", [lambda t: (t, t), lambda t: [(t, t), (t, t)], lambda t: (t, np.zeros(20, int))])
def test_a_table_of_another_package_is_no_array(made, wrap):
    table = pytest.importorskip("pyarrow").table({"a": np.arange(20.0), "label": np.arange(20) % 2})
    with pytest.raises(DataError, match=r"x(_train)? is a Table with named columns; give its \.to_pandas"):
        made(wrap(table), 2)
