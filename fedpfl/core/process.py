"""Settings of the process, such as threads: each use sets them when it computes, and puts them back afterwards.

Also how a process that serves until it is told to end learns of that.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Callable, Iterator, Tuple

# What reads a setting of the whole process, and what sets it again.
_Setting = Tuple[Callable[[], Any], Callable[[Any], Any]]


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
        (deterministic, lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1])),
        *(_attribute(torch.backends.cudnn, name) for name in ("allow_tf32", "deterministic", "benchmark") if on_gpu),
    ]


@contextmanager
def process_kept(on_gpu: bool = False) -> Iterator[None]:
    """Put the process's threads, number types, precision and deterministic flags back to what they were before."""
    settings = _settings(on_gpu)
    before = [read() for read, _ in settings]
    try:
        yield
    finally:
        for (read, write), value in zip(settings, before):
            if read() != value:
                write(value)


@contextmanager
def computing(threads: int, on_gpu: bool = False, tf32: bool = False) -> Iterator[None]:
    """Compute with so many threads, in float32 (``tf32`` on a GPU) and with gradients, whatever was set before."""
    import torch

    with process_kept(on_gpu):
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_default_dtype() is not torch.float32:
            torch.set_default_dtype(torch.float32)
        precision = "high" if tf32 else "highest"
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        if on_gpu:  # PyTorch's default is TF32 in convolutions and float32 in other products
            torch.backends.cudnn.allow_tf32 = tf32
        with torch.enable_grad():
            yield


def set_by_signals(stopping: threading.Event, *numbers: signal.Signals) -> None:
    """Set an event when one of these signals comes, from a thread: a handler could wait for the event's own lock."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def wait() -> None:
        signal.sigwait(numbers)
        stopping.set()

    threading.Thread(target=wait, daemon=True).start()
