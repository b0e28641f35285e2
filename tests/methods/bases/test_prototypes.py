"""Class prototypes by hand: whose samples count, and what a class without samples keeps."""

from __future__ import annotations

import numpy as np
from support import play, rule

from fedpfl.methods.bases.prototypes import PrototypeRule


def test_a_class_that_nobody_has_in_a_round_keeps_its_prototype():
    strategy = rule(PrototypeRule, [0], (1, 1))
    # 3 and 1 samples of the first class, of the second 2 of one client; nobody has the third.
    counts = {0: [3, 2, 0], 1: [1, 0, 0]}
    play(strategy, 1, {0: [0], 1: [0]}, counts=counts, prototypes={0: [[1], [5], [0]], 1: [[9], [0], [0]]})
    np.testing.assert_allclose(strategy.prototypes, [[3], [5], [0]])
    assert strategy.known.tolist() == [1, 1, 0]
    play(strategy, 2, {1: [0]}, counts={1: [1, 0, 4]}, prototypes={1: [[7], [0], [2]]})
    np.testing.assert_allclose(strategy.prototypes, [[7], [5], [2]])
    assert strategy.known.tolist() == [1, 1, 1]
