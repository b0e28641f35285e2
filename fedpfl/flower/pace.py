"""The pace of polls of the SuperLink."""

from __future__ import annotations

import time

# Between two looks for replies, seconds: as a share of the time since the last reply, and as a multiple of what a look
# takes, up to a limit, as a look is slow on a busy machine, too.
SHORTEST_PAUSE, MAX_PAUSE, PAUSE_SHARE = 0.002, 1.0, 0.01
PAUSE_PER_LOOK, MAX_PAUSE_PER_LOOK = 5.0, 0.3


class Pace:
    """Pauses between polls of the SuperLink; it begins with the first poll.

    The pause is a small share of the time since something was found: 2 ms in a simulated round of a tenth of a second,
    1 s when devices train for minutes. A look at a simulation is a call, one at a SuperLink keeps that busy for 10 ms:
    the pause grows with that, too.
    """

    def __init__(self) -> None:
        self._found_at = self._looked_at = time.monotonic()

    def pause(self, new: bool) -> None:
        """Sleep after a poll that found something, or nothing."""
        now = time.monotonic()
        look = 0.0 if new else now - self._looked_at
        self._found_at = now if new else self._found_at
        share = min((now - self._found_at) * PAUSE_SHARE, MAX_PAUSE)
        time.sleep(max(share, min(look * PAUSE_PER_LOOK, MAX_PAUSE_PER_LOOK), SHORTEST_PAUSE))
        self._looked_at = time.monotonic()
