"""Warnings about what others send, and the page's table of limits."""

import logging
import re
from pathlib import Path

from fedpfl.bench.mqtt import device_side, frames, http_bytes, http_server, server_side
from fedpfl.bench.mqtt.warning_limit import MAX_SENDERS, Complaints


def test_warnings_are_one_a_second_about_each_sender_and_printable(caplog):
    now = [0.0]
    complain = Complaints(logging.getLogger("fedpfl.test"), lambda: now[0])
    for sender in ("a", "a", "b"):
        complain(sender, "%s sent %s", sender, "\x1b[2J\nforged" + "x" * 500)
    now[0] = 1.0
    complain("a", "again")
    lines = [record.getMessage() for record in caplog.records]
    assert [line[:6] for line in lines] == ["a sent", "b sent", "again"]
    assert all(line.isprintable() and len(line) <= 200 for line in lines)
    for number in range(2 * MAX_SENDERS):
        complain(str(number), "x")
    assert len(complain._last) == MAX_SENDERS


def test_the_page_has_the_limits():
    page = (Path(__file__).parents[3] / "docs" / "contributing" / "bridge.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| (\d+ \S*) *\|$", page, re.MULTILINE))
    mib = {
        "body": http_bytes.MAX_BODY_BYTES,
        "server's side: requests": server_side.MAX_BYTES,
        "server's side: responses": server_side.MAX_REQUESTS * http_bytes.MAX_BODY_BYTES,
        "device's side: bodies of requests": http_server.MAX_LONG_BODIES * http_bytes.MAX_BODY_BYTES,
        "device's side: responses": device_side.MAX_BYTES,
    }
    counts = {
        "requests that the server's side carries out at a time": server_side.MAX_REQUESTS,
        "messages that are being joined": frames.MAX_MESSAGES,
        "connections of SuperNodes": http_server.MAX_CONNECTIONS,
        "requests of SuperNodes at a time that are longer than 128 KiB": http_server.MAX_LONG_BODIES,
    }
    assert http_server.SHORT_BODY == 128 * 2**10
    expected = {name: f"{size // 2**20} MiB" for name, size in mib.items()}
    assert {name: value.strip() for name, value in rows.items()} == {
        **expected, **{name: str(count) for name, count in counts.items()}
    }  # fmt: skip
