"""The bridge without a broker: one process between SuperNodes and SuperLink, with a SuperLink's stand-in behind it."""

from __future__ import annotations

import ssl
import subprocess

import httpx
import pytest
from mqtt_parts import PULL, PUSH, Process, SuperLink, certificates, fedpfl_bridge, free_port
from waiting import HANG_SECONDS, InThread, wait_until

NODES = 12


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("direct")
    made, superlink = certificates(folder / "certificates"), SuperLink()
    address = f"127.0.0.1:{free_port()}"
    tls = ("--tls-cert", made / "server.pem", "--tls-key", made / "server.key")
    places = ("--superlink", f"127.0.0.1:{superlink.port}")
    bridge = Process(fedpfl_bridge("direct", "--listen", address, *tls, *places), folder / "log", "ready")
    bridge.address, bridge.superlink = address, superlink
    bridge.context = ssl.create_default_context(cafile=made / "ca.pem")
    yield bridge
    assert bridge.end() == 0
    superlink.close()


def node(bench):
    return httpx.Client(base_url=f"https://{bench.address}", verify=bench.context, timeout=HANG_SECONDS)


def test_a_pull_is_held_until_there_is_a_message_and_each_node_gets_its_own(bench):
    names = [b"node-%d" % number for number in range(NODES)]

    def pull(name):
        with node(bench) as client:
            return client.post(PULL, content=name).content

    pulls = [InThread(pull, name) for name in names]
    for name in names:
        wait_until(lambda name=name: bench.superlink.pulls[name] > 2)
    for name in reversed(names):
        bench.superlink.give(name, b"for " + name)
    assert [pull.result() for pull in pulls] == [b"for " + name for name in names]


def test_what_goes_through_comes_back_as_it_was(bench):
    content = bytes(range(256)) * 40_000
    with node(bench) as client:
        assert client.post(PUSH, content=b"first").content == b"tsrif"  # the SuperLink accepts this node
        answer = client.post(PUSH, content=content, headers={"flwr-signature": "s"})
    assert (answer.content, answer.headers["flwr-answer"]) == (content[::-1], "yes")
    (headers,) = [dict(headers) for path, headers, body in bench.superlink.seen if body == content]
    assert headers["flwr-signature"] == "s"


def test_nothing_but_the_fleet_api_passes(bench):
    with node(bench) as client:
        for path in ("/v1/control/start-run", "/v1/fleet/../control/start-run", "/health"):
            with pytest.raises(httpx.RemoteProtocolError):
                client.post(path, content=b"")
    assert not [path for path, *_ in bench.superlink.seen if "control" in path]


def test_an_answer_survives_the_bridge_and_is_given_once(bench):
    """It is killed while it waits for the SuperLink; the SuperNode asks again, as after any broken connection."""
    with node(bench) as client:
        held = InThread(lambda: client.post(PULL, content=b"killed").content)
        wait_until(lambda: bench.superlink.pulls[b"killed"])
        bench.restart()
        with pytest.raises(httpx.TransportError):
            held.result()
    with node(bench) as client:
        bench.superlink.give(b"killed", b"once")
        assert client.post(PULL, content=b"killed").content == b"once"


@pytest.mark.parametrize(("options", "words"), [
    (("--listen", "0.0.0.0:9092"), "is not loopback: --tls-cert and --tls-key are missing"),
    (("--listen", "nowhere"), "must be host:port"),
    (("--tls-cert", "ca.pem"), "goes together with --tls-key"),
])  # fmt: skip
def test_mistakes_are_one_line(tmp_path, options, words):
    command = fedpfl_bridge("direct", *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode != 0
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
