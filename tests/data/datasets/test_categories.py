"""Columns of words: the same features for all clients, whatever words each of them has and in which order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpfl.bench.device.predict import _read_table as read_for_model
from fedpfl.core.errors import ConfigError, DataError, FedpflError
from fedpfl.data.datasets.client_files import own_data
from fedpfl.data.reading import load
from fedpfl.data.settings import DataSettings

ROWS = [("auto", 1.5, "ann", 0), ("manual", 2.5, "ann", 1), ("auto", 3.5, "ben", 0), ("off", 4.5, "ben", 1)]
pandas = pytest.importorskip("pandas")


def frame():
    return pandas.DataFrame(ROWS, columns=["mode", "speed", "client", "label"])


def expected(categories):
    rows = frame().itertuples(index=False)
    return np.array(
        [[row.speed, *(row.mode == word for word in categories), row.mode not in categories] for row in rows], "f4"
    )


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "huggingface", "saved"])
@pytest.mark.parametrize("listed", [(), ("manual", "auto")])
def test_each_word_is_a_feature(table_as, form, listed):
    categories = listed or ("auto", "manual", "off")
    columns = "mode" + ("=" + "|".join(listed) if listed else "")
    data = load(DataSettings(category_columns=columns, **table_as(form, frame())))
    assert data.feature_names == ("speed", *(f"mode={word}" for word in categories), "mode=other")
    assert np.array_equal(data.x_train, expected(categories))


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


@pytest.mark.parametrize("cells", [("20260103", "2026-01-01"), ("2026-01-01", "1767225600"), ("2019", "2019-01-01")])
def test_numbers_and_dates_in_one_column_of_times_are_refused(tmp_path, cells):
    (tmp_path / "a.csv").write_text("at,x,label\n" + "".join(f"{cell},1,{row}\n" for row, cell in enumerate(cells)))
    with pytest.raises(DataError, match=f"{cells[1]}.* is .*, and '{cells[0]}' is .* must all be numbers"):
        load(DataSettings(dataset="table", data=str(tmp_path / "a.csv"), time_column="at"))


@pytest.mark.parametrize("zone", ["Z", "+02:00"])
def test_times_with_a_zone_and_without_in_one_column_are_refused(tmp_path, zone):
    cells = [f"2026-10-25T0{hour}:00{zone * (hour == 3)}" for hour in range(6)]
    for times, message in (
        (cells, "has a zone, and '2026.* has none"),
        (cells[3:], "has no zone, and '2026.* has one"),
    ):
        lines = "".join(f"{cell},1,{row % 2}\n" for row, cell in enumerate(times))
        (tmp_path / "a.csv").write_text(f"at,x,label\n{lines}")
        with pytest.raises(DataError, match=f"{message}: either all times of a column have a zone, or none has"):
            load(DataSettings(dataset="table", data=str(tmp_path / "a.csv"), time_column="at"))


@pytest.mark.parametrize(
    "cells", ["3 1 2", "1000 1 20", "20260103 20251231 20260101", "2019 2017 2018", "9e9 1.5e9 2e9"]
)
def test_numbers_order_rows_by_their_value(tmp_path, cells):
    (tmp_path / "a.csv").write_text(
        "at,x,label\n" + "".join(f"{moment},{moment},0\n{moment},{moment},1\n" for moment in cells.split())
    )
    column = load(DataSettings(dataset="table", data=str(tmp_path / "a.csv"), time_column="at")).x_train[::2, 0]
    assert column.tolist() == sorted(np.float32(cell) for cell in cells.split())


@pytest.mark.parametrize(
    "cells",
    [
        "2026-01-01T08:00:00.000000001 2026-01-01T08:00:00.000000003 2026-01-01T08:00:00.000000002",
        "2026-01-01T08:00:00.1234567+02:00 2026-01-01T06:00:00.12345671Z 2026-01-01T06:00:00.1234567001Z",
        "1767225600000000001 1767225600000000003 1767225600000000002",
        "1767225600.000000001 1767225600.000000003 1767225600.000000002", "1e-9 3e-9 2e-9", "1e-400 3e-400 2e-400",
    ],
)  # fmt: skip
def test_times_are_ordered_below_a_microsecond(tmp_path, cells):
    (tmp_path / "a.csv").write_text(
        "at,x,label\n" + "".join(f"{time},{row},{row % 2}\n" for row, time in enumerate(cells.split()))
    )
    data = load(DataSettings(dataset="table", data=str(tmp_path / "a.csv"), time_column="at"))
    assert data.x_train[:, 0].tolist() == [0, 2, 1]


@pytest.mark.parametrize("form", ["parquet", "frame", "huggingface"])
def test_times_of_a_typed_table_are_ordered_by_nanoseconds(table_as, form):
    at = pandas.to_datetime([3, 1, 2, 0], unit="ns")
    made = pandas.DataFrame({"at": at, "x": [3.0, 1.0, 2.0, 0.0], "label": [0, 1, 0, 1]})
    data = load(DataSettings(time_column="at", **table_as(form, made)))
    assert data.x_train[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("years", [0, 100])
def test_a_gap_of_nanoseconds_is_one_whatever_the_time_of_the_others(tmp_path, years):
    starts = [f"{2000 + years * client}-01-01T00:00:00" for client in range(2)]
    lines = [f"{start}.{step + 1000 * (step > 7):09d},{client},{step},0" for client, start in enumerate(starts)
             for step in range(16)]  # fmt: skip
    (tmp_path / "a.csv").write_text("\n".join(["at,client,x,label", *lines]))
    options = {"window_length": 4, "window_step": 1, "time_column": "at", "num_classes": 2, "min_samples": 2}
    data = load(DataSettings(dataset="series", data=str(tmp_path / "a.csv"), **options))
    assert len(data.x_train) == 2 * 2 * 5
    assert any("no window reaches over 2 gaps in the times" in remark for remark in data.remarks)


@pytest.mark.parametrize("time", ["2026-01-31.5", "2026-01-31 08:00:00.", "1e400", "1e-99999999999999999999"])
def test_what_is_no_time_is_refused(tmp_path, time):
    (tmp_path / "a.csv").write_text(f"at,x,label\n{time},1,0\n{time},2,1\n")
    with pytest.raises(DataError, match=r"line 2, column 'at': '.*' is no time"):
        load(DataSettings(dataset="table", data=str(tmp_path / "a.csv"), time_column="at"))


@pytest.mark.parametrize("form", ["csv", "frame", "huggingface"])
@pytest.mark.parametrize("loss", ["mse", "multi-label"])
def test_several_columns_are_targets_in_the_order_of_the_setting(table_as, form, loss):
    made = pandas.DataFrame({"warm": [0, 1, 1, 0], "speed": [1.5, 2.5, 3.5, 4.5], "loud": [1, 1, 0, 0]})
    data = load(DataSettings.of({"label-column": "loud, warm", "loss": loss, **table_as(form, made)}))
    assert data.y_train.tolist() == [[1, 0], [1, 1], [0, 1], [0, 0]] and data.y_train.dtype == np.float32
    assert data.class_names == ("loud", "warm") and data.feature_names == ("speed",)


def test_several_columns_of_targets_need_a_loss_of_numbers_and_are_all_there(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,x\n")
    place = {"dataset": "table", "data": str(tmp_path / "a.csv")}
    for label, loss, message in (
        ("b,c", "cross-entropy", r"no column 'b,c' \(label-column\)"),
        ("b,d", "mse", r"no column 'd' \(label-column\)"),
        ("b,c", "mse", "column 'c': 'x' is no finite number"),
        ("b,b", "mse", "lists a column twice"),
    ):
        with pytest.raises(FedpflError, match=message):
            load(DataSettings.of({**place, "label-column": label, "loss": loss}))


@pytest.mark.parametrize(
    ("text", "more", "error", "message"),
    [
        ("a,label\nx,0\n", {"category_columns": "b"}, DataError, r"no column 'b' \(category-columns\)"),
        ("a,label\nx,0\n", {"category_columns": "a=x|x"}, ConfigError, "lists a word twice"),
        ("a,label\nx,0\n", {"category_columns": "a,a"}, ConfigError, "lists 'a' twice"),
        ("a,label\nx,0\n", {"category_columns": "a,label"}, DataError, "column 'label' is the label"),
        ("a,label\nx|y,0\n", {"category_columns": "a"}, DataError, r"'x\|y' has a , or \|"),
        ("a,b,label\n,1,0\n", {"category_columns": "a=x"}, DataError, "line 2, column 'a': is empty"),
        ("a,b,label\nx,1,0\n", {"time_column": "a"}, DataError, "line 2, column 'a': 'x' is no time"),
        ("a,b,label\nnan,1,0\n", {"time_column": "a"}, DataError, "line 2, column 'a': is empty"),
        ("a,label\n2026-01-31,0\n", {}, DataError, "is not a number.*time-column orders rows by a time"),
        ("a,label\nx,0\n", {}, DataError, "'x' is not a number; .* category-columns makes features of words"),
        ("a,label\n" + "".join(f"w{i},0\n" for i in range(1001)), {"category_columns": "a"}, DataError, "1001 diff"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path, text, more, error, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(error, match=message):
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


def test_a_whole_number_is_one_word_with_and_without_a_point(tmp_path):
    rows = [("1.0", "1.0", "7"), ("2", "0.0", "7.0"), ("1", "1.0", "8.0"), ("2.0", "0", "8")] * 3
    for part, shift in (("train", 0), ("test", 1)):
        lines = [f"{mode},{row + shift / 2},{label},{group}" for row, (mode, label, group) in enumerate(rows)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["mode,speed,label,group", *lines]))
    given_ = DataSettings(
        dataset="table", data=str(tmp_path), category_columns="mode", class_names="1,0", group_column="group"
    )
    for columns in ("mode", "mode=1|2"):
        data = load(replace(given_, category_columns=columns))
        assert data.feature_names == ("speed", "mode=1", "mode=2", "mode=other")
        assert data.x_train[:4, 1:].tolist() == [[1, 0, 0], [0, 1, 0]] * 2
    assert data.class_names == ("1", "0") and data.y_train[:4].tolist() == [0, 1, 0, 1]
    assert data.groups.tolist() == [0, 0, 1, 1] * 6  # of both parts
    (tmp_path / "test.csv").write_text("mode,speed,label,group\n1,1,no,7\n2,2,yes,8")
    with pytest.raises(DataError, match=r"test.csv: column 'label' holds names, and that of train.csv numbers"):
        load(replace(given_, class_names=""))


def test_a_blank_before_a_quotation_mark_is_no_part_of_a_word(tmp_path):
    lines = [f'{row}, "{"a, b" if row % 2 else "c"}", "ann"' for row in range(12)]
    (tmp_path / "a.csv").write_text("\n".join(['speed, "label", "client"', *lines]))
    data = load(DataSettings(dataset="table", data=str(tmp_path / "a.csv")))
    assert data.class_names == ("a, b", "c") and data.client_names == ("ann",)
