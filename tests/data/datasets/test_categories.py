"""Columns of words: the same features for all clients, whatever words each of them has and in which order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpfl.bench.device.predict import _read_table as read_for_model
from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data.datasets.client_files import own_data
from fedpfl.data.reading import load
from fedpfl.data.settings import DataSettings
from fedpfl.setup.objects import as_setting

ROWS = [("auto", 1.5, "ann", 0), ("manual", 2.5, "ann", 1), ("auto", 3.5, "ben", 0), ("off", 4.5, "ben", 1)]
pandas = pytest.importorskip("pandas")


def frame():
    return pandas.DataFrame(ROWS, columns=["mode", "speed", "client", "label"])


def expected(words):
    rows = frame().itertuples(index=False)
    return np.array([[row.speed, *(row.mode == word for word in words), row.mode not in words] for row in rows], "f4")


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "huggingface", "saved"])
@pytest.mark.parametrize("listed", [(), ("manual", "auto")])
def test_each_word_is_a_feature(tmp_path, form, listed):
    columns = "mode" + ("=" + "|".join(listed) if listed else "")
    words = listed or ("auto", "manual", "off")
    if form == "csv":
        frame().to_csv(tmp_path / "a.csv", index=False)
        given_ = {"dataset": "table", "data": str(tmp_path / "a.csv")}
    elif form == "parquet":
        pytest.importorskip("pyarrow")
        frame().to_parquet(tmp_path / "a.parquet")
        given_ = {"dataset": "table", "data": str(tmp_path / "a.parquet")}
    elif form == "saved":
        pytest.importorskip("datasets").Dataset.from_pandas(frame()).save_to_disk(tmp_path / "a")
        given_ = {"dataset": "huggingface", "data": str(tmp_path / "a")}
    else:
        source = frame() if form == "frame" else pytest.importorskip("datasets").Dataset.from_pandas(frame())
        with as_setting("dataset", source) as text:
            data = load(DataSettings(dataset=text, category_columns=columns))
        given_ = {}
    if given_:
        data = load(DataSettings(category_columns=columns, **given_))
    assert data.feature_names == ("speed", *(f"mode={word}" for word in words), "mode=other")
    assert np.array_equal(data.x_train, expected(words))


def test_clients_with_other_words_have_the_same_features(tmp_path):
    for name, rows in frame().groupby("client"):
        rows.drop(columns="client").iloc[::-1].to_csv(tmp_path / f"{name}.csv", index=False)
    data = load(DataSettings(dataset="clients", data=str(tmp_path), category_columns="mode"))
    assert data.feature_names == ("speed", "mode=auto", "mode=manual", "mode=off", "mode=other")
    assert data.x_train.tolist() == [[2.5, 0, 1, 0, 0], [1.5, 1, 0, 0, 0], [4.5, 0, 0, 1, 0], [3.5, 1, 0, 0, 0]]


def test_a_device_needs_the_list_and_then_agrees(tmp_path):
    frame().iloc[:2].drop(columns="client").to_csv(tmp_path / "a.csv", index=False)
    given_ = DataSettings(dataset="table", category_columns="mode", min_samples=2)
    with pytest.raises(ConfigError, match="must list the words where devices have their own tables"):
        own_data(given_, str(tmp_path / "a.csv"), 0, 1)
    listed = DataSettings(dataset="table", category_columns="mode=off|auto", min_samples=2)
    data = own_data(listed, str(tmp_path / "a.csv"), 0, 1)
    assert data.feature_names == ("speed", "mode=off", "mode=auto", "mode=other")


def test_a_model_takes_the_words_themselves(tmp_path):
    frame().drop(columns=["client", "label"]).to_csv(tmp_path / "a.csv", index=False)
    names = ["speed", "mode=manual", "mode=auto", "mode=other"]
    about = {"input-shape": [4], "vocabulary": 0, "feature-names": names}
    assert np.array_equal(read_for_model(tmp_path / "a.csv", about, ()), expected(("manual", "auto")))


TIMES = ["2026-03-01 06:30", "2026-03-02T18:00", "2000-01-01"]
# Days since 2000, hour and weekday (Monday is 0), by hand.
OF_TIMES = [[9556 + 6.5 / 24, 6.5, 6], [9557.75, 18, 0], [0, 0, 5]]


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "huggingface"])
@pytest.mark.parametrize("ordered", [False, True])
def test_times_are_features_when_they_are_asked_for_and_may_order_the_rows_too(tmp_path, form, ordered):
    made = pandas.DataFrame({"at": TIMES, "speed": [1.5, 2.5, 3.5], "label": [0, 1, 0]})
    typed = made.assign(at=pandas.to_datetime(made["at"], format="ISO8601"))
    columns = {"category_columns": "at@days|hour|weekday", "time_column": "at" if ordered else ""}
    if form == "csv":
        made.to_csv(tmp_path / "a.csv", index=False)
        data = load(DataSettings(dataset="table", data=str(tmp_path / "a.csv"), **columns))
    elif form == "parquet":
        pytest.importorskip("pyarrow")
        typed.to_parquet(tmp_path / "a.parquet")
        data = load(DataSettings(dataset="table", data=str(tmp_path / "a.parquet"), **columns))
    else:
        source = typed if form == "frame" else pytest.importorskip("datasets").Dataset.from_pandas(typed)
        with as_setting("dataset", source) as text:
            data = load(DataSettings(dataset=text, **columns))
    assert data.feature_names == ("speed", "at@days", "at@hour", "at@weekday")
    order = [2, 0, 1] if ordered else [0, 1, 2]
    wanted = [[made["speed"][row], *OF_TIMES[row]] for row in order]
    assert np.allclose(data.x_train, wanted, atol=1e-3, rtol=0)


def test_devices_and_models_make_the_same_numbers_of_times_and_gaps_are_filled(tmp_path):
    lines = [f"{at},1.5,{row % 2}" for row, at in enumerate([*TIMES, "", "2000-02-29"])]
    (tmp_path / "a.csv").write_text("at,speed,label\n" + "\n".join(lines) + "\n")
    given_ = DataSettings(dataset="table", category_columns="at@days|hour|weekday", impute="mean", min_samples=2)
    alone = own_data(given_, str(tmp_path / "a.csv"), 0, 1)
    rows = np.concatenate([alone.train(0).x.numpy(), alone.test(0).x.numpy()])
    assert len(rows) == 5 and np.isfinite(rows).all()
    assert sorted(rows[:, 1].round(2).tolist())[:2] == [0.0, 59.0], "29 February 2000 is day 59"
    names = ["speed", "at@days", "at@hour", "at@weekday"]
    (tmp_path / "b.csv").write_text("speed,at\n" + "\n".join(f"1.5,{at}" for at in TIMES) + "\n")
    read = read_for_model(tmp_path / "b.csv", {"input-shape": [4], "vocabulary": 0, "feature-names": names}, ())
    assert np.allclose(read, [[1.5, *of] for of in OF_TIMES], atol=1e-3, rtol=0)


@pytest.mark.parametrize("cells", [("951782400", "951868800.5"), ("20000229", "20000301.0"), ("2000-02-29", "")])
def test_seconds_and_days_without_hyphens_are_times(tmp_path, cells):
    (tmp_path / "a.csv").write_text("at,label\n" + "".join(f"{cell},{row}\n" for row, cell in enumerate(cells)))
    about = {"dataset": "table", "impute": "mean", "category_columns": "at@days|hour|month"}
    found = load(DataSettings(data=str(tmp_path / "a.csv"), **about)).x_train
    assert np.allclose(found, [[59, 0, 2], [60, 0, 3] if cells[1] else [np.nan] * 3], atol=1e-3, equal_nan=True)
    (tmp_path / "b.csv").write_text(f"at\n{cells[0]}\n")
    model = {"input-shape": [3], "vocabulary": 0, "feature-names": ["at@days", "at@hour", "at@month"]}
    assert read_for_model(tmp_path / "b.csv", model, ()).tolist() == [[59, 0, 2]]
    (tmp_path / "b.csv").write_text("at\n2019\n")
    with pytest.raises(DataError, match="line 2: '2019' is no time"):
        read_for_model(tmp_path / "b.csv", model, ())


# Digits without hyphens, and what they are in ISO 8601.
COMPACT = {
    "YYYYMM": {"192607": "1926-07-01", "202601": "2026-01-01"},
    "YYYYMMDD": {"19260731": "1926-07-31", "20260102": "2026-01-02"},
    "YYYYMMDDHH": {"2023010100": "2023-01-01", "2023123123": "2023-12-31 23:00"},
    "YYYYMMDDHHMM": {"202301010000": "2023-01-01", "202301012359": "2023-01-01 23:59"},
    "YYYYMMDDHHMMSS": {"20230101000000": "2023-01-01", "20230630235930": "2023-06-30 23:59:30"},
}
PARTS = "days|hour|weekday|month"


def times_of(tmp_path, form, cells, columns="at@" + PARTS, impute="refuse"):
    """Return the data set whose column ``at`` has these cells, handed over in a form."""
    made = pandas.DataFrame({"at": cells, "speed": 1.5, "label": [row % 2 for row in range(len(cells))]})
    values = {"category_columns": columns, "impute": impute}
    if form == "csv":
        made.to_csv(tmp_path / "a.csv", index=False)
        return load(DataSettings(dataset="table", data=str(tmp_path / "a.csv"), **values))
    if form == "parquet":
        pytest.importorskip("pyarrow")
        made.to_parquet(tmp_path / "a.parquet")
        return load(DataSettings(dataset="table", data=str(tmp_path / "a.parquet"), **values))
    source = made if form == "frame" else pytest.importorskip("datasets").Dataset.from_pandas(made)
    with as_setting("dataset", source) as text:
        return load(DataSettings(dataset=text, **values))


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "huggingface"])
@pytest.mark.parametrize("name", COMPACT)
@pytest.mark.parametrize("kind", [str, int, float])
def test_digits_without_hyphens_are_the_times_that_they_say(tmp_path, form, name, kind, monkeypatch):
    monkeypatch.setattr("fedpfl.data.datasets.columns.BATCH", 1)
    monkeypatch.setattr("fedpfl.data.datasets.huggingface.BATCH", 1)
    cells = [*map(kind, COMPACT[name]), *([float("nan")] if kind is float else [])]
    found = times_of(tmp_path, form, cells, impute="mean")
    wanted = times_of(tmp_path, "frame", [*COMPACT[name].values()])
    assert np.array_equal(found.x_train[:2], wanted.x_train) and np.isnan(found.x_train[2:, 1:]).all()
    told = "" if name == "YYYYMMDD" else f":{name}"
    assert found.feature_names == ("speed", *(f"at@{part}{told}" for part in PARTS.split("|")))
    (tmp_path / "b.csv").write_text("speed,at\n" + "".join(f"1.5,{cell}\n" for cell in COMPACT[name]))
    about = {"input-shape": [5], "vocabulary": 0, "feature-names": [*found.feature_names]}
    assert np.array_equal(read_for_model(tmp_path / "b.csv", about, ()), wanted.x_train)


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "huggingface"])
@pytest.mark.parametrize(
    "cells",
    [[0, 360, 999, 3600, 7200], [0.0, 10.0, 1000.0, 99.0], [200001, 259200], [0, 5, 20260101], [*range(0, 9000, 60)]],
)
def test_other_numbers_are_seconds(tmp_path, form, cells):
    found = times_of(tmp_path, form, cells, "at@hour|days")
    assert np.allclose(found.x_train[:, 1], np.array(cells) / 3600 % 24, atol=1e-4)
    assert np.allclose(found.x_train[:, 2], np.array(cells) / 86400 - 10957, atol=1e-3)
    assert found.feature_names == ("speed", "at@hour", "at@days")
    (tmp_path / "b.csv").write_text("speed,at\n" + "".join(f"1.5,{cell}\n" for cell in cells))
    about = {"input-shape": [3], "vocabulary": 0, "feature-names": ["speed", "at@hour", "at@days"]}
    assert np.array_equal(read_for_model(tmp_path / "b.csv", about, ()), found.x_train)


@pytest.mark.parametrize("form", ["csv", "frame"])
def test_a_setting_says_what_digits_alone_do_not(tmp_path, form):
    with pytest.raises(DataError, match=r"'3600' is no time: .*; a year has no .* seconds write at@days\|seconds"):
        times_of(tmp_path, form, [3600, 7200])
    assert times_of(tmp_path, form, [3600, 7200], "at@hour|seconds").x_train[:, 1].tolist() == [1, 2]
    found = times_of(tmp_path, form, [202601, 202602], "at@hour|seconds")
    assert found.feature_names[1:] == ("at@hour",) and found.x_train[0, 1] == pytest.approx(202601 / 3600 % 24)
    for cells, columns in (([202601, 202602], "at@hour|YYYYMMDD"), ([1.5, 2.5], "at@hour|ISO")):
        with pytest.raises(
            DataError, match=rf"'{cells[0]}' is no time in the form {columns[8:]} that category-columns"
        ):
            times_of(tmp_path, form, cells, columns)
    with pytest.raises(DataError, match=r"'1767225600000' is no time: .*\(2026-01-31 08:00\); milliseconds: divide by"):
        times_of(tmp_path, form, [1767225600000, 1767225600001])
    months = [f"19{year}{month:02d}" for year in range(26, 28) for month in range(1, 13)]
    with pytest.raises(DataError, match="'192613' is a number, and '192601' is YYYYMM: times of a column must all be"):
        times_of(tmp_path, form, [*months, "192613"])


def test_clients_whose_digits_are_other_times_do_not_differ_in_silence(tmp_path):
    for name, cells in (("ann", "202301 202302 202303 202304"), ("ben", "0 3600 202303 99999")):
        rows = [f"{at},1.5,{row % 2}" for row, at in enumerate(cells.split())]
        (tmp_path / f"{name}.csv").write_text("\n".join(["at,speed,label", *rows]))
    given_ = DataSettings(dataset="clients", data=str(tmp_path), category_columns="at@hour", min_samples=2)
    with pytest.raises(DataError, match=r"its columns are not those of .*at@hour:YYYYMM"):
        load(given_)
    names = {own_data(given_, str(tmp_path / f"{name}.csv"), 0, 1).feature_names for name in ("ann", "ben")}
    assert names == {("speed", "at@hour:YYYYMM"), ("speed", "at@hour")}, "which clients tell each other"
    said = replace(given_, category_columns="at@hour|seconds")
    assert load(said).x_train[:4, 1].tolist() == [np.float32(at / 3600 % 24) for at in range(202301, 202305)]


@pytest.mark.parametrize("form", ["csv", "frame", "huggingface"])
def test_training_and_test_set_are_read_alike(tmp_path, form):
    train, test = (
        pandas.DataFrame({"at": at, "speed": 1.5, "label": [0, 1] * 2})
        for at in ([0, 3600, 99999, 5], [202301, 202302, 202301, 202302])
    )
    source = train, test
    if form == "csv":
        train.to_csv(tmp_path / "train.csv", index=False)
        test.to_csv(tmp_path / "test.csv", index=False)
        given_ = {"dataset": "table", "data": str(tmp_path)}
    elif form == "huggingface":
        source = tuple(map(pytest.importorskip("datasets").Dataset.from_pandas, source))
    with as_setting("dataset", source) as text:
        given_ = given_ if form == "csv" else {"dataset": text}
        with pytest.raises(DataError, match=r"its columns are not those of .*at@hour:YYYYMM"):
            load(DataSettings(category_columns="at@hour", **given_))
        found = load(DataSettings(category_columns="at@hour|seconds", **given_))
    assert found.x_test[:, 1].tolist() == [np.float32(at / 3600 % 24) for at in test["at"]]


@pytest.mark.parametrize("cells", [("20260103", "2026-01-01"), ("2026-01-01", "1767225600"), ("2019", "2019-01-01")])
@pytest.mark.parametrize("given_", [{"time_column": "at"}, {"category_columns": "at@days"}])
def test_numbers_and_dates_in_one_column_of_times_are_refused(tmp_path, cells, given_):
    (tmp_path / "a.csv").write_text("at,x,label\n" + "".join(f"{cell},1,{row}\n" for row, cell in enumerate(cells)))
    with pytest.raises(DataError, match=f"{cells[1]}.* is .*, and '{cells[0]}' is .* must all be numbers|is no time"):
        load(DataSettings(dataset="table", data=str(tmp_path / "a.csv"), **given_))


@pytest.mark.parametrize(
    "cells", ["3 1 2", "1000 1 20", "20260103 20251231 20260101", "2019 2017 2018", "9e9 1.5e9 2e9"]
)
def test_numbers_order_rows_by_their_value(tmp_path, cells):
    (tmp_path / "a.csv").write_text("at,x,label\n" + "".join(f"{at},{at},0\n{at},{at},1\n" for at in cells.split()))
    found = load(DataSettings(dataset="table", data=str(tmp_path / "a.csv"), time_column="at")).x_train[::2, 0]
    assert found.tolist() == sorted(np.float32(cell) for cell in cells.split())


@pytest.mark.parametrize("form", ["csv", "frame", "huggingface"])
@pytest.mark.parametrize("loss", ["mse", "multi-label"])
def test_several_columns_are_targets_in_the_order_of_the_setting(tmp_path, form, loss):
    made = pandas.DataFrame({"warm": [0, 1, 1, 0], "speed": [1.5, 2.5, 3.5, 4.5], "loud": [1, 1, 0, 0]})
    values = {"label-column": "loud, warm", "loss": loss, "dataset": "table", "data": str(tmp_path / "a.csv")}
    made.to_csv(tmp_path / "a.csv", index=False)
    if form == "csv":
        data = load(DataSettings.of(values))
    else:
        source = made if form == "frame" else pytest.importorskip("datasets").Dataset.from_pandas(made)
        with as_setting("dataset", source) as text:
            data = load(DataSettings.of({**values, "dataset": text, "data": ""}))
    assert data.y_train.tolist() == [[1, 0], [1, 1], [0, 1], [0, 0]] and data.y_train.dtype == np.float32
    assert data.class_names == ("loud", "warm") and data.feature_names == ("speed",)


def test_several_columns_of_targets_need_a_loss_of_numbers_and_are_all_there(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,x\n")
    place = {"dataset": "table", "data": str(tmp_path / "a.csv")}
    for label, loss, words in (
        ("b,c", "cross-entropy", r"no column 'b,c' \(label-column\)"),
        ("b,d", "mse", r"no column 'd' \(label-column\)"),
        ("b,c", "mse", "column 'c': 'x' is no finite number"),
    ):
        with pytest.raises(DataError, match=words):
            load(DataSettings.of({**place, "label-column": label, "loss": loss}))


@pytest.mark.parametrize(
    ("text", "more", "error", "words"),
    [
        ("a,label\nx,0\n", {"category_columns": "b"}, DataError, r"no column 'b' \(category-columns\)"),
        ("a,label\nx,0\n", {"category_columns": "a=x|x"}, ConfigError, "lists a word twice"),
        ("a,label\nx|y,0\n", {"category_columns": "a"}, DataError, r"'x\|y' has a , or \|"),
        ("a,b,label\n,1,0\n", {"category_columns": "a=x"}, DataError, "line 2, column 'a': is empty"),
        ("a,b,label\nx,1,0\n", {"category_columns": "a@days"}, DataError, "line 2: 'x' is no time"),
        ("a,label\n2019,0\n", {"category_columns": "a@days"}, DataError, "'2019' is no time.*; a year has no month"),
        ("a,label\n20260110,0\n20269910,1\n", {"category_columns": "a@days"}, DataError, "is a number, and"),
        ("a,b,label\n,1,0\n", {"category_columns": "a@days"}, DataError, "line 2, column 'a': is empty"),
        ("a,b,label\nx,1,0\n", {"category_columns": "a@years"}, ConfigError, r"some of days\|hour\|weekday\|month"),
        ("a,label\n2026-01-31,0\n", {}, DataError, r"is not a number.*a@days\|hour.*time-column orders"),
        ("a,label\nx,0\n", {}, DataError, "'x' is not a number; .* category-columns makes features of words"),
        ("a,label\n" + "".join(f"w{i},0\n" for i in range(1001)), {"category_columns": "a"}, DataError, "1001 diff"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path, text, more, error, words):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(error, match=words):
        load(DataSettings(dataset="table", data=str(tmp_path / "a.csv"), **more))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["true", "False", "TRUE", "0.5", "1", ""]), min_size=1, max_size=8))
def test_true_and_false_are_numbers(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("truth") / "a.csv"
    path.write_text("a,b,label\n" + "".join(f"{cell},2,{i % 2}\n" for i, cell in enumerate(cells)))
    data = load(DataSettings(dataset="table", data=str(path), impute="mean"))
    meant = {"true": 1, "false": 0, "": np.nan}
    wanted = np.array([meant.get(cell.lower(), cell) for cell in cells], np.float32)
    assert np.array_equal(data.x_train[:, 0], wanted, equal_nan=True)
    assert (data.x_train[:, 1] == 2).all() and data.y_train.tolist() == [i % 2 for i in range(len(cells))]
