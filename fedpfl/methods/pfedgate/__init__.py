"""pFedGate: the method, and the gate that picks blocks of the weights."""

from __future__ import annotations

from .pfedgate import PFedGate

__all__ = ["PFedGate"]
