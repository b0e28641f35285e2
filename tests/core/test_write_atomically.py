"""A file is written beside its place first; whatever lies there is neither followed nor in the way."""

import os

import pytest

from fedpfl.core.files import write_atomically


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_lies_where_the_new_content_is_written_is_not_written_through(tmp_path, kind):
    path, other = tmp_path / "a.json", tmp_path / "other"
    other.write_bytes(b"somebody's")
    part = tmp_path / f".a.json.{os.getpid()}.part"
    part.symlink_to(other) if kind == "link" else part.write_bytes(b"a longer content of before")
    write_atomically(path, b"new", private=True)
    assert path.read_bytes() == b"new" and not path.is_symlink()
    assert other.read_bytes() == b"somebody's"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not part.is_symlink() and not part.exists()
