"""FedDyn's rule beyond what tests/methods/test_one_round.py holds against the paper's equations."""

from __future__ import annotations

import numpy as np
import pytest
from support import play, rule

from fedpfl.core.layout import Layout
from fedpfl.core.server_view import Client, Federation
from fedpfl.methods.feddyn import FedDynMean

LAYOUT = Layout.of([("fc.weight", (1,)), ("norm.running_mean", (1,)), ("norm.running_var", (1,)), ("norm.bias", (1,))])


def test_running_statistics_are_averaged_and_not_corrected():
    made = rule(FedDynMean, np.ones(4), (1, 2, 3, 4), LAYOUT, alpha=0.5)
    # Parameters: mean 2, moved by 1 + 1 over 4 clients, h = −0.5·2/4, −h/α = 0.5.
    play(made, 1, {0: [2, 0.2, 0.1, 3], 2: [2, 0.4, 0.3, 1]})
    assert made.shared.tolist() == pytest.approx([2.5, 0.3, 0.2, 2.5])
    assert made.h.tolist() == [-0.25, 0, 0, -0.25]


def test_moves_count_from_what_the_wire_has_left_of_the_arrays():
    federation = Federation(tuple(Client(i, 1 + i, 5) for i in range(4)), LAYOUT, wire_dtype="float16")
    made = FedDynMean(federation, np.full(4, 1 + 2**-13, np.float32), alpha=0.5)
    play(made, 1, {0: [3, 3, 3, 3], 2: [3, 3, 3, 3]})
    assert made.h.tolist() == [-0.5, 0, 0, -0.5]  # −0.5 / 4 · (2 + 2)
