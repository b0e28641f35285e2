"""Limits a simulated device to what a board has, by control groups: a share of this machine's cores, and memory.

It needs the right to make control groups (root). What is limited is processor time: how fast a core of the board is
compared with one of this machine is an assumption, and a board's GPU is not there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import FedpflError

MOUNTS = Path("/proc/mounts")
PERIOD_MICROSECONDS = 100_000
# Joins each of the groups, then becomes the command.
_JOIN = 'until [ "$1" = -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class BoardLimits:
    """What a device may use."""

    cores: float  # processor seconds a second, of this machine's cores
    memory: int  # bytes, the page cache of its files included


# A Jetson Nano has four cores of a Cortex-A57 at 1.43 GHz and 4 GiB, of which the system takes some. A quarter of a
# present server's core for each is a guess.
BOARDS: Mapping[str, BoardLimits] = {"nano": BoardLimits(4 * 0.25, 3_700 * 2**20)}


def make_groups(board: BoardLimits, name: str, mounts: Path = MOUNTS) -> list[Path]:
    """Make control groups with a board's limits; the caller removes them."""
    quota = int(board.cores * PERIOD_MICROSECONDS)
    places = _places(mounts)
    wanted: dict[Path, dict[str, object]]
    if "memory" in places and "cpu" in places:
        wanted = {
            places["cpu"] / name: {"cpu.cfs_period_us": PERIOD_MICROSECONDS, "cpu.cfs_quota_us": quota},
            places["memory"] / name: {"memory.limit_in_bytes": board.memory},
        }
    elif "unified" in places:
        wanted = {places["unified"] / name: {"cpu.max": f"{quota} {PERIOD_MICROSECONDS}", "memory.max": board.memory}}
    else:
        raise FedpflError("--board: this system has no control groups for processor time and memory")
    written: list[Path] = []
    try:
        for folder, limits in wanted.items():
            folder.mkdir()
            written.append(folder)
            for key, value in limits.items():
                (folder / key).write_text(str(value), encoding="ascii")
    except OSError as error:
        for folder in written:
            folder.rmdir()
        root = "" if os.geteuid() == 0 else "; this needs root"
        raise FedpflError(f"--board: {error.filename} cannot be written ({error.strerror}){root}") from error
    return written


def join_command(groups: list[Path]) -> list[str]:
    """Return the prefix of a command that runs it in these groups; nothing without any."""
    return ["/bin/sh", "-c", _JOIN, "sh", *map(str, groups), "--"] if groups else []


def _places(mounts: Path) -> dict[str, Path]:
    """Return where groups of each controller are made; ``unified`` for the newer kind, which has them all."""
    places: dict[str, Path] = {}
    for line in mounts.read_text(encoding="utf-8").splitlines() if mounts.is_file() else ():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup":
            places.update(dict.fromkeys(options.split(","), Path(place)))
        elif kind == "cgroup2":
            places["unified"] = Path(place)
    return places
