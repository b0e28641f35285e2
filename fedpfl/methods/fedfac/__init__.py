"""FedFac and FedSplit: channels that are shared or personal, their factor analysis and their means."""

from __future__ import annotations

from .fedfac import FedFac
from .fedsplit import FedSplit

__all__ = ["FedFac", "FedSplit"]
