"""Raw texts with a tokenizer that the user names."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

import fedpfl
from fedpfl import ConfigError, DataError, FedpflError
from fedpfl.bench.device.predict import read_samples
from fedpfl.data import DataSettings, load
from fedpfl.data.datasets.client_files import read_own

TEXTS = ["a b", "b b c", "a", "c a b a b", "b c", "a c"] * 6
LABELS = ["no", "yes"] * 18
MODULE = """
def words(text):
    return [1 + "abc".index(word) for word in text.split()]

words.vocab_size = 4
words.max_length = 4

def wild(text):
    return [4]

wild.vocab_size = 4

def halves(text):
    return [0.5]

halves.vocab_size = 4

def nameless(text):
    return [1]

def broken(text):
    raise KeyError(text)

broken.vocab_size = 4
"""
WANTED = [[1, 2, 0, 0], [2, 2, 3, 0], [1, 0, 0, 0], [3, 1, 2, 1], [2, 3, 0, 0], [1, 3, 0, 0]] * 6


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"tokenizers_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def hugging(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")

    def written(vocabulary, length=4, name="tokenizer.json"):
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        if length:
            made.enable_truncation(length)
        made.save(str(tmp_path / name))
        return str(tmp_path / name)

    return written


def table(path: Path, **columns):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return path


def of_csv(path: Path, tokenizer: str):
    return load(DataSettings(dataset="table", data=str(table(path, text=TEXTS, label=LABELS)), tokenizer=tokenizer))


def of_device(path: Path, tokenizer: str):
    file = table(path, text=TEXTS, label=LABELS)
    return read_own(file, DataSettings(tokenizer=tokenizer, class_names="no,yes"))


@pytest.mark.parametrize("form", ["csv", "parquet", "saved", "device", "npz"])
def test_a_column_of_texts_becomes_numbers(table_as, module, tmp_path, form):
    pandas = pytest.importorskip("pandas")
    if form == "device":
        data = of_device(tmp_path / "texts.csv", f"{module}:words")
    else:
        if form == "npz":
            np.savez(tmp_path / "a.npz", x=np.array(TEXTS), y=np.array(LABELS))
        frame = pandas.DataFrame({"label": LABELS, "review": TEXTS})
        source = {"dataset": "npz", "data": str(tmp_path / "a.npz")} if form == "npz" else table_as(form, frame)
        data = load(DataSettings(**source, tokenizer=f"{module}:words"))
    assert data.x_train.tolist() == WANTED and data.x_train.dtype == np.uint8
    assert data.y_train.tolist() == [0, 1] * 18 and data.class_names == ("no", "yes")
    assert data.vocabulary == 4 and data.input_shape == (4,)
    assert data.feature_names == ("tokenizer words",)
    assert data.remarks[-1] == "6 of 36 texts have more than 4 tokens; the rest of these is left out"


def test_a_file_of_tokenizers_gives_its_numbers_and_its_length(hugging, tmp_path):
    place = hugging({"[PAD]": 0, "a": 1, "b": 2, "c": 3})
    data = of_csv(tmp_path / "texts.csv", place)
    assert data.x_train.tolist() == WANTED and data.vocabulary == 4
    assert of_csv(tmp_path / "texts.csv", hugging({"<pad>": 0, "a": 1}, 0)).input_shape == (64,)


def test_another_tokenizer_is_another_task_of_devices(hugging, module, tmp_path):
    places = [
        hugging({"[PAD]": 0, "a": 1, "b": 2, "c": 3}),
        hugging({"[PAD]": 0, "a": 2, "b": 1, "c": 3}, name="b.json"),
    ]
    names = [of_device(tmp_path / "texts.csv", place).feature_names for place in [*places, f"{module}:words"]]
    assert len(set(names)) == 3


def test_texts_in_python_give_the_numbers_of_a_table(module, tmp_path):
    torch = pytest.importorskip("torch")
    pandas = pytest.importorskip("pandas")

    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return len(TEXTS)

        def __getitem__(self, index):
            return TEXTS[index], LABELS[index]

    results = []
    sources = [
        (TEXTS, LABELS), {"x": np.array(TEXTS), "y": LABELS}, Pairs(), fedpfl.Lazy(Pairs(), LABELS),
        pandas.DataFrame({"t": TEXTS, "label": LABELS}),
    ]  # fmt: skip
    for data in [*sources, str(table(tmp_path / "texts.csv", text=TEXTS, label=LABELS))]:
        run = fedpfl.run(
            "fedavg", data=data, tokenizer=f"{module}:words", model="transformer", num_clients=2, partitioner="iid",
            num_server_rounds=1, local_epochs=1, seed=3, quiet=True, workers=0, output_dir=tmp_path / "runs",
            **({"dataset": "table"} if isinstance(data, str) else {}),
        )  # fmt: skip
        results.append((run.rounds["personalised_accuracy"].tolist(), run.rounds["personalised_loss"].tolist()))
    assert all(one == results[0] for one in results) and len(results[0][0]) == 1


def test_a_function_of_this_process_and_clients_with_a_frame_each(tmp_path):
    pandas = pytest.importorskip("pandas")

    def letters(text):
        return [ord(one) - 96 for one in text if one != " "]

    letters.vocab_size = 27
    frames = {name: pandas.DataFrame({"text": TEXTS, "label": LABELS}) for name in ("ann", "ben")}
    run = fedpfl.run(
        "local", data=frames, tokenizer=letters, model="transformer", num_server_rounds=1, local_epochs=1, quiet=True,
        workers=0, output_dir=tmp_path,
    )  # fmt: skip
    assert {*run.clients["name"]} == {"ann", "ben"}


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ("{}:wild", "texts.csv, line 2: the tokenizer gives 4; it must give 0 … 3"),
        ("{}:halves", "texts.csv, line 2: the tokenizer gives a list; it must give whole numbers"),
        ("{}:nameless", "needs an attribute vocab_size"),
        ("{}:broken", "raises KeyError: 'a b'"),
        ("{}:nothing", "there is no nothing"),
        ("not-there.json", "is no file on this machine"),
    ],
)
def test_a_wrong_tokenizer_is_one_line(tokenizer, message, module, tmp_path):
    with pytest.raises(FedpflError) as error:
        of_csv(tmp_path / "texts.csv", tokenizer.format(module))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_wrong_file_of_tokenizers_is_one_line(hugging, tmp_path):
    with pytest.raises(ConfigError, match="its number 0 is 'a', and models take 0 as padding"):
        of_csv(tmp_path / "texts.csv", hugging({"a": 0, "[PAD]": 1}))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no file of tokenizers"):
        of_csv(tmp_path / "texts.csv", str(tmp_path / "bad.json"))


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"text": TEXTS, "age": range(36)}, {}, "takes one column of texts, and here it is text, age; ignore-columns"),
        ({}, {}, "takes one column of texts, and here it is none"),
        (
            {"text": TEXTS},
            {"dataset": "series", "window_length": 2},
            "series and category-columns do not go with texts",
        ),
        ({"text": TEXTS, "mode": TEXTS}, {"category_columns": "mode"}, "do not go with texts"),
        ({"text": ["", *TEXTS[1:]]}, {}, "line 2, column 'text': is empty"),
    ],
)
def test_what_is_no_one_column_of_texts_is_one_line(columns, settings, message, module, tmp_path):
    path = table(tmp_path / "texts.csv", **columns, label=LABELS)
    with pytest.raises(DataError) as error:
        load(DataSettings(**{"dataset": "table", "data": str(path), "tokenizer": f"{module}:words", **settings}))
    assert message in str(error.value)


def test_a_text_without_a_tokenizer_names_the_setting(tmp_path):
    with pytest.raises(DataError, match="tokenizer numbers of a text"):
        of_csv(tmp_path / "texts.csv", "")


def test_arrays_that_are_no_texts_are_one_line(module):
    with pytest.raises(DataError, match="with a tokenizer it must be texts, one for each sample"):
        fedpfl.run("local", data=(np.zeros((40, 3)), [0, 1] * 20), tokenizer=f"{module}:words", quiet=True)


def test_predictions_of_texts_need_the_tokenizer_of_the_run(module, tmp_path):
    about = {"vocabulary": 4, "input-shape": [4], "feature-names": ["tokenizer words"]}
    (tmp_path / "new.txt").write_text("a b\nc\n")
    np.savez(tmp_path / "new.npz", x=np.array(["a b", "c"]))
    files = table(tmp_path / "new.csv", age=[1, 2], text=["a b", "c"]), tmp_path / "new.txt", tmp_path / "new.npz"
    for file in files:
        assert read_samples(file, about, ["age"], f"{module}:words").tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]
    for tokenizer, message in (
        ("", "name the --tokenizer, or give numbers, x in an .npz file"),
        (f"{module}:wild", "was trained with tokenizer words, not with tokenizer wild"),
    ):
        with pytest.raises(DataError, match=message):
            read_samples(files[0], about, ["age"], tokenizer)
    with pytest.raises(DataError, match="must have one column of texts"):
        read_samples(files[0], about, [], f"{module}:words")
    np.savez(tmp_path / "other.npz", y=np.zeros(2))
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    (tmp_path / "empty.csv").touch()
    for name, message in (
        ("none.txt", "none.txt: no such file"), ("", "is a folder; name the files in it"),
        ("other.npz", "has neither an array x nor x_test"), ("latin.txt", "latin.txt: not a text in UTF-8"),
        ("empty.csv", "must have one column of texts"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            read_samples(tmp_path / name, about, [], f"{module}:words")
