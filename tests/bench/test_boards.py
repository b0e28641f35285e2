"""Control groups for pretended devices, in folders that stand for the system's; for real where this user may."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from waiting import HANG_SECONDS, wait_until

from fedpfl.bench import run_guard
from fedpfl.bench.boards import BOARDS, MOUNTS, BoardLimits, join_command, make_groups
from fedpfl.core.errors import FedpflError

BOARD = BoardLimits(0.5, 2**20)


def mounts(folder, *lines):
    table = folder / "mounts"
    table.write_text("".join(f"x {folder / place} {kind} {options} 0 0\n" for place, kind, options in lines))
    for place, *_ in lines:
        (folder / place).mkdir(exist_ok=True)
    return table


def test_both_kinds_of_groups_get_the_limits(tmp_path):
    older = mounts(tmp_path, ("a", "cgroup", "rw,cpu,cpuacct"), ("b", "cgroup", "rw,memory"), ("c", "cgroup2", "rw"))
    assert make_groups(BOARD, "x", older) == [tmp_path / "a" / "x", tmp_path / "b" / "x"]
    assert (tmp_path / "a" / "x" / "cpu.cfs_quota_us").read_text() == "50000"
    assert (tmp_path / "b" / "x" / "memory.limit_in_bytes").read_text() == "1048576"
    newer = mounts(tmp_path, ("c", "cgroup2", "rw"))
    assert make_groups(BOARD, "x", newer) == [tmp_path / "c" / "x"]
    assert (tmp_path / "c" / "x" / "cpu.max").read_text() == "50000 100000"


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(FedpflError, match="no control groups"):
        make_groups(BOARD, "x", tmp_path / "none")
    with pytest.raises(FedpflError, match=r"--board: .*taken cannot be written \(File exists\)"):
        table = mounts(tmp_path, ("c", "cgroup2", "rw"))
        (tmp_path / "c" / "taken").mkdir()
        make_groups(BOARD, "taken", table)


def test_a_command_joins_its_groups_and_is_itself(tmp_path):
    for name in ("a b", "c"):
        (tmp_path / name).mkdir()
    groups = [tmp_path / "a b", tmp_path / "c"]
    done = subprocess.run(
        [*join_command(groups), "sh", "-c", 'echo $$ "$1"', "sh", "x  y"], capture_output=True, text=True
    )
    number, _, arguments = done.stdout.strip().partition(" ")
    assert arguments == "x  y"
    assert [(group / "cgroup.procs").read_text().strip() for group in groups] == [number] * 2
    assert join_command([]) == []


@pytest.mark.skipif(os.geteuid() != 0 or not MOUNTS.exists(), reason="needs the right to make control groups")
def test_real_groups_are_made_and_removed_by_the_guard(tmp_path):
    try:
        groups = make_groups(BOARDS["nano"], f"fedpfl-test-{os.getpid()}")
    except FedpflError as error:
        pytest.skip(str(error))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / run_guard.GROUPS).write_text("".join(f"{group}\n" for group in groups))
    done = subprocess.run([*join_command(groups), "cat", "/proc/self/cgroup"], capture_output=True, text=True)
    assert all(group.name in done.stdout for group in groups)
    mark = {**os.environ, "FLWR_HOME": str(run_guard.home(folder))}
    busy = subprocess.Popen([*join_command(groups), "sleep", "1000"], env=mark, start_new_session=True)
    wait_until(lambda: all((group / "cgroup.procs").read_text() for group in groups))
    run_guard.end_all(folder, set())
    assert busy.wait(HANG_SECONDS) < 0
    assert not any(Path(group).exists() for group in groups)
    assert not folder.exists()
