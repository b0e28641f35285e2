"""The round loop as a Flower Strategy, around the rule of the run's method, and what goes along with its rounds."""

from __future__ import annotations

from .companion import Companion
from .rounds import PersonalisedStrategy, RoundFailed

__all__ = ["Companion", "PersonalisedStrategy", "RoundFailed"]
