"""What the methods have in common that are made for adapters: models without any are refused."""

from __future__ import annotations

from torch import nn

from ..core.errors import ConfigError
from ..models.adapters import has_adapters
from ..models.trainable import LORA
from .base import Method

# Of an adapter B·A: the names of both matrices within an array's name.
A, B = "lora_A", "lora_B"


class AdapterMethod(Method):
    """Base of the methods for models with adapters (``trainable = "lora"``)."""

    def build(self, model: nn.Module) -> nn.Module:
        """Refuse a model without adapters."""
        if not has_adapters(model):
            raise ConfigError("method", self.name, f"needs trainable = {LORA}: this model has no adapters")
        return model


def is_matrix(name: str, matrix: str) -> bool:
    """Return whether an array is the matrix A or B of an adapter."""
    return matrix in name.split(".")
