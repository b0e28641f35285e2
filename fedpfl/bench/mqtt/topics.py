"""The nine kinds of topics, who writes them and what they carry.

=================================  ==========  ======================================================================
topic                              written by  payload
=================================  ==========  ======================================================================
``fedpfl/request/DEVICE``          device      frames (`frames.py`) of an HTTP request
``fedpfl/response/DEVICE``         server      frames of the HTTP response
``fedpfl/node/DEVICE/presence``    device      JSON, retained; ``offline`` is the last will
``fedpfl/node/DEVICE/telemetry``   device      JSON: temperature, memory and power, as far as the board reports them
``fedpfl/bridge/presence``         server      JSON, retained; ``offline`` is the last will
``fedpfl/run/state``               server      JSON, retained: run, method, state, round
``fedpfl/run/rounds``              server      JSON: a line of ``metrics.jsonl`` without its clients
``fedpfl/run/clients/CLIENT``      server      JSON, retained: a client's accuracy after a round
``fedpfl/log/NAME``                both        JSON: a warning or an error of the process that is logged in as NAME
=================================  ==========  ======================================================================

``docs/devices/mqtt.md`` lists the keys of the JSON objects. Everything but requests and responses is for people: the
bridge works without it, apart from the server side's presence, which tells devices what is lost.
"""

from __future__ import annotations

import re

from ...core.errors import ConfigError

ROOT = "fedpfl"
REQUESTS = f"{ROOT}/request/+"
# What the topics of requests and responses begin with.
CARRYING = (f"{ROOT}/request/", f"{ROOT}/response/")
BRIDGE_PRESENCE = f"{ROOT}/bridge/presence"
TELEMETRY = f"{ROOT}/node/+/telemetry"
RUN_STATE = f"{ROOT}/run/state"
RUN_ROUNDS = f"{ROOT}/run/rounds"
# All that `fedpfl watch` reads.
WATCHED = (f"{ROOT}/node/+/presence", TELEMETRY, BRIDGE_PRESENCE, f"{ROOT}/run/#", f"{ROOT}/log/+")

# Names become parts of topics, of file names and of lines in the broker's files: no '/', '+', '#', ':' or space.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_name(text: str) -> bool:
    """Return whether a text can name a device or an account."""
    return _NAME.fullmatch(text) is not None


def checked_name(option: str, name: str) -> str:
    """Return ``name`` if it can name a device or an account."""
    if not is_name(name):
        raise ConfigError(option, name, "must be 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit")
    return name


def request(device: str) -> str:
    """Topic on which a device sends its requests."""
    return f"{ROOT}/request/{device}"


def response(device: str) -> str:
    """Topic on which a device gets its responses."""
    return f"{ROOT}/response/{device}"


def node_presence(device: str) -> str:
    """Topic that tells whether a device's side of the bridge is there."""
    return f"{ROOT}/node/{device}/presence"


def telemetry(device: str) -> str:
    """Topic of a device's temperature, memory and power."""
    return f"{ROOT}/node/{device}/telemetry"


def is_telemetry(topic: str) -> bool:
    """Return whether a topic is a device's telemetry."""
    return topic.startswith(f"{ROOT}/node/") and topic.endswith("/telemetry")


def client(number: int) -> str:
    """Topic of a client's metrics."""
    return f"{ROOT}/run/clients/{number}"


def log(name: str) -> str:
    """Topic of the warnings and errors of one process of the bridge."""
    return f"{ROOT}/log/{name}"
