"""What one round did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Round:
    """What one round did, as it is recorded.

    Attributes
    ----------
    number : int
        From 1.
    trained, evaluated : dict
        Numbers reported by each client, by client id.
    failed : dict
        Reasons of clients that did not answer or answered with an error, by client id.
    seconds_train, seconds_evaluate : float
        Wall time of the two halves, messages included.
    bytes_down, bytes_up : int
        Content of all messages to and from clients.
    bytes_evaluation_only : int
        Not among those: what travels for ``evaluate-global`` alone, both ways.
    details : dict of str to float
        What the rule and the listeners measured, for ``metrics.jsonl``.
    arrays : dict of str to ndarray
        What the rule wants kept of this round, each in a file of its own.
    privacy : dict of str to float
        What differential privacy has cost so far, see :meth:`ServerPrivacy.spent`; empty without it.
    line : dict
        The round's line of ``metrics.jsonl``; empty until it is recorded.
    """

    number: int
    trained: dict[int, dict[str, float]] = field(default_factory=dict)
    evaluated: dict[int, dict[str, float]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    seconds_train: float = 0.0
    seconds_evaluate: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_evaluation_only: int = 0
    details: dict[str, float] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    privacy: dict[str, float] = field(default_factory=dict)
    line: dict[str, Any] = field(default_factory=dict)
