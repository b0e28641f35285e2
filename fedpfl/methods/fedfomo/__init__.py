"""FedFomo: the method, and the rule that chooses other clients' models for each client."""

from __future__ import annotations

from .fedfomo import FedFomo

__all__ = ["FedFomo"]
