"""Settings of the process, such as threads: each use sets them when it computes, and puts them back afterwards.

Also how a process that serves until it is told to end learns of that.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Callable, ContextManager, Iterator, Sequence, Tuple

# What reads a setting of the whole process, and what sets it again.
_Setting = Tuple[Callable[[], Any], Callable[[Any], Any]]


def cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _attribute(owner: Any, name: str) -> _Setting:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


@lru_cache(maxsize=2)
def _settings(on_gpu: bool) -> list[_Setting]:
    import torch

    def deterministic() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    return [
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.is_grad_enabled, torch._C._set_grad_enabled),
        *(_attribute(torch.backends.cudnn, name) for name in ("allow_tf32", "deterministic", "benchmark") if on_gpu),
        (deterministic, lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1])),
    ]


@contextmanager
def process_kept(on_gpu: bool = False, wanted: Sequence[Any] = ()) -> Iterator[None]:
    """Put the process's threads, number types, precision and deterministic flags back to what they were before.

    ``wanted`` are values of the first settings within the block.
    """
    settings = _settings(on_gpu)
    before = [read() for read, _ in settings]
    for (_, write), value, now in zip(settings, wanted, before):
        if value != now:
            write(value)
    try:
        yield
    finally:
        for (read, write), value in zip(settings, before):
            if read() != value:
                write(value)


def computing(threads: int, on_gpu: bool = False, tf32: bool = False) -> ContextManager[None]:
    """Compute with so many threads, in float32 (``tf32`` on a GPU) and with gradients, whatever was set before."""
    import torch

    # PyTorch's default on a GPU is TF32 in convolutions and float32 in other products.
    of_gpu = [tf32] if on_gpu else []
    return process_kept(on_gpu, [threads, torch.float32, "high" if tf32 else "highest", True, *of_gpu])


def spin_shortly() -> None:
    """Have torch's threads soon sleep while they wait for each other, unless the owner says how.

    It acts before torch is imported. By default they spin for milliseconds: while other processes were busy, two
    threads took 20 s for a client that takes 2 s. Without any spinning they took 6 s when nothing else ran.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def set_by_signals(stopping: threading.Event, *numbers: signal.Signals) -> None:
    """Set an event when one of these signals comes, from a thread: a handler could wait for the event's own lock."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def wait() -> None:
        signal.sigwait(numbers)
        stopping.set()

    threading.Thread(target=wait, daemon=True).start()
