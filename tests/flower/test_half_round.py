"""Devices that lose messages, come back as other nodes, or are slow."""

import pytest
from flwr.app import Error, Message
from support import FEW_SAMPLES, Clock, LocalGrid, federation, run_federation

from fedpfl.client.message_handler import handle
from fedpfl.core.errors import FedpflError
from fedpfl.core.payload import Payload, is_probe
from fedpfl.flower import half_round
from fedpfl.flower.messages import from_content

LOST_NODE, CRASHED = 5, 8


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    return Clock.of_the_server(monkeypatch)


class Bench(LocalGrid):
    """Devices instead of a simulation: one message after the other, and they answer probes."""

    in_turn = True

    def answer(self, kind, payload, node_config):
        if is_probe(payload):
            return Payload()
        reply = handle(kind, payload, self.run_config, node_config)
        if kind == "query":
            reply.config["in-turn"] = self.in_turn
        return reply

    def sent(self, kind, client):
        return sum((k, c) == (kind, client) and "round" in from_content(m).config for k, c, m, _ in self.log)

    def probes(self):
        return sum("probe" in from_content(message).config for _, _, message, _ in self.log)


class Forgetful(Bench):
    """Client 1 loses its first messages of a kind and then goes on with what comes later."""

    losses, kind = 1, "train"

    def arriving(self, kind, client, reply):
        if (kind, client) != (self.kind, 1) or not self.losses:
            return reply
        self.losses -= 1
        return None


def global_weights(folder):
    return (folder.path / "global.safetensors").read_bytes()


def run(tmp_path, grid, nodes=3, clock=None, **settings):
    few = {**FEW_SAMPLES, "model": "mlp", "local_epochs": 1, "num_server_rounds": 2}
    values = federation(tmp_path, nodes, **{**few, "method": "fedavg", "check_after": 0.2, **settings})
    grid = grid(nodes, values)
    grid.clock = clock
    return run_federation(grid, values), grid


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return global_weights(run(tmp_path_factory.mktemp("undisturbed"), Bench)[0])


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_lost_message_is_sent_again(tmp_path, undisturbed, kind):
    folder, grid = run(tmp_path, type("Once", (Forgetful,), {"kind": kind}))
    assert global_weights(folder) == undisturbed
    assert grid.sent(kind, 1) == 3
    assert all("failed" not in line for line in folder.metrics())


def test_a_device_that_loses_every_message_is_left_out(tmp_path):
    folder, grid = run(tmp_path, type("Always", (Forgetful,), {"losses": 100}), round_timeout=2)
    # Training has three quarters of it: the tests come after it.
    assert [line["failed"] for line in folder.metrics()] == [{"1": "no reply within 1.5 s"}] * 2
    assert grid.sent("train", 1) == 2 * 3
    assert grid.probes() == 2 * 2  # once it may be sent no more, there is nothing to ask for


def test_a_simulation_is_not_probed(tmp_path):
    folder, grid = run(tmp_path, type("Simulated", (Forgetful,), {"in_turn": False}), round_timeout=1.2)
    assert grid.probes() == 0
    assert folder.metrics()[0]["failed"] == {"1": "no reply within 0.9 s"}


def test_a_slow_device_is_asked_once_and_left_alone(tmp_path, undisturbed, clock):
    class Slow(Bench):
        until = 0.0

        def push_messages(self, messages):
            messages = list(messages)
            ids = super().push_messages(messages)
            if not self.until and messages[0].metadata.message_type == "train":
                self.until = clock.now + 0.6
            return ids

        def pull_messages(self, message_ids):
            # Nothing comes, the answer to the probe neither, until the training has ended.
            return [] if clock.now < self.until else super().pull_messages(message_ids)

    folder, grid = run(tmp_path, Slow)
    assert global_weights(folder) == undisturbed
    assert [grid.sent("train", client) for client in range(3)] == [2, 2, 2]
    assert grid.probes() == 3


def test_devices_are_asked_at_once_when_the_superlink_was_away(tmp_path, undisturbed, clock):
    class Away(Forgetful):
        away = 30.0

        def pull_messages(self, message_ids):
            # While client 1's message is lost, one look waits for a SuperLink that is started again.
            if self.away and not self.losses:
                clock.now, self.away = clock.now + self.away, 0.0
            return super().pull_messages(message_ids)

    folder, grid = run(tmp_path, Away, check_after=1000.0)
    assert global_weights(folder) == undisturbed
    assert grid.sent("train", 1) == 3
    assert clock.now < 100.0
    assert all("failed" not in line for line in folder.metrics())


class Moving(Bench):
    """Client 1's node is gone when round 1 begins; node 101 + ``moved`` is the same client."""

    moved = 0

    def get_node_ids(self):
        return [100, 101 + self.moved, 102]

    def push_messages(self, messages):
        messages = list(messages)
        out = []
        for message in messages:
            metadata = message.metadata
            if metadata.message_type == "train" and metadata.dst_node_id == 101:
                self.moved = 50
                metadata.__dict__["_message_id"] = "gone"
                self.replies["gone"] = Message(Error(LOST_NODE, "Node Unavailable"), reply_to=message)
                out.append("gone")
                continue
            metadata.__dict__["_dst_node_id"] -= 50 if metadata.dst_node_id == 151 else 0
            out += super().push_messages([message])
            if self.moved and metadata.dst_node_id == 101:
                metadata.__dict__["_dst_node_id"] = 151
                reply = self.replies[out[-1]]
                reply.metadata.__dict__["_src_node_id"] = 151
        return out


def test_a_client_that_comes_back_as_another_node_gets_its_message_there(tmp_path, undisturbed):
    folder, grid = run(tmp_path, Moving)
    assert grid.moved
    assert global_weights(folder) == undisturbed
    assert all("failed" not in line for line in folder.metrics())


class Restarting(Bench):
    """Client 1's node goes away during round 1's training and comes back later, if at all."""

    back_after = 0.5

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gone_at = None

    def get_node_ids(self):
        away = self.gone_at is not None and self.clock.now - self.gone_at < self.back_after
        return [node for node in super().get_node_ids() if not (away and node == 101)]

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        for message, message_id in zip(messages, ids, strict=True):
            if message.metadata.dst_node_id != 101 or message.metadata.message_type == "query":
                continue
            if self.gone_at is None or 101 not in self.get_node_ids():
                self.gone_at = self.gone_at or self.clock.now
                self.replies[message_id] = Message(Error(LOST_NODE, "Node Unavailable"), reply_to=message)
        return ids


def test_a_node_that_went_away_during_a_round_is_waited_for(tmp_path, undisturbed, clock):
    folder, grid = run(tmp_path, Restarting, clock=clock, check_after=5.0)
    assert global_weights(folder) == undisturbed
    assert grid.sent("train", 1) == 3


def test_a_node_that_stays_away_is_waited_for_once(tmp_path, clock):
    folder, grid = run(tmp_path, type("Dead", (Restarting,), {"back_after": 1e9}), clock=clock, check_after=3.0)
    first, second = folder.metrics()
    assert first["failed"] == {"1": "Node Unavailable"}
    assert second["clients"] == [0, 2]
    assert 3 < first["seconds_train"] < 3.1
    assert second["seconds_train"] < 0.1
    assert grid.sent("train", 1) == 2


def test_a_process_that_always_crashes_is_not_started_for_ever(tmp_path):
    class Crashing(Bench):
        crashes = 0

        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            return [self.crashed(reply) for reply in replies]

        def crashed(self, reply):
            if reply.metadata.message_type != "train" or reply.metadata.src_node_id != 101:
                return reply
            self.crashes += 1
            bad = Message(Error(CRASHED, "ClientApp crashed"), reply_to=reply)
            bad.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
            return bad

    folder, grid = run(tmp_path, Crashing)
    assert [line["failed"] for line in folder.metrics()] == [{"1": "ClientApp crashed"}] * 2
    assert grid.crashes == 2 * 3


def test_too_few_replies_end_the_run(tmp_path):
    with pytest.raises(FedpflError, match=r"round 1: 2 of at least 3 clients trained; client 1: no reply within 0.9 s"):
        run(tmp_path, type("Always", (Forgetful,), {"losses": 100}), round_timeout=1.2, min_replies=3)


def test_looking_for_replies_leaves_the_superlink_its_time(clock):
    pace = half_round.Pace()
    for look, has_replies in ((0.0, False), (0.01, False), (0.5, True), (0.0, False), (0.5, False)):
        clock.now += look
        pace.pause(has_replies)
    # A call, a request, one that brought a large reply, a call, and a SuperLink that is very busy.
    assert clock.slept == pytest.approx([0.002, 0.05, 0.002, 0.002, 0.3])
    clock.now += 200
    pace.pause(False)
    assert clock.slept[-1] == 1.0
