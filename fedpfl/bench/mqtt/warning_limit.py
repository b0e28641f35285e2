"""Lines of the log about what others send."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from ...core.errors import printable

MAX_SENDERS = 1024


class Complaints:
    """Warnings about what others send: at most one line a second about each sender."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._lock = threading.Lock()
        self._last: OrderedDict[str, float] = OrderedDict()

    def __call__(self, sender: str, complaint: str, *details: object) -> None:
        """Log a warning about a sender, without control characters, unless there was one a moment ago."""
        now, sender = self._clock(), sender[:64]
        with self._lock:
            if now - self._last.get(sender, -1e9) < 1.0:
                return
            self._last[sender] = now
            self._last.move_to_end(sender)
            if len(self._last) > MAX_SENDERS:
                self._last.popitem(last=False)
        self._logger.warning("%s", printable(complaint % details))
