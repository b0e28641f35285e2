"""Reading texts: plays and news in every layout, every error line, and the real files where they are at hand."""

from __future__ import annotations

import csv
import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from real_data import real_data_dir

from fedpfl.core.errors import DataError
from fedpfl.data import DataSettings, FederatedData, load
from fedpfl.data.datasets.client_files import own_data
from fedpfl.data.datasets.text import (
    CHARACTERS,
    CHUNK,
    UNKNOWN,
    VOCABULARY,
    chunks,
    encode_characters,
    encode_words,
    read_news,
    read_plays,
)


def decoded(codes: np.ndarray) -> str:
    return "".join(CHARACTERS[c] for c in codes)


# -- plays -------------------------------------------------------------------------------------------------------------


def test_characters_keep_their_code_and_others_share_one() -> None:
    assert len(CHARACTERS) == 100
    assert decoded(encode_characters("To be, or not\tto be?")) == "To be, or not\tto be?"
    assert encode_characters("é\x00𝄞\x7f\x80\ud800").tolist() == [UNKNOWN] * 6


def test_chunks_predict_the_character_that_follows() -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(200))
    x, y = chunks(text, 80)
    assert [decoded(row) for row in x] == [text[:80], text[80:160]]
    assert decoded(y) == text[80] + text[160]
    every = chunks(text, 1)
    assert len(every[1]) == 120
    assert all(decoded(every[0][i]) == text[i : i + 80] and CHARACTERS[every[1][i]] == text[i + 80] for i in range(120))
    assert [len(part) for part in chunks(text[:80], 80)] == [0, 0]
    assert [len(part) for part in chunks(text[:81], 80)] == [1, 1]


def test_white_space_counts_as_in_leaf() -> None:
    x, _ = chunks("a\nb  c   \n d" + "e" * 80, 80)
    assert decoded(x[0]).startswith("a b c deee")


def test_plays_by_role(tmp_path: Path) -> None:
    path = tmp_path / "shakespeare.json"
    path.write_text(json.dumps({"play / Z": "z" * 81, "play / A": "ab" * 100, "play / Mute": "short"}))
    data = load(DataSettings(dataset="shakespeare", data_dir=str(tmp_path)))
    assert data.x_train.shape == (3, 80) and data.input_shape == (80,) and not data.is_image
    assert (data.num_classes, data.vocabulary) == (100, 100)
    assert data.client_train.tolist() == [0, 0, 2]  # roles in alphabetical order, whether or not they say enough
    assert data.class_names[10] == "a" and "' '" in data.class_names and data.x_test is None
    assert len(load(DataSettings(dataset="shakespeare", data_dir=str(tmp_path), window_step=40)).y_train) == 3 + 1


def leaf(folder: Path, **users: tuple[list[str], list[str]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y, "raw": "…"} for user, (x, y) in users.items()},
    }
    path = folder / f"all_data_{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("step", [1, 7, 40, 79])
def test_texts_of_tests_share_no_character_with_earlier_ones(tmp_path: Path, step: int) -> None:
    (tmp_path / "shakespeare.json").write_text(json.dumps({"a": "x" * 1600, "b": "y" * 900}))
    options = {"dataset": "shakespeare", "data_dir": str(tmp_path), "window_step": step, "min_samples": 2}
    data = FederatedData(DataSettings(**options, split="time"), 2, 1)
    assert not any("overlap" in said for said in data.remarks)
    for i in range(2):
        train, test = data.share(i)
        # The 81st character is what a text is to predict.
        assert train[-1] * step + CHUNK + 1 <= test[0] * step < (train[-1] + 1) * step + CHUNK + 1
    (said,) = FederatedData(DataSettings(**options), 2, 1).remarks
    assert said.startswith("shakespeare: texts overlap, so test texts share characters with training texts; split")


def test_plays_of_clients_are_cut_alike_in_one_folder_and_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps({name: "x" * 1600}))
    settings = DataSettings(dataset="clients", data=str(tmp_path), split="time", window_step=20)
    sizes = FederatedData(settings, 2, 1).sizes(0)
    assert sizes == (53, 19), "76 texts, of which 4 overlap with those of tests"
    assert own_data(replace(settings, data=""), str(tmp_path / "a.json"), 0, 1).sizes(0) == sizes


def test_texts_that_do_not_overlap_are_divided_as_ever(tmp_path: Path) -> None:
    (tmp_path / "shakespeare.json").write_text(json.dumps({"a": "x" * 1600, "b": "y" * 900}))
    for step in (0, 80, 100):
        options = {"dataset": "shakespeare", "data_dir": str(tmp_path), "window_step": step, "min_samples": 2}
        assert not FederatedData(DataSettings(**options), 2, 1).remarks
        train, test = FederatedData(DataSettings(**options, split="time"), 2, 1).share(0)
        assert test[0] == train[-1] + 1


@pytest.mark.parametrize("split", ["mixed", "given"])
@pytest.mark.parametrize("step", [1, 80])
def test_leaf_s_texts_overlap_where_they_begin_at_each_character(tmp_path: Path, split: str, step: int) -> None:
    text = "To be, or not to be: that is the question. " * 60
    for part, begin in (("train", 0), ("test", 800)):
        begins = range(begin, begin + 12 * step, step)
        user = {"x": [text[start : start + CHUNK] for start in begins], "y": [text[start + CHUNK] for start in begins]}
        folder = tmp_path / "shakespeare" / part
        folder.mkdir(parents=True)
        (folder / "all.json").write_text(json.dumps({"users": ["a"], "user_data": {"a": user}}))
    data = FederatedData(DataSettings(dataset="shakespeare", data_dir=str(tmp_path), split=split), 1, 1)
    overlap = ['split = "given" keeps them apart' in said for said in data.remarks if "texts overlap" in said]
    assert overlap == [True] * (split == "mixed" and step == 1)


def test_leaf_s_texts_that_run_on_are_kept_apart_where_its_tests_stay_at_the_server(tmp_path: Path) -> None:
    text = "To be, or not to be: that is the question. " * 60
    user = {
        "x": [text[start : start + CHUNK] for start in range(400)],
        "y": [text[start + CHUNK] for start in range(400)],
    }
    for part in ("train", "test"):
        folder = tmp_path / "shakespeare" / part
        folder.mkdir(parents=True)
        (folder / "all.json").write_text(json.dumps({"users": ["a"], "user_data": {"a": user}}))
    options = {"dataset": "shakespeare", "data_dir": str(tmp_path), "test_on": "server"}
    train, test = FederatedData(DataSettings(**options, split="time"), 1, 1).share(0)
    assert train[-1] + CHUNK + 1 == test[0]


def test_leaf_s_layout_in_several_files(tmp_path: Path) -> None:
    root = tmp_path / "shakespeare"
    leaf(root / "train", ROMEO=(["a" * 80, "b" * 80], ["x", "y"]))
    leaf(root / "train", JULIET=(["c" * 80], [" "]))
    leaf(root / "test", ROMEO=(["d" * 80], ["z"]), NURSE=([], []))
    data = load(DataSettings(dataset="shakespeare", data_dir=str(tmp_path)))
    assert [decoded(row) for row in data.x_train] == ["c" * 80, "a" * 80, "b" * 80]
    assert decoded(data.y_train) == " xy" and decoded(data.y_test) == "z"
    assert data.client_train.tolist() == [0, 2, 2] and data.client_test.tolist() == [2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a readable JSON file"),
        ("[1]", "must be a JSON object"),
        ('{"a": 1}', 'must be {"play / role": text, …}'),
        ('{"a": "short"}', "no role has more than 80 characters"),
    ],
)
def test_bad_plays_are_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "shakespeare.json").write_text(content)
    with pytest.raises(DataError) as caught:
        load(DataSettings(dataset="shakespeare", data_dir=str(tmp_path)))
    assert message in str(caught.value) and "shakespeare.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"users": ["A"]}, "no user_data; must be LEAF's users, num_samples and user_data"),
        ({"user_data": {"A": []}}, "user 'A': x must be a list of texts of 80 characters"),
        ({"user_data": {"A": {"x": ["a" * 79], "y": ["b"]}}}, "user 'A': x must be a list of texts of 80 characters"),
        ({"user_data": {"A": {"x": ["a" * 80], "y": [[0, 1]]}}}, "user 'A': y must be a list of texts of 1 characters"),
        ({"user_data": {"A": {"x": ["a" * 80], "y": []}}}, "user 'A' has 1 x and 0 y"),
    ],
)
def test_bad_leaf_files_are_one_line(tmp_path: Path, content: object, message: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        read_plays(tmp_path)
    assert message in str(caught.value) and "a.json" in str(caught.value)


def test_missing_texts_say_what_to_put_where(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path)}
    with pytest.raises(DataError, match=r"shakespeare: not found; put LEAF's train/\*\.json and test/\*\.json there"):
        load(DataSettings(dataset="shakespeare", **settings))
    with pytest.raises(DataError, match=r"AG_NEWS: not found; put train\.csv and test\.csv"):
        load(DataSettings(dataset="ag-news", **settings))
    (tmp_path / "shakespeare").mkdir()
    with pytest.raises(DataError, match=r"train: no json files"):
        load(DataSettings(dataset="shakespeare", **settings))
    leaf(tmp_path / "shakespeare" / "train", A=(["a" * 80], ["b"]))
    leaf(tmp_path / "shakespeare" / "train", A=(["a" * 80], ["b"]))
    with pytest.raises(DataError, match=r"user 'A' is in .*train twice"):
        load(DataSettings(dataset="shakespeare", **settings))


# -- news --------------------------------------------------------------------------------------------------------------


def number(word: str) -> int:
    return 1 + zlib.crc32(word.encode()) % (VOCABULARY - 1)


def write_news(path: Path, *rows: tuple[object, ...]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return path


def test_words_have_numbers_that_need_no_other_text() -> None:
    codes: dict[str, int] = {}
    row = encode_words("Oil PRICES rise, oil's up 3%!", codes)
    assert row[:7] == [number(w) for w in ("oil", "prices", "rise", "oil", "s", "up", "3")]
    assert row[7:] == [0] * 57 and 0 not in codes.values()
    assert encode_words("word " * 100, codes) == [number("word")] * 64
    assert encode_words("…", codes) == [0] * 64


def test_news_in_a_folder_and_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "AG_NEWS").mkdir()
    write_news(tmp_path / "AG_NEWS" / "train.csv", (3, "Oil up", 'He said "sell"'), (1, "Vote", "two\nlines"))
    write_news(tmp_path / "AG_NEWS" / "test.csv", ("Class Index", "Title", "Description"), (4, "Chips", "fast"))
    data = load(DataSettings(dataset="ag-news", data_dir=str(tmp_path)))
    assert data.y_train.tolist() == [2, 0] and data.y_test.tolist() == [3]
    assert data.x_train[0, :6].tolist() == [number(w) for w in ("oil", "up", "he", "said", "sell")] + [0]
    assert data.x_train[1, :4].tolist() == [number(w) for w in ("vote", "two", "lines")] + [0]
    assert data.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert (data.vocabulary, data.input_shape, data.num_classes) == (VOCABULARY, (64,), 4)
    write_news(tmp_path / "agnews.csv", (2, "Goal", "again"))
    assert read_news(tmp_path / "agnews.csv").x_test is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"5","a","b"\n', "line 1: must be a class from 1 to 4, a title and a text"),
        (b'"1","a","b"\n"1","a"\n', "line 2: must be a class from 1 to 4"),
        (b'"1","\xff","b"\n', "not a readable CSV file"),
        (b"", "no news in it"),
    ],
)
def test_bad_news_are_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "agnews.csv"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_news(path)
    assert message in str(caught.value) and "agnews.csv" in str(caught.value) and "\n" not in str(caught.value)


# -- arrays, and what clients see --------------------------------------------------------------------------------------


def test_tokens_in_an_npz_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(12).reshape(6, 2) * 20, y=np.arange(6) % 2, vocabulary=300)
    data = load(DataSettings(dataset="npz", data=str(path)))
    assert data.vocabulary == 300 and data.input_shape == (2,) and data.x_train.dtype == np.int16
    np.savez(path, x=np.zeros((6, 4, 4), np.uint8), y=np.arange(6) % 2)
    assert load(DataSettings(dataset="npz", data=str(path))).is_image


@pytest.mark.parametrize(
    ("x", "vocabulary", "message"),
    [
        (np.zeros((6, 2), int), 0, "vocabulary must be the number of different tokens, 1 … 1000000"),
        (np.zeros((6, 2), int), [2, 3], "vocabulary must be the number"),
        (np.zeros((6, 2)), 5, "x is float64 6×2: with a vocabulary it must be whole numbers n×length"),
        (np.zeros((6, 2, 2), np.uint8), 5, "x is uint8 6×2×2: with a vocabulary it must be whole numbers n×length"),
        (np.eye(6, dtype=int) * 7, 5, "x[0, 0] is 7: tokens must be 0 … 4"),
        (-np.eye(6, dtype=int), 5, "x[0, 0] is -1: tokens must be 0 … 4"),
        (np.zeros((6, 0), int), 5, "no samples"),
    ],
)
def test_bad_tokens_are_one_line(tmp_path: Path, x: np.ndarray, vocabulary: object, message: str) -> None:
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(6) % 2, vocabulary=vocabulary)
    with pytest.raises(DataError) as caught:
        load(DataSettings(dataset="npz", data=str(tmp_path / "a.npz")))
    assert message in str(caught.value)


def test_clients_get_tokens_as_int64(tmp_path: Path) -> None:
    rows = [(1 + i % 4, "title", f"text {i}") for i in range(40)]
    write_news(tmp_path / "agnews.csv", *rows)
    settings = DataSettings(dataset="ag-news", data_dir=str(tmp_path), partitioner="iid")
    data = FederatedData(settings, 2, seed=1)
    x, y = data.train(0)
    assert x.dtype == y.dtype == torch.int64 and x.shape == (15, 64) and data.vocabulary == VOCABULARY
    device = own_data(settings, str(tmp_path / "agnews.csv"), client=0, seed=1, num_classes=4)
    assert device.vocabulary == VOCABULARY and sum(device.sizes(0)) == 40
    (tmp_path / "mine.json").write_text(json.dumps({"me": "abc" * 500}))
    role = own_data(settings, str(tmp_path / "mine.json"), client=0, seed=1)
    assert role.input_shape == (80,) and role.num_classes == 100


# -- the real files ----------------------------------------------------------------------------------------------------


def test_real_plays() -> None:
    data = load(DataSettings(dataset="shakespeare", data_dir=str(real_data_dir())))
    assert data.x_train.shape == (53_370, 80) and data.client_train.max() == 1338
    assert UNKNOWN not in data.x_train
    federated = FederatedData(
        DataSettings(dataset="shakespeare", data_dir=str(real_data_dir()), partitioner="natural", min_samples=100),
        20,
        1,
    )
    assert all(sum(federated.sizes(i)) >= 100 for i in range(20))
