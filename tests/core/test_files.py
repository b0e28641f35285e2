"""A file is written beside its place first, under a name of its own; old rests go, what others write stays."""

import os
import threading
from contextlib import nullcontext

import pytest

from fedpfl.core import files
from fedpfl.core.files import make_password, write_atomically

TOKENS = ("00000000000000aa", "00000000000000bb")


@pytest.mark.parametrize("write", [lambda path: write_atomically(path, b"new", private=True), make_password])
def test_what_lies_where_the_new_content_is_written_is_not_written_through(tmp_path, monkeypatch, write):
    path, other = tmp_path / "a.json", tmp_path / "other"
    other.write_bytes(b"somebody's")
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: TOKENS[0])
    (tmp_path / f".a.json.{TOKENS[0]}.part").symlink_to(other)
    with pytest.raises(FileExistsError):
        write(path)
    monkeypatch.undo()
    write(path)
    assert path.stat().st_mode & 0o777 == 0o600 and not path.is_symlink()
    assert other.read_bytes() == b"somebody's"


@pytest.mark.parametrize(("seconds", "stays"), [(0, True), (3000, True), (4000, False), (-4000, True)])
def test_what_another_process_is_writing_stays_and_what_a_killed_one_left_goes(tmp_path, seconds, stays):
    other, name = tmp_path / f".b.json.{TOKENS[1]}.part", tmp_path / ".b.json.part"
    for path in (other, name):
        path.write_bytes(b"half")
        os.utime(path, (path.stat().st_mtime - seconds,) * 2)
    write_atomically(tmp_path / "a.json", b"new")
    assert other.exists() == stays and name.exists()
    assert (tmp_path / "a.json").read_bytes() == b"new"


def test_writers_with_one_process_id_and_one_file_do_not_tear_it(tmp_path, monkeypatch):
    """As of two containers that share a folder: nothing that they have in common is in the name of a part."""
    monkeypatch.setattr(files, "writing", nullcontext())
    contents = [bytes([number]) * 200_000 for number in range(4)]
    path, wrong = tmp_path / "a", []

    def write(content: bytes) -> None:
        try:
            for _ in range(50):
                write_atomically(path, content, durable=False)
                if path.read_bytes() not in contents:
                    wrong.append("torn")
        except OSError as error:
            wrong.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(tmp_path):
    """As root, a report written to /dev/null made it a file, for all programs."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for name in ("pipe", "link"):
            write_atomically(tmp_path / name, b"content")
            assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
