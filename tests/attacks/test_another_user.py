"""What another user of the machine can open of all that commands write, under a umask that keeps nothing back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpfl.cli import app

DATA = 'dataset="digits" model="mlp" num-clients=2 num-server-rounds=1 local-epochs=1 train-samples=32 test-samples=16'
COMMANDS = (
    ("run", "-q", "--workers", "0", "-c", f'{DATA} method="fedper" run-name="one" validation-fraction=0.2'),
    ("export", "one"),
    ("export", "one/best"),
    ("report", "one", "--output", "page.html"),
    ("partition", "-c", DATA, "--export", "parts"),
    ("keys", "keys", "--nodes", "1", "--account", "board"),
    ("broker", "broker", "--device", "board"),
)  # fmt: skip
# What one writes to hand it on; the umask decides who reads it.
FOR_OTHERS = {"page.html"}


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def reachable(root: Path) -> set[str]:
    """Return the files below a folder, itself open, that others may read or change."""
    paths = set()
    for folder, folders, files in os.walk(root):
        place = Path(folder)
        paths |= {str((place / name).relative_to(root)) for name in files if (place / name).stat().st_mode & 0o077}
        folders[:] = [name for name in folders if stat.S_IMODE((place / name).stat().st_mode) & 0o077]
    return paths


def test_nobody_else_reads_or_changes_what_commands_write(tmp_path, monkeypatch, open_umask):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, (command, done.output)
    assert reachable(tmp_path) == FOR_OTHERS
