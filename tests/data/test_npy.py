"""Files of one array: what is read is what was written, and a header alone allocates nothing."""

import io
import os

import numpy as np
import pytest

from fedpfl.core.errors import DamagedFile
from fedpfl.data.npy import read_npy


def packed(array, **options):
    content = io.BytesIO()
    np.save(content, array, **options)
    return content.getvalue()


@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3), np.array(7), np.zeros((0, 4), "u1"), np.array(["a", "bc"])]
)
def test_an_array_comes_back(tmp_path, array):
    path = tmp_path / "a.npy"
    path.write_bytes(packed(array))
    restored = read_npy(path)
    assert restored.dtype == array.dtype and np.array_equal(restored, array)


WHOLE = packed(np.arange(100.0))
LYING = WHOLE.replace(b"(100,)", b"(999,)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ""),
        (b"no array", "magic"),
        (WHOLE[:-1], "another size"),
        (WHOLE + b"x", "another size"),
        (WHOLE[:40], ""),
        (LYING, "another size"),
        (packed(np.array([{}], object), allow_pickle=True), "Python objects"),
    ],
)
def test_any_other_file_is_damaged(tmp_path, content, message):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=message):
        read_npy(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(DamagedFile, match="no regular file"):
        read_npy(tmp_path / "a.npy")
