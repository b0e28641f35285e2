"""FedReG: the method, its mean by part, and the rebalanced data."""

from __future__ import annotations

from .fedreg import FedReG

__all__ = ["FedReG"]
