"""Estimates that stand for the mean, against NumPy; who may have them; and how far a weight counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st
from support import FEW_SAMPLES, Killed, LocalGrid, arrays, federation, play, rule, run_federation, simulate

from fedpfl.core.errors import ConfigError
from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.methods import methods
from fedpfl.methods.clustered_fl import ClusteredFLSettings, Clusters
from fedpfl.methods.factorized_fl.similarity import Similarity
from fedpfl.methods.fedcac import Critical
from fedpfl.methods.feddyn import FedDynMean
from fedpfl.methods.fedpac import HeadCombination
from fedpfl.methods.fedproto import PrototypeMean
from fedpfl.methods.fedreg import MeanByPart
from fedpfl.methods.scaffold import ControlledMean
from fedpfl.rules import Rule
from fedpfl.rules.mean import Mean
from fedpfl.rules.running_mean import Averages
from fedpfl.setup.config import Config
from fedpfl.setup.options.robust import RobustSettings
from fedpfl.setup.robust_rule import RobustAverages, clipped_mean, count_false, krum, largest_weight

KINDS = ["clip", "median", "trimmed-mean", "krum"]
# What makes a mean for each client, or more than one.
REFUSED = {
    "apple", "factorized-fl", "factorized-fl-plus", "fedamp", "fedcac", "feddistill", "fedfomo", "fedgh", "fednh",
    "fedproto", "fedrolex", "fedselect", "fedtgp", "flexlora", "heterofl", "pfedhn",
}  # fmt: skip


def vectors(count, size=5000, seed=0):
    return list(np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32))


def settings(kind, share=0.2):
    return RobustSettings(robust_aggregation=kind, robust_false_share=share)


def mean_of(kind, given_vectors, start=None, **options):
    mean = RobustAverages(settings(kind, **options)).mean(len(given_vectors[0]), start)
    for vector in given_vectors:
        mean.add(vector, 1.0)
    return mean.value()


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_the_median_of_each_value_is_numpy_s(count):
    data = vectors(count)
    np.testing.assert_allclose(mean_of("median", data), np.median(np.float64(data), axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("count", "share", "dropped"), [(10, 0.2, 2), (10, 0.21, 3), (4, 0.2, 1), (3, 0.4, 1), (5, 0, 0)]
)
def test_the_trimmed_mean_leaves_out_the_extremes(count, share, dropped):
    stay = np.sort(np.float64(vectors(count)), axis=0)[dropped : count - dropped]
    np.testing.assert_allclose(mean_of("trimmed-mean", vectors(count), share=share), stay.mean(axis=0), rtol=1e-4)


def by_hand_krum(replies, false):
    """Return Krum's choice by the definition, distance by distance."""
    scores = []
    for i, one in enumerate(replies):
        others = sorted(float(((np.float64(one) - other) ** 2).sum()) for j, other in enumerate(replies) if j != i)
        scores.append(sum(others[: len(replies) - false - 2]))
    return sorted(sorted(range(len(replies)), key=lambda i: scores[i])[: len(replies) - false])


def test_krum_takes_the_vectors_with_the_nearest_others():
    rng, size = np.random.default_rng(3), 5000  # more than one block
    far = rng.normal(size=size) * 30
    for count, false in ((9, 3), (10, 2), (7, 1), (5, 0)):
        around = np.array(vectors(count))
        lengths = np.geomspace(0.1, 3, count)[:, None]  # whose order is not that of the distances
        false_ones = np.arange(count)[:, None] >= count - max(1, false)
        clusters = around + np.where(false_ones, -far, far)
        # Where one neighbour more or fewer in each sum chooses other vectors, of nine and of ten.
        line = np.random.default_rng(428).normal(size=count)[:, None] * far / 100
        kinds = {
            "at 0": around,
            "far": around + far,
            "long": far + lengths * around,
            "clusters": clusters,
            "line": line,
        }
        for kind, data in kinds.items():
            replies = list(data.astype(np.float32))
            wanted = by_hand_krum(replies, false)
            for start in (np.zeros(size), far, -far):
                assert krum(replies, start, false) == wanted, (kind, count)
            mean = mean_of("krum", replies, share=false / count)
            np.testing.assert_allclose(mean, np.mean(np.float64(replies)[wanted], axis=0), rtol=1e-4, atol=1e-5)


def test_krum_keeps_its_digits_next_to_a_vector_of_huge_values():
    replies = vectors(9)
    huge = np.full(5000, 1e15, np.float32)
    # With the ninth there is one more neighbour, unless one more may be false.
    assert krum([*replies[:8], huge], np.zeros(5000), 3) == by_hand_krum(replies[:8], 2)
    assert 8 not in krum([*replies[:8], huge], np.zeros(5000), 1)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_krum_of_few_vectors_assumes_fewer_false_ones(count):
    assert krum(vectors(count), np.zeros(5000), 2) == list(range(count))


def test_clip_shortens_what_is_longer_than_the_median():
    start = np.array([1, 1], np.float32)
    replies = [start + np.float32(u) for u in ([3, 4], [0, 1], [0, -2])]
    np.testing.assert_allclose(
        mean_of("clip", replies, start), start + np.array([0.4, 0.2]), rtol=1e-6
    )  # the median is 2
    weighted = clipped_mean(replies, [1, 1, 2], start)
    np.testing.assert_allclose(weighted, start + np.array([0.3, (1.6 + 1 - 4) / 4]), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@trials(max_examples=30, deadline=None)
@given(st.integers(3, 12), st.integers(0, 2**32 - 1))
def test_a_false_minority_moves_no_estimate_far(kind, count, seed):
    false = (count - 1) // 4
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(count - false, 20)).astype(np.float32)
    lies = (1e6 * rng.normal(size=(false, 20))).astype(np.float32)
    replies = list(rng.permutation(np.concatenate([honest, lies])))
    estimate = mean_of(kind, replies, share=0.25)
    assert np.isfinite(estimate).all()
    assert np.abs(estimate).max() <= np.linalg.norm(honest, axis=1).max()


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_equal_vectors_are_their_estimate(kind):
    vector = vectors(1)[0]
    for share in (0.0, 0.2, 0.4):
        np.testing.assert_array_equal(mean_of(kind, [vector] * 7, vector, share=share), vector)


def test_a_share_of_false_clients_is_rounded_up():
    assert [count_false(0.2, n) for n in (1, 4, 5, 6, 10)] == [1, 1, 1, 2, 2]
    assert count_false(0.3, 10) == 3 and count_false(0.0, 10) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_absent_clients_count_with_the_last_mean_next_to_the_estimate(kind):
    for weights, expected in (("uniform", 5), ("examples", 6)):  # (5·4 + 10) / 6, (10·4 + 5·10) / 15
        mean = rule(Mean, [10, 10], [2, 2, 2, 2, 2, 5], weights=weights, absent="last")
        mean.averages = RobustAverages(settings(kind))
        play(mean, 1, dict.fromkeys(range(5), (4, 4)))
        assert mean.shared.tolist() == [expected] * 2


def test_the_estimate_takes_the_place_of_every_sum():
    false = [1e6, -1e6]
    answers = {0: [1, 2], 1: [1, 2], 2: [1, 2], 3: [1, 2], 4: false}
    by_part = rule(
        MeanByPart, [0, 0], [2] * 5, Layout.of([("a", (1,)), ("b", (1,))]), weight_of=lambda name: f"{name}-samples"
    )
    split_late = ClusteredFLSettings(epsilon1=0, epsilon2=1, first_split=9)
    clusters = rule(Clusters, [0, 0], [2] * 5, settings=split_late)
    for made in (rule(Mean, [0, 0], [2] * 5), by_part, clusters, rule(FedDynMean, [0, 0], [2] * 5, alpha=0.0)):
        made.averages = RobustAverages(settings("median"))
        made.begin_round(1)
        for i, vector in answers.items():
            reply = type("Reply", (), {"metrics": {"a-samples": 2, "b-samples": 2}})
            made.add(made.clients[i], np.float32(vector), reply)
            made.personal_round[i] = 1
        made.finish_round()
        assert made.outgoing(made.clients[0]).tolist() == [1, 2]


def test_scaffold_s_control_variate_is_an_estimate_too():
    scaffold = rule(ControlledMean, [0, 0], [2] * 5)
    scaffold.averages = RobustAverages(settings("median"))
    change = {**{i: [1, 2] for i in range(4)}, 4: [1e9, 1e9]}
    play(scaffold, 1, dict.fromkeys(range(5), (1, 1)), change=change)
    assert scaffold.control.tolist() == [1, 2]


def test_it_is_had_with_means_alone():
    for method in sorted(methods()):
        values = {"method": method, "robust-aggregation": "krum"}
        if method not in {*REFUSED, "local"}:
            assert Config.parse(values).of(RobustSettings).on
            continue
        reason = "its clients share nothing" if method == "local" else "its rule "
        with pytest.raises(ConfigError, match=f"^robust-aggregation = 'krum': must be none for {method}: {reason}"):
            Config.parse(values)


def test_leave_to_have_it_is_not_inherited():
    class More(Mean):
        pass

    class Same(Mean):
        no_robust_mean = ""

    assert (Mean.no_robust_mean, Same.no_robust_mean) == ("", "")
    assert More.no_robust_mean == Rule.no_robust_mean != ""


def test_noise_at_the_server_is_made_for_a_sum():
    private = {"method": "fedavg", "dp-noise-multiplier": 1.0, "dp-where": "server"}
    with pytest.raises(ConfigError, match=r"^robust-aggregation = 'clip': must be none with dp-where = server"):
        Config.parse({**private, "robust-aggregation": "clip"})


def test_krum_needs_enough_clients_before_anything_starts(tmp_path):
    with pytest.raises(
        ConfigError, match=r"^robust-false-share = 0.2: krum needs at least 5 clients in a round if 1 may be mal"
    ):
        simulate(tmp_path, 4, method="fedavg", robust_aggregation="krum")


@pytest.mark.parametrize(
    ("method", "kind"),
    [("fedavg", "clip"), ("scaffold", "krum"), ("fedreg", "trimmed-mean"), ("fedfac", "median")],
)
def test_the_same_bits_over_flower_and_after_a_kill(tmp_path, method, kind):
    few = {
        **FEW_SAMPLES, "num_server_rounds": 2, "local_epochs": 1, "model": "mlp" if method != "fedfac" else "small-cnn",
        "method": method, "robust_aggregation": kind, "fedreg_augmentation": "none", "max_weight_share": 0.4,
    }  # fmt: skip
    whole = simulate(tmp_path / "whole", 5, **few)
    values = federation(tmp_path / "killed", 5, **few)

    def kill(what, client, message):
        if what == "train" and message.config["round"] == 2 and client == 1:
            raise Killed

    with pytest.raises(Killed):
        run_federation(LocalGrid(5, values, kill), values)
    values["resume"] = True
    killed = run_federation(LocalGrid(5, values), values)
    expected, restored = arrays(whole, tmp_path / "whole"), arrays(killed, tmp_path / "killed")
    assert expected.keys() == restored.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(restored[name], array, err_msg=name)


@trials(deadline=None)
@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=30).filter(any),
    st.floats(0.01, 1.0, exclude_min=False),
)
def test_no_weight_is_more_than_its_share_and_none_is_lowered_further_than_it_must(samples, share):
    largest = largest_weight(samples, share)
    weights = [min(n, largest) for n in samples]
    some = [n for n in samples if n]
    if share * len(some) <= 1:
        assert [min(n, largest) for n in some] == pytest.approx([min(some)] * len(some))
        return
    assert max(weights) <= share * sum(weights) * (1 + 1e-9)
    if largest < max(samples):
        assert max(weights) == pytest.approx(share * sum(weights))


def test_a_capped_client_weighs_as_its_share():
    mean = rule(Mean, [0], [10, 10, 80])
    mean.averages = RobustAverages(RobustSettings(max_weight_share=0.5))
    play(mean, 1, {0: [0], 1: [0], 2: [1]})
    assert mean.shared.tolist() == [0.5]
    mean.begin_round(2, [mean.clients[0], mean.clients[1]])
    assert mean.damping(mean.clients[0]) == 1


class Capped(Averages):
    """Clients count with two samples at most."""

    def largest_weight(self, samples):
        return 2.0


def test_a_cap_counts_in_every_rule_that_weighs_by_samples():
    sizes, vectors = [2, 2, 8, 1], {0: [0, 0], 1: [0, 0], 2: [3, 3]}  # the mean is 1, and 2 without the cap

    def capped(kind, **options):
        made = rule(kind, [9, 9], sizes, **options)
        made.averages = Capped()
        return made

    mean, by_part = capped(Mean), capped(MeanByPart, weight_of=lambda name: "n")
    clusters = capped(Clusters, settings=ClusteredFLSettings(epsilon1=0, epsilon2=1, first_split=9))
    critical, similar = capped(Critical, share=0.0, beta=1.0), capped(Similarity, threshold=2.0)
    heads, prototypes = capped(HeadCombination, in_head=lambda name: False), capped(PrototypeMean)
    by_client = {"prototypes": {0: [[0]], 1: [[0]], 2: [[3]]}, "counts": {i: [sizes[i]] for i in vectors}}
    moments = {"moments": {i: [[i]] for i in vectors}, "variance": {i: [1] for i in vectors}}
    for made in (mean, clusters, critical):
        play(made, 1, vectors)
    play(similar, 1, vectors, compared={i: [1, 0] for i in vectors})
    play(prototypes, 1, vectors, **by_client)
    play(heads, 1, vectors, **by_client, **moments)
    by_part.begin_round(1)
    for i, vector in vectors.items():
        by_part.add(by_part.clients[i], np.float32(vector), Payload(metrics={"n": sizes[i]}))
    by_part.finish()
    for made in (mean, by_part, clusters, critical, similar, heads):
        assert made.outgoing(made.clients[3]).tolist() == [1, 1], made.name
    assert prototypes.prototypes.tolist() == heads.prototypes.tolist() == [[1]]
