"""Processes that a client's code makes by ``os.fork`` without ending or awaiting them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from typing import Iterator

from ..core.errors import FedpflError


@contextlib.contextmanager
def in_one_process() -> Iterator[None]:
    """Run a client's code as one process.

    A copy that the code forks and that comes to the end of the block ends there; otherwise it would go on as a second
    server or worker. Copies that the code has not waited for are killed, and ``FedpflError`` is raised. Processes of
    multiprocessing, such as those of a DataLoader, are left alone.
    """
    parent, fork = os.getpid(), getattr(os, "fork", None)
    if fork is None:
        yield
        return
    children = []

    def noted() -> int:
        pid: int = fork()
        children.append(pid)
        return pid

    os.fork = noted
    try:
        yield
    finally:
        os.fork = fork
        if os.getpid() != parent:
            os._exit(1)
        left = sum(map(_was_left, children))
    if left:
        raise FedpflError(f"its code made {left} process{'es' * (left > 1)} by os.fork and did not wait for the end")


def _was_left(pid: int) -> bool:
    """Return whether a forked process was not waited for; it is gone afterwards."""
    if any(child.pid == pid for child in multiprocessing.active_children()):
        return False
    try:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    except ChildProcessError:
        return False
    return True
