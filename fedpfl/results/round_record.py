"""The record of one round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Round:
    """The record of one round."""

    number: int  # from 1
    # numbers that each client reported, by client id
    trained: dict[int, dict[str, float]] = field(default_factory=dict)
    evaluated: dict[int, dict[str, float]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # why clients did not answer, by client id
    unwritten: dict[int, str] = field(default_factory=dict)  # why clients could not write their models, by client id
    norms: dict[int, float] = field(default_factory=dict)  # of the updates of weights that counted, by client id
    joined: list[int] = field(default_factory=list)  # clients that are here for the first time
    asked_to_test: list[int] = field(default_factory=list)  # of those that have test samples, and who is absent
    seconds_train: float = 0.0  # wall time of each half, messages included
    seconds_evaluate: float = 0.0
    at_server: dict[str, float] = field(default_factory=dict)  # scores of the global model on the server's test set
    bytes_down: int = 0  # content of all messages to and from clients
    bytes_up: int = 0
    bytes_evaluation_only: int = 0  # Not among those: what travels for evaluate-global alone, both ways.
    details: dict[str, float] = field(default_factory=dict)  # of rule and listeners, for metrics.jsonl
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # that the rule keeps of this round, each in a file
    # what it has cost so far (ServerPrivacy.spent); empty without
    privacy: dict[str, float] = field(default_factory=dict)
    line: dict[str, Any] = field(default_factory=dict)  # of metrics.jsonl; empty until it is recorded
