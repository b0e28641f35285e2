"""Where and in which number type a client computes: what the machine must have for it."""

from __future__ import annotations

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
