"""How `fedpfl up` starts its parts; with real ones: test_up.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedpfl.launch import credentials, testbed


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Return what starts a testbed's bridge and returns the testbed and the commands of its parts, which do not run."""
    beds = []

    def start():
        bed, started = testbed.Testbed(tmp_path / "keys", mqtt=True), {}
        beds.append(bed)
        bed._keys = credentials.prepare(tmp_path / "keys", 0)
        monkeypatch.setattr(bed, "_spawn", lambda name, command, environment: started.update({name: command}))
        monkeypatch.setattr(bed, "_await_part", lambda *_: None)
        monkeypatch.setattr(testbed, "_mosquitto", lambda: "mosquitto")
        bed._start_bridge(2, tmp_path / "runs")
        return bed, started

    yield start
    for bed in beds:
        shutil.rmtree(bed.folder)


def option(command, name):
    return command[command.index(name) + 1]


def test_the_run_is_published_and_can_be_watched(commands, tmp_path):
    bed, started = commands()
    assert option(started["bridge server"], "--runs") == str(tmp_path / "runs")
    assert bed.watch[:2] == ["fedpfl", "watch"]
    for name in ("--broker", "--ca"):
        assert option(bed.watch, name) == option(started["bridge server"], name)
    password = Path(option(bed.watch, "--password-file"))
    assert password == tmp_path / "keys" / "passwords" / "watch"
    assert password.read_text().strip() not in bed.watch


def test_passwords_are_kept_and_two_testbeds_share_nothing_else(commands, tmp_path):
    first, _ = commands()
    passwords = {path.name: path.read_text() for path in (tmp_path / "keys" / "passwords").iterdir()}
    second, started = commands()
    assert set(passwords) == {"server", "watch", "device-0", "device-1"}
    assert {path.name: path.read_text() for path in (tmp_path / "keys" / "passwords").iterdir()} == passwords
    assert Path(option(started["broker"], "-c")).is_relative_to(second.folder)
    assert first.folder != second.folder
