from __future__ import annotations

import numpy as np
import pytest
from support import play, rule

from fedpfl.core.payload import Payload
from fedpfl.engine.client_sampling import ClientSampling
from fedpfl.results.round_record import Round
from fedpfl.rules.mean import Mean
from fedpfl.setup.config import RunSettings

SIZES = (1, 2, 5)


def aggregate(vectors, **options):
    """Aggregate {client: vector} from a start of ten everywhere."""
    mean = rule(Mean, [10, 10, 10], SIZES, **options)
    play(mean, 1, vectors)
    return mean.shared


def test_examples_weigh_by_training_samples():
    assert aggregate({0: [8, 0, 0], 1: [0, 4, 0], 2: [0, 0, 8]}).tolist() == [1, 1, 5]


def test_uniform_weighs_all_alike():
    assert aggregate({0: [3, 0, 0], 1: [0, 3, 0], 2: [0, 0, 9]}, weights="uniform").tolist() == [1, 1, 3]


class MeanByMetric(Mean):
    name = "mean-by-metric"

    def weight(self, client, reply=None):
        return 0.0 if reply is None else reply.metrics["weight"]


def test_a_rule_may_weigh_replies_by_what_they_say():
    mean = rule(MeanByMetric, np.zeros(3), SIZES)
    mean.begin_round(1)
    for client, weight in zip(mean.clients.values(), (1, 3, 0), strict=True):
        mean.add(client, np.full(3, 4.0 * client.id, np.float32), Payload(metrics={"weight": weight}))
    mean.finish()
    assert mean.shared.tolist() == [3, 3, 3]


def test_absent_clients_are_skipped_or_count_with_the_last_mean():
    assert aggregate({1: [4, 4, 4]}, weights="uniform").tolist() == [4, 4, 4]
    assert aggregate({1: [4, 4, 4]}, weights="uniform", absent="last").tolist() == [8, 8, 8]
    assert aggregate({2: [2, 2, 2]}, absent="last").tolist() == [5, 5, 5]  # (5·2 + 3·10) / 8


def test_the_mean_of_equal_vectors_is_that_vector_to_the_bit():
    vector = np.random.default_rng(0).normal(size=3).astype(np.float32)
    assert np.array_equal(aggregate(dict.fromkeys(range(3), vector)), vector)


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 3), (0.5, 2), (0.01, 1)])
def test_clients_are_drawn_by_seed_and_round(fraction, count):
    def drawn(seed, server_round):
        settings = RunSettings(fraction_train=fraction, seed=seed)
        mean = rule(Mean, np.zeros(3), SIZES)
        return [c.id for c in ClientSampling(settings).choose(mean, Round(server_round))]

    assert all(len(drawn(1, r)) == count for r in range(1, 20))
    assert [drawn(1, r) for r in range(20)] == [drawn(1, r) for r in range(20)]
    if 1 < count < 3:
        assert [drawn(1, r) for r in range(20)] != [drawn(2, r) for r in range(20)]
        assert {i for r in range(30) for i in drawn(1, r)} == {0, 1, 2}


def test_what_a_rule_and_its_bases_remember_comes_back_and_can_be_written_to():
    class Seen(Mean):
        remembers = ("seen",)
        seen = np.zeros(2)

    class SeenAndHeard(Seen):
        remembers = ("heard",)
        heard = np.zeros(1, np.int64)

    assert (Mean.remembers, Seen.remembers, SeenAndHeard.remembers) == ((), ("seen",), ("seen", "heard"))
    first, second = (rule(SeenAndHeard, np.zeros(3), SIZES) for _ in range(2))
    first.seen = np.array([3.0, 4.0])
    state = first.state()
    assert {*state} == {"shared", "personal_round", "seen", "heard"}
    for array in state.values():
        array.flags.writeable = False  # as what safetensors loads
    second.load_state(state)
    second.seen += 1
    assert second.seen.tolist() == [4, 5]
    assert first.seen.tolist() == [3, 4]
