"""Where and in which number type a client computes: what the machine must have for it."""

from __future__ import annotations

import os
from typing import ContextManager

import torch

from ..core.errors import ConfigError
from ..core.process import computing, cores
from .settings import TrainingSettings

# The compute capability of NVIDIA's Ampere, the first GPUs that multiply bfloat16; newer PyTorch emulates it on others.
BF16_CAPABILITY = (8, 0)
# More end the process: OpenMP cannot make them.
THREADS_A_CORE = 8


def require_device(settings: TrainingSettings) -> None:
    """Raise ``ConfigError`` for a device or a precision that this machine does not have.

    Every CPU takes bf16. Those that cannot multiply it are slower with it than without.
    """
    if settings.device != "cuda":
        if settings.precision == "tf32":
            raise ConfigError("precision", "tf32", 'needs a GPU; use float32, or device = "cuda"')
        return
    if not torch.cuda.is_available():
        raise ConfigError("device", "cuda", "this machine has no GPU that PyTorch can use; use cpu")
    if settings.precision == "bf16" and torch.cuda.get_device_capability() < BF16_CAPABILITY:
        name = torch.cuda.get_device_name()
        raise ConfigError("precision", "bf16", f"the GPU {name} cannot compute with bfloat16; use float32")


def computing_as(settings: TrainingSettings, threads: int) -> ContextManager[None]:
    """Return the context of all that a run computes in a process: its threads, number types and precision."""
    return computing(threads, settings.device == "cuda", settings.device == "cuda" and settings.precision != "float32")


def threads_of(settings: TrainingSettings) -> int:
    """Return the number of threads of a client; ``ConfigError`` for more than any machine of this size can use."""
    most = THREADS_A_CORE * len(cores())
    if settings.threads > most:
        allowed = f"must be at most {most}, {THREADS_A_CORE} for each core of this machine"
        raise ConfigError("threads", settings.threads, allowed)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    # By default as many as a simulation's clients have: the bits depend on it, and small models gain nothing from more.
    return settings.threads or (int(asked) if asked.isdecimal() and int(asked) else 1)
