"""Divisions in files: what is read is what was written, and nothing else is accepted."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import Dataset, DataSettings, FederatedData, Share, default_clients
from fedpfl.data.division_file import division_arrays, read_division

CLIENT = np.array([0, 1, -1, 1, 0, 2, 2, 0], np.int8)
TEST = np.array([0, 1, 0, 0, 1, 1, 0, 0], bool)


def written(path, **arrays):
    np.savez_compressed(path, **{"client": CLIENT, "test": TEST, **arrays})
    return path


def test_a_file_says_who_has_each_sample(tmp_path):
    shares = read_division(written(tmp_path / "d.npz"), 8)
    assert [(share.train.tolist(), share.test.tolist()) for share in shares] == [([0, 7], [4]), ([3], [1]), ([6], [5])]
    arrays = division_arrays(shares, 8)
    np.testing.assert_array_equal(arrays["client"], CLIENT)
    np.testing.assert_array_equal(arrays["test"], TEST)
    assert arrays["client"].dtype == np.int8


@pytest.mark.parametrize("name", ["dirichlet", "iid", "pathological", "pfllib-dirichlet"])
def test_a_written_division_is_the_same_one_when_read(tmp_path, name):
    divided = FederatedData(DataSettings(partitioner=name), 4, 3)
    np.savez(tmp_path / "d.npz", **divided.division())
    settings = DataSettings(division_file=str(tmp_path / "d.npz"), partitioner="natural", split="given")
    again = FederatedData(settings, 4, 9)
    assert again.checksum == divided.checksum
    assert default_clients(settings) == 4
    for client in range(4):
        np.testing.assert_array_equal(again.labels(client), divided.labels(client))


def test_the_number_of_clients_is_the_file_s(tmp_path):
    arrays = FederatedData(DataSettings(), 4, 3).division()
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(ConfigError, match=r"num-clients = 5: must be 4, the number of clients in "):
        FederatedData(DataSettings(division_file=str(tmp_path / "d.npz")), 5, 1)


def test_what_a_file_takes_the_place_of_does_not_count():
    alone = DataSettings(division_file="d.npz").division()
    assert (
        alone == DataSettings(division_file="d.npz", partitioner="iid", dirichlet_alpha=9.0, split="given").division()
    )
    assert alone["division-file"] == "d.npz"
    assert {"partitioner", "split", "test-fraction", "dirichlet-alpha"}.isdisjoint(alone)


def test_clients_with_common_samples_cannot_be_written():
    shares = [Share(np.array([0, 1]), np.array([2])), Share(np.array([3]), np.array([1]))]
    with pytest.raises(DataError, match="some samples belong to several clients"):
        division_arrays(shares, 4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"client": CLIENT[:7]}, r"client has shape \(7,\), the data set has 8 samples"),
        ({"test": np.stack([TEST, TEST])}, r"test has shape \(2, 8\)"),
        ({"client": CLIENT.astype(float)}, "client holds float64, it must hold whole numbers"),
        ({"test": TEST.astype(int)}, "test holds int64, it must hold bool"),
        ({"client": CLIENT.astype(object)}, "client holds object"),
        ({"client": np.where(CLIENT == 2, 4, CLIENT)}, r"client\[5\] is 4: must be -1, for nobody, or 0 … 3"),
        ({"client": np.where(CLIENT == 2, -2, CLIENT)}, r"client\[5\] is -2"),
        ({"client": np.full(8, 2**64 - 1, np.uint64)}, r"client\[0\] is 18446744073709551615"),
        ({"client": np.where(CLIENT == 2, 3, CLIENT)}, "client 2 of 4 has no training samples"),
        ({"test": np.zeros(8, bool)}, "client 0 of 3 has no test samples"),
        ({"client": np.full(8, -1)}, "no sample belongs to a client"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message) as caught:
        read_division(written(tmp_path / "d.npz", **arrays), 8)
    assert str(caught.value).startswith(str(tmp_path / "d.npz"))
    assert "\n" not in str(caught.value)


def header(shape: tuple[int, ...], version: tuple[int, int] = (1, 0)) -> bytes:
    """Return the head of an array that claims to have this shape."""
    out = io.BytesIO()
    told = {"descr": "<i8", "fortran_order": False, "shape": shape}
    (np.lib.format.write_array_header_1_0 if version == (1, 0) else np.lib.format.write_array_header_2_0)(out, told)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header((10**15,)), "the data set has 8 samples"),
        (header((8,)), "is truncated or has more than its 8 entries"),
        (header((8,)) + bytes(8 * 8 + 1), "is truncated or has more"),
        (header((8,), (2, 0)) + bytes(64), "version 2 of NumPy's format"),
        (b"no array", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_what_a_header_claims_is_not_believed(tmp_path, content, message):
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("client.npy", content)
        archive.writestr("test.npy", header((8,)))
    with pytest.raises(DataError, match=message):
        read_division(tmp_path / "d.npz", 8)


def test_no_npz_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_division(tmp_path / "d.npz", 8)
    (tmp_path / "d.npz").write_text("client,test\n")
    with pytest.raises(DataError, match="not an npz file"):
        read_division(tmp_path / "d.npz", 8)
    np.savez(tmp_path / "d.npz", client=CLIENT)
    with pytest.raises(DataError, match="no array test"):
        read_division(tmp_path / "d.npz", 8)


def test_data_of_targets_can_be_divided_by_a_file(tmp_path):
    x, y = np.zeros((8, 2), np.float32), np.zeros((8, 1), np.float32)
    assert Dataset.of("t", x, y).has_targets
    np.savez(tmp_path / "data.npz", x=x, y=y)
    settings = DataSettings(
        dataset="npz", data=str(tmp_path / "data.npz"), division_file=str(written(tmp_path / "d.npz"))
    )
    assert [FederatedData(settings, 3, 1).sizes(i) for i in range(3)] == [(2, 1), (1, 1), (1, 1)]
