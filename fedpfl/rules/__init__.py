"""How the server combines what clients send: one class a rule, in plain NumPy.

A method says in ``Method.aggregation`` which rule it takes, and how that is set up. What several methods use is here; a
rule of one method stands next to it.
"""

from __future__ import annotations

from .rule import Noise, Rule

__all__ = ["Noise", "Rule"]
