"""FedCAC: masks, overlaps and threshold by hand, and whole federations."""

from __future__ import annotations

import numpy as np
import pytest
from support import FEW_SAMPLES, play, rule, simulate

from fedpfl.core.layout import Layout
from fedpfl.methods.fedcac import Critical, overlaps, threshold, top_share

LAYOUT = Layout.of([("a", (4,)), ("b", (2,))])


def test_the_first_round_s_mean_is_fedavg_s_to_the_bit_and_all_that_moved_is_critical_with_share_1(tmp_path):
    settings = {"num_server_rounds": 1, "local_epochs": 1, **FEW_SAMPLES}
    ours = simulate(tmp_path / "a", 4, method="fedcac", fedcac_share=1.0, **settings)
    fedavg = simulate(tmp_path / "b", 4, method="fedavg", **settings)
    state = ours.checkpoint()[1]
    assert np.array_equal(state["shared"], fedavg.checkpoint()[1]["shared"])
    # Where a unit is dead for a client, or pixels are always 0, nothing moves.
    assert state["masks"].any(axis=1).all()
    assert not state["masks"].all()
    overlap = overlaps(state["masks"])
    matched = (overlap >= threshold(overlap, 1, 100.0)) | np.eye(4, dtype=bool)
    custom = (matched / matched.sum(axis=1, keepdims=True)) @ state["newest"].astype(np.float64)
    expected = np.where(state["masks"], custom, state["shared"])
    np.testing.assert_allclose(state["for_clients"], expected, rtol=1e-5, atol=1e-7)


def test_masks_hold_the_top_share_of_every_array():
    values = np.array([1, 9, 3, 8, 100, 50], np.float32)
    assert top_share(values, LAYOUT, 0.5).tolist() == [False, True, False, True, True, False]
    assert top_share(values, LAYOUT, 0.7).tolist() == [False, True, False, True, True, False]  # 2.8 and 1.4 values
    assert not top_share(values, LAYOUT, 0.2).any()
    assert top_share(values, LAYOUT, 1.0).all()


def test_what_did_not_move_is_not_critical():
    values = np.array([0, 9, 0, 0, 0, 0], np.float32)
    assert top_share(values, LAYOUT, 0.75).tolist() == [False, True, False, False, False, False]
    assert not top_share(np.zeros(6, np.float32), LAYOUT, 1.0).any()


def test_an_embedding_s_untouched_rows_are_not_what_two_clients_have_in_common():
    rng = np.random.default_rng(0)
    layout = Layout.of([("embedding.weight", (40, 5))])
    strategy = rule(Critical, rng.normal(size=200), (1, 1), layout, share=0.5, beta=100.0)
    trained = {}
    for client, rows in ((0, range(6)), (1, range(3, 9))):  # each client's texts have 15 % of the words
        moved = strategy.shared.reshape(40, 5).copy()
        moved[list(rows)] += rng.normal(size=(6, 5))
        trained[client] = moved.ravel()
    play(strategy, 1, trained)
    assert strategy.masks.reshape(2, 40, 5).any(axis=2).tolist() == [
        [i < 6 for i in range(40)],
        [3 <= i < 9 for i in range(40)],
    ]
    np.testing.assert_allclose(overlaps(strategy.masks), [[1, 0.5], [0.5, 1]])


def test_a_client_in_whose_model_nothing_moved_overlaps_with_nobody():
    strategy = rule(Critical, [1, 1], (1, 1, 2), share=0.5, beta=100.0)
    play(strategy, 1, {0: [3, 1.5], 1: [1, 1], 2: [5, 1.5]})
    assert strategy.masks.tolist() == [[True, False], [False, False], [True, False]]
    np.testing.assert_allclose(overlaps(strategy.masks), [[1, 0, 1], [0, 1, 0], [1, 0, 1]])
    mean = [(3 + 1 + 2 * 5) / 4, (1.5 + 1 + 2 * 1.5) / 4]
    np.testing.assert_allclose(strategy.for_clients, [[4, mean[1]], mean, [4, mean[1]]], rtol=1e-6)


def test_overlaps_and_threshold():
    masks = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], bool)
    overlap = overlaps(masks)
    np.testing.assert_allclose(overlap, [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]])
    assert threshold(overlap, 0, 10.0) == pytest.approx(1 / 3)
    assert threshold(overlap, 5, 10.0) == pytest.approx(1 / 3 + 0.5 * (0.5 - 1 / 3))
    assert threshold(overlap, 11, 10.0) > 0.5
    assert threshold(np.ones((1, 1)), 1, 10.0) == np.inf


def test_critical_values_come_from_clients_with_like_masks_the_others_from_all():
    strategy = rule(Critical, [1, 1], (1, 1, 2), share=0.5, beta=100.0)
    play(strategy, 1, {0: [3, 1.1], 1: [5, 1.1], 2: [1.1, 5]})  # |Δw·w| is largest at 0, 0 and 1
    mean = [(3 + 5 + 2 * 1.1) / 4, (1.1 + 1.1 + 2 * 5) / 4]
    np.testing.assert_allclose(strategy.for_clients, [[4, mean[1]], [4, mean[1]], [mean[0], 5]], rtol=1e-6)
    assert strategy.numbers["collaborators"] == pytest.approx(2 / 3)


def test_when_nobody_matches_critical_values_stay_local():
    strategy = rule(Critical, [1, 1, 1, 1], (1, 1, 1), share=0.5, beta=1e-3)
    trained = {0: [3, 2, 1, 1], 1: [2, 3, 1, 1], 2: [1, 1, 2, 3]}
    play(strategy, 1, trained)
    for i, vector in trained.items():
        expected = np.where(np.array(vector) > 1, vector, np.mean(list(trained.values()), axis=0))
        np.testing.assert_allclose(strategy.for_clients[i], expected, rtol=1e-6)


def test_criticality_is_measured_from_what_the_client_received():
    strategy = rule(Critical, [1, 1], (1, 1), share=0.5, beta=1e-3)
    strategy.for_clients[0] = [10, 1]
    play(strategy, 2, {0: [10, 2], 1: [2, 1]})
    assert strategy.masks.tolist() == [[False, True], [True, False]]


def test_criticality_is_the_change_times_the_trained_value():
    strategy = rule(Critical, [10, 1], (1, 1), share=0.5, beta=1e-3)
    # |Δw·w| is 11 and 6, then 11 and 15.75; |Δw| alone is larger at the second value in both, |Δw| times what was sent
    # at the first.
    play(strategy, 1, {0: [11, 3], 1: [11, 4.5]})
    assert strategy.masks.tolist() == [[True, False], [False, True]]


def test_absent_clients_count_with_their_newest_and_unknown_ones_get_the_global_model():
    strategy = rule(Critical, [1, 1], (1, 1, 1), share=0.5, beta=100.0)
    play(strategy, 1, {0: [3, 1.5]})
    np.testing.assert_allclose(strategy.for_clients, [[3, 1.5]] * 3)
    play(strategy, 2, {1: [5, 1.5]})  # from 3: critical is the first value, as it is for client 0
    np.testing.assert_allclose(strategy.for_clients, [[4, 1.5], [4, 1.5], [5, 1.5]])


def test_running_statistics_are_never_critical():
    layout = Layout.of([("w", (2,)), ("bn.running_var", (2,))])
    strategy = rule(Critical, [1, 1, 1, 1], (1, 1), layout, share=1.0, beta=1.0)
    play(strategy, 1, {0: [2, 2, 2, 2], 1: [4, 4, 4, 4]})
    assert strategy.masks.tolist() == [[True, True, False, False]] * 2
