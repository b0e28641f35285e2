"""How the server reaches the clients: over Flower, or in worker processes of this machine.

The strategies see neither.
"""

from __future__ import annotations

from .base import Request, Transport

__all__ = ["Request", "Transport"]
