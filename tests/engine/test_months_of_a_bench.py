"""A bench for months, by the tests' clock: run after run, while boards go, come, are replaced and upgraded."""

from __future__ import annotations

import random
import shutil

import pytest
from support import Clock, Killed, LocalGrid, federation, run_federation

from fedpfl.client import engines
from fedpfl.client.state import ClientState
from fedpfl.core.errors import FedpflError
from fedpfl.results.resumed_run import ResumedRun

# The last board is bought when half of the months are over.
BOARDS = {"board-1": (0, 1), "board-2": (2, 3), "board-3": (4, 5), "board-4": (6, 7), "board-5": (8, 9)}
METHODS = ("fedavg", "fedper", "ditto", "scaffold")
SMALL = {
    "model": "mlp", "local_epochs": 1, "batch_size": 16, "partitioner": "dirichlet-client", "train_samples": 16,
    "test_samples": 8, "threads": 1, "node_timeout": 60.0, "round_timeout": 120.0,
}  # fmt: skip


class Grid(LocalGrid):
    """The boards that are on; one may lose its power, or the server may, when so many messages have been sent."""

    devices = True

    def __init__(self, values, boards, lost="", lost_after=0, killed_after=0):
        super().__init__(10, values, self.count)
        self.boards, self.lost, self.lost_after, self.killed_after, self.sent = (
            boards,
            lost,
            lost_after,
            killed_after,
            0,
        )

    @property
    def on(self):
        dead = self.lost if self.sent > self.lost_after else ""
        return [client for board in self.boards if board != dead for client in BOARDS[board]]

    def count(self, kind, client, payload):
        if kind != "query":
            self.sent += 1
        if self.killed_after and self.sent >= self.killed_after:
            raise Killed

    def get_node_ids(self):
        return [100 + client for client in self.on]

    def answer(self, kind, payload, node_config):
        return super().answer(kind, payload, {"partition-id": node_config["partition-id"]})

    def pull_messages(self, message_ids):
        return [reply for reply in super().pull_messages(message_ids) if reply.metadata.src_node_id - 100 in self.on]


class Months:
    """What the owner of the bench does, drawn from a seed."""

    def __init__(self, folder, seed):
        self.folder, self.rng = folder, random.Random(seed)
        self.here = [*BOARDS][:4]
        self.on = {*self.here}
        self.runs = {}  # the settings of each run, by its name
        self.lacks = {}  # clients of each run whose personal arrays a new card lacks, until their owner says so
        self.seen = dict.fromkeys(("runs", "resumed", "too few", "killed", "lost", "replaced", "upgraded", "let in"), 0)

    def day(self, number, runs):
        """Change something on the bench, then begin a run or go on with one."""
        if number == runs // 2:
            self.here = [*BOARDS]
            self.on.add("board-5")
        board = self.rng.choice(self.here)
        event = self.rng.choice(["nothing", "off", "on", "on", "replaced", "upgraded"])
        if event == "off":
            self.on.discard(board)
        elif event == "on":
            self.on.add(board)
        elif event == "replaced":
            self.replace(board)
        elif event == "upgraded":
            self.seen["upgraded"] += 1
            engines._engines.clear()  # a new process
        unfinished = [name for name in self.runs if self.missing_rounds(name)]
        if unfinished and self.rng.random() < 0.5:
            self.go_on(self.rng.choice(unfinished))
        elif self.runs and self.rng.random() < 0.2:
            name = self.rng.choice([*self.runs])
            self.runs[name]["num-server-rounds"] += 1
            self.go_on(name)
        else:
            clients = sum(len(BOARDS[board]) for board in self.here)
            settings = {"method": METHODS[number % len(METHODS)], "num_server_rounds": 2, "seed": number, **SMALL}
            name = f"run-{number:03d}"
            self.runs[name] = federation(self.folder, run_name=name, num_clients=clients, **settings)
            self.carry_out(name)

    def replace(self, board):
        """Put a new card into a board: all that its clients had is lost."""
        self.seen["replaced"] += 1
        for name in self.runs:
            if not (folder := self.of(name)).path.is_dir():
                continue
            for client in BOARDS[board]:
                kept = self.folder / "state" / folder.task()["state_key"] / f"client-{client:05d}"
                if kept.is_dir():
                    shutil.rmtree(kept)
                    if str(client) in folder.task().get("identities", {}):
                        self.lacks.setdefault(name, set()).add(client)

    def go_on(self, name):
        """Resume a run, sometimes after letting replaced boards in."""
        if self.lacks.get(name) and self.rng.random() < 0.7:
            self.of(name).let_in(sorted(self.lacks.pop(name)))
            self.seen["let in"] += 1
        self.seen["resumed"] += 1
        self.carry_out(name)

    def carry_out(self, name):
        """Carry a run out, with a cut of the power in a third of all runs, and look at what became of it."""
        settings, folder = self.runs[name], self.of(name)
        before = folder.metrics() if folder.path.is_dir() else []
        fault = self.rng.choice(["lost", "killed", "", "", "", ""])
        after = self.rng.randrange(1, 20)
        grid = Grid(
            settings, sorted(self.on), self.rng.choice(sorted(self.on) or [""]) if fault == "lost" else "", after,
            after if fault == "killed" else 0,
        )  # fmt: skip
        self.seen["runs"] += 1
        try:
            run_federation(grid, {**settings, "resume": folder.path.is_dir() and folder.resumable})
        except Killed:
            self.seen["killed"] += 1
        except FedpflError as error:
            # The run may go on when more boards are back.
            assert "are needed (min-clients)" in str(error) or "no client trained" in str(error), error
            self.seen["too few"] += 1
        self.seen["lost"] += fault == "lost"
        self.look(name, before, grid)

    def look(self, name, before, grid):
        """Check that nothing of a run is lost: no round, no client that was there, no array on a card that is left."""
        folder = self.of(name)
        if not folder.resumable:
            if folder.path.is_dir():  # it goes, as its owner would have it: fedpfl clean
                shutil.rmtree(folder.path)
            del self.runs[name]
            self.lacks.pop(name, None)
            return
        lines, clients = folder.metrics(), range(self.runs[name]["num-clients"])
        assert [line["round"] for line in lines] == [*range(1, len(lines) + 1)]
        last, state = folder.checkpoint()
        assert lines[: len(before)] == before[: len(lines)] and last == len(lines) >= len(before)
        lacks = self.lacks.get(name, set())
        allowed = {client for board in grid.boards for client in BOARDS[board] if client in clients} - lacks
        for line in lines[len(before) :]:
            assert {*line["clients"]} <= allowed
            if not grid.lost and not line.get("failed"):
                assert {*line["clients"]} == allowed
        key = folder.task()["state_key"]
        for client, trained in enumerate(state["personal_round"].tolist()):
            kept = ClientState(self.folder / "state", key, client)
            if trained and client not in lacks and self.runs[name]["method"] in ("fedper", "ditto", "scaffold"):
                assert kept.load(trained)
        if missing := sorted({*clients} - allowed):
            remarks = folder.task().get("remarks", [])
            begun_now = not before and not grid.lost
            told = f"missing: {', '.join(map(str, missing))}"
            assert not begun_now or any(remark.endswith(told) for remark in remarks), (remarks, told)

    def missing_rounds(self, name):
        return self.runs[name]["num-server-rounds"] - len(self.of(name).metrics())

    def of(self, name):
        return ResumedRun(self.folder / "runs" / name)


@pytest.mark.parametrize("runs", [8, pytest.param(300, marks=pytest.mark.thorough)])
def test_nothing_is_lost_while_boards_go_come_are_replaced_and_upgraded(tmp_path, monkeypatch, runs):
    Clock.of_the_server(monkeypatch)
    months = Months(tmp_path, seed=runs)
    for number in range(runs):
        months.day(number, runs)
    # In the end all boards are there, and what is unfinished is finished with all of its clients.
    months.on = {*months.here}
    for name in [*months.runs]:
        if months.lacks.get(name):
            months.of(name).let_in(sorted(months.lacks.pop(name)))
        months.runs[name]["num-server-rounds"] = len(months.of(name).metrics()) + 1
        settings = {**months.runs[name], "resume": True}
        folder = run_federation(Grid(settings, sorted(months.on)), settings)
        assert folder.metrics()[-1]["clients"] == [*range(settings["num-clients"])]
        assert folder.finished and "failed" not in folder.metrics()[-1]
    assert all(count for what, count in months.seen.items() if runs > 100), months.seen
