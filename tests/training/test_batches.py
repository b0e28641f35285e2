from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpfl.training.settings import LAST_BATCH, TrainingSettings, batch_sizes

samples, sizes = st.integers(1, 5000), st.integers(1, 600)


@given(samples, sizes)
def test_drop_leaves_out_less_than_a_batch_and_never_everything(n, size):
    batches = batch_sizes(n, size, "drop")
    assert batches == ([size] * (n // size) or [n])


@given(samples, sizes)
def test_keep_takes_all_samples_in_whole_batches_and_one_smaller(n, size):
    batches = batch_sizes(n, size, "keep")
    assert sum(batches) == n
    assert set(batches[:-1]) <= {size} and 1 <= batches[-1] <= size


@given(samples, sizes)
def test_even_takes_all_samples_in_batches_that_differ_by_at_most_one(n, size):
    batches = batch_sizes(n, size, "even")
    assert sum(batches) == n
    assert max(batches) - min(batches) <= 1
    assert len(batches) == 1 or abs(len(batches) - n / size) <= 0.5
    # A batch is never far from B, where there is more than half of one.
    assert n < size or 2 / 3 * size - 1 < n / len(batches) <= 1.5 * size


@pytest.mark.parametrize("last", LAST_BATCH)
@pytest.mark.parametrize("n", [20, 100, 500])
def test_where_the_batches_divide_the_samples_all_are_the_same(n, last):
    assert batch_sizes(n, 20, last) == [20] * (n // 20)


def test_the_case_on_which_batch_norm_diverges():
    assert batch_sizes(501, 100, "drop") == [100] * 5
    assert batch_sizes(501, 100, "keep") == [100] * 5 + [1]
    assert batch_sizes(501, 100, "even") == [101, 100, 100, 100, 100]
    assert 1 not in batch_sizes(501, 100, TrainingSettings().last_batch)
