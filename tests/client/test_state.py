from __future__ import annotations

import os

import numpy as np
import pytest

from fedpfl.client.state import ClientState
from fedpfl.core.errors import StateError
from fedpfl.core.files import write_atomically


def arrays(value):
    return {"tau_a": np.full((2, 3), value, np.float32)}


def test_a_repeated_round_starts_where_it_did(tmp_path):
    state = ClientState(tmp_path, "run", 3)
    state.save(arrays(1), 1, started_from=0)
    state.save(arrays(2), 2, started_from=1)
    assert state.load(1)["tau_a"][0, 0] == 1
    state.save(arrays(20), 2, started_from=1)  # the round again
    assert state.load(1)["tau_a"][0, 0] == 1
    assert state.load(2)["tau_a"][0, 0] == 20


def test_the_round_the_one_it_started_from_and_one_before_are_kept(tmp_path):
    state = ClientState(tmp_path, "run", 0)
    for number in range(1, 5):
        state.save(arrays(number), number, started_from=number - 1)
    assert state.rounds() == [2, 3, 4]
    # Replies of rounds 5 and 6 were lost: the server still counts from round 4, whose file must not go.
    state.save(arrays(5), 5, started_from=4)
    state.save(arrays(6), 6, started_from=4)
    assert state.rounds() == [3, 4, 5, 6]
    state.save(arrays(7), 7, started_from=6)
    assert state.rounds() == [5, 6, 7]


def test_a_late_round_takes_nothing_from_a_newer_one(tmp_path):
    state = ClientState(tmp_path, "run", 0)
    state.save(arrays(2), 2, started_from=1)
    state.save(arrays(4), 4, started_from=2)
    state.save(arrays(3), 3, started_from=2)
    assert 4 in state.rounds()


def test_a_missing_file_is_an_error_not_a_fresh_start(tmp_path):
    with pytest.raises(StateError, match=r"round-000007\.safetensors: cannot be read"):
        ClientState(tmp_path, "run", 0).load(7)


def test_clients_and_runs_are_apart_and_private(tmp_path):
    ClientState(tmp_path, "a", 1).save(arrays(1), 1, 0)
    assert ClientState(tmp_path, "a", 2).rounds() == []
    assert ClientState(tmp_path, "b", 1).rounds() == []
    assert (tmp_path / "a" / "client-00001").stat().st_mode & 0o077 == 0


def test_nothing_is_written_for_a_client_without_personal_arrays(tmp_path):
    ClientState(tmp_path, "run", 1).save({}, 1, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_named(tmp_path):
    state = ClientState(tmp_path, "run", 0)
    state.save(arrays(1), 1, 0)
    path = state.folder / "round-000001.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(StateError, match=r"round-000001.safetensors: is damaged or was changed"):
        state.load(1)


def test_a_failed_write_leaves_the_old_content_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_files_follow_the_umask_but_personal_state_is_private(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "open", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o640
    state = ClientState(tmp_path, "run", 0)
    state.save(arrays(1), 1, 0)
    assert (state.folder / "round-000001.safetensors").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("key", ["", "..", "../run", "a/b", "/etc", ".hidden", "a\0b", "x" * 300])
def test_a_key_from_the_network_cannot_lead_elsewhere(tmp_path, key):
    with pytest.raises(StateError, match="state-key = "):
        ClientState(tmp_path, key, 0)
