"""FedDecomp: the method, and the layers with a full-rank and a low-rank weight."""

from __future__ import annotations

from .feddecomp import FedDecomp

__all__ = ["FedDecomp"]
