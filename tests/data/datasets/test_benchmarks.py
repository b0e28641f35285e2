"""Folders of PFLlib and LEAF and partition files of FL-bench, which nothing runs."""

from __future__ import annotations

import builtins
import codecs
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

import fedpfl
from fedpfl.cli import app
from fedpfl.core.errors import DataError
from fedpfl.data import DataSettings, FederatedData
from fedpfl.data.datasets.client_files import read_clients
from fedpfl.data.datasets.pickled_arrays import read_restricted
from fedpfl.data.division_file import read_division

FEW = DataSettings(dataset="clients", min_samples=2)


def pfllib(root, clients=3, shape=(1, 8, 8)):
    rng = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 6)):
        (root / part).mkdir(parents=True)
        for client in range(clients):
            data = {"x": rng.normal(size=(count, *shape)).astype(np.float32), "y": rng.integers(0, 4, count)}
            with (root / part / f"{client}.npz").open("wb") as file:  # as PFLlib's save_file does
                np.savez_compressed(file, data=data)
    (root / "config.json").write_text(json.dumps({"num_clients": clients}))
    return root


def test_pfllib_s_folder_is_what_pfllib_reads(tmp_path):
    root = pfllib(tmp_path / "MNIST", clients=11)
    data = FederatedData(DataSettings(dataset="clients", data=str(root), min_samples=2), 11, 1)
    for client in range(11):
        for part in ("train", "test"):
            with np.load(root / part / f"{client}.npz", allow_pickle=True) as file:
                wanted = file["data"].tolist()
            samples = getattr(data, part)(client)
            assert np.array_equal(samples.x, wanted["x"]) and np.array_equal(samples.y, wanted["y"])


def test_what_is_written_as_pfllib_s_is_read_again(tmp_path, elsewhere):
    arguments = [
        "-c",
        'num-clients=3 partitioner="iid" data-dir="/nowhere"',
        "--export",
        str(tmp_path / "out"),
        "--pfllib",
    ]
    done = CliRunner().invoke(app, ["partition", *arguments])
    assert done.exit_code == 0, done.output
    ours = FederatedData(DataSettings(partitioner="iid"), 3, 0)
    with np.load(tmp_path / "out" / "train" / "1.npz", allow_pickle=True) as file:
        assert file["data"].tolist()["x"].shape == (ours.sizes(1)[0], 1, 8, 8)
    back = FederatedData(DataSettings(dataset="clients", data=str(tmp_path / "out")), 3, 0)
    seeds = {seed: FederatedData(DataSettings(partitioner="iid"), 3, seed) for seed in range(3)}
    assert any(np.array_equal(back.train(1).x, one.train(1).x) for one in seeds.values())
    for where in ([], ["--export", str(tmp_path / "division.npz")]):
        done = CliRunner().invoke(app, ["partition", *arguments[:2], *where, "--pfllib"])
        assert (done.exit_code, "pfllib = True: needs --export FOLDER" in done.stderr) == (2, True)
    run = fedpfl.run(method="fedper", dataset="clients", data=tmp_path / "out", model="mlp", num_server_rounds=1,
                     local_epochs=1, quiet=True)  # fmt: skip
    assert run.summary["rounds"] == 1


def test_leaf_s_json_has_users(tmp_path):
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        users = {name: {"x": rng.normal(size=(5, 3)).tolist(), "y": [0, 1, 2, 0, 1]} for name in ("ann", "ben")}
        content = {"users": [*users], "num_samples": [5, 5], "user_data": users}
        (tmp_path / part / "all.json").write_text(json.dumps(content))
    data = read_clients(tmp_path, FEW)
    assert data.client_names == ("ann", "ben") and data.x_train.shape == (10, 3) and data.num_classes == 3
    for content, message in (('{"users": []}', "no user_data"), ("[", "not a readable JSON"), ("[]", "not a readable")):
        (tmp_path / "train" / "all.json").write_text(content)
        with pytest.raises(DataError, match=message):
            read_clients(tmp_path, FEW)
    for x, message in (
        ([[1, 2], [3]], "different lengths"),
        (["a", "b"], "must be numbers"),
        ([[1], [2]], "1 labels for"),
    ):
        users = {"ann": {"x": x, "y": [0]}}
        (tmp_path / "train" / "all.json").write_text(json.dumps({"user_data": users}))
        with pytest.raises(DataError, match=message):
            read_clients(tmp_path, FEW)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_all_protocols_are_read(tmp_path, protocol, order):
    arrays = {
        kind: np.array(np.arange(24).reshape(2, 3, 4) % 2, kind, order=order)
        for kind in ("<f4", ">f8", "u1", "?", "<i8")
    }
    content = read_restricted(pickle.dumps({"a": arrays, "b": [1, "x", None, (2.5, True)]}, protocol), tmp_path)
    for kind, array in arrays.items():
        assert np.array_equal(content["a"][kind], array) and content["a"][kind].dtype == array.dtype.newbyteorder("=")
    assert content["b"] == [1, "x", None, [2.5, True]]


class _Runs:
    def __reduce__(self):
        return builtins.print, ("run",)


def _nested():
    content = [0]
    for _ in range(7):
        content = [content] * 100
    return content


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(_Runs()), pickle.dumps({"x": _Runs()}), pickle.dumps(np.array([{}], object)),
        pickle.dumps(np.array(["a"])), pickle.dumps(np.float64(1)), pickle.dumps({1, 2}),
        pickle.dumps(_nested()), pickle.dumps(np.arange(3))[:-9], b"", b"\x80\x04", b"garbage",
        # An array of 10^12 numbers; a place in the reader's memory beyond all bounds; a bytearray of 2^40.
        pickle.dumps(np.zeros(7, np.int8)).replace(b"K\x07\x85", b"\x8a\x06\x00\x10\xa5\xd4\xe8\x00\x85"),
        b"\x80\x04Nr\xff\xff\xff\x7f.", b"\x80\x05\x96\x00\x00\x00\x00\x00\x01\x00\x00.",
        b"\x80\x02cos\nsystem\n.", b"\x80\x04\x8c\x05numpy\x8c\x04load\x93.", b"(S'x'\nios\nsystem\n.",
    ],
)  # fmt: skip
def test_nothing_else_is_made_of_a_pickle(tmp_path, monkeypatch, capsys, content):
    monkeypatch.setattr("fedpfl.data.datasets.pickled_arrays.MAX_VALUES", 10_000)  # not ten million steps
    if content == b"\x80\x04Nr\xff\xff\xff\x7f.":  # harmless for a dict
        assert read_restricted(content, tmp_path) is None
        return
    with pytest.raises(DataError, match=r"is not read: .*no code is run"):
        read_restricted(content, tmp_path / "f")
    assert "run" not in capsys.readouterr().out


class _Encodes:
    text = "x" * 10**6

    def __reduce__(self):
        return codecs.encode, (self.text, "latin1")


@pytest.mark.parametrize(
    "mentions",
    [[np.ones(10**6, "u1")] * 70, [{"x": ["x" * 10**6] * 10}] * 7, [_Encodes() for _ in range(70)]],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_a_pickle_mentions_again_counts_again(tmp_path, mentions, protocol):
    content = pickle.dumps(mentions, protocol)
    assert len(content) < 2 * 10**6
    with pytest.raises(DataError, match="mentions texts or arrays again, which would be larger than the file"):
        read_restricted(content, tmp_path / "f")
    assert len(read_restricted(pickle.dumps(mentions[:5], protocol), tmp_path / "f")) <= 5


def test_a_file_that_is_not_pfllib_s_is_one_line(tmp_path):
    root = pfllib(tmp_path)

    def write(member, content):
        with zipfile.ZipFile(root / "train" / "1.npz", "w") as archive:
            archive.writestr(member, content)

    numbers = io.BytesIO()
    np.save(numbers, np.zeros(3))
    for member, content, message in (
        ("x.npy", b"", "is not a file of PFLlib's"), ("data.npy", b"", "not the one Python object"),
        ("data.npy", numbers.getvalue(), "not the one Python object"),
    ):  # fmt: skip
        write(member, content)
        with pytest.raises(DataError, match=message):
            read_clients(root, FEW)
    (root / "train" / "1.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="is not a file of PFLlib's"):
        read_clients(root, FEW)


def test_fl_bench_s_partition_divides_the_samples(tmp_path):
    path = tmp_path / "partition.pkl"

    def write(*clients):
        path.write_bytes(pickle.dumps({"separation": {"train": [0]}, "data_indices": [*clients]}))

    write(
        {"train": np.array([3, 1]), "val": np.array([7]), "test": np.array([5])}, {"train": [0], "val": [], "test": [2]}
    )
    first, second = read_division(path, 8)
    assert first.train.tolist() == [1, 3, 7] and first.test.tolist() == [5]
    assert second.train.tolist() == [0] and second.test.tolist() == [2]
    for clients, message in (
        ([{"train": [0], "test": []}], "client 0 of 1 has no test samples"),
        ([{"train": [0], "test": [8]}], "whole numbers below 8"),
        ([{"train": [0.5], "test": [1]}], "whole numbers below 8"),
        ([{"train": [0], "test": [0]}], "listed twice"),
        ([{"train": [[0], [1, 2]], "test": [3]}], "client 0: positions must be one list"),
        ([[1]], "has no data_indices"),
        ([], "data_indices lists no client"),
    ):
        write(*clients)
        with pytest.raises(DataError, match=message):
            read_division(path, 8)
