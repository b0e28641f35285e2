"""Code of a client's that forks, ends the program, hangs, eats memory or prints without end fails that client alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import psutil
import pytest
from support import FEW_SAMPLES, federation, run_federation

from fedpfl.client.batched_training import BatchedTraining
from fedpfl.client.engine import HANDLERS
from fedpfl.client.forks import in_one_process
from fedpfl.core.errors import FedpflError
from fedpfl.engine import worker
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.setup.config import Config
from fedpfl.training.batched import run_phase_of_many

CLIENTS, BAD = 4, 2


@pytest.fixture
def misbehave(monkeypatch):
    """Put something before the training of one client in round 1; workers are forked after this."""

    def before(does):
        real = HANDLERS["train"]

        def handler(engine, client, message):
            if (client, message.config["round"]) == (BAD, 1):
                does()
            return real(engine, client, message)

        monkeypatch.setitem(HANDLERS, "train", handler)

    return before


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def run(tmp_path, workers=2, printed=lambda client, text: None, **settings):
    """Run two rounds; return how the bad client failed in the first, and check that only this went wrong."""
    few = {"method": "fedavg", "num_clients": CLIENTS, "num_server_rounds": 2, "threads": 1, **FEW_SAMPLES, **settings}
    values = federation(tmp_path, CLIENTS, **few)
    others, files = set(multiprocessing.active_children()), open_files()
    with SimulationTransport(Config.parse(values), workers, printed) as transport:
        first, second = run_federation(transport, values).metrics()
    assert set(multiprocessing.active_children()) <= others
    assert open_files() == files  # pipes, and the memory that workers share
    assert second["clients"] == [0, 1, 2, 3]
    failed = first.get("failed", {})
    assert failed.keys() <= {str(BAD)}
    reason = failed.get(str(BAD), "")
    assert "\n" not in reason and len(reason) < 600
    return reason


def forks_and_goes_on():
    os.fork()


def forks_a_process_that_hangs():
    if os.fork() == 0:
        threading.Event().wait()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("forks", [forks_and_goes_on, forks_a_process_that_hangs])
def test_a_client_that_leaves_a_copy_of_its_process_behind_fails(tmp_path, misbehave, workers, forks):
    misbehave(forks)
    before = psutil.Process().children()  # what other tests have started and serves all of them
    assert "made 1 process by os.fork and did not wait" in run(tmp_path, workers)
    assert set(psutil.Process().children()) <= set(before), "one is left, maybe a dead one"


def test_a_client_of_a_batch_that_leaves_a_copy_behind_fails_alone(tmp_path, monkeypatch):
    begin = BatchedTraining._begin

    def forks(together, client, message):
        if (client, message.config["round"]) == (BAD, 1):
            os.fork()
        return begin(together, client, message)

    monkeypatch.setattr(BatchedTraining, "_begin", forks)
    before = psutil.Process().children()
    assert "made 1 process by os.fork and did not wait" in run(tmp_path, 0, clients_at_once=CLIENTS)
    assert set(psutil.Process().children()) <= set(before)


def test_clients_whose_common_step_leaves_a_copy_behind_fail_together(tmp_path, monkeypatch):
    def forks(*arguments):
        os.fork()
        return run_phase_of_many(*arguments)

    monkeypatch.setattr("fedpfl.client.batched_training.run_phase_of_many", forks)
    settings = {"method": "fedavg", "num_clients": CLIENTS, "threads": 1, "clients_at_once": CLIENTS, **FEW_SAMPLES}
    values = federation(tmp_path, CLIENTS, **settings)
    with SimulationTransport(Config.parse(values), 0) as transport, pytest.raises(FedpflError, match="made 1 process"):
        run_federation(transport, values)


def test_a_copy_that_the_code_ends_and_waits_for_is_nobody_s_business(tmp_path, misbehave):
    def forks():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    misbehave(forks)
    assert run(tmp_path) == ""


def test_processes_of_multiprocessing_may_stay():
    context = multiprocessing.get_context("fork")
    ends = context.Event()
    child = context.Process(target=ends.wait)
    with in_one_process():
        child.start()
    assert child.is_alive()
    ends.set()
    child.join()


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "message", "workers"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt (test_client_code.py, line", 2),
        (SystemExit("bye"), "SystemExit: bye (test_client_code.py, line", 2),
        (SystemExit("bye"), "SystemExit: bye (test_client_code.py, line", 0),
        (GeneratorExit(), "GeneratorExit (test_client_code.py, line", 2),
        (GeneratorExit(), "GeneratorExit (test_client_code.py, line", 0),
        (Mute(), "Mute: its text cannot be made (ValueError)", 2),
        (ValueError("\x1b[2J\r" + "x" * 10**6), "ValueError:  [2J xxx", 2),
    ],
)
def test_whatever_a_client_raises_is_its_failure(tmp_path, misbehave, error, message, workers):
    def fails():
        raise error

    misbehave(fails)
    assert run(tmp_path, workers).startswith(message)


def test_without_workers_ctrl_c_ends_the_run(tmp_path, misbehave):
    misbehave(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 0)


def test_what_a_client_prints_is_cut_with_words(tmp_path, misbehave):
    said = []
    misbehave(lambda: [print("x" * 10**6) for _ in range(20)])
    assert run(tmp_path, 2, lambda client, text: said.append((client, text))) == ""
    assert {client for client, _ in said} == {BAD}
    text = "".join(text for _, text in said)
    assert text.endswith("\n(more than 1048576 characters: what follows is left out)\n")
    assert len(text) < worker.MAX_PRINTED + 100


def test_a_fork_that_raises_ends_where_it_is():
    with pytest.raises(FedpflError, match="made 1 process"), in_one_process():
        if os.fork() == 0:
            raise ValueError("in the copy")
