"""All that is used of Flower outside its documented interface: names that another version may change without a word.

Nothing else in this package imports a private name of Flower's or Ray's, or knows one; ``tests/test_flower_private.py``
sees to that and compares what stands here with the Flower that is installed.
"""

from __future__ import annotations

import hashlib
import os
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Why a message failed is said by a number, and the numbers have names in no public module.
CLIENT_APP_RAISED_EXCEPTION = 2

# Where SuperNodes talk to the SuperLink. It serves its other interfaces, with which one can run code, on the same port;
# the bridge therefore has to know which requests are SuperNodes'.
FLEET_API = "/v1/fleet/"

# A SuperLink that answers here has started. The documented commands are slower to ask than it is to start.
HEALTH = "/health"

# How long a SuperExec waits between two looks for a task, in seconds. Its own second is half of a small round.
TASK_POLL_INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"

# The module in whose loop a SuperExec does that, and what the loop calls when it has started a task's process.
SUPEREXEC_MODULE, TASK_STARTED = "flwr.supercore.superexec.run_superexec", "_handle_launch_result"
# The wait as a share of the time since the last task, and the longest, seconds: Flower's own.
TASK_POLL_SHARE, LONGEST_TASK_POLL = 0.01, 1.0

# The module in whose loop a SuperNode looks for messages, every 3 s, for which small rounds wait, and for the reply of
# its ClientApp, every 0.5 s. It waits for 0.1 s at least and for a share of the time since a message came or its reply
# went: of a small share, or of a larger one up to so many times as long as a look took, which is long at a busy
# SuperLink. So the next message of a round is seen soon, and a SuperNode that has nothing to do seldom looks.
SUPERNODE_MODULE = "flwr.supernode.start_client_internal"
SHORTEST_MESSAGE_POLL, MESSAGE_POLL_SHARE, EARLY_MESSAGE_POLL_SHARE, MESSAGE_POLL_LOOKS = 0.1, 0.05, 0.3, 40.0

# The module whose ClientApp unpacks its app, and by which function. Flower does so for every message, and throws the
# files away where the app is installed: half of the processor time of a small message.
CLIENT_APP_MODULE, INSTALL = "flwr.supernode.runtime.run_clientapp", "install_from_fab"

# How many objects of a message are moved at the same time, at most one for each core; Flower's own number is 2, and a
# message to or from a device has three.
CONCURRENCY = ("FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS", "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES")

# What the SuperLink logs. `flwr ls` shows a run's state, but costs more than a second of a core each time.
TASK_ENDED = "Finished task"
RUN_REFUSED = "Could not start run"
# What `flwr supernode register` prints for a key that the SuperLink has had, also of a node that was unregistered.
KEY_IN_USE = "Public key already in use"
# What `flwr ls` prints for a run that the SuperLink does not know.
UNKNOWN_RUN = "not found"

# Who pulls a message before all of its objects have arrived pauses before the next look: at first for a second, which
# is most of a small round, then twice as long each time, up to 10 s. So over a slow network a look could come as late
# again as an object took to arrive. With more looks at shorter pauses it waits as long in all, 5,000 s.
PULL_MODULE = "flwr.supercore.inflatable.inflatable_utils"
PULL_FUNCTIONS = ("pull_objects", "pull_and_inflate_object_from_tree")
PAUSES = {"initial_backoff": 0.05, "backoff_cap": 0.5, "max_tries_per_object": 10_000}


def shorten_pauses() -> None:
    """Let this process look for a message's missing objects sooner; do nothing where Flower has other names."""
    try:
        module = import_module(PULL_MODULE)
    except ImportError:
        return
    for name in PULL_FUNCTIONS:
        defaults = getattr(getattr(module, name, None), "__kwdefaults__", None) or {}
        if PAUSES.keys() <= defaults.keys():
            defaults.update(PAUSES)


def _that_sleeps(name: str) -> Any:
    """Return a module of Flower's that sleeps by ``time``; None where Flower has other names."""
    try:
        module = import_module(name)
    except ImportError:
        return None
    return module if getattr(module, "time", None) is time else None


def stretch_task_polls() -> None:
    """Let this process's SuperExec wait the longer for a task, the longer there was none.

    Do nothing where Flower has other names.
    """
    module = _that_sleeps(SUPEREXEC_MODULE)
    started = getattr(module, TASK_STARTED, None)
    if module is None or started is None:
        return
    last = time.monotonic()

    def note(*arguments: Any) -> None:
        nonlocal last
        last = time.monotonic()
        started(*arguments)

    def sleep(shortest: float) -> None:
        time.sleep(max(shortest, min((time.monotonic() - last) * TASK_POLL_SHARE, LONGEST_TASK_POLL)))

    setattr(module, TASK_STARTED, note)
    module.time = SimpleNamespace(sleep=sleep)


def shorten_message_polls() -> None:
    """Let this process's SuperNode look for messages sooner, the shorter ago there was one.

    Do nothing where Flower has other names.
    """
    module = _that_sleeps(SUPERNODE_MODULE)
    if module is None:
        return
    woke = last = time.monotonic()
    before = 0.0

    def sleep(longest: float) -> None:
        nonlocal woke, last, before
        now = time.monotonic()
        if longest != before:  # a message has come, or its reply has gone
            before, last = longest, now
        early = min(EARLY_MESSAGE_POLL_SHARE * (now - last), MESSAGE_POLL_LOOKS * (now - woke))
        time.sleep(min(longest, max(SHORTEST_MESSAGE_POLL, MESSAGE_POLL_SHARE * (now - last), early)))
        woke = time.monotonic()

    module.time = SimpleNamespace(sleep=sleep)


def install_apps_once(folder: Path) -> None:
    """Let this process's ClientApp, and those that are forked from it, unpack the same app only once.

    ``folder``, which is theirs alone, gets a file for each app that was installed: it has the place. Flower's own
    function installs what has another checksum, belongs into another ``FLWR_HOME`` or is no longer there. Do nothing
    where Flower has other names.
    """
    try:
        module = import_module(CLIENT_APP_MODULE)
    except ImportError:
        return
    install = getattr(module, INSTALL, None)
    if install is None:
        return

    def installed(content: bytes, *arguments: Any, **named: Any) -> Path:
        home = os.environb.get(b"FLWR_HOME", b"")
        note = folder / hashlib.sha256(home + b"\0" + content).hexdigest()
        if note.is_file() and (place := Path(note.read_text("utf-8"))).is_dir():
            return place
        place = Path(install(content, *arguments, **named))
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = note.with_name(f"{note.name}-{os.getpid()}")
        unfinished.write_text(str(place), "utf-8")
        unfinished.replace(note)  # another ClientApp reads all of it or nothing
        return place

    setattr(module, INSTALL, installed)
