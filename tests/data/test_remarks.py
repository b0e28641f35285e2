"""What a run says of data that are something else than they seem, in whatever form they come."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

import fedpfl
from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import DataSettings, FederatedData, default_clients
from fedpfl.setup.objects import as_setting

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 4)).astype(np.float32), RNG.integers(2, size=60)


def divided(source, **more):
    """Return data handed over, divided, and what is said of them in one text."""
    with as_setting("dataset", source) as name:
        settings = DataSettings(dataset=name, **{"partitioner": "auto", **more})
        data = FederatedData(settings, default_clients(settings) or 2, 1)
    return data, "\n".join(data.remarks)


def tensors(x=X, y=Y):
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


# -- the training set as the test set ----------------------------------------------------------------------------------


SAME = [
    (X, Y, X, Y), (tensors(), tensors()), {"train": (X, Y), "test": (X, Y)}, fedpfl.Dataset.of("mine", X, Y, X, Y),
    (X.astype(np.uint8).reshape(60, 2, 2) * 7, Y, X.astype(np.uint8).reshape(60, 2, 2) * 7, Y),
    [(X, Y, X, Y), (X + 9, Y, X + 9, Y)],
]  # fmt: skip


@pytest.mark.parametrize("source", SAME)
def test_training_samples_among_the_tests_are_told(source):
    data, said = divided(source, partitioner="natural" if isinstance(source, list) else "iid")
    tested = sum(data.sizes(client)[1] for client in range(data.num_clients))
    assert f"{tested} of {tested} test samples equal a training sample" in said


def test_of_a_part_the_number_is_told_and_of_an_honest_test_nothing():
    assert "10 of 20 test samples equal" in divided((X, Y, np.concatenate([X[:10], X[:10] + 5]), Y[:20]))[1]
    # Another label under the same features is no copy.
    for honest in ((X, Y), (X[:40], Y[:40], X[40:], Y[40:]), (X, Y, X[:20], 1 - Y[:20])):
        assert "equal a training sample" not in divided(honest, partitioner="iid")[1]
    twice = np.concatenate([X, X]), np.concatenate([Y, Y])
    assert "test samples equal a training sample" in divided(twice, partitioner="iid")[1]


# -- names that are spelled in two ways --------------------------------------------------------------------------------


def test_words_that_differ_only_in_spelling_are_told(tmp_path):
    rows = {"ann": ("yes", "no", "Mon"), "Ann\u200b ": ("Yes", "No", "mon")}
    for name, (yes, no, day) in rows.items():
        lines = [f"{n},{day if n % 3 else 'Tue'},{yes if n % 2 else no}" for n in range(20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,day,label", *lines]))
    data = FederatedData(DataSettings(dataset="clients", data=str(tmp_path), category_columns="day"), 2, 1)
    said = "\n".join(data.remarks)
    for remark in (
        "classes differ only in spelling: 'No' and 'no', 'Yes' and 'yes'",
        "features differ only in spelling: 'day=Mon' and 'day=mon'",
        "clients differ only in spelling: 'Ann\\u200b ' and 'ann'",
    ):
        assert remark in said
    assert "spelling" not in divided((X, np.array(["no", "yes"])[Y]))[1]


@pytest.mark.parametrize("word", ["NA", "N/A", "null", "None"])
def test_a_name_that_stands_for_a_missing_one_is_told(word, tmp_path):
    """R writes NA; pandas writes nothing, and nan where names were made texts, which names nobody."""
    lines = [f"{n},{word if n % 3 else 'yes'},{'ann' if n % 2 else word}" for n in range(40)]
    path = tmp_path / "all.csv"
    path.write_text("\n".join(["a,label,client", *lines]))
    said = "\n".join(FederatedData(DataSettings(dataset="table", data=str(path)), 2, 1).remarks)
    assert f"'{word}' among the classes is taken for one of them; if it stands for an unknown one, leave" in said
    assert f"'{word}' among the clients is taken for one of them" in said
    path.write_text(path.read_text().replace(word, "nan"))
    with pytest.raises(DataError, match="line 2, column 'client': is empty"):
        FederatedData(DataSettings(dataset="table", data=str(path)), 2, 1)
    told = "\n".join(divided([(X, Y), (X + 1, Y)], min_samples=2)[1].splitlines())
    assert "among the c" not in told


@pytest.mark.parametrize(
    ("labels", "word"), [(("0", "1", "2", "x"), "'x'"), (("1", "2", "N/B"), "'N/B'"), (("0", "1", "a", "b"), None)]
)
def test_a_word_among_numbers_is_told(labels, word):
    said = divided((X, np.array(labels)[np.arange(60) % len(labels)]))[1]
    assert re.findall("classes are numbers, but for (.*), which", said) == [word] * (word is not None)


def test_clients_without_test_samples_are_told():
    said = divided([(X, Y, X, Y), (X + 1, Y, X[:0], Y[:0])], split="given")[1]
    assert "1 of 2 clients have no test samples, and count in no accuracy" in said
    assert "test samples, and count" not in divided([(X, Y), (X + 1, Y)])[1]


def test_test_samples_whose_classes_nobody_trains_on_are_told():
    labels = np.array(["no", "yes"])
    tests = np.where(np.arange(20) < 5, "perhaps", labels[Y[:20]])
    data, said = divided((X[20:], labels[Y[20:]], X[:20], tests), partitioner="iid")
    assert "5 of 20 test samples are left out: no client trains on their classes, perhaps" in said
    assert sum(data.sizes(client)[1] for client in range(data.num_clients)) == 15
    assert "left out" not in divided((X[20:], labels[Y[20:]], X[:20], labels[Y[:20]]), partitioner="iid")[1]
    with pytest.raises(DataError, match="0 test samples of classes that a client trains on, of 20, cannot be divided"):
        divided((X[20:], labels[Y[20:]], X[:20], np.full(20, "perhaps")), partitioner="iid")


@pytest.mark.parametrize(
    ("more", "unused"),
    [({"partitioner": "iid"}, 0), ({"partitioner": "pathological", "classes_per_client": 1}, 20), ({}, 30)],
)
def test_samples_that_no_client_has_are_told(more, unused, tmp_path):
    if not more:
        nobody = np.where(np.arange(60) < 30, -1, np.arange(60) % 2)
        np.savez(tmp_path / "division.npz", client=nobody, test=np.arange(60) % 4 < 2)
        more = {"division_file": str(tmp_path / "division.npz"), "split": "time"}
    said = divided((X, np.arange(60) % 3), **more)[1]
    assert re.findall("(.*) samples belong to no client", said) == [f"dataset: {unused} of 60"] * bool(unused)
    assert "last samples" not in said


def test_a_stratified_cut_needs_classes():
    with pytest.raises(ConfigError, match=r"split = 'stratified': must be .* which has targets and no classes"):
        divided((X, X[:, :1]), partitioner="iid", split="stratified")


def test_clients_that_are_one_number_are_told(tmp_path):
    for name in ("007", "7", "8", "8.0", "80", "0.5", "5", "1e3", "1000", "3e"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,label", *(f"{n},{n % 2}" for n in range(20))]))
    data = FederatedData(DataSettings(dataset="clients", data=str(tmp_path)), 10, 1)
    (told,) = (remark for remark in data.remarks if "clients differ only in spelling" in remark)
    assert sorted(re.findall(r"'(\S+)' and '(\S+)'", told)) == [("007", "7"), ("1000", "1e3"), ("8", "8.0")]


# -- classes of torch's data sets --------------------------------------------------------------------------------------


class Animals(torch.utils.data.Dataset):
    """As torchvision's ImageFolder: numbers its own classes."""

    def __init__(self, classes, shade):
        self.classes, self.shade = classes, shade

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((4,), self.shade[self.classes[index % 2]]) + index / 1000, index % 2


class Indexed(torch.utils.data.Dataset):
    """A data set that has the numbers of its classes alone."""

    def __init__(self, made):
        self.samples, self.class_to_idx = made, {name: number for number, name in enumerate(made.classes)}

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


SHADE = {"cat": 0.0, "dog": 10.0, "owl": 20.0}
WRAPPED = {
    "plain": lambda made: made,
    "Subset": lambda made: Subset(made, range(20)),
    "ConcatDataset": lambda made: ConcatDataset([made, Subset(made, range(10))]),
    "DataLoader": DataLoader,
    "class_to_idx": Indexed,
    "Lazy": fedpfl.Lazy,
    "Lazy with labels": lambda made: fedpfl.Lazy(made, [number % 2 for number in range(20)]),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_classes_that_each_client_numbers_go_by_their_names(wrap):
    sets = [wrap(Animals(("cat", "dog"), SHADE)), wrap(Animals(("dog", "owl"), SHADE))]
    for source in (sets, dict(zip(("ann", "ben"), sets, strict=True))):
        data, _ = divided(source)
        assert data.class_names == ("cat", "dog", "owl")
        for client in (0, 1):
            for part in (data.train(client), data.test(client)):
                assert part.y.tolist() == (part.x[:][:, 0] / 10).round().tolist()
    # One numbering for all stays as it is.
    alike, _ = divided([wrap(Animals(("owl", "cat"), SHADE))] * 2)
    assert alike.class_names == ("owl", "cat")


def test_names_of_classes_that_labels_do_not_fit_are_told():
    class Binary(Indexed):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x, int(y > 0)

    animals = Animals(("owl", "dog", "cat"), SHADE)
    for made in (Binary(animals), animals):
        assert "no label is 'cat', of its classes owl, dog, cat: are its labels still" in divided(made)[1]
    assert "no label is" not in divided(Animals(("owl", "dog"), SHADE))[1]
    assert divided(Animals(("owl", "dog"), SHADE), class_names="owl,dog")[0].class_names == ("owl", "dog")
    with pytest.raises(ConfigError, match="must be empty: the data set's own classes are owl, dog"):
        divided(Animals(("owl", "dog"), SHADE), class_names="dog,owl")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"client_test": Y, "x_test": X + 1, "y_test": Y}, "has client_test without client_train"),
        ({"client_test": Y, "client_train": Y}, "has client_test without x_test"),
        ({"client_names": ("ann", "ben")}, "has client_names without client_train"),
    ],
)
def test_owners_without_their_samples_are_refused(more, message):
    with pytest.raises(DataError, match=f"mine: {message}"):
        divided(fedpfl.Dataset.of("mine", X, Y, **more), partitioner="iid")


def test_settings_that_say_nothing_of_a_dataset_are_told():
    said = divided(fedpfl.Dataset.of("mine", X, Y), class_names="b,a", tokenizer="json:loads")[1]
    assert "not used with arrays: class-names, tokenizer" in said


def test_an_index_with_a_name_that_is_no_column_is_told():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": X[:, 0], "a": X[:, 1], "client": Y, "label": Y})
    told = "age in the index of a DataFrame is no column, and not used: reset_index() makes it one"
    assert told in divided(frame.set_index("age"))[1]
    assert "in the index" not in divided(frame.set_index("client"))[1] + divided(frame)[1]


def test_a_validation_fraction_that_a_validation_part_replaces_is_told():
    made = fedpfl.Dataset.of("mine", X, Y, X + 1, Y, validation=np.arange(60) % 4 == 0)
    told = "its validation part takes the place of validation-fraction"
    assert told in divided(made, validation_fraction=0.5, partitioner="iid")[1]
    assert told not in divided(made, partitioner="iid")[1]


def test_numbers_beside_other_names_are_refused():
    ann, ben = Animals(("cat", "dog"), SHADE), Animals(("dog", "owl"), SHADE)
    with pytest.raises(DataError, match="client 2 has numbers as labels, which mean different classes for the others"):
        divided([ann, ben, tensors()])
    with pytest.raises(DataError, match="client 0: joins data sets whose numbers mean different classes"):
        divided([ConcatDataset([ann, ben]), ann])
    turned = Animals(("cat", "dog"), SHADE)
    turned.target_transform = lambda y: 1 - y  # whose numbers nobody knows
    assert divided([turned, turned])[0].has_no_class_names


def test_what_a_loader_says_of_batches_is_told():
    loaders = [DataLoader(tensors(), batch_size=size) for size in (1, 32)]
    assert "batches have batch-size samples, and not the loader's 32" in divided(loaders)[1]
    assert "batch-size" not in divided(loaders[:1] * 2)[1]


@pytest.mark.parametrize("shape", [(3, 50), (3, 4, 4), (8, 8)])
def test_images_that_are_rather_series_are_told(shape):
    x = RNG.integers(255, size=(40, *shape), dtype=np.uint8)
    assert ("samples of uint8 are images" in divided((x, Y[:40]), partitioner="iid")[1]) == (shape != (8, 8))


def test_remarks_read_no_published_data(tmp_path):
    x = RNG.integers(255, size=(40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=Y[:40], x_test=x, y_test=Y[:40])
    data = FederatedData(DataSettings(dataset="mnist", data_dir=str(tmp_path), partitioner="iid"), 2, 1)
    assert not any("training sample" in said for said in data.remarks)
