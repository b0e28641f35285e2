"""A bench's long life, compressed: many short runs on one testbed, and in some of them a fault drawn by chance.

SuperLink, SuperNodes, workers, broker and bridge run all the time, as on a laptop and its boards. A run has one of a
few methods and three rounds. In two of five a SuperNode or the SuperLink is killed, the broker is restarted, or the
broker's queue for the server is filled with 560 MB that nobody can use; which and when follows from the seed. After
each run the memory, threads and open files of every part are written down, and the files that lie around.

The program fails if a run does not end, or ends without a result (but for one whose SuperLink was killed), if its model
is not to the bit that of a simulation although all clients took part, or if something grows: threads and open files of
a process, its memory by more than :data:`GROWTH_MIB` over 100 runs, the number of files of the bench. A process is
compared with itself from the run on by which it has had each method, at the earliest from its 6th.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from common import MIB, BenchmarkError, count, footer, machine, main, note, simulate, table
from paho.mqtt.enums import CallbackAPIVersion
from safetensors.torch import load_file

from fedpfl.bench.mqtt import topics
from fedpfl.bench.mqtt.account import read_password
from fedpfl.bench.testbed import Testbed
from fedpfl.core.errors import FedpflError
from fedpfl.setup.config import Config

CLIENTS, DEVICES, ROUNDS = 3, 2, 3
METHODS = ("fedavg", "fedper", "ditto", "fedreg")
# What happens, and how often in comparison with the others; in how many of the runs something does.
FAULTS = {"SuperNode killed": 3, "broker restarted": 3, "SuperLink killed": 2, "queue full": 1}
FAULTY = 0.4
QUEUE_MIB = 560
RUN_SECONDS = 420.0
# A process is compared with itself after so many runs at least, when what it needs is there, and if so many follow.
# What a method imports stays: torchvision, which FedReG's augmentation needs, and what that imports, once a worker.
WARM_RUNS, LONG_LIFE = 5, 7
GROWTH_MIB = 40.0
SLACK = 2


# A process's id, memory in MiB, threads and open files.
Size = tuple[int, float, int, int]


@dataclass(frozen=True)
class Fault:
    """What happens in a run, to which of several, after how many rounds and seconds."""

    kind: str
    which: int
    after: int
    delay: float


def fault_of(seed: int, number: int) -> Fault | None:
    """Draw the fault of a run from the seed; None: the run has no fault."""
    rng = random.Random(f"long life {seed} {number}")
    if rng.random() >= FAULTY:
        return None
    (kind,) = rng.choices(list(FAULTS), list(FAULTS.values()))
    return Fault(kind, rng.randrange(CLIENTS), rng.randrange(ROUNDS), round(rng.uniform(0, 2), 2))


@dataclass
class Outcome:
    """What became of a run; ``sizes`` has how large each part was after it."""

    number: int
    method: str
    fault: str
    seconds: float
    failed: dict[str, Any] = field(default_factory=dict)
    same_bits: bool = False
    sizes: dict[str, Size] = field(default_factory=dict)
    files: dict[str, tuple[int, float]] = field(default_factory=dict)


class Rehearsal:
    """A testbed and its runs."""

    def __init__(self, bed: Testbed, folder: Path, seed: int) -> None:
        self._bed, self._folder, self._seed = bed, folder, seed
        self._references: dict[str, Any] = {}

    def run(self, number: int) -> Outcome:
        """Carry out a run, with its fault, and look at the testbed afterwards."""
        # Each once at first: see WARM_RUNS.
        later = random.Random(f"method {self._seed} {number}").choice(METHODS)
        method = METHODS[number - 1] if number <= len(METHODS) else later
        if method not in self._references:
            self._references[method] = simulate(settings(method, self._seed)).arrays
        fault, name = fault_of(self._seed, number), f"run-{number:04d}"
        places = {"output-dir": str(self._folder / "runs"), "state-dir": str(self._folder / "state"), "run-name": name}
        begun = time.monotonic()
        config = Config.parse({**settings(method, self._seed), **places, "check-after": 20.0, "round-timeout": 300.0})
        run_id = self._bed.submit(None, config.flat())
        result = self._folder / "runs" / name
        waiting, ask_at, reason = fault, begun, ""
        while True:
            self._require_alive(begun, name)
            if waiting is not None and rounds(result) >= waiting.after and (result / "task.json").exists():
                time.sleep(waiting.delay)
                self._strike(waiting)
                waiting = None
            if time.monotonic() >= ask_at and (self._bed.logged_end() or (result / "summary.md").exists()):
                ask_at = time.monotonic() + 2
                with suppress(FedpflError):  # the SuperLink may just be started again
                    status, details = self._bed.status(run_id)
                    if status == "finished:completed":
                        break
                    if status.startswith("finished") and fault and fault.kind == "SuperLink killed":
                        reason = details  # Flower forgets what is just being sent; the run can be resumed
                        break
                    if status.startswith("finished"):
                        log = self._bed.log(run_id)
                        raise BenchmarkError(f"{name} ({fault}) ended as {status}, {details}: {log[-3000:]}")
            time.sleep(0.2)
        if reason:
            return self._look(Outcome(number, method, "SuperLink killed", 0.0, {"run": reason}), begun)
        lines = [json.loads(line) for line in (result / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        failed = {str(line["round"]): line["failed"] for line in lines if line.get("failed")}
        arrays, wanted = load_file(result / "global.safetensors"), self._references[method]
        same = arrays.keys() == wanted.keys() and all(arrays[key].equal(wanted[key]) for key in arrays)
        kind = fault.kind if fault and waiting is None else ""  # or the run had ended before
        return self._look(Outcome(number, method, kind, 0.0, failed, same), begun)

    def _look(self, outcome: Outcome, begun: float) -> Outcome:
        """Note how many seconds the run took, how large each part is now, and how many files there are."""
        outcome.seconds = round(time.monotonic() - begun, 1)
        self._wait_until_whole()
        outcome.sizes = {part: size for part, pid in self._bed.processes.items() if (size := size_of(pid))}
        outcome.files = files_of(self._bed.folder, self._folder)
        return outcome

    def _strike(self, fault: Fault) -> None:
        processes = self._bed.processes
        if fault.kind == "queue full":
            self._fill_queue(processes["bridge server"])
            return
        part = {
            "SuperNode killed": f"SuperNode {fault.which}", "broker restarted": "broker",
            "SuperLink killed": "Flower's SuperLink",
        }[fault.kind]  # fmt: skip
        os.kill(processes[part], signal.SIGTERM if part == "broker" else signal.SIGKILL)

    def _fill_queue(self, server: int) -> None:
        """Send, as a device would, more than the broker keeps for a server that does not read."""
        assert self._bed.watcher is not None
        password = read_password(self._folder / "keys" / "passwords" / "device-0")
        account = replace(self._bed.watcher, username="device-0", password=password)
        # Its own client takes part under the same name, and the broker lets in the one that came last.
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=account.username, protocol=paho.MQTTv5)
        client.username_pw_set(account.username, account.password)
        context = account.tls()
        if context is not None:
            client.tls_set_context(context)
        client.max_inflight_messages_set(8)
        os.kill(server, signal.SIGSTOP)
        try:
            client.connect(account.host, account.port)
            client.loop_start()
            sent = [client.publish(topics.request("device-0"), bytes(MIB), 1) for _ in range(QUEUE_MIB)]
            deadline = time.monotonic() + 60
            while not all(message.is_published() for message in sent) and time.monotonic() < deadline:
                time.sleep(0.1)
            client.disconnect()
            client.loop_stop()
        finally:
            os.kill(server, signal.SIGCONT)

    def _require_alive(self, begun: float, name: str) -> None:
        if ended := self._bed.ended():
            raise BenchmarkError(f"{name}: {ended}")
        if time.monotonic() - begun > RUN_SECONDS:
            raise BenchmarkError(f"{name} has not ended within {RUN_SECONDS:g} s: {self._bed.log(None)[-3000:]}")

    def _wait_until_whole(self) -> None:
        """Wait until what ended is there again, and all SuperNodes are online."""
        begun = time.monotonic()
        while True:
            self._require_alive(begun, "after a run, the testbed")
            with suppress(FedpflError):
                if self._bed.online() >= CLIENTS:
                    return
            time.sleep(1)


def settings(method: str, seed: int) -> dict[str, Any]:
    """Return the settings of a run."""
    return {
        "dataset": "digits", "method": method, "model": "small-cnn", "num-clients": CLIENTS, "local-epochs": 1,
        "num-server-rounds": ROUNDS, "batch-size": 32, "threads": 1, "seed": seed,
    }  # fmt: skip


def rounds(result: Path) -> int:
    """Return how many rounds a run has recorded."""
    metrics = result / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def size_of(pid: int) -> Size | None:
    """Return a process's id, its own memory in MiB, threads and open files; None if it has ended.

    Pages of programs' files are not its own: the system takes them away where memory is short.
    """
    process = Path(f"/proc/{pid}")
    try:
        status = dict(line.split(":", 1) for line in (process / "status").read_text(encoding="utf-8").splitlines())
        files = len(list((process / "fd").iterdir()))
    except OSError:
        return None
    memory = sum(int(status.get(name, "0 kB").split()[0]) for name in ("RssAnon", "VmSwap")) / 1024
    return pid, round(memory, 1), int(status["Threads"]), files


def files_of(bench: Path, folder: Path) -> dict[str, tuple[int, float]]:
    """Return how many files there are and their MiB: of the bench, its logs, the devices' states, shared memory."""
    everything = [path for path in bench.rglob("*") if path.is_file()]
    logs = [path for path in everything if path.suffix == ".log"]
    database = [path for path in everything if path.name.startswith("superlink.db")]
    rest = set(everything) - set(logs) - set(database)
    groups: dict[str, Sequence[Path]] = {
        "bench": [*rest], "logs": logs, "SuperLink's database": database,
        "states": [path for path in (folder / "state").rglob("*") if path.is_file()],
        "shared memory": [*Path("/dev/shm").glob("fedpfl*")],
    }  # fmt: skip
    return {name: (len(paths), round(sum(map(_bytes, paths)) / MIB, 2)) for name, paths in groups.items()}


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def lives(outcomes: Sequence[Outcome]) -> dict[str, list[list[tuple[str, Size]]]]:
    """Return, for each part, its processes one after the other, each with the method and its sizes run by run.

    A broker whose queue was filled begins again: it keeps that memory for the next queue until it is restarted.
    """
    lives_of: dict[str, list[list[tuple[str, Size]]]] = {}
    for outcome in outcomes:
        for part, size in outcome.sizes.items():
            of = lives_of.setdefault(part, [])
            filled = part == "broker" and outcome.fault == "queue full"
            if not of or filled or of[-1][-1][1][0] != size[0]:
                of.append([])
            of[-1].append((outcome.method, size))
    return lives_of


def warm(life: Sequence[tuple[str, Size]], methods: set[str]) -> list[Size]:
    """Return a process's sizes from the run on by which it has had each method."""
    missing = set(methods)
    for place, (method, _) in enumerate(life):
        missing.discard(method)
        if not missing:
            return [size for _, size in life[max(place, WARM_RUNS) :]]
    return []


def growth(values: Sequence[float]) -> float:
    """Return by how much a value grows from one to the next: the median of all slopes, which no single one moves."""
    pairs = [(j - i, values[j] - values[i]) for i in range(len(values)) for j in range(i + 1, len(values))]
    return statistics.median(by / steps for steps, by in pairs) if pairs else 0.0


def judge(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line for each run with other bits, and for each thing that grows."""
    wrong = [
        f"run {outcome.number} ({outcome.method}, {outcome.fault or 'no fault'}) has other bits than a simulation"
        for outcome in outcomes
        if not outcome.same_bits and not outcome.failed
    ]
    methods = {outcome.method for outcome in outcomes}
    for part, of in lives(outcomes).items():
        for sizes in (warm(life, methods) for life in of):
            if len(sizes) < LONG_LIFE:
                continue
            for place, what in ((2, "threads"), (3, "open files")):
                begin, end = (statistics.median(size[place] for size in some) for some in (sizes[:5], sizes[-5:]))
                if end > begin + SLACK:
                    wrong.append(f"{part}: {begin:g} {what} grew to {end:g} in {len(sizes)} runs")
            a_run = growth([size[1] for size in sizes])
            if a_run * 100 > GROWTH_MIB:
                told = f"by {a_run:.2f} MiB a run, from {sizes[0][1]} to {sizes[-1][1]}"
                wrong.append(f"{part}: its memory grows {told}")
    if len(outcomes) >= WARM_RUNS + LONG_LIFE:
        # Results and clients' arrays are kept until somebody asks for `fedpfl clean`.
        for name in ("bench", "shared memory"):
            counts = [outcome.files[name][0] for outcome in outcomes[WARM_RUNS:]]
            if growth(counts) > 0:
                wrong.append(f"files of {name}: {counts[0]} grew to {counts[-1]} in {len(counts)} runs")
    return wrong


def ends(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Return how many runs ended how, had which fault, and took how many seconds."""
    numbers: dict[str, list[float]] = {
        "all": [len(outcomes)], "with the bits of a simulation": [sum(of.same_bits for of in outcomes)],
        "with a client that failed in a round": [sum(bool(of.failed) and "run" not in of.failed for of in outcomes)],
        "ended by a killed SuperLink": [sum("run" in of.failed for of in outcomes)],
    }  # fmt: skip
    for kind in ("", *FAULTS):
        if took := [of.seconds for of in outcomes if of.fault == kind]:
            name = kind or "no fault"
            numbers |= {f"with {name}": [len(took)], f"seconds with {name}, median": [statistics.median(took)]}
    return numbers


def summary(outcomes: Sequence[Outcome]) -> dict[str, dict[str, list[float]]]:
    """Return, for each part, how many processes it had, and how large the longest was from its warm run to its last."""
    numbers: dict[str, dict[str, list[float]]] = {}
    methods = {outcome.method for outcome in outcomes}
    for part, of in lives(outcomes).items():
        longest = max(of, key=len)
        sizes = warm(longest, methods) or [longest[-1][1]]
        numbers[part] = {"processes": [len({life[0][1][0] for life in of})], "runs of the longest": [len(longest)]}
        for place, what in ((1, "MiB"), (2, "threads"), (3, "open files")):
            numbers[part] |= {f"{what}, first": [sizes[0][place]], f"{what}, last": [sizes[-1][place]]}
        numbers[part]["MiB more in 100 runs"] = [100 * growth([size[1] for size in sizes])]
    return numbers


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the tables."""
    numbers = summary(outcomes)
    columns = list(next(iter(numbers.values())))
    rows = [[part, *(f"{of[name][0]:.1f}" for name in columns)] for part, of in numbers.items()]
    print(table(["part", *columns], rows))
    ends = outcomes[min(WARM_RUNS, len(outcomes) - 1)], outcomes[-1]
    print()
    rows = [[name, *(f"{run.files[name][place]:g}" for place in (0, 1) for run in ends)] for name in outcomes[0].files]
    names = [f"{what}, run {run.number}" for what in ("files", "MiB") for run in ends]
    print(table(["", *names], rows))
    kinds: Mapping[str, list[float]] = {
        kind: [of.seconds for of in outcomes if of.fault == kind] for kind in ("", *FAULTS)
    }
    print()
    told = [
        [kind or "none", str(len(took)), f"{statistics.median(took):.0f}", f"{max(took):.0f}"]
        for kind, took in kinds.items()
        if took
    ]
    print(table(["fault", "runs", "s (median)", "s (most)"], told))


def measure(options: argparse.Namespace) -> None:
    """Run as often as the time allows, and judge."""
    outcomes: list[Outcome] = []
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="fedpfl-long-life-") as name:
        bed = Testbed(Path(name) / "keys", mqtt=True)
        with bed:
            bed.start_nodes(CLIENTS, DEVICES, runs=Path(name) / "runs")
            rehearsal = Rehearsal(bed, Path(name), options.seed)
            for number in range(1, options.runs + 1):
                outcomes.append(outcome := rehearsal.run(number))
                told = f"{outcome.method}, {outcome.fault or 'no fault'}, {outcome.seconds:.0f} s"
                note(f"run {number}: {told}, {'same bits' if outcome.same_bits else f'failed: {outcome.failed}'}")
                if options.record:
                    write(options, outcomes)
                if time.monotonic() > until:
                    break
    show(outcomes)
    if options.json:
        numbers = {"runs": ends(outcomes), **summary(outcomes)}
        options.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    print(footer(options.seed))
    if wrong := judge(outcomes):
        raise BenchmarkError("; ".join(wrong))


def write(options: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    """Write the record: all runs, and what they left, a line each."""
    about = {"command": shlex.join(["python", *sys.argv]), "commit": options.commit, "machine": machine()}
    runs = ",\n".join(f"  {json.dumps(asdict(outcome))}" for outcome in outcomes)
    text = json.dumps({**about, "seed": options.seed})[:-1] + f', "runs": [\n{runs}\n]}}\n'
    options.record.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="long_life.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=count, default=300, help="how many runs (%(default)s)")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so many minutes")
    parser.add_argument("--seed", type=int, default=1, help="faults and methods follow from it (%(default)s)")
    parser.add_argument("--record", type=Path, help="the JSON file to write")
    parser.add_argument("--json", type=Path, help="the JSON file of ends and sizes to write")
    parser.add_argument("--commit", default="", help="what is measured, for the record")
    main(measure, parser)
