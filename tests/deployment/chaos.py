"""Random disturbances of small runs: what happens when follows from a seed; and the table of what became of them.

``python tests/deployment/chaos.py FILE`` prints the table of the lines that ``make test-chaos`` has written.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 3
# Which processes there are, by how a run reaches its clients.
EVERYWHERE = ("SuperNode", "ClientApp", "worker", "fork server", "SuperLink", "ServerApp", "server's SuperExec")
PARTS = {
    "http": EVERYWHERE,
    "mqtt": (*EVERYWHERE, "bridge's server side", "bridge's device side", "broker"),
    "local": ("local worker", "local server"),
}
# The server's own processes: a run whose server was killed is resumed.
SERVERS = frozenset({"ServerApp", "server's SuperExec", "local server"})
WORDS = {
    "SuperNode": ("flower-supernode",), "worker": ("fedpfl.bench.device.worker",), "SuperLink": ("flower-superlink",),
    "fork server": ("fedpfl.bench.forkserver",), "ClientApp": ("fedpfl.bench.forkserver",),
    "ServerApp": ("flwr-serverapp",), "server's SuperExec": ("flower-superexec", "superexec-auth-secret-file"),
    "bridge's server side": ("cli.bridge", " server "), "bridge's device side": ("cli.bridge", " device "),
    "broker": ("mosquitto -c ",),
    "local worker": ("main() run",), "local server": ("main() run",),
}  # fmt: skip
FORKED = frozenset({"ClientApp", "local worker"})
# A ClientApp is there for a second or less.
POLL_SECONDS, LOOKS = 0.02, 500


@dataclass(frozen=True)
class Blow:
    """What happens to one process.

    Attributes
    ----------
    part : str
        Which process, of :data:`PARTS`.
    which : float
        Which of several, as a share of their number.
    stopped : float
        Seconds for which it is stopped; 0: it is killed.
    """

    part: str
    which: float
    stopped: float


@dataclass(frozen=True)
class Plan:
    """What happens in one run: after ``after`` rounds and ``delay`` more seconds the blows fall."""

    seed: int
    transport: str
    after: int
    delay: float
    blows: tuple[Blow, ...]


def plan(seed: int) -> Plan:
    """Return what a seed stands for: a run in five suffers two blows at once, three in ten are stops."""
    rng = random.Random(f"chaos {seed}")
    transport = rng.choices(("mqtt", "http", "local"), (4, 4, 2))[0]
    count = 2 if rng.random() < 0.2 else 1
    parts = rng.sample(PARTS[transport], count)
    blows = tuple(
        Blow(part, rng.random(), round(rng.uniform(1, 15), 1) if rng.random() < 0.3 else 0.0) for part in parts
    )
    return Plan(seed, transport, rng.randrange(ROUNDS), round(rng.uniform(0, 3), 2), blows)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def candidates(processes: dict[int, str], part: str) -> list[int]:
    """Return the processes that are this part, of those that were started for the run."""
    found = {pid for pid, line in processes.items() if all(word in line for word in WORDS[part])}
    return sorted(pid for pid in found if (_parent(pid) in found) == (part in FORKED))


def strike(home, blows: tuple[Blow, ...]) -> list[str]:
    """Let the blows fall; return the parts that were hit."""
    hit, stopped = [], []
    for blow in blows:
        for _ in range(LOOKS):
            if pids := candidates(home.processes(), blow.part):
                break
            time.sleep(POLL_SECONDS)
        else:
            continue
        pid = pids[int(blow.which * len(pids))]
        try:
            os.kill(pid, signal.SIGSTOP if blow.stopped else signal.SIGKILL)
        except ProcessLookupError:
            continue
        hit.append(blow.part)
        if blow.stopped:
            stopped.append((time.monotonic() + blow.stopped, pid))
    for until, pid in sorted(stopped):
        time.sleep(max(0.0, until - time.monotonic()))
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:  # killed as what stood still for too long
            continue
    return hit


def table(lines: list[dict]) -> str:
    """Return Markdown: a row for each part that was hit, and one for all runs."""
    by_part = defaultdict(list)
    for line in lines:
        for blow in line["blows"]:
            if blow["part"] in line["hit"]:
                by_part[blow["part"]].append((blow, line))
    rows = ["| killed or stopped | kills | stops | runs resumed | seconds lost: median (most) |"]
    rows.append("| --- | ---: | ---: | ---: | ---: |")
    for part in dict.fromkeys(part for parts in PARTS.values() for part in parts):
        if of := by_part.get(part):
            kills = sum(not blow["stopped"] for blow, _ in of)
            resumed = sum(line["resumed"] for _, line in of)
            lost = [line["seconds_lost"] for _, line in of]
            spread = f"{statistics.median(lost):.0f} ({max(lost):.0f})"
            rows.append(f"| {part} | {kills} | {len(of) - kills} | {resumed} | {spread} |")
    runs = {how: sum(line["transport"] == how for line in lines) for how in PARTS}
    same = sum(line["same_bits"] for line in lines)
    kinds = ", ".join(f"{count} {how}" for how, count in runs.items())
    hits = [len(line["hit"]) for line in lines]
    two, none = sum(count > 1 for count in hits), hits.count(0)
    left_out = sum(bool(line["failed"]) for line in lines)
    rows.append(
        f"\n{len(lines)} runs ({kinds}): in {two} of them two parts were hit, in {none} none, because the run had "
        f"ended. {same} ended with the bits of the undisturbed run, {left_out} left a client out of a round."
    )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]))
