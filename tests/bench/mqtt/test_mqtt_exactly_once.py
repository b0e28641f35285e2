"""Nothing is done twice, and little lost: the two sides without a broker, over a link that does everything wrong."""

import heapq
import itertools
import random
import threading
import time
from contextlib import contextmanager

import pytest
from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.bench.mqtt import device_side, frames, server_side, topics
from fedpfl.bench.mqtt.account import LinkError
from fedpfl.bench.mqtt.device_side import DeviceBridge
from fedpfl.bench.mqtt.frames import Kind
from fedpfl.bench.mqtt.http_bytes import HttpRequest, Response
from fedpfl.bench.mqtt.limits import Budget, Claim
from fedpfl.bench.mqtt.publisher import Message
from fedpfl.bench.mqtt.server_side import ServerBridge
from fedpfl.bench.mqtt.upstream import UpstreamError

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"
NAME, NODE = "nano-1", b"node 7"


AS_IN_USE = {name: getattr(server_side, name) for name in ("POLL_SECONDS", "POLL_SECONDS_IDLE")}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(device_side, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(device_side, "PROBE_ANYWAY_SECONDS", 0.05)
    monkeypatch.setattr(device_side, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(device_side, "ANSWER_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(server_side, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(server_side, "POLL_SECONDS_IDLE", 0.02)


class Network:
    """Delivers messages in a thread of its own; ``fate`` decides for each: delays after which it arrives."""

    def __init__(self, fate=lambda frame: [0.0]):
        self.fate, self.handlers, self.log = fate, {}, []
        self._due, self._count, self._wake = [], itertools.count(), threading.Condition()
        self._open, self._delivering = True, False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, message):
        frame = frames.decode(message.id, message.payload)
        self.log.append(frame)
        with self._wake:
            for delay in self.fate(frame):
                heapq.heappush(self._due, (time.monotonic() + delay, next(self._count), message))
            self._wake.notify()

    @property
    def quiet(self):
        """Whether nothing is on its way."""
        with self._wake:
            return not self._due and not self._delivering

    def close(self):
        with self._wake:
            self._open = False
            self._wake.notify()
        self._thread.join(HANG_SECONDS)

    def _run(self):
        while True:
            with self._wake:
                self._delivering = False
                if not self._open:
                    return
                wait = self._due[0][0] - time.monotonic() if self._due else 1.0
                if wait > 0:
                    self._wake.wait(wait)
                    continue
                message = heapq.heappop(self._due)[2]
                handler = self.handlers.get(message.topic)
                self._delivering = True
            if handler is not None:
                handler(message)


class FakeLink:
    online, max_payload = True, 2000

    def __init__(self, network):
        self.network = network

    def publish(self, message, retain=False, qos=1):
        self.network.put(message)

    def send(self, messages, deadline):
        if not self.online:
            raise LinkError("no connection")
        for message in messages:
            self.publish(message)


class FakeSuperLink:
    """Gives each message away once and counts what it is asked to do."""

    def __init__(self):
        self.messages, self.done, self.down, self.lock = [], [], False, threading.Lock()

    @contextmanager
    def connect(self):
        yield self

    def call(self, request, room=lambda length: True):
        if self.down:
            raise UpstreamError("refused")
        with self.lock:
            if request.held:
                return Response(200, (), self.messages.pop(0) if self.messages else b"")
            self.done.append(request.body)
        if not room(len(request.body)):
            raise UpstreamError("no room")
        return Response(200, (("flwr-x", "y"),), bytes(request.body)[::-1])


class Bridge:
    def __init__(self, fate=lambda frame: [0.0], clock=time.monotonic):
        self.network, self.superlink, self.clock = Network(fate), FakeSuperLink(), clock
        self.start_server()
        self.start_device()

    def start_server(self):
        """A new process of the server's side."""
        self.server = ServerBridge(FakeLink(self.network), self.superlink, self.clock)
        self.network.handlers[topics.request(NAME)] = self.server.arrived

    def start_device(self):
        self.device = DeviceBridge(NAME, FakeLink(self.network))
        self.network.handlers[topics.response(NAME)] = self.device.arrived

    def ask(self, path, body, waits=lambda: True, fails=False, ready=lambda end: None):
        """Ask as a SuperNode; return the response, or None if it had gone or its connection broke."""
        got = []

        def answer(response):
            if fails:
                raise ConnectionResetError
            got.append(response)

        request = self.device.request(path, [("flwr-a", "b")], body)
        try:
            self.device.exchange(request, waits, lambda: None, answer, ready)
        except ConnectionResetError:
            if not fails:
                raise
        return got[0] if got else None

    def pull(self, **how):
        return self.ask(PULL, NODE, **how)

    def holds(self):
        """Return how many SuperNodes' requests the server's side holds."""
        return sum(len(device.holds) for device in self.server._devices.values())

    def taken(self):
        """Return the bytes that are held for requests and for responses on the server's side, and on the device's."""
        return [self.server._requests.held, self.server._responses.held, self.device._assembler._announced]

    def at_rest(self):
        """Return whether nothing is on its way and nothing is worked on."""
        return self.network.quiet and not self.server._threads

    def close(self):
        self.server.stop()
        self.network.close()


@pytest.fixture
def make():
    made = []

    def make(*args, **options):
        made.append(Bridge(*args, **options))
        return made[-1]

    yield make
    for bridge in made:
        bridge.close()


def misfortune(seed, drop=0.15, twice=0.2, late=0.03):
    rng = random.Random(seed)

    def fate(frame):
        if rng.random() < drop:
            return []
        return [rng.random() * late for _ in range(2 if rng.random() < twice else 1)]

    return fate


def test_a_request_and_its_response_in_many_frames(make):
    body = random.Random(1).randbytes(50_000)
    bridge = make()
    assert bridge.ask(PUSH, body) == Response(200, (("flwr-x", "y"),), body[::-1])
    assert sum(f.kind is Kind.REQUEST for f in bridge.network.log) > 25
    wait_until(bridge.at_rest)
    assert bridge.taken() == [0, 0, 0]


def test_everything_that_was_taken_is_given_back(make, monkeypatch):
    """After lost frames, repeated requests, broken connections and messages that were refused."""
    bridge, rng, take = make(misfortune(7)), random.Random(7), Claim.take
    with monkeypatch.context() as patch:
        patch.setattr(Claim, "take", lambda claim, *wanted: rng.random() > 0.1 and take(claim, *wanted))
        for number in range(8):
            bridge.superlink.messages.append(b"message")
            bridge.pull(fails=rng.random() < 0.5)
            bridge.ask(PUSH, bytes(5000), fails=number % 3 == 0)
    bridge.network.fate = lambda frame: [0.0]
    wait_until(bridge.at_rest)
    monkeypatch.setattr(server_side, "REMEMBER_SECONDS", -1.0)
    monkeypatch.setattr(frames, "STALE_SECONDS", -1.0)
    assert bridge.ask(PUSH, bytes(5000)).status == 200  # what others left unfinished is forgotten now
    wait_until(bridge.at_rest)
    bridge.server._forget(bridge.server._devices[NAME], time.monotonic())
    assert bridge.taken() == [0, 0, 0]


def test_frames_leave_while_the_body_still_arrives(make):
    body, sent = random.Random(1).randbytes(50_000), []
    bridge = make()
    assert bridge.ask(PUSH, body, ready=lambda end: sent.append((end, len(bridge.network.log)))).body == body[::-1]
    arriving = [sent_before for end, sent_before in sent if end < len(body)]
    assert arriving == list(range(len(arriving)))
    assert len(arriving) > 20


def test_a_supernode_that_leaves_within_its_body_leaves_nothing_behind(make):
    def ready(end):
        if end > 20_000:
            raise ConnectionResetError

    bridge = make()
    with pytest.raises(ConnectionResetError):
        bridge.ask(PUSH, bytes(50_000), ready=ready)
    assert bridge.ask(PUSH, b"next").body == b"txen"  # everything arrives in order: the first request is over by now
    assert [frame.kind for frame in bridge.network.log].count(Kind.CANCEL) == 1
    assert not bridge.server._devices[NAME].assembler._pending
    assert bridge.superlink.done == [b"next"]


@pytest.mark.parametrize("seed", range(6))
def test_dropped_doubled_late_and_reordered_messages(make, seed):
    bridge = make(misfortune(seed))
    expected, pulled, pushed = [b"message %d" % i for i in range(8)], [], []
    bridge.superlink.messages = list(expected)
    while len(pulled) < len(expected):
        response = bridge.pull()
        if response is not None and response.status == 200:
            pulled.append(response.body)
        pushed.append(b"%d" % len(pushed) * 1500)
        assert bridge.ask(PUSH, pushed[-1]).body == pushed[-1][::-1]
    assert pulled == expected
    assert bridge.superlink.done == pushed


def test_a_repeated_request_is_answered_from_the_store(make):
    copies = {Kind.REQUEST: 3}
    bridge = make(lambda frame: [0.0, 0.01, 0.02][: copies.get(frame.kind, 1)])
    assert bridge.ask(PUSH, b"once").body == b"ecno"
    wait_until(bridge.at_rest)
    assert bridge.superlink.done == [b"once"]


def test_a_response_that_is_lost_once_is_sent_again(make):
    lost = iter([True])
    bridge = make(lambda frame: [] if frame.kind is Kind.RESPONSE and next(lost, False) else [0.0])
    assert bridge.ask(PUSH, b"x" * 5000).status == 200
    assert len(bridge.superlink.done) == 1
    assert any(f.kind is Kind.PROBE for f in bridge.network.log)


def test_a_request_of_which_one_frame_is_lost_is_sent_again(make):
    lost = iter([True])
    bridge = make(lambda frame: [] if frame.kind is Kind.REQUEST and frame.index == 1 and next(lost, False) else [0.0])
    assert bridge.ask(PUSH, b"x" * 5000).status == 200
    assert len(bridge.superlink.done) == 1
    assert any(f.kind is Kind.AGAIN for f in bridge.network.log)


def test_a_confirmed_answer_is_not_given_again_though_the_confirmation_is_lost(make):
    bridge = make(lambda frame: [] if frame.kind is Kind.DELIVERED else [0.0])
    bridge.superlink.messages = [b"first", b"second"]
    assert [bridge.pull().body, bridge.pull().body] == [b"first", b"second"]


class Turns(threading.Condition):
    """The server side's clock, and what its held requests wait on between two looks: they wait for no real time.

    Who waits goes on when :meth:`pass_time` comes to the end of its wait.
    """

    def __init__(self):
        super().__init__()
        self.now, self._waits = 0.0, {}

    def wait_for(self, predicate, timeout=None):
        until = self.now + timeout
        self._waits[threading.get_ident()] = predicate, until
        super().wait_for(lambda: predicate() or self.now >= until)
        del self._waits[threading.get_ident()]
        return predicate()

    def work(self, seconds):
        """Take time."""
        with self:
            self.now += seconds
            self.notify_all()

    def pass_time(self, seconds, bridge):
        """Have time pass, never while a held request does something else than to wait."""
        end = self.now + seconds
        while self.now < end:
            self.all_wait(bridge)
            with self:
                self.now = min([end, *(until for _, until in self._waits.values())])
                self.notify_all()

    def all_wait(self, bridge):
        """Wait until all held requests do."""

        def asleep():
            with self:
                return sum(self.now < until and not predicate() for predicate, until in self._waits.values())

        wait_until(lambda: asleep() == bridge.holds())


@pytest.fixture
def in_turns(make, monkeypatch):
    """A bridge whose server's side goes by a clock of the test, and that clock."""
    for name, seconds in AS_IN_USE.items():
        monkeypatch.setattr(server_side, name, seconds)
    turns = Turns()
    bridge = make(clock=lambda: turns.now)
    bridge.server._news = turns
    return bridge, turns


def test_a_held_request_is_answered_when_there_is_a_message(in_turns):
    bridge, turns = in_turns
    pull = InThread(bridge.pull)
    wait_until(bridge.holds)
    turns.pass_time(3.0, bridge)
    assert pull.running
    bridge.superlink.messages = [b"now"]
    turns.pass_time(server_side.POLL_SECONDS_IDLE, bridge)
    assert pull.result().body == b"now"
    assert [frame.kind for frame in bridge.network.log].count(Kind.REQUEST) == 1


def test_many_supernodes_leave_the_superlink_its_time(in_turns):
    bridge, turns = in_turns
    looks, found, look_itself = [], [], bridge.superlink.call
    nodes = [b"node %d" % number for number in range(20)]

    def call(request, *room):
        looks.append(turns.now)
        turns.work(0.01)
        answer = look_itself(request, *room)
        if answer.body:
            found.append(turns.now)
        return answer

    bridge.superlink.call = call
    pulls = [InThread(bridge.ask, PULL, node) for node in nodes]
    wait_until(lambda: len(looks) >= len(nodes))
    turns.all_wait(bridge)
    bridge.server._announce()
    turns.all_wait(bridge)
    assert len(looks) >= 2 * len(nodes)
    turns.pass_time(2.5, bridge)
    # 1 s between two looks of the same; without regard for the others it were 0.05 to 0.25 s.
    assert len(looks) <= len(nodes) * (3 + turns.now)
    # They do not all come at once, as after the news: a message to any of many is found soon.
    end = turns.now
    assert len({int(10 * (end - at)) for at in looks if end - at < 1}) == 10
    bridge.superlink.messages = [b"for " + node for node in nodes]
    turns.pass_time(0.5, bridge)
    answers = [pull.result() for pull in pulls]
    assert sorted(bytes(answer.body) for answer in answers) == sorted(b"for " + node for node in nodes)
    # The first finds its message at its turn, the others because of it.
    assert max(found) - end < 0.5


@contextmanager
def chatting(bridge):
    """Keep another SuperNode of the device busy."""
    over = threading.Event()

    def chat():
        while not over.is_set():
            assert bridge.ask(PUSH, b"chat").status == 200

    thread = InThread(chat)
    try:
        yield
    finally:
        over.set()
        thread.result()


def test_a_lost_request_is_missed_though_other_supernodes_are_answered(make):
    lost = []

    def fate(frame):
        if frame.kind is Kind.REQUEST and not lost:
            lost.append(frame)
            return []
        return [0.0]

    bridge = make(fate)
    bridge.superlink.messages = [b"now"]
    pull = InThread(bridge.pull)
    wait_until(lambda: lost)
    with chatting(bridge):
        assert pull.result().body == b"now"


def test_a_hold_outlives_its_lease_while_other_supernodes_are_answered(make):
    now = [0.0]
    bridge = make(clock=lambda: now[0])
    with chatting(bridge):
        pull = InThread(bridge.pull)
        wait_until(bridge.holds)
        (hold,) = bridge.server._devices[NAME].holds.values()
        for _ in range(4):
            now[0] += 0.9 * server_side.LEASE_SECONDS
            wait_until(lambda: hold.holder.touched == now[0])  # the device has reminded of it
        assert now[0] > 3 * server_side.LEASE_SECONDS
        assert pull.running
        bridge.superlink.messages = [b"now"]
        assert pull.result().body == b"now"
    assert sum(f.kind is Kind.REQUEST and f.id == hold.holder.id for f in bridge.network.log) == 1


def test_holding_ends_when_the_supernode_leaves(make):
    bridge = make()
    gone = threading.Event()
    pull = InThread(bridge.pull, waits=lambda: not gone.is_set())
    wait_until(bridge.holds)
    gone.set()
    assert pull.result() is None
    wait_until(bridge.at_rest)
    bridge.superlink.messages = [b"stays"]
    assert bridge.holds() == 0  # nobody is there to take it


def test_a_newer_pull_takes_the_place_of_an_older_one(make):
    bridge = make()
    first = InThread(bridge.pull)
    wait_until(bridge.holds)
    second = InThread(bridge.pull)
    assert first.result().status == 503
    bridge.superlink.messages = [b"one"]
    assert second.result().body == b"one"


def test_a_held_request_ends_empty_before_its_signature_is_too_old(make, monkeypatch):
    monkeypatch.setattr(server_side, "HOLD_SECONDS", 0.2)
    bridge = make()
    assert bridge.pull() == Response(200)


@pytest.mark.parametrize("heard", [True, False])
def test_a_device_that_does_not_hear_the_server_side_says_what_it_may_lack(make, caplog, monkeypatch, heard):
    monkeypatch.setattr(device_side, "SELF_TEST_SECONDS", HANG_SECONDS if heard else 0.1)
    bridge = make(lambda frame: [0.0] if heard or frame.kind is Kind.PROBE else [])
    before = set(threading.enumerate())
    bridge.device.arrived(Message(topics.BRIDGE_PRESENCE, b'{"state": "online", "session": "1"}'))
    wait_until(lambda: len(bridge.network.log) == 2 and not set(threading.enumerate()) - before)
    assert ("account nano-1 write fedpfl/request/nano-1 and read fedpfl/response/nano-1" in caplog.text) is not heard
    assert [frame.kind for frame in bridge.network.log] == [Kind.PROBE, Kind.AGAIN]


@pytest.mark.parametrize("path", [PULL, PUSH])
def test_an_unreachable_superlink_is_503(make, path):
    bridge = make()
    bridge.superlink.down = True
    assert bridge.ask(path, NODE).status == 503


def test_no_word_from_the_server_side_is_504(make, monkeypatch):
    monkeypatch.setattr(device_side, "ANSWER_SECONDS", 0.2)
    bridge = make(lambda frame: [])
    assert bridge.ask(PUSH, b"x").status == 504


def test_requests_wait_for_the_connection_to_come_back(make):
    bridge = make()
    link = bridge.device._link
    link.online = False
    push = InThread(bridge.ask, PUSH, b"abc")
    wait_until(lambda: bridge.device._waiting)
    assert not bridge.network.log
    link.online = True
    assert push.result().body == b"cba"


def test_an_old_request_is_refused_and_never_carried_out(make, caplog):
    bridge = make()
    bridge.device._wall, bridge.server._wall = (lambda: 1000.0), (lambda: 1301.0)
    assert bridge.ask(PUSH, b"stale").status == 504
    assert bridge.superlink.done == []
    assert "301 s old" in caplog.text


class HeldLink(FakeLink):
    """Counts who waits in ``send``, which goes on when ``open`` is set."""

    def __init__(self, network):
        super().__init__(network)
        self.open, self.waiting, self.most, self.lock = threading.Event(), 0, 0, threading.Lock()

    def send(self, *args, **options):
        with self.lock:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
        self.open.wait(HANG_SECONDS)
        super().send(*args, **options)
        with self.lock:
            self.waiting -= 1


@pytest.fixture
def held():
    """A server's side whose responses wait, and how a device tells it something."""
    network = Network()
    server = ServerBridge(HeldLink(network), FakeSuperLink())

    def tell(kind, number, content=b""):
        (payload,) = frames.split(kind, content, 2000)
        message_id = number.to_bytes(16, "big")
        server.arrived(Message(topics.request(NAME), payload, message_id, topics.response(NAME), 30))

    yield server, tell
    server._link.open.set()
    server.stop()
    network.close()


def push():
    return HttpRequest(PUSH, (), b"x", time.time()).encode()


def test_repeats_that_wait_for_the_broker_are_few(held):
    server, tell = held
    link = server._link
    link.open.set()
    for number in range(30):
        tell(Kind.REQUEST, number, push())
    wait_until(lambda: len(link.network.log) == 30 and link.waiting == 0)
    link.open.clear()
    link.most = 0
    for _ in range(2):
        for number in range(30):
            tell(Kind.PROBE, number)
    wait_until(lambda: link.waiting == server_side.MAX_REPEATED)
    assert link.most == server_side.MAX_REPEATED
    link.open.set()
    wait_until(lambda: link.waiting == 0 and not any(e.sending for e in server._devices[NAME].exchanges.values()))
    tell(Kind.PROBE, 29)  # which was dropped before
    wait_until(lambda: link.network.log[-1].id == (29).to_bytes(16, "big"))


def test_requests_whose_responses_wait_are_bounded(held, monkeypatch):
    server, tell = held
    monkeypatch.setattr(server, "_max_running", 5)
    for number in range(40):
        tell(Kind.REQUEST, number, push())
        wait_until(lambda: not any(e.running for e in server._devices[NAME].exchanges.values()))
    wait_until(lambda: server._link.waiting == server_side.MAX_REPEATED)
    assert len(server._upstream.done) == 5


def test_a_device_s_responses_take_its_share_and_the_oldest_are_forgotten(held):
    server, tell = held
    server._responses = Budget(1000, each=10)
    server._link.open.set()
    for number in range(6):
        tell(Kind.REQUEST, number, HttpRequest(PUSH, (), b"1234", time.time()).encode())
        wait_until(lambda: not server._threads)
    assert server._responses.held == 8
    log = server._link.network.log
    assert len(log) == 6
    for number, status in ((0, b'"status":503'), (5, b'"status":200')):
        tell(Kind.PROBE, number)
        wait_until(lambda: server._devices[NAME].sending == 0 and len(log) > 6)
        assert status in bytes(log.pop().piece)
    for number in range(6):
        tell(Kind.DELIVERED, number)
    assert server._responses.held == 0


def test_in_one_process_each_node_has_its_share_of_the_responses(held, monkeypatch):
    server, tell = held
    server._responses, server._by_node = Budget(20), True
    server._link.open.set()
    monkeypatch.setattr(server_side, "ROOM_SECONDS", 0.0)

    def status_of(number, node):
        tell(Kind.REQUEST, number, HttpRequest(PUSH, (("Flwr-Public-Key", node),), b"12345678", time.time()).encode())
        wait_until(lambda: not server._threads)
        return bytes(server._link.network.log[-1].piece).partition(b",")[0][-3:]

    # None is forgotten for another: the device's side has them still.
    assert [status_of(0, "a"), status_of(1, "a"), status_of(2, "b")] == [b"200", b"503", b"200"]
    tell(Kind.DELIVERED, 0)
    tell(Kind.DELIVERED, 2)
    assert status_of(3, "a") == b"200"


def test_what_all_devices_send_together_is_bounded_and_a_refused_message_comes_again(make):
    bridge = make()
    bridge.server._requests = Budget(20_000)
    other = bridge.server._requests.claim("nano-2")
    other.add(15_000)
    refused = InThread(bridge.ask, PUSH, bytes(6000))
    wait_until(lambda: sum(frame.kind is Kind.AGAIN for frame in bridge.network.log) > 1)
    assert refused.running
    assert bridge.server._requests.held < 20_000
    other.release()
    assert refused.result().status == 200


def test_names_that_are_no_device_s_and_too_many_devices_are_refused(held, caplog, monkeypatch):
    server, _ = held
    monkeypatch.setattr(server_side, "MAX_SENDERS", 1)
    for name in (NAME, "nano 1", "", "nano-2"):
        server.arrived(Message(topics.request(name), frames.single(Kind.PROBE), bytes(16), topics.response(name), 30))
    assert list(server._devices) == [NAME]
    assert "no device" in caplog.text


def test_a_cancelled_request_makes_no_other_look(in_turns):
    bridge, turns = in_turns
    looks, look_itself = [], bridge.superlink.call

    def call(request, *room):
        looks.append(bytes(request.body))
        return look_itself(request, *room)

    bridge.superlink.call = call
    pull = InThread(bridge.pull)
    wait_until(bridge.holds)
    turns.all_wait(bridge)
    before = len(looks)
    gone = threading.Event()
    other = InThread(bridge.ask, PULL, b"other", waits=lambda: not gone.is_set())
    wait_until(lambda: bridge.holds() == 2)
    turns.all_wait(bridge)
    gone.set()
    assert other.result() is None
    wait_until(lambda: bridge.holds() == 1)
    turns.all_wait(bridge)
    assert NODE not in looks[before:]
    bridge.superlink.messages = [b"now"]
    turns.pass_time(1.0, bridge)
    assert pull.result().body == b"now"


def test_a_request_for_which_there_is_no_thread_is_asked_for_again(held, monkeypatch, caplog):
    server, tell = held
    server._link.open.set()

    def start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        tell(Kind.REQUEST, 1, push())
    assert "dropped a request of nano-1: can't start new thread" in caplog.text
    tell(Kind.PROBE, 1)
    assert [frame.kind for frame in server._link.network.log] == [Kind.AGAIN]
    tell(Kind.REQUEST, 1, push())
    wait_until(lambda: server._upstream.done == [b"x"])


def test_an_answer_for_which_there_is_no_thread_is_asked_for_again(held, monkeypatch, caplog):
    server, tell = held
    server._link.open.set()
    tell(Kind.REQUEST, 1, push())
    wait_until(
        lambda: len(server._link.network.log) == 1 and not server._devices[NAME].exchanges[bytes(15) + b"\1"].sending
    )

    def start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        tell(Kind.PROBE, 1)
    assert "dropped an answer for nano-1: can't start new thread" in caplog.text
    tell(Kind.PROBE, 1)
    wait_until(lambda: [frame.kind for frame in server._link.network.log] == [Kind.RESPONSE] * 2)
