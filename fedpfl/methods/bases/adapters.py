"""Base of the methods that are made for adapters: models without any are refused."""

from __future__ import annotations

from torch import nn

from ...core.errors import ConfigError
from ...models.adapters import has_adapters
from ..base import Method


class AdapterMethod(Method):
    """Base of the methods for models with adapters (``trainable = "lora"`` or ``"adapters"``).

    Examples
    --------
    Share the matrix A of each adapter, keep B and the head:

    >>> import fedpfl
    >>> class SharesA(fedpfl.AdapterMethod):
    ...     name = "shares-a"
    ...
    ...     def is_shared(self, name, model):
    ...         return fedpfl.matrix_of(name) == "A"
    """

    def build(self, model: nn.Module) -> nn.Module:
        """Refuse a model without adapters."""
        if not has_adapters(model):
            raise ConfigError("method", self.name, "needs trainable = lora or adapters: this model has no adapters")
        return model
