"""Where and in which number type a client computes: what the machine must have for it, and how a step runs in it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ContextManager

import torch

from ..core.errors import ConfigError
from .settings import TrainingSettings

# The compute capability of NVIDIA's Ampere, the first GPUs that multiply bfloat16; newer PyTorch emulates it on others.
BF16_CAPABILITY = (8, 0)


def require_device(settings: TrainingSettings) -> None:
    """Set up the device; raise ``ConfigError`` for a device or a precision that this machine does not have.

    Every CPU takes bf16. Those that cannot multiply it are slower with it than without.
    """
    if settings.device != "cuda":
        if settings.precision == "tf32":
            raise ConfigError("precision", "tf32", 'only GPUs multiply so; use float32, or device = "cuda"')
        return
    if not torch.cuda.is_available():
        raise ConfigError("device", "cuda", "this machine has no GPU that PyTorch can use; use cpu")
    if settings.precision == "bf16" and torch.cuda.get_device_capability() < BF16_CAPABILITY:
        name = torch.cuda.get_device_name()
        raise ConfigError("precision", "bf16", f"the GPU {name} cannot compute with bfloat16; use float32")
    # PyTorch's default is TF32 in convolutions and float32 in other products.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = settings.precision != "float32"


def step_precision(settings: TrainingSettings) -> ContextManager[Any]:
    """Return what surrounds the forward pass of each training step; it may be entered any number of times.

    Nothing for float32 and tf32, autocast for bf16. Autocast does not keep a weight's copy in bfloat16 for a second use
    in a step: a method may move the weights between two forward passes (Per-FedAvg), and the copy would be out of date.
    """
    if settings.precision != "bf16":
        return nullcontext()
    return torch.autocast(settings.device, dtype=torch.bfloat16, cache_enabled=False)
