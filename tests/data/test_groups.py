"""Rows that belong together, such as a patient's, are on one side of every cut."""

from __future__ import annotations

import numpy as np
import pytest

from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import DataSettings, FederatedData, default_clients
from fedpfl.data.dataset import Dataset, contents
from fedpfl.data.datasets.client_files import own_data

PATIENTS, ROWS = 12, 4


def table(hospitals=("a", "b"), split=""):
    """Return lines whose first feature tells the patient."""
    lines = [f"x,y,patient,label{',client' if hospitals else ''}{',split' if split else ''}"]
    for number, hospital in enumerate(hospitals or [""]):
        for patient in range(PATIENTS):
            for row in range(ROWS):
                who = 100 * number + patient
                more = [hospital] * bool(hospitals) + [("test" if patient % 4 == 0 else "train")] * bool(split)
                lines.append(",".join([str(who), str(row), f"p{who}", str(patient % 2), *more]))
    return "\n".join(lines)


def a_table(folder):
    (folder / "all.csv").write_text(table())
    return {"dataset": "table", "data": str(folder / "all.csv")}


def a_folder(folder):
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text(table(()))
    return {"dataset": "clients", "data": str(folder)}


def a_series(folder):
    return {**a_table(folder), "dataset": "series", "window_length": 2}


def a_frame(folder):
    pandas = pytest.importorskip("pandas")
    return pandas.read_csv(a_table(folder)["data"])


@pytest.mark.parametrize("form", [a_table, a_folder, a_series, a_frame])
def test_a_cut_takes_whole_groups(tmp_path, handed_over, form):
    source = form(tmp_path)
    source = source if isinstance(source, dict) else handed_over(source)
    settings = DataSettings(**source, group_column="patient", validation_fraction=0.25)
    data = FederatedData(settings, default_clients(settings), 1)
    assert data.num_clients == 2 and "patient" not in data.feature_names
    for client in range(2):
        parts = [of(client).x.reshape(-1, *data.input_shape) for of in (data.train, data.validation, data.test)]
        patients = [{*part.reshape(len(part), 2, -1)[:, 0].flatten().tolist()} for part in parts]
        assert all(patients) and sum(map(len, patients)) == len(set.union(*patients)) == PATIENTS
        assert len(patients[2]) == 3
    other = FederatedData(settings, 2, 2)
    assert any(not np.array_equal(other.share(i).test, data.share(i).test) for i in range(2))


def test_a_device_cuts_whole_groups(tmp_path):
    (tmp_path / "own.csv").write_text(table(()))
    data = own_data(
        DataSettings(dataset="table", group_column="patient", num_classes=2), str(tmp_path / "own.csv"), 0, 1
    )
    train, test = ({*of(0).x[:, 0].tolist()} for of in (data.train, data.test))
    assert len(train) == 9 and len(test) == 3 and not train & test


def test_files_of_clients_count_their_own_groups(tmp_path):
    (tmp_path / "a.csv").write_text(table((), split="yes"))
    fewer = [line for line in table((), split="yes").splitlines() if ",p1," not in line]  # other groups by number
    (tmp_path / "b.csv").write_text("\n".join(fewer))
    data = FederatedData(DataSettings(dataset="clients", data=str(tmp_path), group_column="patient"), 2, 1)
    assert data.sizes(0) == (36, 12) and data.sizes(1) == (32, 12)


def test_an_exported_client_has_the_validation_samples_that_its_groups_decided(tmp_path):
    settings = DataSettings(**a_table(tmp_path), group_column="patient", validation_fraction=0.25)
    data = FederatedData(settings, 2, 1)
    np.savez(tmp_path / "own.npz", **data.arrays(1))
    device = own_data(settings, str(tmp_path / "own.npz"), 1, 1)
    for of_device, of_all in ((device.train, data.train), (device.validation, data.validation)):
        assert of_device(0).x.tolist() == of_all(1).x.tolist() and len(of_all(1).x)


def test_other_groups_are_other_data():
    x, y = np.zeros((8, 1), np.float32), np.arange(8) % 2
    hashes = {contents(Dataset.of("d", x, y, groups=groups)) for groups in (np.arange(8), np.arange(8) // 2, None)}
    assert len(hashes) == 3


def test_what_would_tear_groups_apart_is_refused(tmp_path):
    options = {**a_table(tmp_path), "group_column": "patient"}
    for more, message in (
        ({"partitioner": "iid"}, "partitioner = 'iid': must be natural with group-column"),
        ({"split": "time"}, 'split = \'time\': must be "mixed" or "given" with group-column'),
        ({"group_column": "ward"}, r"no column 'ward' \(group-column\); it has"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            FederatedData(DataSettings(**{**options, **more}), 2, 1)
    (tmp_path / "all.csv").write_text(table(split="yes"))
    assert FederatedData(DataSettings(**options), 2, 1).sizes(0) == (36, 12)
    (tmp_path / "all.csv").write_text(table(split="yes").replace(",a,test", ",a,train", 1))
    with pytest.raises(DataError, match=r"1 groups \(group-column\) are in the training and in the test set"):
        FederatedData(DataSettings(**options), 2, 1)


def test_a_person_that_is_left_out_is_told(tmp_path):
    data = FederatedData(DataSettings(**a_table(tmp_path), ignore_columns="patient"), 2, 1)
    assert any('group-column = "patient" keeps them together' in said for said in data.remarks)
    (tmp_path / "b.csv").write_text("x,y,patient,label\n" + "1,2,p,0\n3,4,p,1\n" * 10)
    with pytest.raises(DataError, match="client 0 has samples of one group alone"):
        own_data(DataSettings(dataset="table", group_column="patient"), str(tmp_path / "b.csv"), 0, 1)


def series_of_two_patients(pandas, window):
    """Rows of two patients of one hospital, who are recorded at the same times."""
    times = range(12)
    frames = [
        pandas.DataFrame({"ward": "h", "patient": patient, "time": times, "a": [start + time for time in times]})
        for patient, start in (("ann", 0.0), ("ben", 100.0))
    ]
    table = pandas.concat(frames).assign(label=lambda rows: rows.time // 4 % 2)
    return table.assign(window=table.time // 4).drop(columns="time") if window else table


@pytest.mark.parametrize("window", [True, False])
def test_a_window_is_of_one_group_though_its_number_or_its_times_are_those_of_another_one_too(handed_over, window):
    pandas = pytest.importorskip("pandas")
    rows = series_of_two_patients(pandas, window)
    read = {"client_column": "ward", "window_length": 4, "min_samples": 2, "time_column": "" if window else "time"}
    source = handed_over(rows)
    data = FederatedData(DataSettings(**source, **read, group_column="patient"), 1, 1)
    windows = np.concatenate([data.train(0).x, data.test(0).x])
    assert sorted(windows[:, 0].tolist()) == [[start + time for time in range(4)] for start in (0, 4, 8, 100, 104, 108)]
    read["window_length"] = 8 if window else 4
    said = FederatedData(DataSettings(**source, **read, ignore_columns="patient"), 1, 1).remarks
    told = "the rows of 3 windows do not follow one another" if window else "12 rows of a client have the time of the"
    assert any(told in line for line in said)
