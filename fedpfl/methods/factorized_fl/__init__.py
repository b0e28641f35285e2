"""Factorized-FL α and β: weights as outer products with a sparse rest, and means over similar clients."""

from __future__ import annotations

from .factorized_fl import FactorizedFL
from .factorized_fl_plus import FactorizedFLPlus

__all__ = ["FactorizedFL", "FactorizedFLPlus"]
