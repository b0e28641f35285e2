"""Python imports this at the start of each process whose PYTHONPATH has this folder: some then suffer what networks do.

FEDPFL_TEST_DISTURB says which. ``messages``: in the bridge's processes, messages from the broker are lost.
``answers``: a SuperNode does not get one answer to each of two calls that the SuperLink has carried out, in which a
message is handed over and a result is taken. ``code``: a device's worker has other code than the app. ``clock``,
``device clock``: the clock of all processes, or of SuperNodes alone, is ahead by the seconds in the file that
FEDPFL_TEST_CLOCK names, if it is there.
"""

from __future__ import annotations

import datetime
import os
import random
import sys
import time
from pathlib import Path

DROPPED = 0.02
# Of a client's messages the first is the query, the second a round's training, the third its test.
LOST_ANSWERS = {"/v1/fleet/pull-messages": 2, "/v1/fleet/push-messages": 2}
# An answer without a message is shorter.
HAS_MESSAGE = 100


def _disturb_link() -> None:
    from fedpfl.bench.mqtt.link import Link

    rng, deliver = random.Random(os.getpid()), Link._arrived

    def arrived(self, client, data, message):
        if rng.random() >= DROPPED:
            deliver(self, client, data, message)

    Link._arrived = arrived


def _lose_answers() -> None:
    import httpx

    seen = dict.fromkeys(LOST_ANSWERS, 0)
    send = httpx.Client.send

    def lossy(self, request, **how):
        response = send(self, request, **how)
        path = request.url.path
        if path in seen and (not path.endswith("pull-messages") or len(response.read()) > HAS_MESSAGE):
            seen[path] += 1
            if seen[path] == LOST_ANSWERS[path]:
                print(f"disturbed: the answer to {path} is lost", flush=True)
                raise httpx.ReadError("lost by the test")
        return response

    httpx.Client.send = lossy


def _have_other_code() -> None:
    from fedpfl.core import code_hash

    code_hash.of_package = lambda: "feed"


def _set_clock() -> None:
    now, place = time.time, Path(os.environ["FEDPFL_TEST_CLOCK"])

    def ahead():
        return float(place.read_text()) if place.exists() else 0.0

    class Ahead(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(seconds=ahead())

    time.time, datetime.datetime = (lambda: now() + ahead()), Ahead


PARTS = {
    "messages": ("fedpfl.cli.bridge", _disturb_link), "answers": ("flower-supernode", _lose_answers),
    "code": ("fedpfl.bench.device.worker", _have_other_code),
    "clock": ("", _set_clock), "device clock": ("flower-supernode", _set_clock),
}  # fmt: skip

program, disturb = PARTS[os.environ["FEDPFL_TEST_DISTURB"]]
if any(program in word for word in sys.orig_argv):
    disturb()
