"""The payload of a message in plain types: only ``flower/`` knows Flower's records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

import numpy as np

from .settings import Value

Number = Union[int, float]

# Name of the array that travels for `evaluate-global` alone: personal arrays from a client, their mean to all.
EVALUATION_ONLY = "evaluation-only"
# In the answer of a node that has data but does not know yet which client it is.
UNNUMBERED = "unnumbered"
# In a client's reply to a test: why it could not write its model on its own machine.
UNWRITTEN = "unwritten-model"


@dataclass
class Payload:
    """The content of a message.

    Attributes
    ----------
    config : dict of str to bool, int, float or str
        Instructions and descriptions.
    metrics : dict of str to int or float
        Numbers that were measured.
    arrays : dict of str to ndarray
        Vectors; ``shared`` is the flat vector of the shared arrays.

    Examples
    --------
    What a method's ``conclude`` may add to a client's reply:

    >>> import fedpfl
    >>> import numpy as np
    >>> reply = fedpfl.Payload(metrics={"drift": 0.25}, arrays={"means": np.zeros(3, np.float32)})
    >>> reply.arrays["means"].shape
    (3,)
    """

    config: dict[str, Value] = field(default_factory=dict)
    metrics: dict[str, Number] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def probe() -> Payload:
    """Return the question whether a node answers at all, for which no client's engine is needed."""
    return Payload({"probe": True})


def is_probe(message: Payload) -> bool:
    """Tell whether a message is :func:`probe`."""
    return message.config.get("probe") is True
