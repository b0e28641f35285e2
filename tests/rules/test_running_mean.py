"""Sums of weighted vectors: one by one, at once, and near the exact one."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedpfl.rules.running_mean import RunningMean, group_size

EPSILON = Fraction(2) ** -52


weights = st.integers(0, 10**6).map(float) | st.floats(0, 1e6)


@st.composite
def replies(draw):
    """Draw clients' vectors, weights and whether a group begins: any finite values that the wire's numbers can hold."""
    value = st.floats(width=draw(st.sampled_from([16, 32])), allow_nan=False, allow_infinity=False)
    vector = st.lists(value, min_size=(size := draw(st.integers(1, 4))), max_size=size)
    return draw(st.lists(st.tuples(vector, weights, st.booleans()), min_size=1, max_size=40))


@given(replies())
@example([([3.4028234663852886e38], 1e6, False), ([2.0**-149], 1e-300, False), ([-3.4028234663852886e38], 1e6, True)])
@example([([2.0**-24, 65504.0], 3.0, False), ([2.0**-24, -65504.0], 5e-324, True), ([-(2.0**-149), 0.0], 0.1, False)])
def test_rows_added_at_once_have_the_sum_of_rows_added_one_by_one_which_is_near_the_exact_one(rows):
    size, count = len(rows[0][0]), len(rows)
    vectors = [np.array(row, np.float32) for row, _, _ in rows]
    groups = list(itertools.accumulate(begins for _, _, begins in rows))  # a group begins where the row says so
    weights = [weight for _, weight, _ in rows]
    for of_group in (groups, [None] * count):
        together, at_once, here = RunningMean(size), RunningMean(size), count // 3
        for vector, weight, group in zip(vectors, weights, of_group, strict=True):
            together.add(vector, weight, group)
        # Some one by one, and the others, which may go on with their group, as two batches.
        for vector, weight, group in list(zip(vectors, weights, of_group, strict=True))[:here]:
            at_once.add(vector, weight, group)
        for batch in (slice(here, 2 * here), slice(2 * here, None)):
            if vectors[batch]:
                at_once.add_rows([*map(torch.from_numpy, vectors[batch])], weights[batch], of_group[batch])
        assert together.total().tobytes() == at_once.total().tobytes()
        assert together.weights == at_once.weights
    weight = sum(Fraction(w) for _, w, _ in rows)
    for place in range(size):
        summands = [Fraction(float(v[place])) * Fraction(w) for v, (_, w, _) in zip(vectors, rows, strict=True)]
        # Each product and each sum rounds once; a product may also end among the smallest numbers.
        bound = (count + 1) * EPSILON * sum(map(abs, summands)) + count * Fraction(2) ** -1074
        assert abs(Fraction(together.total()[place]) - sum(summands)) <= bound
        if together.weights > 1e-200:
            mean = sum(summands) / weight
            # The sum of the weights and the quotient round as well, and then float32.
            near = bound / weight + 2 * count * EPSILON * (abs(mean) + bound / weight)
            rounding = Fraction(2) ** -24 * (abs(mean) + near) + Fraction(2) ** -150
            assert abs(Fraction(float(together.value()[place])) - mean) <= near + rounding


def test_groups_begin_with_256_clients_and_have_sixteen_at_most():
    assert [group_size(n) for n in (1, 255, 256, 1000, 2048, 10**5)] == [1, 1, 2, 7, 16, 16]
