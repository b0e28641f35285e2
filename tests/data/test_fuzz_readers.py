"""Damaged files: every reader gives a result or one line, and waits for no pipe."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save

from fedpfl.bench.inventory import InventoryError, read_inventory
from fedpfl.core.checksummed_files import packed_arrays
from fedpfl.core.checksummed_files import read_arrays as read_stored
from fedpfl.core.errors import ConfigError, DamagedFile, DataError, FedpflError
from fedpfl.data import DataSettings
from fedpfl.data.datasets import npz
from fedpfl.data.datasets.benchmarks import reader_of
from fedpfl.data.datasets.folder import decode
from fedpfl.data.datasets.published import _read_idx
from fedpfl.data.datasets.table import read_table
from fedpfl.data.division_file import read_division
from fedpfl.launch.shipped import read_toml
from fedpfl.methods.fedfac.channel_mean import _read as read_split
from fedpfl.models.weight_files import _read as read_weights
from fedpfl.results.run_folder import RunFolder
from fedpfl.study.analysis.repetitions import array as array_of

TRIES = 25
EXAMPLE = Path(__file__).parents[2] / "deploy" / "ansible" / "inventory" / "example.yml"


def packed(**arrays):
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def image(kind):
    content = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(content, kind)
    return content.getvalue()


def state_dict(new):
    content = io.BytesIO()
    torch.save({"head.weight": torch.ones(2, 3)}, content, _use_new_zipfile_serialization=new)
    return content.getvalue()


def array(values):
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()


def benchmark(path):
    root = path.parent.parent
    return reader_of(root)(root, None)


X, Y = np.arange(24, dtype=np.float32).reshape(8, 3), np.array([0, 1] * 4)
LEAF = {"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]}}}
PFLLIB = packed(data=np.array({"x": X, "y": Y}, dtype=object))
SHARES = [{"train": np.arange(4), "test": [4, 5]}, {"train": [6], "test": [7]}]
DIVISION = packed(client=np.array([0, 1] * 4, np.int8), test=np.array([0, 0, 1, 1] * 2, bool))


def parquet():
    pyarrow = pytest.importorskip("pyarrow")
    content = io.BytesIO()
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"a": X[:, 0], "b": X[:, 1], "label": Y}), content)
    return content.getvalue()


def recorded(path):
    return array_of(RunFolder(path.parent.parent.parent), path.parent.name)


READERS = {
    "x.parquet": (parquet, functools.partial(read_table, settings=DataSettings())),
    "arrays/split/round-000001.npy": (array(np.ones(8)), recorded),
    "checkpoint.safetensors": (packed_arrays({"a": X}), read_stored),
    "testbed.yml": (EXAMPLE.read_bytes(), read_inventory),
    "x.npz": (packed(x=X, y=Y), npz.read_arrays),
    "x.csv": (b"a,b,label\n1,2,0\n3,4,1\n5,6,0\n", functools.partial(read_table, settings=DataSettings())),
    "x-ubyte": (b"\0\0\x08\x02" + struct.pack(">II", 2, 3) + bytes(6), _read_idx),
    **{
        f"image.{kind}": (image(kind), lambda path: decode([("an image", path)], 1, "images", {}))
        for kind in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
    },
    "zip.pt": (functools.partial(state_dict, True), lambda path: read_weights(str(path))),
    "pickled.pt": (functools.partial(state_dict, False), lambda path: read_weights(str(path))),
    "partition.pkl": (pickle.dumps({"data_indices": SHARES}, 4), functools.partial(read_division, samples=8)),
    "train/x.json": (json.dumps(LEAF).encode(), benchmark),
    "train/0.npz": (PFLLIB, benchmark),
    "d.npz": (DIVISION, functools.partial(read_division, samples=8)),
    "x.toml": (b'a = 1\n[b]\nc = "d"\ne = [1, 2.5]\n', functools.partial(read_toml, option="run-config")),
    "x.safetensors": (save({"head.weight": X}), lambda path: read_weights(str(path))),
    "split.npy": (array(np.ones(8)), lambda path: read_split(str(path), 8)),
    "split.npz": (packed(x=X), lambda path: read_split(str(path), 8)),
}


def place(folder, name):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith("train/"):  # a benchmark's folder, whose other half is whole
        (folder / "test").mkdir()
        (folder / "test" / path.name).write_bytes(READERS[name][0])
    return path


def damaged(content, rng):
    position, size = rng.randrange(len(content)), rng.randint(1, 8)
    return rng.choice(
        [
            content[:position] + bytes([content[position] ^ 1 << rng.randrange(8)]) + content[position + 1 :],
            content[:position],
            content[:position] + rng.randbytes(size) + content[position:],
            content[:position] + bytes(size) + content[position + size :],
        ]
    )


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_is_one_line(tmp_path, name):
    content, read = READERS[name]
    content = content() if callable(content) else content
    path, rng = place(tmp_path, name), random.Random(name)
    path.write_bytes(content)
    if name != "split.npz":  # several arrays are no split
        read(path)
    for _ in range(TRIES):
        path.write_bytes(damaged(content, rng))
        try:
            read(path)
        except FedpflError as error:
            assert "\n" not in str(error) and len(str(error)) < 600


# PFLlib's folder is known by a regular file.
@pytest.mark.parametrize("name", [name for name in READERS if name != "train/0.npz"])
def test_no_reader_waits_for_a_pipe(tmp_path, name):
    path = place(tmp_path, name)
    os.mkfifo(path)
    with pytest.raises(FedpflError):
        READERS[name][1](path)


@pytest.mark.parametrize("name", ["x.toml", "testbed.yml", "train/x.json"])
def test_deep_nesting_is_one_line(tmp_path, name):
    path = place(tmp_path, name)
    path.write_bytes((b"a = " if name == "x.toml" else b"a: " if name == "testbed.yml" else b"") + b"[" * 100_000)
    with pytest.raises((ConfigError, DataError, InventoryError)):
        READERS[name][1](path)


def test_an_array_is_read_only_if_its_header_and_the_memory_fit(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", array(X).replace(b"(8, 3)", b"(9, 3)"))
    with pytest.raises(DataError, match="x has another size than its header says"):
        npz.read_arrays(path)
    path.write_bytes(packed(x=np.zeros(10**6)))
    monkeypatch.setattr(npz, "_memory", lambda: 10**6)
    with pytest.raises(DataError, match="its arrays have 8,000,128 bytes, and this machine's memory 1,000,000"):
        npz.read_arrays(path)


@pytest.mark.parametrize("shape", ["(1000000000000,)", "-" * 5000 + "1"])
def test_a_stored_array_s_header_that_lies_is_one_line(tmp_path, shape):
    path = tmp_path / "arrays" / "split" / "round-000001.npy"
    path.parent.mkdir(parents=True)
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64))
    with pytest.raises(DamagedFile) as error:
        recorded(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "value",
    ["!!bool x", "!!int ''", "!!timestamp x", "2020-13-45", "9" * 5000, "!!python/object/apply:os.getpid []", "[\0]"],
)
def test_an_inventory_s_odd_values_are_one_line(tmp_path, value):
    path = tmp_path / "testbed.yml"
    path.write_text(f"testbed:\n  vars:\n    fedpfl_keys: {value}\n")
    with pytest.raises(InventoryError) as error:
        read_inventory(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
