"""How the server combines what clients send: one class a rule, in plain NumPy.

A method says in ``Method.aggregation`` which rule it takes, and how that is set up. Rules that several methods could
use, or that are long, are here; a short one may stand in its method's own file.
"""

from __future__ import annotations

from .rule import Noise, Rule

__all__ = ["Noise", "Rule"]
