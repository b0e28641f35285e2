"""Waits for what must happen, however long a busy machine takes for it.

No test passes or fails because of how fast something is: it waits for an event, or runs by a clock of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

# What has not happened by then never will. It only ends a test that hangs.
HANG_SECONDS = 300.0
POLL_SECONDS = 0.01


def wait_until(
    condition: Callable[[], Any],
    possible: Callable[[], object] = lambda: True,
    hint: Any = "",
    seconds: float = HANG_SECONDS,
) -> Any:
    """Wait until a condition holds.

    Parameters
    ----------
    condition : callable
        Is called again and again.
    possible : callable
        Says whether it can still come to hold.
    hint : str or callable
        What to show if it does not; a callable returns it.
    seconds : float
        After which it never will.

    Returns
    -------
    object
        What ``condition`` returned, which is true.

    Raises
    ------
    AssertionError
        It cannot come to hold any more, or has not in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        still_possible = possible()  # asked first: what ends may have fulfilled the condition just before
        if value := condition():
            return value
        if not still_possible or time.monotonic() > deadline:
            told = hint() if callable(hint) else hint
            raise AssertionError(f"it {'did' if still_possible else 'can'} not happen{f': {told}' if told else ''}")
        time.sleep(POLL_SECONDS)


class InThread:
    """Runs a function in a thread.

    Parameters
    ----------
    function, *args, **kwargs
        What to call.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._call = lambda: function(*args, **kwargs)
        self._returned: list[Any] = []
        self._raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._returned.append(self._call())
        except BaseException as error:  # noqa: BLE001 (result() raises it in the thread that asks)
            self._raised = error

    @property
    def running(self) -> bool:
        """Whether the function has not returned yet."""
        return self._thread.is_alive()

    def result(self) -> Any:
        """Wait for the end; return what the function returned, or raise what it raised."""
        self._thread.join(HANG_SECONDS)
        assert not self._thread.is_alive(), "it did not end"
        if self._raised is not None:
            raise self._raised
        return self._returned[0]
