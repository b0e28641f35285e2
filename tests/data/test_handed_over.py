"""Python objects mean what they say: torch data sets, samplers and loaders, pairs, names, dirty arrays."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data as td

from fedpfl.core.errors import ConfigError, DataError, FedpflError
from fedpfl.data import DataSettings, FederatedData
from fedpfl.data.dataset import Dataset
from fedpfl.data.datasets.lazy import Lazy
from fedpfl.data.datasets.npz import read_npz
from fedpfl.data.datasets.python_objects import CustomLoader
from fedpfl.setup.objects import as_setting

N = 60
X = np.arange(3.0 * N, dtype=np.float32).reshape(N, 3)
Y = np.arange(N) % 2
TENSORS = td.TensorDataset(torch.tensor(X), torch.tensor(Y))
READ = {"min_samples": 2}


def read(source, seed=1, **values):
    return CustomLoader("data", source)(DataSettings(**{**READ, **values}), seed)


def rows(x):
    """Which rows of X these are."""
    return (x[:, 0] // 3).astype(int).tolist()


class Part(td.Dataset):
    """What most published federated code has: a data set and the numbers of its samples, under any names."""

    def __init__(self, inner, numbers, name="dataset", flip=False):
        setattr(self, name, inner)
        self.numbers, self.name, self.flip = list(numbers), name, flip
        self.keys = self.x = self.train = self.iloc = None  # names that other objects have

    def __call__(self):
        raise AssertionError("a data set is not called")

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        x, y = getattr(self, self.name)[self.numbers[index]]
        return x, 1 - y if self.flip else y


@st.composite
def subsets(draw, size=N, depth=0):
    """A data set made of TENSORS, and the rows that it has."""
    kinds = ["whole", "subset", "part", "concat", "split"] if depth < 3 else ["whole"]
    kind = draw(st.sampled_from(kinds))
    if kind == "whole":
        return TENSORS, list(range(N)), False
    inner, has, flipped = draw(subsets(depth=depth + 1))
    if kind == "concat":
        return td.ConcatDataset([inner, inner]), has * 2, flipped
    chosen = draw(st.lists(st.integers(0, len(has) - 1), min_size=2, max_size=30))
    if kind == "split" and len(has) > 3:
        first = len(has) // 2
        part = td.random_split(inner, [first, len(has) - first], torch.Generator().manual_seed(1))[1]
        return part, [has[index] for index in part.indices], flipped
    if kind in ("subset", "split"):
        return td.Subset(inner, chosen), [has[index] for index in chosen], flipped
    name, flip = draw(st.sampled_from(["dataset", "data", "base", "_inner"])), draw(st.booleans())
    return Part(inner, chosen, name, flip), [has[index] for index in chosen], flipped != flip


@settings(max_examples=60, deadline=None)
@given(subsets())
def test_a_data_set_is_read_by_its_own_length_and_items(made):
    source, has, flipped = made
    data = read(source)
    assert rows(data.x_train) == has
    assert data.y_train.tolist() == [1 - Y[index] if flipped else Y[index] for index in has] and data.remarks == ()


class Every(td.Sampler):
    def __init__(self, step):
        self.step = step

    def __iter__(self):
        return iter(range(0, N, self.step))


CHOSEN = [5, 3, 41, 3, 8]
SAMPLERS = {
    "sequential": (lambda: {}, range(N), False),
    "shuffled": (lambda: {"shuffle": True}, range(N), False),
    "subset": (lambda: {"sampler": td.SubsetRandomSampler(CHOSEN)}, CHOSEN, True),
    "subset with a generator": (
        lambda: {"sampler": td.SubsetRandomSampler(CHOSEN, torch.Generator().manual_seed(3))}, CHOSEN, True,
    ),
    "the first ones": (lambda: {"sampler": td.SequentialSampler(range(7))}, range(7), True),
    "list": (lambda: {"sampler": CHOSEN}, CHOSEN, True),
    "own": (lambda: {"sampler": Every(7)}, range(0, N, 7), True),
    "distributed": (
        lambda: {"sampler": td.DistributedSampler(TENSORS, 4, 1, shuffle=False)}, range(1, N, 4), True,
    ),
    "batches": (lambda: {"batch_sampler": td.BatchSampler(CHOSEN, 2, drop_last=True)}, CHOSEN[:4], True),
    "lists": (lambda: {"batch_sampler": [[1, 2], [9]]}, [1, 2, 9], True),
    "no batches": (lambda: {"batch_size": None, "sampler": CHOSEN}, CHOSEN, True),
    "whole batches": (lambda: {"batch_size": None, "sampler": [[4, 5, 6], [9]]}, [4, 5, 6, 9], True),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_says_which_samples_a_loader_has(kind, workers):
    options, expected, remark = SAMPLERS[kind]
    source = td.DataLoader(TENSORS, num_workers=workers, **options())
    data = read(source)
    assert sorted(rows(data.x_train)) == sorted(expected)
    expected, drawn = list(expected), [said for said in data.remarks if "drew once, before round 1" in said]
    repeated = [
        said for said in data.remarks if "draws that repeat a sample, maybe in training and in test: 1;" in said
    ]
    assert (len(drawn), len(repeated)) == (remark, len(expected) - len(set(expected)))
    assert len(data.remarks) == len(drawn) + len(repeated)
    again = CustomLoader("other", source)(DataSettings(**READ, test_fraction=0.5), 1)
    np.testing.assert_array_equal(again.x_train, data.x_train)  # the same loader, the same seed: the same draw


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: td.WeightedRandomSampler(np.arange(N) % 3, 40),
        lambda: td.RandomSampler(TENSORS, replacement=True, num_samples=40),
        lambda: td.RandomSampler(TENSORS, num_samples=40),
    ],
)
def test_what_a_sampler_draws_at_random_follows_from_the_seed(sampler):
    one, same, other = (rows(read(td.DataLoader(TENSORS, sampler=sampler()), seed).x_train) for seed in (1, 1, 2))
    assert len(one) == 40 and one == same != other


def test_a_collate_fn_makes_the_batches_that_are_read():
    def doubled(items):
        return torch.stack([2 * x for x, _ in items]), torch.tensor([1 - y for _, y in items])

    data = read(td.DataLoader(TENSORS, batch_size=7, collate_fn=doubled, sampler=range(20)))
    np.testing.assert_array_equal(data.x_train, 2 * X[:20])
    assert data.y_train.tolist() == (1 - Y[:20]).tolist() and any("collate_fn" in said for said in data.remarks)
    with pytest.raises(DataError, match=r"data: batch 0 is a Tensor; it must be a pair \(x, y\)"):
        read(td.DataLoader(TENSORS, collate_fn=lambda items: items[0][0]))
    with pytest.raises(DataError, match=r"batch 0 has x of shape \(4, 3\) and y of shape \(1,\)"):
        read(td.DataLoader(TENSORS, batch_size=4, collate_fn=lambda items: (doubled(items)[0], doubled(items)[1][:1])))

    class Loader(td.DataLoader):
        def __iter__(self):
            return ((x + 1, y) for x, y in super().__iter__())

    np.testing.assert_array_equal(read(Loader(TENSORS, batch_size=9)).x_train, X + 1)
    dropped = read(td.DataLoader(TENSORS, batch_size=7, drop_last=True))
    assert len(dropped.y_train) == N and any("drop_last" in said for said in dropped.remarks)


class Stream(td.IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def test_streams_are_read_once_and_have_an_end(monkeypatch):
    items = list(zip(X, Y))
    for source in (
        Stream(items), td.DataLoader(Stream(items), batch_size=7),
        td.ChainDataset([Stream(items[:9]), Stream(items[9:])]),
        td.DataLoader(Stream([(X[:50], Y[:50]), (X[50:], Y[50:])]), batch_size=None), lambda: Stream(items),
    ):  # fmt: skip
        np.testing.assert_array_equal(read(source).x_train, X)
    endless = Stream(iter(lambda: (X[0], 1), None))
    with pytest.raises(DataError, match=r"a Stream gives more than 500 samples; give a Dataset with a length"):
        monkeypatch.setattr("fedpfl.data.datasets.torch_samples._each.__defaults__", (500,))
        read(endless)
    with pytest.raises(ConfigError, match=r"returns a generator .* it is unclear whether they are samples or"):
        read(item for item in items)


class Items(td.Dataset):
    def __init__(self, item, length=N):
        self.item, self.length = item, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.item(index)


@pytest.mark.parametrize("wrapped", [lambda data: data, Lazy, lambda data: td.DataLoader(data, batch_size=1)])
def test_a_buffer_that_is_filled_again_for_each_sample_holds_that_sample(wrapped):
    x, y = np.empty(3, np.float32), np.empty((), np.int64)

    def fill(index):
        x[:], y[...] = X[index], Y[index]
        return x, y

    made = read(wrapped(Items(fill)))
    there = [made.x_train.read(index) for index in range(N)] if wrapped is Lazy else made.x_train
    np.testing.assert_array_equal(there, X)
    np.testing.assert_array_equal(made.y_train, Y)


@pytest.mark.parametrize("form", [list, tuple, np.array])
def test_names_of_classes_may_stand_in_an_array(form):
    data = Items(lambda index: (X[index], Y[index]))
    data.classes = form(["cat", "dog"])
    assert read(data).class_names == ("cat", "dog")


class Failing(Items):
    def __getattr__(self, name):
        raise KeyError(name)


@pytest.mark.parametrize(
    "wrapped", [lambda data: data, lambda data: td.Subset(data, range(9)), Lazy, lambda data: [data]]
)
def test_an_attribute_that_raises_is_one_line(wrapped):
    message = r"a Failing: its attribute 'classes' raises KeyError: 'classes' \(test_handed_over.py, line \d+\)"
    with pytest.raises(DataError, match=message):
        read(wrapped(Failing(lambda index: (X[index], Y[index]))))


@pytest.mark.parametrize(
    ("classes", "numbers", "message"),
    [
        (["cat", "dog"], {"cat": 1, "dog": 0}, "'cat' is class 0 by its classes and 1 by its class_to_idx"),
        (["cat", "cat"], None, "two classes are called 'cat': classes need different names"),
    ],
)
def test_names_of_classes_that_contradict_each_other_are_refused(classes, numbers, message):
    data = Items(lambda index: (X[index], Y[index]))
    data.classes, data.class_to_idx = classes, numbers
    with pytest.raises(DataError, match=message):
        read(data)


def fails(index):
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            lambda index: {"image": X[index], "label": Y[index]},
            r"sample 0 is a dict of image, label; it must be a pair \(x, y\)",
        ),
        (lambda index: (X[index], Y[index], index), "sample 0 is a tuple of 3; it must be a pair"),
        (lambda index: X[index], "sample 0 is a ndarray"),
        (lambda index: ((X[index], X[index]), Y[index]), "x of sample 0 is a tuple of arrays, and a model takes one"),
        (lambda index: (X[index], None), "y of sample 0 is None"),
        (
            lambda index: fails(index) if index == 17 else (X[index], Y[index]),
            r"sample 17 raises OSError: no disk \(test_handed_over",
        ),
        (
            lambda index: (X[index][: 2 if index == 9 else 3], 0),
            r"x of sample 9 has the shape \(2,\), and of sample 0 \(3,\)",
        ),
        (lambda index: (X[index], "cat" if index == 9 else 0), "y of sample 9 is <U3, and of sample 0 int64"),
        (lambda index: (X[index], 0.5 if index == 9 else 0), "y of sample 9 is float64, and of sample 0 int64"),
    ],
)
def test_damaged_items_are_one_line(item, message):
    with pytest.raises(DataError, match=f"data: (?:{message})") as error:
        read(Items(item))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("mode", "kept"), [("P", "RGB"), ("LA", "L"), ("RGBA", "RGB"), ("1", "L")])
def test_images_of_pillow_are_read_as_those_of_a_folder(mode, kept, lazy):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(256, size=(6, 8, 8, 3), dtype=np.uint8)
    images = [image.fromarray(one).convert(mode) for one in pixels]
    source = [(one, index % 2) for index, one in enumerate(images)]
    data = read(Lazy(Part(source, range(6))) if lazy else Part(source, range(6)))
    assert data.is_image and data.input_shape == (len(kept) if kept == "RGB" else 1, 8, 8)
    told = f"images of mode {mode} become {kept}; no pixel of theirs is transparent"
    assert [said for said in data.remarks if "mode" in said] == [told] * (mode != "1")
    for place, one in enumerate(images):
        now = data.x_train.read(place) if lazy else data.x_train[place]
        np.testing.assert_array_equal(now.squeeze(), np.asarray(one.convert(kept)))


def test_images_of_pillow_that_do_not_fit_are_one_line():
    image = pytest.importorskip("PIL.Image")
    one = image.fromarray(np.zeros((8, 8), np.uint8))
    with pytest.raises(DataError, match=r"x of sample 1 has the shape \(8, 8, 3\).*grey and colour images need"):
        read(Part([(one, 0), (one.convert("RGB"), 1)], range(2)))
    with pytest.raises(DataError, match="x of sample 0: only images of 8 bits a channel can be read, not mode I"):
        read(Part([(one.convert("I"), 0)], range(1)))
    with pytest.raises(DataError, match="x of sample 0: mode CMYK does not become RGB without a loss"):
        read(Part([(one.convert("CMYK"), 0)], range(1)))


def test_lengths_that_are_none_are_one_line():
    with pytest.raises(DataError, match="data: has no samples"):
        read(Items(lambda index: (X[index], 0), 0))
    with pytest.raises(DataError, match="data: its length raises ValueError"):
        read(Items(lambda index: (X[index], 0), -1))
    with pytest.raises(DataError, match="samples like sample 0 need more than 16 GiB"):
        read(Items(lambda index: (X[index], 0), 2**40))


# -- training and test set ---------------------------------------------------------------------------------------------


def frame(part):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": X[part, 0], "b": X[part, 1], "label": Y[part]})


def hugging(part):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"a": X[part, 0].tolist(), "b": X[part, 1].tolist(), "label": Y[part].tolist()})


FIRST, LAST = slice(0, 44), slice(44, N)
SETS = {
    "sets": lambda part: td.Subset(TENSORS, range(N)[part]),
    "loaders": lambda part: td.DataLoader(td.Subset(TENSORS, range(N)[part]), batch_size=5, shuffle=True),
    "arrays": lambda part: (X[part], Y[part]),
    "lists": lambda part: [X[part], Y[part]],
    "dicts": lambda part: {"x": X[part], "y": Y[part]},
    "frames": frame,
    "tables": hugging,
}
NAMES = [("train", "test"), ("Train", "Test"), ("training", "testing"), ("test_set", "train_set"), ("train", "val")]


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("names", [None, *NAMES])
def test_a_training_and_a_test_set_are_one_data_set(kind, names):
    train, test = SETS[kind](FIRST), SETS[kind](LAST)
    if names and names[0].lower().startswith("test"):
        data = read({names[0]: test, names[1]: train})
    else:
        data = read((train, test) if names is None else {names[0]: train, names[1]: test})
    assert rows(data.x_train) == list(range(44)) and rows(data.x_test) == list(range(44, N))
    assert data.client_train is None and data.client_names == ()
    assert any("test set" in said for said in data.remarks) == (names is not None and "val" in names)


def test_their_clients_are_tested_on_the_test_set_alone(monkeypatch):
    monkeypatch.setattr(
        "fedpfl.data.federation.load_once", lambda options, seed=0: read((TENSORS, (X[:8] + 1000, Y[:8])))
    )
    divided = FederatedData(DataSettings(dataset="clients", partitioner="iid"), 3, 1)
    for client in range(3):
        assert divided.test(client).x.min() >= 1000 > divided.train(client).x.max()
    assert sum(divided.sizes(client)[0] for client in range(3)) == N


@pytest.mark.parametrize("kind", SETS)
def test_a_client_may_have_a_training_and_a_test_set(kind):
    train, test = SETS[kind](FIRST), SETS[kind](LAST)
    data = read({1: (train, test), 2: {"train": train, "test": test}})
    assert data.client_names == ("1", "2")
    for client in range(2):
        assert rows(data.x_train[data.client_train == client]) == list(range(44))
        assert rows(data.x_test[data.client_test == client]) == list(range(44, N))


@pytest.mark.parametrize("kind", ["sets", "loaders", "arrays", "dicts", "frames", "tables"])
def test_a_list_of_two_is_two_clients(kind):
    data = read([SETS[kind](FIRST), SETS[kind](LAST)])
    assert np.bincount(data.client_train).tolist() == [44, 16] and data.x_test is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((TENSORS,) * 3, "a tuple of three data sets: three clients are a list; training, validation and test"),
        (([TENSORS] * 2, [TENSORS] * 2), r"a tuple of two lists: of two clients give a list; .* list\(zip\("),
        ({"train": TENSORS, "val": TENSORS, "valid": TENSORS}, "train and val and valid: two of these are one part"),
        ({"train": TENSORS, "test": TENSORS, "ann": 1}, r"are train and test of one data set, or clients\?"),
        ({"train": TENSORS, "holdout": TENSORS}, "train, holdout: is train of one data set, or clients"),
        ({"ann": TENSORS, "Test": TENSORS}, "ann, Test: is Test of one data set, or clients"),
        ({"test": TENSORS}, "has test, and no train"),
        ({"train": TENSORS, "Train": TENSORS}, "train and Train: two of these are one part, train"),
        ({"train": [TENSORS], "test": [TENSORS]}, "train and test are a list each; of several clients give"),
        ({"x": X, "y": Y, "client": Y}, "has x, y, client; arrays are x, y or x_train"),
        ((X, X[:2], Y, Y[:2]), "four arrays must be in the order x_train, y_train, .* scikit-learn's train_test"),
        ([(X, Y, X, Y), (X, X[:2], Y, Y[:2])], "client 1: four arrays must be in the order"),
        ({1: TENSORS, "1": TENSORS}, "two of the clients 1, '1' have one name"),
        ({b"ann": TENSORS, "ann": TENSORS}, "two of the clients b'ann', 'ann' have one name"),
        ([TENSORS, (TENSORS, TENSORS)], "client 0 has no test set, and others have one"),
        ([(X, Y), (X, Y + 0.5)], "client 1: its labels are numbers with decimals, unlike those of client 0"),
    ],
)  # fmt: skip
def test_what_may_mean_two_things_is_refused(source, message):
    with pytest.raises(DataError, match=message):
        read(source)


def test_frames_are_one_kind_and_joined_by_name():
    pandas = pytest.importorskip("pandas")
    one = frame(FIRST)
    swapped = frame(LAST)[["label", "b", "a"]]
    for source in ((one, swapped), [one, swapped]):
        data = read(source)
        both = data.x_train if data.x_test is None else np.concatenate([data.x_train, data.x_test])
        np.testing.assert_array_equal(both, X[:, :2])
    with pytest.raises(DataError, match="its parts are a DataFrame and a TensorDataset; all must be of one kind"):
        read([one, TENSORS])
    with pytest.raises(DataError, match="client 1 has a column 'client', and is one client"):
        read([one, one.assign(client="ann")])
    inputs, labels = one[["a", "b"]], one[["label"]]
    assert read((inputs, labels)).y_train.tolist() == read((inputs, one["label"])).y_train.tolist() == Y[:44].tolist()
    with pytest.raises(DataError, match=r"two DataFrames with other columns \(a, b, label, … and a, c, …\)"):
        read((one, pandas.DataFrame({"a": [1.0], "c": [0]})))


@pytest.mark.parametrize("loss", ["mse", "multi-label"])
@pytest.mark.parametrize("kind", ["arrays", "dicts", "sets", "loaders", "Lazy", "Dataset", "clients"])
def test_whole_numbers_are_targets_where_the_loss_is_of_numbers(kind, loss):
    y = Y * 40 - 7 if loss == "mse" else np.stack([Y, 1 - Y], 1)
    tensors = td.TensorDataset(torch.tensor(X), torch.tensor(y))
    source = {
        "arrays": (X, y), "dicts": {"x": X, "y": y}, "sets": tensors, "loaders": td.DataLoader(tensors, 7),
        "Lazy": Lazy(tensors), "clients": [(X, y), (X, y)],
        "Dataset": lambda settings: Dataset.of("data", X, abs(y)),
    }[kind]  # fmt: skip
    data = CustomLoader("data", source)(DataSettings.of({"loss": loss, "min-samples": 2}), 1)
    wanted = abs(y) if kind == "Dataset" else y
    np.testing.assert_array_equal(data.y_train[:N], wanted.reshape(N, -1))
    assert data.has_targets and data.num_classes == (1 if loss == "mse" else 2)
    with pytest.raises(ConfigError, match="num-classes = 5: must be 0 for data, whose labels are numbers to predict"):
        CustomLoader("data", source)(DataSettings.of({"loss": loss, "min-samples": 2, "num-classes": 5}), 1)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(8)))
def test_rows_of_x_and_y_are_those_of_their_indexes(order):
    pandas = pytest.importorskip("pandas")
    order, there = list(order), list("abcdefgh")
    x, y = pandas.DataFrame(X[:8], index=there), pandas.Series(Y[:8], index=there).iloc[order]
    for source in ((x, y), {"x": x, "y": y}, (x, y.to_frame("label")), [(x, y), (x, y)]):
        if order == sorted(order):
            np.testing.assert_array_equal(read(source).y_train[:8], Y[:8])
        else:
            with pytest.raises(DataError, match="the indexes of x and y have the same rows in another order: give y"):
                read(source)
    # Other indexes say nothing of each other.
    np.testing.assert_array_equal(read((x, y.reset_index(drop=True))).y_train, Y[:8][order])
    np.testing.assert_array_equal(read((x.to_numpy(), y)).y_train, Y[:8][order])


def of_columns(names="abcd"):
    """Return a DataFrame X, each of whose columns holds a number of its own, and labels."""
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame(np.arange(4.0) * 100 + np.zeros((20, 1)), columns=[*"abcd"])
    return x[[*names]], pandas.Series(np.arange(20) % 2)


PAIRS = {
    "list": lambda one, two: [one, two],
    "dict": lambda one, two: {"ann": one, "ben": two},
    "training and test": lambda one, two: (one, two),
    "four": lambda one, two: (*one, *two),
    "four of clients": lambda one, two: [(*one, *two), (*two, *one)],
    "x_train": lambda one, two: {"x_train": one[0], "y_train": one[1], "x_test": two[0], "y_test": two[1]},
    "train": lambda one, two: {"train": {"x": one[0], "y": one[1]}, "test": {"x": two[0], "y": two[1]}},
    "Dataset": lambda one, two: lambda: Dataset.of("data", *one, *two),
}


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("order", ["dcba", "bacd"])
def test_columns_of_x_are_joined_by_name(kind, order):
    data = read(PAIRS[kind](of_columns(), of_columns(order)))
    assert sorted(data.feature_names) == [*"abcd"]
    numbers = ["abcd".index(name) * 100 for name in data.feature_names]
    for x in (data.x_train, data.x_test):
        if x is not None:
            np.testing.assert_array_equal(x, np.tile(numbers, (len(x), 1)))
    with pytest.raises(DataError, match=r"its columns are not those of .*; (missing|extra)"):
        read(PAIRS[kind](of_columns(), (of_columns()[0].rename(columns={"b": "e"}), of_columns()[1])))


@pytest.mark.parametrize("name", ["client", "patient_id"])
@pytest.mark.parametrize("kind", PAIRS)
def test_an_owner_among_the_columns_of_x_is_asked_about(kind, name):
    x, y = of_columns()
    source = PAIRS[kind](*[(x.rename(columns={"b": name}), y)] * 2)
    with pytest.raises(DataError, match=f"column '{name}' seems to name the owner of each row: .*leave it out of x"):
        read(source)
    assert name in read(source, client_column="").feature_names
    if kind == "Dataset":
        owned = Dataset.of("data", x.rename(columns={"b": name}), y, client_train=np.arange(len(y)) % 2)
        assert name in read(owned).feature_names, "the owners are known"


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("name", ["price_per_person", "Primary Site"])
def test_a_number_that_names_nobody_is_a_feature(kind, name):
    x, y = of_columns()
    x = x.rename(columns={"b": name}).assign(**{name: np.arange(len(y)) + (0.5 if name == "Primary Site" else 0)})
    assert name in read(PAIRS[kind](*[(x, y)] * 2)).feature_names


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"client_train": Y.astype(float)}, "client_train is float64: must be whole numbers from 0"),
        ({"client_train": Y - 1}, "client_train has owner -1: owners are numbered from 0"),
        ({"client_train": Y[1:]}, r"client_train has the shape \(59,\): must be one number for each of 60 samples"),
        ({"client_train": Y, "client_names": ("ann",)}, "client_train has owner 1, and client_names 1 names"),
        ({"client_train": Y, "client_names": ("ann", "ann")}, "client_names has 'ann' twice"),
        ({"feature_names": ("age",)}, "feature_names has 1 names, and x_train 3 features"),
        (
            {"client_train": Y * 0, "client_names": ("ann",), "x_test": X, "y_test": Y, "client_test": Y},
            "client_test has",
        ),
    ],
)
def test_names_that_do_not_fit_what_they_name_are_one_line(more, message):
    with pytest.raises(DataError, match=f"mine: {message}"):
        read(Dataset.of("mine", X, Y, **more))


def test_columns_of_x_with_numbers_alone_go_by_place():
    x, y = of_columns()
    data = read([(x.set_axis(range(4), axis=1), y), (x.to_numpy(), y)])
    assert data.feature_names == () and (data.x_train == x.to_numpy()[0]).all()


def test_what_the_index_of_a_frame_is_called_counts_as_a_column():
    people = frame(range(N)).assign(client=["ann", "ben"] * (N // 2), no=range(N))
    wanted = read(people.drop(columns="no"))
    assert wanted.client_names == ("ann", "ben")
    for indexed in (people.drop(columns="no").set_index("client"), people.set_index(["client", "no"])):
        data = read(indexed)
        np.testing.assert_array_equal(data.client_train, wanted.client_train)
        np.testing.assert_array_equal(data.x_train, wanted.x_train)
    # Numbers of rows are no feature, and who owns the rows is asked for.
    assert read(people.drop(columns="client").set_index("no")).x_train.shape == wanted.x_train.shape
    with pytest.raises(DataError, match="column 'user_id' seems to name the owner of each row"):
        read(people.drop(columns="no").rename(columns={"client": "user_id"}).set_index("user_id"))
    timed = people.drop(columns=["client", "no"]).assign(t=range(N, 0, -1)).set_index("t")
    assert read(timed, time_column="t", split="time").x_train.shape == wanted.x_train.shape


@pytest.mark.parametrize("kind", ["arrays", "sets", "Dataset", "npz"])
def test_gaps_in_arrays_are_filled_where_that_is_asked_for(kind, tmp_path):
    x = np.where(X % 7 == 0, np.nan, X)
    np.savez(tmp_path / "own.npz", x=x, y=Y)
    source = {
        "arrays": (x, Y), "sets": td.TensorDataset(torch.tensor(x), torch.tensor(Y)),
        "Dataset": lambda: Dataset.of("data", x, Y),
        "npz": lambda settings: read_npz(tmp_path / "own.npz", settings),
    }[kind]  # fmt: skip
    with pytest.raises(DataError, match=r'not finite .NaN or infinity.; impute = "mean" fills NaN'):
        read(source)
    np.testing.assert_array_equal(read(source, impute="mean").x_train, np.float32(x))
    with as_setting("dataset", source) as text:
        data = FederatedData(DataSettings(dataset=text, min_samples=2, impute="mean", partitioner="iid"), 2, 1)
    for client in range(2):
        rows = data._part(client, "train")
        np.testing.assert_allclose(data.train(client).x.mean(0), np.nanmean(x[rows], 0), rtol=1e-4)
        assert np.isfinite(data.test(client).x.numpy()).all()


def test_a_frame_of_time_steps_is_cut_into_windows():
    pandas = pytest.importorskip("pandas")
    walks = pandas.DataFrame({"client": ["ann", "ben"] * N, "ax": np.arange(2.0 * N), "label": 0}).sort_values("client")
    expected = np.stack([walks["ax"].to_numpy(np.float32)[start : start + 5][None] for start in range(0, 2 * N, 5)])
    for source, values in (
        (walks, {"window_length": 5}),
        (walks.assign(window=np.arange(2 * N) // 5), {}),
        ({name: rows.drop(columns="client") for name, rows in walks.groupby("client")}, {"window_length": 5}),
    ):
        data = read(source, **values)
        np.testing.assert_array_equal(data.x_train, expected)
        assert np.bincount(data.client_train).tolist() == [12, 12]


def test_bytes_in_hugging_face_arrays_are_images_and_its_class_names_are_those_of_the_labels():
    datasets = pytest.importorskip("datasets")
    pixels = np.arange(4 * 192, dtype=np.uint8).reshape(4, 8, 8, 3)
    kinds = {"image": datasets.Array3D((8, 8, 3), "uint8"), "label": datasets.ClassLabel(names=["dog", "cat"])}
    table = datasets.Dataset.from_dict({"image": pixels, "label": [0, 1, 1, 0]}, features=datasets.Features(kinds))
    np.testing.assert_array_equal(read(table).x_train, pixels)
    assert read(table, class_names="dog,cat").class_names == ("dog", "cat")
    with pytest.raises(DataError, match=r"data shows label of its columns \(with_format\), and all are read"):
        read(table.with_format("numpy", columns=["label"]))
    owned = table.add_column("client", [1, 0, 0, 1]).cast_column("client", datasets.ClassLabel(names=["ben", "ann"]))
    assert read(owned).client_names == ("ann", "ben") and read(owned).client_train.tolist() == [0, 1, 1, 0]
    with pytest.raises(ConfigError, match="class-names = 'cat,dog': must be empty: column 'label' has names, dog, cat"):
        read(table, class_names="cat,dog")


def test_classes_of_hugging_face_are_words_and_no_numbers_and_an_empty_list_is_named():
    datasets = pytest.importorskip("datasets")
    colour = datasets.ClassLabel(names=["red", "blue"])
    table = hugging(FIRST).add_column("colour", [-1] + [1, 0] * 21 + [1]).cast_column("colour", colour)
    with pytest.raises(DataError, match=r"column 'colour': holds classes, not numbers; .*category-columns makes feat"):
        read(table)
    data = read(table, category_columns="colour", impute="mean")
    assert data.feature_names[-3:] == ("colour=blue", "colour=red", "colour=other")
    assert data.x_train[:3, -3:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    lists = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 11 + [None], "label": [0, 1] * 6})
    with pytest.raises(DataError, match="row 12, column 'x': is empty"):
        read(lists)


@pytest.mark.parametrize("labels", [[0, 1], (0, 1), {0, 1}, np.array([0, 1])])
def test_several_labels_in_a_cell_are_no_class(labels, tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame({"a": X[:20, 0], "label": [labels, labels] * 10})
    with pytest.raises(DataError, match=r"row 1, column 'label': is an? .*0,? 1.: must be a number or a word"):
        read(rows)
    if isinstance(labels, list):
        pytest.importorskip("pyarrow")
        rows.to_parquet(tmp_path / "rows.parquet")
        with pytest.raises(DataError, match=r"row 1, column 'label': is a list, \[0, 1\]: must be a number or a word"):
            FederatedData(DataSettings(dataset="table", data=str(tmp_path / "rows.parquet")), 2, 1)


def test_hugging_face_data_that_are_not_simply_there_are_refused():
    table = hugging(FIRST)
    for source, message in (
        (table.with_transform(lambda batch: batch), r"has a transform \(with_transform\)"),
        (table.to_iterable_dataset(), r"is streamed \(an IterableDataset\)"),
        ([table, table.add_column("client", ["a"] * 44)], "client 1 has a column 'client'"),
    ):
        with pytest.raises(DataError, match=message):
            read(source)
    both = table.train_test_split(0.25, seed=1)
    assert (len(read(both).y_train), len(read(both).y_test)) == (33, 11)


# -- classes and arrays ------------------------------------------------------------------------------------------------

FORMS = {
    "arrays": lambda y: (X, y),
    "four": lambda y: (X, y, X, y),
    "clients": lambda y: [(X[:30], y[:30]), (X[30:], y[30:])],
    "torch": lambda y: Items(lambda index: (X[index], y[index])),
    "Dataset": lambda y: Dataset.of("data", X, y),
    "lists": lambda y: (X.tolist(), y.tolist()),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_number_of_classes_can_be_set(form):
    assert read(FORMS[form](Y)).num_classes == 2
    assert read(FORMS[form](Y), num_classes=10).class_names == tuple(map(str, range(10)))
    with pytest.raises(DataError, match="has label 1: labels must be 0 … 0"):
        read(FORMS[form](Y), num_classes=1)
    with pytest.raises(DataError, match="has label 1000000001: labels must be 0 … 99999"):
        read(FORMS[form](Y + 10**9))


@pytest.mark.parametrize("form", FORMS)
def test_labels_may_be_names(form):
    labels = np.array(["sit", "lie"])[Y]
    data = read(FORMS[form](labels))
    assert data.class_names == ("lie", "sit") and data.y_train.tolist() == (1 - Y).tolist()
    with pytest.raises(DataError, match="has names for 2 classes, num-classes is 3"):
        read(FORMS[form](labels), num_classes=3)
    numbers = np.array(["2", "10"])[Y]
    assert read(FORMS[form](numbers)).y_train.tolist() == np.where(Y, 10, 2).tolist()
    if form != "Dataset":  # which has names of its own
        assert read(FORMS[form](labels), class_names="sit, stand, lie").y_train.tolist() == (2 * Y).tolist()
        with pytest.raises(DataError, match="the label 'lie' is none of the classes sit, stand"):
            read(FORMS[form](labels), class_names="sit, stand")


def test_whole_numbers_without_a_vocabulary_are_told_where_python_takes_one():
    with pytest.raises(DataError, match=r"or, with fedpfl\.Dataset\.of\(…, vocabulary=N\), whole numbers n×length"):
        read((np.ones((6, 4), np.int64), Y[:6]))


@pytest.mark.parametrize("names", ["1 2 3", "2 1 0", "0 1 2"])
def test_digits_that_are_names_of_classes_go_by_name(names, tmp_path):
    names, labels = tuple(names.split()), np.array(["1", "2"])[Y]
    np.savez(tmp_path / "a.npz", x=X, y=labels, classes=names)
    for data in (
        Dataset.of("mine", X, labels, class_names=names), read((X, labels), class_names=",".join(names)),
        read_npz(tmp_path / "a.npz"),
    ):  # fmt: skip
        assert data.class_names == names and [names[place] for place in data.y_train] == labels.tolist()
    with pytest.raises(DataError, match="mine: the label '1' is none of the classes 2, 3"):
        Dataset.of("mine", X, labels, class_names=("2", "3"))


def test_names_are_labels_in_files_too(tmp_path):
    labels = np.array(["sit", "lie"])[Y]
    np.savez(tmp_path / "a.npz", x=X, y=labels)
    assert read_npz(tmp_path / "a.npz").class_names == ("lie", "sit")
    with pytest.raises(DataError, match="devices number them alike only with an array classes"):
        read_npz(tmp_path / "a.npz", alone=True)
    np.savez(tmp_path / "a.npz", x=X, y=labels, classes=["sit", "stand", "lie"])
    assert read_npz(tmp_path / "a.npz", alone=True).y_train.tolist() == (2 * Y).tolist()


@pytest.mark.parametrize("name", ["clients", "user_id", "subject", "x_val", "y_fine", "client_id"])
def test_arrays_that_would_be_lost_are_refused(tmp_path, name):
    np.savez(tmp_path / "a.npz", x=X, y=Y, **{name: Y})
    with pytest.raises(DataError, match=f"array {name} \\(60\\) is not used: leave it out, or call it client"):
        read_npz(tmp_path / "a.npz")


def test_other_programs_files_are_named(tmp_path):
    np.savez(tmp_path / "0.npz", data={"x": X, "y": Y})
    with pytest.raises(DataError, match="found data; is it PFLlib's"):
        read_npz(tmp_path / "0.npz")
    np.savez(tmp_path / "0.npz", X=X, Y=Y)
    with pytest.raises(DataError, match=r"found X, Y$"):
        read_npz(tmp_path / "0.npz")


def test_labels_in_a_column_are_taken_and_more_are_explained():
    assert read((X, Y[:, None])).y_train.tolist() == Y.tolist()
    with pytest.raises(DataError, match=r"targets of more numbers must be floats, and of one-hot rows .argmax\(1\)"):
        read((X, np.eye(2, dtype=int)[Y]))
    with pytest.raises(ConfigError, match="num-classes = 10: must be 0 for data, whose labels are numbers to predict"):
        read((X, X[:, 0]), num_classes=10)


def test_labels_of_other_kinds_are_the_same_labels_and_mixed_ones_are_one_line():
    pandas = pytest.importorskip("pandas")
    names = np.array(["no", "yes"])[Y]
    for like, labels in (
        (Y, [pandas.DataFrame({"label": Y}), Y.astype(object), pandas.DataFrame({"label": Y.astype(object)})]),
        (names, [pandas.DataFrame({"label": names}), names.astype(object)]),
        (Y.astype(bool), [pandas.DataFrame({"label": Y.astype(bool)}), Y.astype(bool).astype(object)]),
        (X[:, :2], [pandas.DataFrame(X[:, :2]), X[:, :2].astype(object)]),
    ):
        for label in labels:
            for x in (X, pandas.DataFrame(X)) if label.ndim == 1 or label.shape[1] == 1 else (X,):
                data, wanted = read((x, label)), read((X, like))
                assert np.array_equal(data.y_train, wanted.y_train) and data.class_names == wanted.class_names
        assert np.array_equal(read([(X, labels[0])] * 2).y_train, np.concatenate([read((X, like)).y_train] * 2))
    for odd, kinds in (([*Y[:-1].tolist(), "x"], "int, str"), ([*Y[:-1].tolist(), True], "bool, int")):
        with pytest.raises(
            DataError, match=rf"y is a ndarray of objects \({kinds}\): must be all numbers, or all words"
        ):
            read((X, np.array(odd, object)))
    with pytest.raises(DataError, match="y has 59 labels for 60 samples"):
        read((X, pandas.DataFrame({"label": Y[1:]})))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(5, 9), st.integers(5, 9))
def test_float_images_have_their_channels_first(channels, height, width):
    assert read((np.zeros((4, channels, height, width)), Y[:4])).input_shape == (channels, height, width)
    with pytest.raises(DataError, match=r"channels of float images must come first \(n×C×H×W\)"):
        read((np.zeros((4, height, width, channels)), Y[:4]))
    assert read((np.zeros((4, 64, 4, 4)), Y[:4])).input_shape == (64, 4, 4)


def test_labels_that_are_none_are_told_as_they_are():
    for odd, message in (
        ([None] * N, r"y is a list of objects \(NoneType\): must be all numbers, or all words"),
        (
            [Fraction(1, 2)] * N,
            r"y is a list of objects \(Fraction\): .*; numbers are Python's or NumPy's int and float",
        ),
        (Y.astype(np.uint64) + 2**63, r"y\[0\] is 9223372036854775808: labels must be 0 … C−1"),
    ):
        with pytest.raises(DataError, match=message):
            read((X, odd))
    for odd, kind in (([], "a list"), (3, "an int"), ({1, 2}, "a set")):
        with pytest.raises(DataError, match=f"data: a pair of a ndarray and {kind}: y must be an array or a list"):
            read((X, odd))
    with pytest.raises(DataError, match=r"data is a dict of data, target: give its arrays, \(data, target\)"):
        read({"data": X, "target": Y})
    assert read({"data": (X, Y), "target": (X, Y)}).client_names == ("data", "target")


def test_arrays_that_hold_something_else_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    for x, message in (
        (sparse.csr_matrix(X), r"x is a csr_matrix, a sparse matrix; give its .toarray\(\)"),
        (np.ma.masked_less(X, 9), r"x is a MaskedArray with masked values"),
        (torch.tensor(X, requires_grad=True), "requires grad"),
    ):
        for source in ((x, Y), [(x, Y)], {"ann": {"x": x, "y": Y}}):
            with pytest.raises(DataError, match=message):
                read(source)
    with pytest.raises(FedpflError, match="x_train is a csr_matrix"):
        Dataset.of("mine", sparse.csr_matrix(X), Y)


def test_pixels_are_to_be_divided_and_features_standardised(monkeypatch):
    for shape, value, message in (
        ((1, 8, 8), 255.0, "pixels reach 255 and are not scaled: divide them by 255"),
        ((3,), 81.0, "features reach 81"),
    ):
        arrays = np.full((N, *shape), value), Y
        monkeypatch.setattr("fedpfl.data.federation.load_once", lambda options, seed=0, arrays=arrays: read(arrays))
        assert f"data: {message}" in FederatedData(DataSettings(partitioner="iid"), 2, 1).remarks[-1]


# -- chance ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise", [lambda: torch.randn(3).numpy(), lambda: np.random.normal(size=3), lambda: np.full(3, random.random())]
)  # fmt: skip
def test_random_transforms_follow_from_the_seed_and_are_told(noise):
    def augmented():
        return Items(lambda index: ((X[index] + noise()).astype(np.float32), Y[index]))

    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    one, same, other = read(augmented(), 1), read(augmented(), 1), read(augmented(), 2)
    np.testing.assert_array_equal(one.x_train, same.x_train)
    assert not np.array_equal(one.x_train, other.x_train)
    assert ["drawn at random" in said and "their own generator" not in said for said in one.remarks] == [True]
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states


def test_generators_that_the_seed_does_not_reach_are_told():
    rng = np.random.default_rng()
    data = read(Items(lambda index: (X[index] + rng.normal(size=3).astype(np.float32), Y[index])))
    assert ["their own generator" in said for said in data.remarks] == [True]


def test_a_function_that_draws_is_called_once_for_a_seed():
    calls = []

    def drawn():
        calls.append(1)
        return np.random.normal(size=(N, 3)).astype(np.float32), Y

    def fixed():
        calls.append(1)
        return X, Y

    loader = CustomLoader("data", drawn)
    first = loader(DataSettings(**READ), 1)
    assert loader(DataSettings(**READ, partitioner="iid", num_clients=7), 1) is first and len(calls) == 1
    assert not np.array_equal(loader(DataSettings(**READ), 2).x_train, first.x_train)
    del calls[:]
    loader = CustomLoader("data", fixed)
    assert loader(DataSettings(**READ), 1) is loader(DataSettings(**READ), 2) and len(calls) == 1
