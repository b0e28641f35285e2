"""A file or message in a format of a future version: one line says what it is, what this version reads and what helps.

A run of a newer version: tests/results/test_changes.py.
"""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest

from fedpfl.bench.mqtt import frames
from fedpfl.client import protocol
from fedpfl.client.device_model import load_model
from fedpfl.core.checksummed_files import json_line
from fedpfl.core.errors import FedpflError
from fedpfl.data.division_file import read_division
from fedpfl.version import __version__


def device_model(folder):
    (folder / "round-000001.json").write_text(json_line({"format": 2, "an entry": "that nobody knows"}))
    load_model(folder)


def bridge_frame(folder):
    frames.decode(bytes(frames.ID_BYTES), struct.pack("!2sBQQ", b"fb", 3, 0, 0))


def worker_frame(folder):
    magic = protocol.FAMILY + b"99"
    protocol.read(io.BytesIO(magic.ljust(len(protocol.MAGIC)) + bytes(protocol._PREFIX.size - len(protocol.MAGIC))))


def division(folder):
    with zipfile.ZipFile(folder / "division.npz", "w") as archive:
        for name, array in {"client": np.zeros(4, np.int64), "test": np.zeros(4, bool)}.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(2, 0))
            archive.writestr(f"{name}.npy", content.getvalue())
    read_division(folder / "division.npz", 4)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (device_model, ("round-000001.json", "format '2'", f"{__version__} reads format 1", "install the fedpfl")),
        (bridge_frame, ("version 3", "reads version 2", "install the same fedpfl")),
        (worker_frame, ("99", protocol.MAGIC.decode().strip(), "install the app's version")),
        (division, ("division.npz", "version 2", "only version 1", "numpy.savez")),
    ],
)
def test_a_future_format_is_named_with_what_is_read_and_what_helps(tmp_path, read, message):
    with pytest.raises(FedpflError) as raised:
        read(tmp_path)
    assert "\n" not in str(raised.value)
    assert [word for word in message if word not in str(raised.value)] == []
