"""The bridge as users start it: real mosquitto, both sides as processes, a plain HTTP server as the SuperLink."""

import contextlib
import os
import random
import re
import signal
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from mqtt_parts import (
    DEVICES,
    MOSQUITTO,
    PULL,
    PUSH,
    Broker,
    Process,
    Side,
    SuperLink,
    certificates,
    end_certificate,
    fedpfl_bridge,
    folder_text,
    publish,
)
from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.bench.mqtt import frames
from fedpfl.bench.mqtt.http_bytes import MAX_BODY_BYTES, HttpRequest

pytestmark = [
    pytest.mark.xdist_group("mqtt"),
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed (Debian: apt-get install mosquitto)"),
]
# The broker takes no more in one packet; everything larger must be cut.
CHUNK = 65_536


class Bench:
    def __init__(self, folder):
        self.folder = folder
        self.certificates = certificates(folder / "local")
        pair = self.certificates / "server.pem", self.certificates / "server.key"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        self.superlink = SuperLink(context)
        self.broker = Broker(folder, tls=True, max_chunk=CHUNK)
        upstream = ["--superlink-ca", self.certificates / "ca.pem", "--runs", folder / "runs"]
        self.server = Side.server(self.broker, folder, self.superlink, *upstream)
        self.device = Side.device(self.broker, folder, "nano-1", "--tls-cert", pair[0], "--tls-key", pair[1])

    def client(self, **options):
        verify = ssl.create_default_context(cafile=self.certificates / "ca.pem")
        return httpx.Client(
            base_url=f"https://{self.device.address}", verify=verify, **{"timeout": HANG_SECONDS, **options}
        )

    def close(self):
        for part in (self.device, self.server, self.broker):
            assert part.end() == 0, part.text()
        self.superlink.close()


@pytest.fixture(scope="module")
def testbed(tmp_path_factory):
    made = Bench(tmp_path_factory.mktemp("testbed"))
    yield made
    made.close()


@pytest.fixture
def client(testbed):
    with testbed.client() as client:
        yield client


def persistent_post(testbed, path, body):
    """Ask like a SuperNode: until there is an answer that is none of the bridge's own."""

    def post():
        with contextlib.suppress(httpx.TransportError), testbed.client() as client:
            response = client.post(path, content=body)
            return response if response.status_code not in (503, 504) else None

    return wait_until(post)


def works(testbed):
    body = random.Random(time.time()).randbytes(200_000)
    return persistent_post(testbed, PUSH, body).content == body[::-1]


# -- normal work -----------------------------------------------------------------------------------------------------


def test_a_round_trip_much_longer_than_the_broker_allows(testbed, client):
    body = random.Random(3).randbytes(3_000_000)
    response = client.post(PUSH, content=body)
    assert (response.status_code, response.content) == (200, body[::-1])
    assert response.headers["flwr-answer"] == "yes"


def test_sides_with_different_chunks_and_a_broker_with_a_limit_of_its_own_understand_each_other(tmp_path):
    broker, superlink = Broker(tmp_path, limit="max_packet_size 100000"), SuperLink()
    sides = [Side.server(broker, tmp_path, superlink), Side.device(broker, tmp_path, "nano-1", "--max-chunk", "4096")]
    body = random.Random(4).randbytes(300_000)
    try:
        with httpx.Client(base_url=f"http://{sides[1].address}", timeout=HANG_SECONDS) as client:
            assert client.post(PUSH, content=body).content == body[::-1]
        assert [side.text().count("lost broker") for side in sides] == [0, 0]
    finally:
        for part in (*sides, broker):
            part.end()
        superlink.close()


def test_headers_and_statuses_pass_as_they_are(testbed, client):
    path, signature = "/v1/fleet/says-403", "MGUCMQ==+/ /=="
    testbed.superlink.statuses[path] = 403
    sent = {"flwr-signature": signature, "Flwr-Timestamp": "2025-01-01T00:00"}
    response = client.post(path, content=b"why", headers=sent)
    assert (response.status_code, response.content) == (403, b"yhw")
    headers = next({name.lower(): value for name, value in h} for p, h, _ in testbed.superlink.seen if p == path)
    assert headers.items() >= {"flwr-signature": signature, "flwr-timestamp": "2025-01-01T00:00"}.items()
    assert "nano" not in headers.get("host", "")


def test_nothing_but_the_fleet_api_is_carried(testbed, client):
    with pytest.raises(httpx.RemoteProtocolError):
        client.post("/v1/control/start-run", content=b"x")
    assert all("control" not in path for path, *_ in testbed.superlink.seen)
    assert "not one to Flower's Fleet API" in testbed.device.text()


def test_each_supernode_gets_its_own_messages(testbed):
    names = [b"node-%d" % number for number in range(6)]
    for name in names:
        testbed.superlink.give(name, b"for " + name)
    pulls = [InThread(persistent_post, testbed, PULL, name) for name in names]
    assert [pull.result().content for pull in pulls] == [b"for " + name for name in names]
    assert persistent_post(testbed, PULL, names[0]).content == b""


# -- faults ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_the_middle(testbed, name):
    """What happens within happens while the SuperLink works on a request; its SuperNode asks until it is answered."""
    body = name * 20_000
    testbed.superlink.goes_on.clear()
    try:
        push = InThread(persistent_post, testbed, PUSH, body)
        wait_until(lambda: any(seen == body for _, _, seen in testbed.superlink.seen))
        yield
    finally:
        testbed.superlink.goes_on.set()
    assert push.result().content == body[::-1]
    testbed.superlink.give(name, b"message")
    assert persistent_post(testbed, PULL, name).content == b"message"


def test_the_broker_is_killed_in_the_middle(testbed):
    with in_the_middle(testbed, b"broker"):
        testbed.broker.restart()


def test_the_account_is_taken_over_in_the_middle(testbed):
    with in_the_middle(testbed, b"taken over"):
        length = len(testbed.device.text())
        other = testbed.broker.client("nano-1")  # the broker lets in the one that came last
        testbed.device.wait_for("lost broker", length)
        other.disconnect()
        other.loop_stop()


def test_the_broker_s_certificate_ends_and_another_one_takes_its_place(testbed):
    with in_the_middle(testbed, b"certificate"):
        place, logs = testbed.broker.certificates, (testbed.device, testbed.server)
        good = {name: (place / name).read_bytes() for name in ("server.pem", "server.key")}
        end_certificate(place)
        lengths = [len(side.text()) for side in logs]
        testbed.broker.restart()
        for side, since in zip(logs, lengths, strict=True):
            side.wait_for("its certificate is not accepted: certificate has expired); trying again", since)
        testbed.broker.end()
        for name, content in good.items():
            (place / name).write_bytes(content)
        testbed.broker.start()
        for side, since in zip(logs, lengths, strict=True):
            side.wait_for("connected to broker", since)
            assert side.text(since).count("certificate has expired") == 1


@pytest.mark.parametrize("side", ["server", "device"])
def test_a_side_is_killed_in_the_middle(testbed, side):
    with in_the_middle(testbed, side.encode()):
        getattr(testbed, side).restart()


@pytest.mark.faults
@pytest.mark.slow
def test_a_wrong_access_list_is_told(tmp_path):
    broker, superlink = Broker(tmp_path), SuperLink()
    access = tmp_path / "broker" / "access"
    access.write_text(access.read_text().replace("topic read fedpfl/response/nano-1\n", ""))
    broker.restart()
    sides = [Side.server(broker, tmp_path, superlink), Side.device(broker, tmp_path)]
    try:
        assert httpx.post(f"http://{sides[1].address}{PUSH}", content=b"x", timeout=HANG_SECONDS).status_code == 504
        assert (
            "list must let account nano-1 write fedpfl/request/nano-1 and read fedpfl/response/nano-1, and the server"
        ) in sides[1].text()
    finally:
        for part in (*sides, broker):
            part.end()
        superlink.close()


# -- security --------------------------------------------------------------------------------------------------------


def peak(side):
    """Return the most memory that a process has had, in bytes."""
    status = Path(f"/proc/{side.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def send_request(client, name, body, message_id=None, retain=False):
    (frame,) = frames.split(HttpRequest(PUSH, (), body).encode(), CHUNK)
    return publish(client, f"fedpfl/request/{name}", frame, retain, CorrelationData=message_id or os.urandom(16))


def complains(testbed, pattern, send):
    """Send something bad until the server's side says so: it complains about a device at most once a second."""

    def told():
        send()
        return re.search(pattern, testbed.server.text())

    wait_until(told)


def refused(testbed, *options):
    """Start a device's side that must not get in; return its last words."""
    command = fedpfl_bridge("device", "--device", "nano-2", "--listen", "127.0.0.1:0", *options)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert works(testbed)
    return done.stderr.strip().splitlines()[-1]


def test_a_wrong_password_or_certificate_and_a_password_that_others_can_read_are_refused(testbed, tmp_path):
    (wrong := tmp_path / "password").write_text("guess\n")
    wrong.chmod(0o600)
    for option, value, message in (
        ("--password-file", wrong, "refuses the account nano-2: Not authorized"),
        ("--ca", testbed.certificates / "ca.pem", "its certificate is not accepted"),
    ):
        options = testbed.broker.options("nano-2")
        options[options.index(option) + 1] = value
        assert message in refused(testbed, *options)
    wrong.chmod(0o644)
    assert "others can read it" in refused(testbed, "--broker", "127.0.0.1:1", "--password-file", wrong)


def test_a_superlink_with_a_wrong_certificate_is_refused(testbed, tmp_path):
    testbed.server.end()
    wrong = testbed.broker.certificates / "ca.pem"
    other = Side.server(testbed.broker, tmp_path, testbed.superlink, "--superlink-ca", wrong)
    try:
        with testbed.client() as client:
            assert client.post(PUSH, content=b"wrong ca").status_code == 503
        assert "certificate verify failed" in other.text()
        assert all(body != b"wrong ca" for _, _, body in testbed.superlink.seen)
    finally:
        other.end()
        testbed.server.start()
    assert works(testbed)


def test_another_device_s_topics_are_out_of_reach(testbed):
    intruder = testbed.broker.client("nano-2")
    try:
        intruder.subscribe([("fedpfl/response/nano-1", 1), ("fedpfl/request/+", 1), ("fedpfl/#", 1)])
        assert send_request(intruder, "nano-1", b"forged").value == 135
        for topic in ("fedpfl/response/nano-1", "fedpfl/node/nano-1/presence", "fedpfl/run/state", "fedpfl/log/server"):
            assert publish(intruder, topic, b"{}").value == 135
        assert works(testbed)
        assert all(body != b"forged" for _, _, body in testbed.superlink.seen)
        heard = [intruder.received.get().topic for _ in range(intruder.received.qsize())]
        assert {topic for topic in heard if topic != "fedpfl/bridge/presence"} == set()
    finally:
        intruder.disconnect()
        intruder.loop_stop()


def test_an_account_cannot_take_another_s_session(testbed):
    lost = testbed.device.text().count("lost broker")
    intruder = testbed.broker.client("nano-2")
    intruder.disconnect()
    intruder.loop_stop()
    intruder._client_id = b"nano-1"
    intruder.reconnect()
    intruder.loop_start()
    wait_until(intruder.is_connected)
    assert works(testbed)  # over the device's connection: if that had been lost, it had been noticed by now
    intruder.disconnect()
    intruder.loop_stop()
    assert testbed.device.text().count("lost broker") == lost


def test_malformed_and_oversize_frames_disturb_nobody(testbed):
    node, rng = testbed.broker.client("nano-2"), random.Random(5)
    (good,) = frames.split(HttpRequest(PUSH, (), b"f" * 3000).encode(), CHUNK)
    try:
        for _ in range(200):
            data = bytearray(good)
            data[rng.randrange(24)] ^= 1 << rng.randrange(8)
            publish(node, "fedpfl/request/nano-2", bytes(data), CorrelationData=rng.randbytes(16))
        publish(node, "fedpfl/request/nano-2", b"")
        huge = next(frames.split(bytes(frames.MAX_MESSAGE_BYTES + 1), CHUNK))
        message = f"a message of {frames.MAX_MESSAGE_BYTES + 1} bytes"
        complains(testbed, message, lambda: publish(node, "fedpfl/request/nano-2", huge, CorrelationData=bytes(16)))
        node.publish("fedpfl/request/nano-2", bytes(2 * CHUNK), 1)
        testbed.broker.wait_for("oversize packet")
    finally:
        node.disconnect()
        node.loop_stop()
    assert testbed.server.process.poll() is None
    assert works(testbed)


def test_a_payload_of_256_mb_ends_its_connection_before_it_is_stored(testbed):
    topic, length = b"fedpfl/request/nano-2", 2**28 - 64
    lengths = [left := length + len(topic) + 2 + 3, *(left >> 7 * i for i in (1, 2, 3))]
    head = b"\x32" + bytes([part & 127 | (128 if place < 3 else 0) for place, part in enumerate(lengths)])
    node, start = testbed.broker.client("nano-2"), len(testbed.broker.text())
    try:
        before = peak(testbed.broker)
        # What follows is not even read: nothing but the head says how long it is.
        with contextlib.suppress(OSError):  # the broker may hang up within it
            node.socket().sendall(head + len(topic).to_bytes(2, "big") + topic + b"\0\1\0" + bytes(100_000))
        testbed.broker.wait_for("oversize packet", start)
        assert peak(testbed.broker) - before < 2**24
    finally:
        node.disconnect()
        node.loop_stop()
    assert works(testbed)


def test_a_response_of_256_mb_is_refused_before_it_is_read(testbed, client):
    testbed.superlink.lengths[PUSH + "-long"] = 2**28
    before = peak(testbed.server)
    assert client.post(PUSH + "-long", content=b"x").status_code == 503
    assert peak(testbed.server) - before < 2 * frames.MAX_MESSAGE_BYTES
    assert testbed.server.text().count(f"the response is longer than {MAX_BODY_BYTES} bytes") == 1


def test_a_retained_request_is_carried_out_once(testbed):
    node = testbed.broker.client("nano-2")
    try:
        send_request(node, "nano-2", b"retained", retain=True)
        wait_until(lambda: b"retained" in {seen for _, _, seen in testbed.superlink.seen})
        testbed.server.restart()  # the broker would give it what is retained once more
        testbed.broker.restart(signal.SIGTERM)
        assert works(testbed)
        assert [seen for _, _, seen in testbed.superlink.seen].count(b"retained") == 1
    finally:
        node.disconnect()
        node.loop_stop()


def test_no_password_is_in_a_log_or_a_process_list(testbed):
    logs = "".join(part.text() for part in (testbed.broker, testbed.server, testbed.device))
    commands = " ".join(str(part) for side in (testbed.server, testbed.device) for part in side.command)
    for name in ("server", "watch", *DEVICES):
        password = testbed.broker.files.passwords[name].read_text().strip()
        assert password not in logs + commands
        assert testbed.broker.files.passwords[name].stat().st_mode & 0o077 == 0
        assert password not in (testbed.folder / "broker" / "accounts").read_text()
    assert folder_text(testbed.folder / "broker" / "passwords")


# -- waiting for the broker, and what can be watched -----------------------------------------------------------------


def test_the_sides_wait_for_a_broker_that_starts_late(tmp_path):
    broker = Broker(tmp_path)
    broker.end()
    command = fedpfl_bridge("device", "--device", "nano-1", *broker.options("nano-1"), "--listen", "127.0.0.1:0")
    side = Process(command, tmp_path / "late.log")
    try:
        side.wait_for("cannot be reached")
        broker.start()
        side.wait_for("ready 127.0.0.1:")
    finally:
        assert side.end() == 0
        broker.end()


def test_a_side_ends_while_the_broker_is_away(tmp_path):
    broker = Broker(tmp_path)
    side = Side.device(broker, tmp_path)
    broker.end()
    assert side.end() == 0
