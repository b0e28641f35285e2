"""Aggregation of the clients' replies on the server: one class a rule, in plain NumPy.

A method names its rule and the rule's options in ``Method.aggregation``. What several methods use is here; a
rule of one method stands next to it.
"""

from __future__ import annotations

from .rule import Noise, Rule, Vector

__all__ = ["Noise", "Rule", "Vector"]
