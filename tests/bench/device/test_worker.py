"""The worker as a process of its own: it answers as this process would, and its death costs only time."""

import gc
import logging
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from weakref import ref

import numpy as np
import pytest
from old_python import old_python
from support import FEW_SAMPLES, LocalGrid, each_method, federation, simulate
from waiting import HANG_SECONDS, InThread, wait_until
from worker_parts import workers

from fedpfl import __version__
from fedpfl.bench.device import forward as forwarding
from fedpfl.bench.device.forward import WorkerError, forward
from fedpfl.bench.device.worker import MAX_REPLIES, listening
from fedpfl.client import protocol
from fedpfl.client.engines import MAX_ENGINES, _engines, engine_for
from fedpfl.client.message_handler import handle
from fedpfl.core.errors import FedpflError
from fedpfl.core.payload import Payload
from fedpfl.core.process import spin_shortly
from fedpfl.setup.config import Config


@pytest.fixture
def worker(monkeypatch):
    """Start workers on one socket; stop them afterwards."""
    with workers() as start:
        monkeypatch.setenv(protocol.SOCKET_VARIABLE, str(start.path))
        yield start


@pytest.fixture(scope="module")
def shared_worker():
    with workers() as start:
        process = start()
        yield start
        assert process.poll() is None, start.log()


@pytest.fixture
def running(shared_worker, monkeypatch):
    """One worker for all tests that must leave it running."""
    monkeypatch.setenv(protocol.SOCKET_VARIABLE, str(shared_worker.path))
    return shared_worker


@pytest.fixture(scope="module")
def old_worker():
    with workers() as start:
        start(old_python())
        yield start


def asked(values, node, **more):
    """Return the first round's train message for a client, from its answer to the query."""
    described = handle("query", Payload(), values, node)
    size = engine_for(Config.parse(values), node["num-partitions"], "", 0).sharing.get_shared()
    config = {"round": 1, "personal-round": 0, "state-key": "key", "layout": described.config["layout"], **more}
    return Payload(config, {}, {"shared": size})


def same(a, b):
    assert np.array_equal(a.arrays["shared"], b.arrays["shared"])
    assert a.config == b.config
    assert a.metrics["train-loss"] == b.metrics["train-loss"]


NODE = {"partition-id": 1, "num-partitions": 3}


def values_of(tmp_path, **more):
    """Return the run config of three clients with few samples."""
    return federation(tmp_path, 3, **{**FEW_SAMPLES, "model": "mlp", "threads": 1, **more})


def test_the_worker_answers_as_this_process_does(running, tmp_path):
    values = values_of(tmp_path)
    message = asked(values, NODE)
    mine = handle("train", message, {**values, "state-dir": str(tmp_path / "mine")}, NODE)
    same(forward("train", message, values, NODE), mine)
    stored = sorted(path.name for path in (tmp_path / "state").rglob("*.safetensors"))
    assert stored == ["round-000001.safetensors"]
    message.config["personal-round"] = 1
    theirs = forward("evaluate", message, values, NODE)
    mine = handle("evaluate", message, {**values, "state-dir": str(tmp_path / "mine")}, NODE)
    assert theirs.metrics["personalised-loss-sum"] == mine.metrics["personalised-loss-sum"]


def test_its_threads_soon_leave_the_cores_to_others_unless_its_owner_says_how(worker, monkeypatch):
    for name, value in (("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "PASSIVE")):
        monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
        monkeypatch.setenv(name, value)
        spin_shortly()
        assert os.environ.get("GOMP_SPINCOUNT") == ("7" if name == "GOMP_SPINCOUNT" else None)
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("OMP_DISPLAY_ENV", "verbose")
    worker()
    wait_until(lambda: "OPENMP DISPLAY ENVIRONMENT END" in worker.log(), hint=worker.log)
    assert {*re.findall(r"GOMP_SPINCOUNT *= *'(\w+)'", worker.log())} == {"5000"}


def test_a_request_that_was_answered_gets_its_reply_again_without_training(running, tmp_path):
    values = values_of(tmp_path)
    message = asked(values, NODE)
    first = forward("train", message, values, NODE)
    same(forward("train", message, values, NODE), first)
    wait_until(lambda: running.log().count("round 1, its last reply once more") == 1)
    # Another content is another request, and so is what came before the last ones.
    again = forward("train", asked(values, NODE, more=1), values, NODE)
    assert again.metrics["train-seconds"] != first.metrics["train-seconds"]
    for number in range(MAX_REPLIES):
        forward("train", asked(values, NODE, more=2 + number), values, NODE)
    same(forward("train", message, values, NODE), first)  # the same bits, trained once more
    assert running.log().count("round 1, its last reply once more") == 1


def test_the_socket_is_the_user_s_alone_and_goes_with_the_worker(worker):
    process = worker()
    assert stat.S_IMODE(worker.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(worker.path.parent.stat().st_mode) == 0o700
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_SECONDS) == 0
    assert not worker.path.exists()


def test_a_socket_that_cannot_be_made_is_told(tmp_path):
    message = r"the socket .*xxx cannot be made: AF_UNIX path too long"
    with pytest.raises(FedpflError, match=message), listening(tmp_path / ("x" * 108)):
        pass


def test_a_second_worker_says_that_there_is_one(running):
    second = running(wait=False)
    assert second.wait(HANG_SECONDS) == 1
    assert f"error: another process listens at {running.path}" in running.log()


def test_the_client_s_own_errors_arrive_and_the_worker_lives_on(running, tmp_path):
    values = values_of(tmp_path)
    with pytest.raises(FedpflError, match=r"num-clients = 7: this federation has 3 nodes"):
        forward("query", Payload(), {**values, "num-clients": 7}, NODE)
    with pytest.raises(WorkerError, match="KeyError: 'dance'"):
        forward("dance", Payload(), values, NODE)
    assert forward("query", Payload(), values, NODE).config["client"] == 1


def test_an_app_of_other_code_is_refused(running, tmp_path, monkeypatch):
    version = "99.0"
    monkeypatch.setattr(forwarding.code_hash, "of_package", lambda: "feed")
    monkeypatch.setattr(forwarding, "__version__", version)
    message = rf"worker runs other code \(fedpfl {re.escape(__version__)}, [0-9a-f]{{16}}\) than the app "
    with pytest.raises(FedpflError, match=rf"{message}\(fedpfl {re.escape(version)}, feed\): install the app's code"):
        forward("query", Payload(), values_of(tmp_path), NODE)


def test_an_app_that_speaks_another_version_of_the_protocol_is_refused(running, tmp_path, monkeypatch):
    spoken, seen = "fedpfl2", running.log().count("a request was dropped: app and worker")
    monkeypatch.setattr(protocol, "MAGIC", b"fedpfl2\n")
    # More than a socket holds: the worker must read it to its end before it answers.
    message = Payload({}, {}, {"shared": np.zeros(2_000_000, np.float32)})
    with pytest.raises(FedpflError, match=rf"different versions of fedpfl: one uses fedpfl1, the other {spoken}"):
        forward("train", message, values_of(tmp_path), NODE)
    wait_until(lambda: running.log().count("a request was dropped: app and worker") == seen + 1)


def test_bytes_that_are_no_request_disturb_nobody(running, tmp_path):
    seen = running.log().count("a request was dropped")
    for content in (b"", b"GET / HTTP/1.1\r\n\r\n" * 9, protocol.MAGIC + b"\xff" * 12):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(running.path))
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    assert forward("query", Payload(), values_of(tmp_path), NODE).config["client"] == 1
    assert running.log().count("a request was dropped") == seen + 3


def test_another_user_is_refused(running, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(FedpflError, match=r"the other end belongs to user \d+, and this process to user 12345"):
        forward("query", Payload(), values_of(tmp_path), NODE)


def test_requests_wait_for_each_other(running, tmp_path):
    values = values_of(tmp_path)
    nodes = [{"partition-id": client, "num-partitions": 3} for client in range(3)]
    messages = [asked(values, node) for node in nodes]
    asking = [InThread(forward, "train", message, values, node) for message, node in zip(messages, nodes, strict=True)]
    for answer, message, node in zip(asking, messages, nodes, strict=True):
        same(answer.result(), handle("train", message, {**values, "state-dir": str(tmp_path / "mine")}, node))


def test_a_worker_that_is_killed_during_a_request_costs_only_time(worker, tmp_path, monkeypatch):
    monkeypatch.setattr(forwarding, "WAIT_SECONDS", HANG_SECONDS)
    in_vain, connect = [], forwarding._connect

    def noted(path):
        connection = connect(path)
        in_vain.extend([True] if connection is None else [])
        return connection

    monkeypatch.setattr(forwarding, "_connect", noted)
    first = worker()
    values = values_of(tmp_path, model="small-cnn", local_epochs=100)
    message = asked(values, NODE)
    idle = ticks(first)
    asking = InThread(forward, "train", message, values, NODE)
    wait_until(lambda: ticks(first) > idle)
    first.send_signal(signal.SIGSTOP)  # it is at work now, and will not get further
    assert asking.running, "the training is too short for this test"
    first.kill()
    first.wait()
    wait_until(lambda: in_vain)  # its socket lies there, and nobody listens
    worker()
    same(asking.result(), handle("train", message, {**values, "state-dir": str(tmp_path / "mine")}, NODE))


def ticks(process):
    """Return the time that a process has worked, in the kernel's units of 10 ms."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_without_a_worker_this_process_answers(worker, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO, "flwr"):
        assert forward("query", Payload(), {}, NODE) is None
    assert f"no worker at {worker.path}; this process handles the request" in caplog.text
    # Left behind by one that was killed and does not come back.
    worker.path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(worker.path))
    monkeypatch.setattr(forwarding, "WAIT_SECONDS", 0.01)
    with caplog.at_level(logging.INFO, "flwr"):
        assert forward("query", Payload(), {}, NODE) is None
    assert "did not come back; this process handles the request" in caplog.text


def test_a_request_that_ends_its_worker_each_time_does_not_go_on_for_ever(worker, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    worker.path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(worker.path))
        listener.listen()

        def drop():
            for _ in range(forwarding.MAX_LOSSES + 1):
                listener.accept()[0].close()

        dropping = InThread(drop)
        with caplog.at_level(logging.INFO, "flwr"):
            assert forward("query", Payload(), {}, NODE) is None
        dropping.result()
    assert "ended 3 times during this request; this process handles the request" in caplog.text


def test_a_worker_in_an_old_python_takes_part(worker, tmp_path):
    worker(old_python())
    values = values_of(tmp_path)
    message = asked(values, NODE)
    theirs = forward("train", message, values, NODE)
    mine = handle("train", message, {**values, "state-dir": str(tmp_path / "mine")}, NODE)
    # Another torch rounds otherwise.
    assert theirs.metrics["train-samples"] == mine.metrics["train-samples"]
    np.testing.assert_allclose(theirs.arrays["shared"], mine.arrays["shared"], atol=1e-3)
    assert list((tmp_path / "state").rglob("round-000001.safetensors"))


class ForwardingGrid(LocalGrid):
    """Has the worker answer."""

    def answer(self, kind, payload, node_config):
        answer = forward(kind, payload, self.run_config, node_config)
        assert answer is not None, "the worker is not there"
        return answer


@pytest.mark.parametrize("method", each_method())
def test_clients_of_each_method_take_part_from_an_old_python(old_worker, method, tmp_path, monkeypatch):
    monkeypatch.setenv(protocol.SOCKET_VARIABLE, str(old_worker.path))
    # Without torchvision; and a step of pfedpara moves both factors of every weight.
    settings = {"method": method, "threads": 1, "num_server_rounds": 2}
    settings.update(fedreg_augmentation="none", learning_rate=0.005)
    theirs = simulate(tmp_path / "theirs", 3, grid=ForwardingGrid, **settings).metrics()
    mine = simulate(tmp_path / "mine", 3, **settings).metrics()
    assert [line.get("failed") for line in theirs] == [None] * 2
    for a, b in zip(theirs, mine, strict=True):
        assert a["personalised"]["accuracy"] == pytest.approx(b["personalised"]["accuracy"], abs=0.1)


@pytest.mark.parametrize("method", each_method())
def test_clients_of_each_method_train_in_bf16_in_an_old_python(old_worker, method, tmp_path, monkeypatch):
    monkeypatch.setenv(protocol.SOCKET_VARIABLE, str(old_worker.path))
    settings = {"method": method, "threads": 1, "num_server_rounds": 1, "learning_rate": 0.005, **FEW_SAMPLES}
    settings.update(fedreg_augmentation="none", precision="bf16")
    (theirs,) = simulate(tmp_path / "theirs", 2, grid=ForwardingGrid, **settings).metrics()
    (mine,) = simulate(tmp_path / "mine", 2, **settings).metrics()
    assert "failed" not in theirs
    for part in ("personalised", "global"):
        if part in mine:
            assert theirs[part]["loss"] == pytest.approx(mine[part]["loss"], rel=0.05)


@pytest.mark.parametrize("method", each_method())
def test_an_engine_ends_with_its_run_without_a_garbage_collection(method, tmp_path):
    options = {"keep_momentum": True, "momentum": 0.9, "validation_fraction": 0.2, "evaluate_trained": True,
               "diagnostics": True, "device_models": "always", "model": "mlp"}  # fmt: skip
    gc.disable()
    try:
        simulate(tmp_path, 2, method=method, num_server_rounds=1, threads=1, **options, **FEW_SAMPLES)
        (engine,) = map(ref, _engines.values())
        assert engine().parts
        _engines.clear()  # as the next run does
        assert engine() is None
    finally:
        gc.enable()


def test_a_device_keeps_an_engine_for_each_of_its_own_clients_and_only_of_one_run(tmp_path):
    rng = np.random.default_rng(1)
    paths = []
    for client in range(MAX_ENGINES + 1):
        paths.append(tmp_path / f"{client}.npz")
        np.savez(paths[-1], x=rng.integers(0, 256, (60, 8, 8, 1), np.uint8), y=np.arange(60) % 3)
    values = federation(tmp_path, 3, dataset="npz", data=str(paths[0]), num_classes=3)
    made = [engine_for(Config.parse(values), 9, str(path), client) for client, path in enumerate(paths[:MAX_ENGINES])]
    assert [engine_for(Config.parse(values), 9, str(path), i) for i, path in enumerate(paths[:MAX_ENGINES])] == made
    engine_for(Config.parse(values), 9, str(paths[-1]), MAX_ENGINES)
    assert len(_engines) == MAX_ENGINES
    assert made[0] not in _engines.values()
    engine_for(Config.parse({**values, "run-name": "next"}), 9, str(paths[0]), 0)
    assert len(_engines) == 1


def test_a_supernode_without_a_worker_gets_one_that_ends_with_it(tmp_path, monkeypatch):
    """In a ClientApp's process alone, where nobody says where a worker is."""
    values, node = federation(tmp_path, 2), {"partition-id": 0, "num-partitions": 2}
    runtime = Path(tempfile.mkdtemp(prefix="fedpfl-test-"))  # a socket's path is short
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.delenv(protocol.SOCKET_VARIABLE, raising=False)
    supernode = subprocess.Popen(["sleep", "600"])
    try:
        monkeypatch.setattr(os, "getppid", lambda: supernode.pid)
        assert forward("query", Payload(), values, node) is None
        monkeypatch.setattr(sys, "argv", ["/some/where/flwr-clientapp"])
        described = forward("query", Payload(), values, node)
        assert described.config["layout"] == handle("query", Payload(), values, node).config["layout"]
        folder = runtime / "fedpfl" / f"supernode-{supernode.pid}"
        (worker,) = (line for line in (folder / "worker.log").read_text().splitlines() if "ready at" in line)
        assert forward("query", Payload(), values, node) is not None
        assert (folder / "worker.log").read_text().count("ready at") == 1, worker
    finally:
        supernode.kill()
        supernode.wait()
    wait_until(lambda: not folder.exists())
    runtime.joinpath("fedpfl").rmdir()
    runtime.rmdir()
