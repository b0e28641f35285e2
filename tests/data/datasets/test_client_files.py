"""Tables, series, Hugging Face folders and folders of clients: what is read, and each mistake in one line."""

from __future__ import annotations

import dataclasses
import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import Dataset, DataSettings, FederatedData, default_clients, load, with_partitioner
from fedpfl.data.datasets import columns, reading_helpers
from fedpfl.data.datasets.client_files import own_data, read_own
from fedpfl.data.datasets.python_objects import CustomLoader
from fedpfl.data.datasets.table import read_table
from fedpfl.data.partitioners import Share
from fedpfl.data.remarks import remarks

PEOPLE = "age,client,height,label,split\n" + "".join(
    f"{20 + i},{'ben' if i % 3 else 'ann'},{150 + i / 2},{'yes' if i % 2 else 'no'},{'test' if i > 7 else 'train'}\n"
    for i in range(10)
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def settings(**values: object) -> DataSettings:
    return DataSettings(**{"dataset": "table", **values})


# -- tables ------------------------------------------------------------------------------------------------------------


def test_numbers_of_clients_are_the_same_ones_as_floats(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "a,label,client\n" + "".join(f"{row},{row % 2},{row % 3}\n" for row in range(30)))
    write(tmp_path / "test.csv", "a,label,client\n" + "".join(f"{row},{row % 2},{row % 3}.0\n" for row in range(30)))
    data = load(settings(data=str(tmp_path)))
    assert data.client_names == ("0", "1", "2") and data.client_train.tolist() == data.client_test.tolist()
    write(tmp_path / "test.csv", "a,label,client\n" + "".join(f"{row},{row % 2},v1.0\n" for row in range(30)))
    assert "v1.0" in load(settings(data=str(tmp_path))).client_names


def test_a_table_has_features_labels_owners_and_a_split(tmp_path: Path) -> None:
    path = write(tmp_path / "people.csv", PEOPLE)
    data = load(settings(data=str(path)))
    assert data.name == "people" and data.input_shape == (2,) and data.class_names == ("no", "yes")
    assert data.x_train.dtype == np.float32 and data.x_train[1].tolist() == [21, 150.5]
    assert data.y_train.tolist() == [0, 1] * 4 and data.y_test.tolist() == [0, 1]
    assert data.client_train.tolist() == [0, 1, 1, 0, 1, 1, 0, 1] and data.client_test.tolist() == [1, 0]


@pytest.mark.parametrize(
    "text",
    [
        "a;b;label\n1;2;0\n3;4;1\n",
        "a\tb\tlabel\n1\t2\t0\n3\t4\t1\n",
        "\ufeffa, b ,label\r\n1,2,0\r\n\r\n3,4,1\r\n",
        'a,b,label\n"1",2,0.0\n3e0,4,1.0\n',
        "remark,a,b,label\nx,1,2,0\ny,3,4,1\n",
    ],
)
def test_csv_files_as_programs_write_them(tmp_path: Path, text: str) -> None:
    options = settings(ignore_columns="remark" if "remark" in text else "")
    data = read_table(write(tmp_path / "a.csv", text), options)
    assert data.x_train.tolist() == [[1, 2], [3, 4]] and data.y_train.tolist() == [0, 1]
    assert data.client_train is None and data.x_test is None


@pytest.mark.parametrize("gap", ["", "NA", "n/a", "null", "None", "NaN"])
def test_words_for_a_gap_are_gaps(tmp_path: Path, gap: str) -> None:
    write(tmp_path / "a.csv", f"a,b,label\n1,2,0\n{gap},{gap},1\n3,4,0\n")
    data = load(settings(data=str(tmp_path / "a.csv"), impute="mean"))
    np.testing.assert_array_equal(data.x_train, np.float32([[1, 2], [np.nan, np.nan], [3, 4]]))


def test_a_word_with_an_underscore_is_no_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x,label\n1,1_0\n2,2_1\n")
    data = load(settings(data=str(path)))
    assert data.class_names == ("1_0", "2_1") and data.y_train.tolist() == [0, 1]
    write(path, "x,label\n1,0\n1_0,1\n")
    with pytest.raises(DataError, match="line 3, column 'x': '1_0' is not a number"):
        load(settings(data=str(path)))


def test_a_column_that_counts_the_rows_is_told(tmp_path: Path) -> None:
    def remarks(numbers: list[float], **options: str) -> tuple[str, ...]:
        rows = [f"{number},{row % 3},{row % 7},{row % 2}" for row, number in enumerate(numbers)]
        write(tmp_path / "a.csv", "\n".join(["id,a,b,label", *rows, ""]))
        return load(settings(data=str(tmp_path / "a.csv"), **options)).remarks

    (said,) = remarks([*range(100, 150)])
    assert said == "column 'id' counts the rows, and is a feature: ignore-columns = \"id\" leaves out such columns"
    # Of several files that were joined.
    assert remarks([*range(25), *range(25)]) == (said,)
    assert not remarks([*range(100, 150)], ignore_columns="id")
    for others in (
        [*range(19)],
        [1.0] * 50,
        [*range(0, 100, 2)],
        [*range(50, 0, -1)],
        [0.5 * row for row in range(50)],
    ):
        assert not remarks(others), others


def test_a_folder_of_two_tables_is_a_training_and_a_test_set(tmp_path: Path) -> None:
    write(tmp_path / "d" / "train.csv", "a,label,client\n1,x,10\n2,y,9\n")
    write(tmp_path / "d" / "test.csv", "a,label,client\n3,y,9\n")
    data = load(settings(data=str(tmp_path / "d")))
    assert data.y_test.tolist() == [1] and data.class_names == ("x", "y")
    assert data.client_train.tolist() == [1, 0], "numbers are sorted as numbers"
    assert data.client_test.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.csv: the file is empty"),
        ("a,label\n", "a.csv: no rows below the names of the columns"),
        ("1,2\n3,4\n", "a.csv, line 1: must hold the names of the columns, but holds numbers"),
        ("a,a,label\n1,2,3\n", "a.csv: two columns are called 'a'"),
        ("a,,label\n1,2,3\n", "a.csv: column 2 has no name"),
        (",a,label\n0,2,3\n", "a.csv: column 1 has no name; pandas writes its index so: to_csv(…, index=False)"),
        ("a,label\n1,0\nNA,1\n", "a.csv, line 3, column 'a': is empty; impute = "),
        ('a,label\n1,0\n"1,5",1\n', "a.csv, line 3, column 'a': '1,5' is not a number: decimals are written with a"),
        (
            'a,label\n1,0\n"1,000,000.5",1\n',
            "a.csv, line 3, column 'a': '1,000,000.5' is not a number: decimals are written "
            "with a point, and thousands without a comma",
        ),
        ("a,b\n1,2\n", "a.csv: no column 'label' (label-column); it has a, b"),
        ("label,client\n0,1\n", "a.csv: no column of numbers besides label, client"),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", "a.csv: no column 'label' (label-column); it has 5.1, 3.5, setosa; does"),
        ("0.5,0.5,no\n1,0.5,yes\n", "a.csv: two columns are called '0.5'; does the first line name the columns?"),
        ("a,label\n1,0\n2\n", "a.csv, line 3: has 1 cells, but 2 columns have names"),
        (
            "a,label\n1,0\ntall,1\n",
            "a.csv, line 3, column 'a': 'tall' is not a number; ignore-columns = ",
        ),
        ("a,label\n1,0\n\n,1\n", "a.csv, line 4, column 'a': is empty"),
        ("a,label\n1,0\n2,\n", "a.csv, line 3, column 'label': is empty"),
        ("a,b,label\n1,1,0\n\n1,1e40,1\n", "a.csv, line 4, column 'b': must be a finite number that float32 can hold"),
        ("a,label\n1,0\nnan,1\n", "a.csv, line 3, column 'a': is empty; impute"),
        ("a,label\n1,0\n1,-1\n", "a.csv, line 3, column 'label': '-1' is below 0: labels must be 0 … C−1, or names"),
        (
            "a,label\n1,x\n1,0.53\n",
            "a.csv, line 3, column 'label': '0.53' is not a class: must be a whole number or a name",
        ),
        ("a,label\n1,0\n1,900000\n", "a.csv, line 3, column 'label': '900000' is too large"),
        (
            "a,label\n1,0\n1,7\n",
            "a.csv: 2 different labels, the largest 7: number the classes from 0, or set num-classes",
        ),
        (
            "a,b,label\n1,0,0\nx,,1\n2\n3,inf,\n4,1,0\n",
            "a.csv, line 3, column 'a': 'x' is not a number, also wrong: line 3, column 'b' (empty), "
            "line 4 (1 cells), line 5, column 'b' (inf), line 5, column 'label' (empty); ignore-columns = \"a\" leaves",
        ),
        (
            "a,b,c,label\n2026-01-31,x,,0\n",
            "a.csv, line 2, column 'a': '2026-01-31' is not a number, also wrong: line 2, column 'b' ('x'), line 2, "
            "column 'c' (empty); ignore-columns = \"a,b\" leaves out text; time-column orders rows by a time; for "
            "features give its parts, such as the hour, in separate columns; category-columns makes features of words, "
            'and tokenizer numbers of a text; impute = "mean" fills empty cells',
        ),
        (
            "a,label\n" + "x,0\n" * 9,
            "a.csv, line 2, column 'a': 'x' is not a number, also wrong: line 3, column 'a' ('x'), "
            "line 4, column 'a' ('x'), …; ignore-columns",
        ),
        (
            ",".join(f"c{i}" for i in range(12)) + ",label\n" + "," * 12 + "1\n",
            "a.csv, line 2, column 'c0': is empty, also wrong: "
            + ", ".join(f"line 2, column 'c{i}' (empty)" for i in range(1, 10))
            + ", …; impute = ",
        ),
        (
            "a,label\n1,-1\n1,-2\n1,0\n",
            "a.csv, line 2, column 'label': '-1' is below 0: labels must be 0 … C−1, or names, also wrong: "
            "line 3, column 'label' ('-2')",
        ),
        ("a,label,split\n1,0,train\n2,1,out\n", "a.csv, line 3, column 'split': 'out' is none of train, test, val"),
        ("a,label,split\n1,0,test\n", "a.csv, column 'split': no row is for training"),
        (
            'a,label\n1,0\n2,"1\n3,0\n',
            "a.csv: not a readable CSV file: unexpected end of data (line 3); a quotation mark that begins a cell",
        ),
        ('a,label\n1,"0"0\n', "a.csv: not a readable CSV file: ',' expected after '\"' (line 2)"),
        ('a,label\n1,"' + "x" * 200_000 + '"\n', "a.csv: not a readable CSV file: field larger than field limit"),
    ],
)
def test_a_mistake_in_a_table_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(DataError) as caught:
        load(settings(data=str(path)))
    assert str(caught.value).startswith(f"{tmp_path}/{message}") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_column": "kind"}, "no column 'kind' (label-column); it has age, client, height, label, split"),
        ({"client_column": "person"}, "no column 'person' (client-column)"),
        ({"ignore_columns": "age, weight"}, "no column 'weight' (ignore-columns)"),
        ({"class_names": "no,maybe"}, "line 3, column 'label': 'yes' is not one of class-names"),
        ({"class_names": "no,yes", "num_classes": 3}, "has names for 2 classes, num-classes is 3"),
    ],
)
def test_a_setting_that_does_not_fit_the_table_is_one_line(tmp_path: Path, options: dict, message: str) -> None:
    path = write(tmp_path / "people.csv", PEOPLE)
    with pytest.raises(DataError) as caught:
        load(settings(data=str(path), **options))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_names_of_classes_can_be_given_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "people.csv", PEOPLE)
    data = load(settings(data=str(path), class_names="yes, perhaps, no"))
    assert data.class_names == ("yes", "perhaps", "no") and data.y_train.tolist() == [2, 0] * 4
    numbers = write(tmp_path / "n.csv", "a,label\n1,0\n1,1\n")
    assert read_table(numbers, settings(class_names="yes,perhaps,no")).class_names == ("yes", "perhaps", "no")


def test_paths_that_hold_no_table_are_one_line(tmp_path: Path) -> None:
    anna, _ = (write(tmp_path / "each" / f"{name}.csv", PEOPLE) for name in ("anna", "ben"))
    dev, _ = (write(tmp_path / "more" / f"{name}.csv", PEOPLE) for name in ("dev", "eve"))  # dev is a validation part
    for path, message in (
        (tmp_path / "none.csv", "no such file"),
        (write(tmp_path / "a.txt", "a"), r"must be a table with the ending \.csv or \.parquet"),
        (tmp_path, "must have one table .* called train and one called test; it has none$"),
        (anna.parent, r'it has anna\.csv, ben\.csv; dataset = "clients" takes a file for each client'),
        (dev.parent, r'it has dev\.csv, eve\.csv; dataset = "clients" takes a file for each client'),
    ):
        with pytest.raises(DataError, match=message):
            read_table(path, settings())
    with pytest.raises(ConfigError, match="data = '': must be the path of a table"):
        load(settings())
    with pytest.raises(ConfigError, match=r'is not used with dataset = "digits"; use one of npz, image-folder, table'):
        load(DataSettings(data=str(tmp_path)))


def test_large_tables_are_refused_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "people.csv", PEOPLE)
    monkeypatch.setattr(columns, "MAX_VALUES", 8)
    with pytest.raises(DataError, match="holds more than 8 numbers"):
        read_table(path, settings())
    monkeypatch.setattr(reading_helpers, "MAX_CHARACTERS", 100)
    path = write(tmp_path / "wide.csv", "a,label\n" + "1" * 200 + ",0\n")
    with pytest.raises(DataError, match="line 2: longer than 100 characters"):
        read_table(path, settings())


# -- parquet -----------------------------------------------------------------------------------------------------------


def parquet(path: Path, **columns: object) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), str(path))
    return path


def test_a_parquet_file_is_read_as_the_same_csv_file(tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "people.parquet", age=list(range(20, 30)), client=["ben" if i % 3 else "ann" for i in range(10)],
        height=[150 + i / 2 for i in range(10)], label=["yes" if i % 2 else "no" for i in range(10)],
        split=["test" if i > 7 else "train" for i in range(10)], __index_level_0__=list(range(10)),
    )  # fmt: skip
    one, other = read_table(path, settings()), read_table(write(tmp_path / "people.csv", PEOPLE), settings())
    for name in ("x_train", "y_train", "x_test", "y_test", "client_train", "client_test"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.class_names == other.class_names


def test_a_mistake_in_a_parquet_file_is_one_line(tmp_path: Path) -> None:
    cases = [
        ({"a": ["x"], "label": [0]}, "column 'a': holds string, not numbers; ignore-columns = .a. leaves out"),
        ({"a": [1.0, None], "label": [0, 1]}, "row 2, column 'a': is empty"),
        ({"a": [1, 2], "label": [0, None]}, "row 2, column 'label': is empty"),
        ({"a": [1.0, float("inf")], "label": [0, 1]}, "row 2, column 'a': must be a finite number"),
        ({"a": [1.0, 2.0], "label": [0.0, 1.5]}, "row 2, column 'label': '1.5' is not a class|row 1, column"),
    ]
    for options, message in cases:
        with pytest.raises(DataError, match=message):
            read_table(parquet(tmp_path / "a.parquet", **options), settings())
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="not a readable parquet file"):
        read_table(tmp_path / "a.parquet", settings())


@pytest.mark.parametrize("names", [["1", "01", "001", "2"], ["1.0", "2.0", "10.0"], ["+1", "1", "1.0", "01"]])
def test_owners_have_the_same_numbers_in_every_process(names: list[str]) -> None:
    wanted = sorted(names, key=lambda name: (float(name), name))
    for order in itertools.permutations(names):  # a set gives them in any order
        assert sorted(order, key=columns._order) == wanted


# -- series ------------------------------------------------------------------------------------------------------------


def steps(rows: list[tuple[object, ...]], names: str = "ax,ay,label") -> str:
    return names + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)


def test_windows_are_cut_from_stretches_of_one_label_and_client(tmp_path: Path) -> None:
    rows = [(i, -i, "walk" if i < 7 else "sit", "ann" if i < 10 else "ben") for i in range(14)]
    path = write(tmp_path / "s.csv", steps(rows, "ax,ay,label,client"))
    options = DataSettings(dataset="series", data=str(path), window_length=3)
    data = load(options)
    assert data.input_shape == (2, 3) and data.class_names == ("sit", "walk")
    assert data.x_train[:, 0].tolist() == [[0, 1, 2], [3, 4, 5], [7, 8, 9], [10, 11, 12]]
    assert np.array_equal(data.x_train[:, 1], -data.x_train[:, 0])
    assert data.y_train.tolist() == [1, 1, 0, 0] and data.client_train.tolist() == [0, 0, 0, 1]
    overlapping = load(dataclasses.replace(options, window_step=2))
    assert overlapping.x_train[:, 0, 0].tolist() == [0, 2, 4, 7, 10]


@pytest.mark.parametrize("gap", [0, 3, 50])
@pytest.mark.parametrize("form", ["csv", "frame"])
def test_no_window_reaches_over_a_gap_in_the_times(tmp_path: Path, gap: int, form: str) -> None:
    pandas = pytest.importorskip("pandas")
    times = [*range(10), *range(10 + gap, 20 + gap)]
    rows = [(i, i % 20, "walk", client, time) for client in "ab" for i, time in enumerate(times)]
    rows += [(99, 99, "sit", "c", 0), (99, 99, "sit", "c", 9000)]  # whose steps are long
    frame = pandas.DataFrame(rows, columns=["ax", "ay", "label", "client", "time"]).sample(frac=1, random_state=1)
    options = {"window_length": 4, "window_step": 1, "time_column": "time", "min_samples": 2}
    if form == "csv":
        frame.to_csv(tmp_path / "s.csv", index=False)
        data = load(DataSettings(dataset="series", data=str(tmp_path / "s.csv"), **options))
    else:
        data = CustomLoader("data", frame)(DataSettings(**options), 1)
    starts = data.x_train[data.client_train == 0][:, 0, 0].astype(int).tolist()
    assert starts == [*range(17)] if gap < 5 else starts == [*range(7), *range(10, 17)]
    lost = [remark for remark in data.remarks if "no window has" in remark]
    assert lost == [f"no window has {one}: too few rows in a row" for one in ("client c", "label sit")]
    told = [remark for remark in data.remarks if "gap" in remark]
    assert told == (
        [] if gap < 5 else ["no window reaches over 2 gaps in the times: steps above 5 times a client's usual one"]
    )


def test_windows_can_be_named_by_a_column(tmp_path: Path) -> None:
    rows = [(i, i, i % 2, "ab"[i // 4], i % 2) for i in range(8)]  # windows of two clients, their rows in turn
    path = write(tmp_path / "s.csv", steps(rows, "ax,ay,label,client,window"))
    data = load(DataSettings(dataset="series", data=str(path)))
    assert data.x_train[:, 0].tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert data.y_train.tolist() == [0, 1, 0, 1] and data.client_train.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        (steps([(1, 1, 0)] * 4), {}, ConfigError, "window-length = 0: must be above 0, or s.csv must mark the windows"),
        (steps([(1, 1, 0)] * 4), {"window_length": 5}, ConfigError, "no stretch of s.csv with one label is longer"),
        (steps([(1, 1, 0, w) for w in (1, 1, 1, 2, 2, 3, 3)], "a,b,label,window"), {}, DataError,
         "s.csv, column 'window': window '1' has 3 rows, most others have 2"),
        (steps([(1, 1, 0, 1)] * 3, "a,b,label,window"), {"window_length": 4}, DataError,
         "window '1' has 3 rows, window-length says 4"),
        (steps([(1, 1, i, 1) for i in range(3)], "a,b,label,window"), {}, DataError, "'1' has more than one label"),
        (steps([(1, "x", 0)]), {"window_length": 1}, DataError, "s.csv, line 2, column 'ay': 'x' is not a number"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_series_is_one_line(tmp_path: Path, text: str, options: dict, error: type, message: str) -> None:
    path = write(tmp_path / "s.csv", text)
    with pytest.raises(error) as caught:
        load(DataSettings(dataset="series", data=str(path), **options))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_likely_a_mistake_is_said(tmp_path: Path) -> None:
    rows = [(i % 9, 1000 * i, i // 20) for i in range(40)]
    path = write(tmp_path / "s.csv", steps(rows, "ax,ay,label"))
    options = {"dataset": "series", "data": str(path), "window_length": 4, "min_samples": 2}
    overlap, large = FederatedData(DataSettings(**options, window_step=2), 2, seed=1).remarks
    assert "s: windows overlap, so test windows share rows with training windows" in overlap
    assert large == "s: features reach 39,000 and are not scaled: " + (
        'standardize = "client" brings them to one scale'
    )
    assert len(FederatedData(DataSettings(**options), 2, seed=1).remarks) == 1


@pytest.mark.parametrize(("brightest", "told"), [(1, True), (16, True), (31, True), (32, False), (255, False)])
def test_dark_pixels_are_remarked_on(tmp_path: Path, brightest: int, told: bool) -> None:
    np.savez(tmp_path / "a.npz", x=np.full((40, 4, 4), brightest, np.uint8), y=np.arange(40) % 2)
    said = FederatedData(DataSettings(dataset="npz", data=str(tmp_path / "a.npz"), partitioner="iid"), 2, 1).remarks
    message = f"a: pixels of uint8 reach {brightest} of 255, and are divided by 255: spread them over 0 … 255"
    assert [line for line in said if "pixels" in line] == [message] * told


@pytest.mark.parametrize(
    ("start", "step", "told"),
    [(1_770_000_000, 1, True), (1_770_000_000, 3600, False), (0, 1, False), (2**24, 5, False), (2**31, 0, False)],
)
def test_large_numbers_that_become_alike_are_remarked_on(tmp_path: Path, start: int, step: int, told: bool) -> None:
    rows = "".join(f"{i % 7},{start + step * (i * 7 % 1000)},{i % 2}\n" for i in range(1000))
    options = settings(data=str(write(tmp_path / "a.csv", "b,at,label\n" + rows)), standardize="client")
    said = FederatedData(options, 2, 1).remarks
    message = "a: feature 'at' is 1770000000 … 1770001024, where float32 has steps of 128: smaller differences are lost"
    assert [remark for remark in said if "float32" in remark] == [f"{message}; subtract a number before"] * told


def test_a_look_at_series_and_images_of_floats_copies_no_samples() -> None:
    for shape in ((200, 3, 4000), (200, 3, 60, 60)):
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        data, shares = Dataset.of("s", x, np.arange(200) % 2), [Share(np.arange(150), np.arange(150, 200))]
        tracemalloc.start()
        remarks(data, DataSettings(), shares)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < x.nbytes / 4


# -- a folder with an entry for each client, and what a device holds ---------------------------------------------------


def test_each_entry_of_a_folder_is_a_client(tmp_path: Path) -> None:
    root = tmp_path / "people"
    for number in (1, 2, 10):
        rows = "".join(f"{number},{'no' if i % 2 or number == 1 else 'yes'}\n" for i in range(12))
        write(root / f"client-{number}.csv", "a,label\n" + rows)
    write(root / ".hidden", "")
    options = DataSettings(dataset="clients", data=str(root))
    assert default_clients(options) == 3 and with_partitioner(options).partitioner == "natural"
    data = load(options)
    assert data.class_names == ("no", "yes") and data.client_train.tolist() == [0] * 12 + [1] * 12 + [2] * 12
    assert data.x_train[::12, 0].tolist() == [1, 2, 10], "client-2 stands before client-10"
    assert data.y_train[:14].tolist() == [0] * 12 + [1, 0], "classes are those of all clients"


def test_entries_of_one_client_are_refused_and_folders_keep_their_names(tmp_path: Path) -> None:
    table = "a,label\n" + "1,no\n2,yes\n" * 4
    for name in ("site-1.5", "site-1.6"):
        write(tmp_path / name / "train.csv", table)
        write(tmp_path / name / "test.csv", table)
    assert load(settings(dataset="clients", data=str(tmp_path))).client_names == ("site-1.5", "site-1.6")
    write(tmp_path / "site-1.5.csv", table)
    with pytest.raises(DataError, match=r"site-1\.5\.csv: is of client 'site-1\.5', as site"):
        load(settings(dataset="clients", data=str(tmp_path)))
    for name in ("ann.csv", "ann.CSV"):
        write(tmp_path / "b" / name, table)
    with pytest.raises(DataError, match=r"ann\.csv: is of client 'ann', as ann\.CSV"):
        load(settings(dataset="clients", data=str(tmp_path / "b")))


def test_what_partition_exports_is_a_folder_of_clients(tmp_path: Path) -> None:
    data = FederatedData(DataSettings(dataset="digits"), 3, seed=1)
    for client in range(3):
        np.savez(tmp_path / f"client-{client}.npz", **data.arrays(client))
    options = DataSettings(dataset="clients", data=str(tmp_path), split="given")
    again = FederatedData(options, default_clients(options), seed=1)
    assert again.num_clients == 3 and again.input_shape == (1, 8, 8)
    for client in range(3):
        assert again.labels(client).tolist() == data.labels(client).tolist()


def test_clients_that_do_not_fit_together_are_one_line(tmp_path: Path) -> None:
    def refused(message: str, second: str) -> None:
        root = tmp_path / message[:3]
        write(root / "a.csv", "a,label\n1,0\n2,1\n")
        write(root / "b.csv", second)
        with pytest.raises(DataError, match=message):
            load(DataSettings(dataset="clients", data=str(root)))

    refused(r"b\.csv: its columns are not those of a\.csv; extra: b", "a,b,label\n1,1,0\n")
    refused(r"a\.csv: has no test set, but b\.csv has one", "a,label,split\n1,0,train\n1,0,test\n")
    refused(r"b\.csv: its labels are names, unlike those of a\.csv", "a,label\n1,x\n2,y\n")
    refused(r".*b\.csv: its labels are numbers with decimals, unlike", "a,label\n1,0.5\n2,1.5\n3,2.5\n")
    refused(r".*b\.csv, line 2, column 'a': is empty", "a,label\n,0\n")
    with pytest.raises(DataError, match="is empty; it must hold a file or a folder for each client"):
        (tmp_path / "none").mkdir()
        load(DataSettings(dataset="clients", data=str(tmp_path / "none")))


def test_a_device_reads_its_own_table_or_series(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 3}\n" for i in range(40))
    path = write(tmp_path / "mine.csv", "a,label\n" + rows)
    data = own_data(DataSettings(), str(path), client=4, seed=1, num_classes=5)
    assert data.num_classes == 5 and data.sizes(0) == (30, 10)
    windows = own_data(DataSettings(dataset="series", window_length=2, min_samples=2), str(
        write(tmp_path / "s.csv", steps([(i, i, i // 20) for i in range(40)]))), 0, 1)  # fmt: skip
    assert windows.input_shape == (2, 2)
    names = write(tmp_path / "names.csv", "a,label\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(40)))
    with pytest.raises(DataError, match="has names as labels; devices number them alike only with class-names"):
        own_data(DataSettings(), str(names), 0, 1)
    assert own_data(DataSettings(class_names="z,y,x"), str(names), 0, 1).class_names == ("z", "y", "x")


# -- Hugging Face ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hugging_face():
    return pytest.importorskip("datasets")


def test_a_folder_of_images(tmp_path: Path, hugging_face) -> None:
    image_module = pytest.importorskip("PIL.Image")
    features = hugging_face.Features(
        {"picture": hugging_face.Image(), "kind": hugging_face.ClassLabel(names=["cat", "dog"]),
         "client": hugging_face.Value("string"), "remark": hugging_face.Value("string")}
    )  # fmt: skip
    pixels = np.random.default_rng(1).integers(0, 255, (6, 5, 4, 3), dtype=np.uint8)
    rows = {"picture": [image_module.fromarray(one) for one in pixels], "kind": [0, 1] * 3, "client": list("baabaa"),
            "remark": ["x"] * 6}  # fmt: skip
    train = hugging_face.Dataset.from_dict(rows, features=features)
    hugging_face.DatasetDict(train=train, test=train.select([3, 4]), extra=train).save_to_disk(str(tmp_path / "hf"))
    data = load(DataSettings(dataset="huggingface", data=str(tmp_path / "hf")))
    assert np.array_equal(data.x_train, pixels) and np.array_equal(data.x_test, pixels[3:5])
    assert data.class_names == ("cat", "dog") and data.y_train.tolist() == [0, 1] * 3
    assert data.client_train.tolist() == [1, 0, 0, 1, 0, 0] and data.client_test.tolist() == [1, 0]
    assert read_own(tmp_path / "hf", DataSettings()).num_classes == 2


def test_images_of_other_modes_are_read_as_those_of_a_folder(tmp_path: Path, hugging_face) -> None:
    image = pytest.importorskip("PIL.Image")
    features = hugging_face.Features({"picture": hugging_face.Image(), "label": hugging_face.Value("int64")})
    opaque, open_ = image.new("RGBA", (4, 4), (9, 8, 7, 255)), image.new("RGBA", (4, 4), (9, 8, 7, 254))
    for name, second in (("opaque", opaque), ("open", open_)):
        rows = {"picture": [opaque, second], "label": [0, 1]}
        hugging_face.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / name))
    data = read_own(tmp_path / "opaque", DataSettings())
    assert data.x_train[1, 0, 0].tolist() == [9, 8, 7]
    assert data.remarks == ("images of mode RGBA become RGB; no pixel of theirs is transparent",)
    with pytest.raises(DataError, match="open, row 2, column 'picture': mode RGBA with transparent pixels"):
        read_own(tmp_path / "open", DataSettings())


def test_a_folder_of_features_and_of_series(tmp_path: Path, hugging_face) -> None:
    rows = {"v": [1, 2, 3], "w": [[0.5, 1.5], [2.5, 3.5], [4.5, 5.5]], "label": [0, 1, 1], "id": ["a", "b", "c"]}
    hugging_face.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "t"))
    data = load(DataSettings(dataset="huggingface", data=str(tmp_path / "t"), ignore_columns="id"))
    assert data.x_train.tolist() == [[1, 0.5, 1.5], [2, 2.5, 3.5], [3, 4.5, 5.5]] and data.y_train.tolist() == [0, 1, 1]
    windows = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    rows = {"x": windows.tolist(), "label": ["walk", "sit", "sit"]}
    hugging_face.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "s"))
    data = load(DataSettings(dataset="huggingface", data=str(tmp_path / "s")))
    assert np.array_equal(data.x_train, windows) and data.input_shape == (2, 4) and data.class_names == ("sit", "walk")
    with pytest.raises(DataError, match="has names as labels; devices number them alike only with class-names"):
        read_own(tmp_path / "s", DataSettings())


def test_a_mistake_in_a_hugging_face_folder_is_one_line(tmp_path: Path, hugging_face) -> None:
    cases = [
        ({"v": [1, 2], "kind": [0, 1]}, "no column 'label' \\(label-column\\); it has v, kind"),
        (
            {"v": ["x", "y"], "label": [0, 1]},
            "column 'v': holds string, not numbers; ignore-columns = .v. leaves out such columns",
        ),
        ({"v": [[1.0, 2.0], [1.0]], "label": [0, 1]}, "row 2, column 'v': has 1 numbers, row 1 2"),
        ({"v": [1.0, float("nan")], "label": [0, 1]}, "row 2, column 'v': is empty; impute"),
        ({"v": [1, 2], "label": [0, None]}, "row 2, column 'label': is empty"),
        ({"label": [0, 1]}, "no column of numbers besides label"),
        (
            {"v": [[[1.0, 2.0]], [[1.0, 2.0]]], "w": [1, 2], "label": [0, 1]},
            "column 'v' holds arrays, which models take alone; ignore-columns = .w. ",
        ),
    ]
    for number, (rows, message) in enumerate(cases):
        hugging_face.Dataset.from_dict(rows).save_to_disk(str(tmp_path / str(number)))
        with pytest.raises(DataError, match=message) as caught:
            load(DataSettings(dataset="huggingface", data=str(tmp_path / str(number))))
        assert "\n" not in str(caught.value)
    hugging_face.DatasetDict(valid=hugging_face.Dataset.from_dict({"v": [1], "label": [0]})).save_to_disk(
        str(tmp_path / "v")
    )
    with pytest.raises(DataError, match="must have one split called train and perhaps one called test; it has valid"):
        load(DataSettings(dataset="huggingface", data=str(tmp_path / "v")))


def test_a_folder_that_is_none_of_hugging_face_s_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load(DataSettings(dataset="huggingface", data=str(tmp_path / "none")))
    with pytest.raises(DataError, match="not a folder that save_to_disk of the package datasets wrote"):
        load(DataSettings(dataset="huggingface", data=str(tmp_path)))
    write(tmp_path / "dataset_dict.json", "{")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the package datasets \(pip install datasets\)"):
        load(DataSettings(dataset="huggingface", data=str(tmp_path)))
    monkeypatch.undo()
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match="cannot be read"):
        load(DataSettings(dataset="huggingface", data=str(tmp_path)))


# -- names, not places, say what is what -------------------------------------------------------------------------------

AGES = {"age": [20.0, 21, 22, 23], "bp": [120.0, 121, 122, 123], "label": [0, 1, 0, 1]}


def as_csv(path: Path, columns: dict) -> Path:
    rows = [columns, *zip(*columns.values())]
    return write(path, "".join(",".join(map(str, row)) + "\n" for row in rows))


def in_order(names: str, **more: list) -> dict:
    return {name: {**AGES, **more}[name] for name in names.split()}


def saved(path: Path, columns: dict) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict(columns).save_to_disk(str(path))
    return path


def of_clients(folder: Path, kind: str, tables: list[dict]) -> object:
    """Return the data of clients, each with a table, and read them: files of a folder, or DataFrames."""
    if kind == "tables in memory":
        datasets = pytest.importorskip("datasets")
        return CustomLoader("given", list(map(datasets.Dataset.from_dict, tables)))(DataSettings(min_samples=2))
    if kind in ("frames", "named frames"):
        pandas = pytest.importorskip("pandas")
        frames = [pandas.DataFrame(table) for table in tables]
        clients = frames if kind == "frames" else {f"client {number}": frame for number, frame in enumerate(frames)}
        return CustomLoader("given", clients)(DataSettings(dataset="table"))
    for number, table in enumerate(tables):
        if kind == "parquet":
            folder.mkdir(exist_ok=True)
            parquet(folder / f"{number}.parquet", **table)
        elif kind == "huggingface":
            saved(folder / str(number), table)
        else:
            as_csv(folder / f"{number}.csv", table)
    return load(DataSettings(dataset="clients", data=str(folder), window_length=2 if kind == "series" else 0))


KINDS = ["csv", "parquet", "huggingface", "series", "frames", "named frames", "tables in memory"]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_clients_are_joined_by_name(tmp_path: Path, kind: str) -> None:
    labels = {"label": [0, 0, 1, 1]}
    # The order of more than half of the clients, whoever comes first; without one that of the alphabet.
    for number, (orders, wanted) in enumerate([
        (("age bp label", "bp age label", "bp age label"), ("bp", "age")),
        (("bp label age", "age bp label"), ("age", "bp")),
        (("bp label age", "bp label age"), ("bp", "age")),
    ]):  # fmt: skip
        data = of_clients(tmp_path / f"d{number}", kind, [in_order(names, **labels) for names in orders])
        assert data.feature_names == wanted
        for client in range(len(orders)):
            values = data.x_train[data.client_train == client]
            for place, name in enumerate(wanted):
                assert values[:, place].ravel().tolist() == AGES[name]


@pytest.mark.parametrize("kind", KINDS)
def test_other_columns_are_refused_with_both_lists(tmp_path: Path, kind: str) -> None:
    for number, names in enumerate(["weight age label", "age label", "age bp weight label", "age BP label"]):
        tables = [in_order("age bp label"), in_order(names, weight=[1.0] * 4, BP=[1.0] * 4)]
        for table in tables:
            table["label"] = [0, 0, 1, 1]
        extra, missing = (" ".join(sorted(one)) for one in ({*names.split()} - {*AGES}, {*AGES} - {*names.split()}))
        with pytest.raises(DataError) as caught:
            of_clients(tmp_path / str(number), kind, tables)
        text = str(caught.value)
        assert "its columns are not those of" in text and "\n" not in text
        assert (f"missing: {missing}" in text) == bool(missing) and (f"extra: {extra}" in text) == bool(extra)


def test_a_client_without_names_for_its_features_does_not_fit_one_with_names(tmp_path: Path) -> None:
    as_csv(tmp_path / "a.csv", AGES)
    np.savez(tmp_path / "b.npz", x=np.zeros((4, 2), np.float32), y=[0, 1, 0, 1])
    with pytest.raises(DataError, match=r"b\.npz: has no names for its features, unlike a\.csv"):
        load(DataSettings(dataset="clients", data=str(tmp_path)))


def test_a_test_set_is_aligned_by_name(tmp_path: Path) -> None:
    as_csv(tmp_path / "d" / "Train.csv", in_order("age bp label"))
    as_csv(tmp_path / "d" / "test.csv", in_order("label bp age"))
    data = load(settings(data=str(tmp_path / "d")))
    assert data.x_test.tolist() == data.x_train.tolist() == list(map(list, zip(AGES["age"], AGES["bp"])))
    as_csv(tmp_path / "d" / "test.csv", in_order("label age weight", weight=[1] * 4))
    with pytest.raises(DataError, match=r"test\.csv: its columns are not those of Train\.csv; missing: bp; extra: w"):
        load(settings(data=str(tmp_path / "d")))


def test_the_splits_of_a_hugging_face_folder_are_aligned_by_name(tmp_path: Path, hugging_face) -> None:
    made = [hugging_face.Dataset.from_dict(in_order(names)) for names in ("age bp label", "label bp age")]
    hugging_face.DatasetDict(train=made[0], test=made[1]).save_to_disk(str(tmp_path / "d"))
    data = load(DataSettings(dataset="huggingface", data=str(tmp_path / "d")))
    assert data.x_test.tolist() == data.x_train.tolist()


def test_a_column_that_some_clients_lack_can_be_ignored(tmp_path: Path) -> None:
    as_csv(tmp_path / "a.csv", in_order("age bp label"))
    as_csv(tmp_path / "b.csv", in_order("note bp label age", note=["x"] * 4))
    data = load(DataSettings(dataset="clients", data=str(tmp_path), ignore_columns="note"))
    assert data.x_train[4:].tolist() == data.x_train[:4].tolist()
    with pytest.raises(DataError, match=r"no column 'not' \(ignore-columns\); it has age, bp, label, note"):
        load(DataSettings(dataset="clients", data=str(tmp_path), ignore_columns="not"))
    assert read_own(tmp_path / "a.csv", DataSettings(ignore_columns="note")).feature_names == ("age", "bp")


def test_all_columns_of_text_are_named_at_once(tmp_path: Path) -> None:
    table = in_order("id age time mode label", id=[1] * 4, time=["2024-01-01 10:00"] * 4, mode=["idle"] * 4)
    files = [as_csv(tmp_path / "a.csv", table), parquet(tmp_path / "a.parquet", **table)]
    paths_of_kinds = {"table": files, "huggingface": [saved(tmp_path / "d", table)]}
    for kind, path in [(kind, path) for kind, paths in paths_of_kinds.items() for path in paths]:
        with pytest.raises(DataError, match=r'column .time.: .*; ignore-columns = "id,time,mode" leaves out'):
            load(DataSettings(dataset=kind, data=str(path), ignore_columns="id"))
        used = load(DataSettings(dataset=kind, data=str(path), ignore_columns="id,time,mode"))
        assert used.feature_names == ("age",)


# -- targets -----------------------------------------------------------------------------------------------------------

PRICES = {"rooms": [4, 1, 4, 3], "label": [297000, 180000, 246500, 309500]}


def regression(**options: object) -> DataSettings:
    return DataSettings.of({"loss": "mse", **options})


@pytest.mark.parametrize("label", [[297000, 180000, 246500, 309500], [20.0, 30, 20, 40], [-3, 5, 0, 1], [0, 1, 0, 1]])
def test_whole_numbers_are_targets_of_a_regression(tmp_path: Path, label: list) -> None:
    table = {**PRICES, "label": label}
    files = {
        "table": [as_csv(tmp_path / "a.csv", table), parquet(tmp_path / "a.parquet", **table)],
        "huggingface": [saved(tmp_path / "hf", table)], "clients": [tmp_path / "each"],
    }  # fmt: skip
    np.savez(tmp_path / "a.npz", x=np.array(table["rooms"], np.float32)[:, None], y=np.array(label, int))
    as_csv(tmp_path / "each" / "ann.csv", table)
    as_csv(tmp_path / "each" / "ben.csv", {**table, "label": [0.5] * 4})
    for kind, paths in {**files, "npz": [tmp_path / "a.npz"]}.items():
        for path in paths:
            data = load(regression(dataset=kind, data=str(path)))
            assert data.has_targets and data.num_classes == 1 and data.y_train.dtype == np.float32
            assert data.y_train[:4, 0].tolist() == label, path
            device = read_own(path, regression(dataset=kind)) if kind != "clients" else data
            assert device.has_targets
    pandas = pytest.importorskip("pandas")
    frame = CustomLoader("frame", pandas.DataFrame(table))(regression(dataset="table"))
    assert frame.y_train[:, 0].tolist() == label
    assert not load(settings(data=str(as_csv(tmp_path / "c.csv", {**table, "label": [0, 1, 0, 1]})))).has_targets


def test_a_target_that_is_no_number_is_one_line(tmp_path: Path) -> None:
    for word in ("yes", "1e400", "nan"):
        path = as_csv(tmp_path / "a.csv", {**PRICES, "label": [1, 2, word, 3]})
        what = "is empty" if word == "nan" else f"'{word}' is no finite number"
        with pytest.raises(DataError, match=f"line 4, column 'label': {what}"):
            load(regression(dataset="table", data=str(path)))


def test_large_targets_are_remarked_on(tmp_path: Path) -> None:
    path = as_csv(tmp_path / "a.csv", {name: values * 5 for name, values in PRICES.items()})
    data = FederatedData(regression(dataset="table", data=str(path), min_samples=2, partitioner="iid"), 2, seed=1)
    assert any("targets reach 309,500: training may diverge" in remark for remark in data.remarks)


# -- parts of a table --------------------------------------------------------------------------------------------------


def test_a_validation_table_is_not_dropped_in_silence(tmp_path: Path) -> None:
    for name in ("training.csv", "val.csv"):
        as_csv(tmp_path / name, AGES)
    data = load(settings(data=str(tmp_path)))
    assert data.x_test is not None and "there is no part test: val.csv is the test set" in data.remarks[0]
    as_csv(tmp_path / "test.csv", AGES)
    data = load(settings(data=str(tmp_path)))
    assert not data.remarks and data.validation.sum() == len(data.y_test)
    as_csv(tmp_path / "train.csv", AGES)
    with pytest.raises(DataError, match=r"must have one table .* called train and one called test; it has test\.csv"):
        load(settings(data=str(tmp_path)))


def test_parts_of_a_hugging_face_folder_are_used_and_others_named(tmp_path: Path, hugging_face) -> None:
    part = hugging_face.Dataset.from_dict(AGES)
    hugging_face.DatasetDict(train=part, validation=part, test=part, extra=part).save_to_disk(str(tmp_path / "d"))
    data = load(DataSettings(dataset="huggingface", data=str(tmp_path / "d")))
    assert data.remarks == ("used are train and test and validation, and not extra",) and data.validation.any()


# -- files of clients and of devices -----------------------------------------------------------------------------------


def test_grey_and_colour_images_of_clients_become_colour(tmp_path: Path) -> None:
    grey, colour = np.arange(32, dtype=np.uint8).reshape(2, 4, 4), np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.savez(tmp_path / "a.npz", x=grey, y=[0, 1])
    np.savez(tmp_path / "b.npz", x=colour, y=[0, 1])
    data = load(DataSettings(dataset="clients", data=str(tmp_path)))
    assert np.array_equal(data.x_train[:2], np.repeat(grey[..., None], 3, axis=3))
    assert np.array_equal(data.x_train[2:], colour)


def test_a_window_has_the_target_of_its_last_row(tmp_path: Path) -> None:
    lines = [f"{client},{row},{row + 0.5}" for client in "ab" for row in range(20)]
    path = write(tmp_path / "s.csv", "\n".join(["client,v,label", *lines]))
    options = {"dataset": "series", "data": str(path), "window-length": 4, "window-step": 2, "loss": "mse"}
    data = load(DataSettings.of(options))
    assert np.array_equal(data.y_train[:, 0], data.x_train[:, 0, -1] + 0.5) and len(data.y_train) == 18
    with pytest.raises(ConfigError, match="targets for each row need a loss of numbers"):
        load(DataSettings.of({**options, "loss": "cross-entropy"}))
    path.write_text("\n".join(["client,v,label,window", *(f"{line},{n // 5}" for n, line in enumerate(lines))]))
    assert load(DataSettings.of(options | {"window-length": 0})).y_train[:, 0].tolist() == [
        4.5, 9.5, 14.5, 19.5, 4.5, 9.5, 14.5, 19.5,
    ]  # fmt: skip


@pytest.mark.parametrize(("ending", "key", "value"), [("npz", "label_column", "kind"), ("csv", "image_size", 8)])
def test_settings_that_no_entry_uses_are_refused(tmp_path: Path, ending: str, key: str, value: object) -> None:
    for client in range(2):
        path = tmp_path / f"client{client}.{ending}"
        if ending == "npz":
            np.savez(path, x=np.ones((4, 2), np.float32), y=np.arange(4) % 2)
        else:
            write(path, "a,label\n1,0\n2,1\n3,0\n")
    name = key.replace("_", "-")
    with pytest.raises(ConfigError, match=f"{name} = {value!r}: has no effect on the clients' entries in {tmp_path}"):
        load(settings(dataset="clients", data=str(tmp_path), **{key: value}))
    assert len(load(settings(dataset="clients", data=str(tmp_path), impute="mean")).y_train) in (6, 8)


@pytest.mark.parametrize("missing", ["nan", "NaN", " ", ""])
@pytest.mark.parametrize("key", ["y", "client"])
def test_a_name_that_is_missing_is_refused_with_its_place(tmp_path: Path, missing: str, key: str) -> None:
    labels = {"y": np.array(["no", "yes"] * 4, "<U4"), "client": np.array(["ann", "ben"] * 4, "<U4")}
    labels[key][5] = missing
    np.savez(tmp_path / "words.npz", x=np.ones((8, 2), np.float32), **labels)
    with pytest.raises(DataError, match=rf"{key}\[5\] is {missing!r}, which names no "):
        load(settings(dataset="npz", data=str(tmp_path / "words.npz")))
