"""A limit for the time that a piece of work takes, whatever code does it."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Iterator


class _TimeIsOver(BaseException):
    """Is raised in a thread from outside: not even ``except Exception`` of a user's code goes on then."""


class Deadline:
    """Whether the time of a piece of work is over."""

    is_over = False


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[Deadline]:
    """End the block at the next step of Python's once it has taken so long; ``is_over`` then is true after it."""
    deadline, thread, lock, finished = Deadline(), threading.get_ident(), threading.Lock(), False

    def end() -> None:
        with lock:
            if not finished:
                deadline.is_over = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TimeIsOver))

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
    timer.daemon = True
    timer.start()
    try:
        yield deadline
        with lock:
            finished = True
    except _TimeIsOver:
        pass
    finally:
        timer.cancel()
