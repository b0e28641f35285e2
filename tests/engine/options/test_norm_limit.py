"""Limits for the norms of what clients send: what follows from what, and what is remembered."""

from __future__ import annotations

import numpy as np
import pytest
from support import rule

from fedpfl.core.errors import LayoutError
from fedpfl.core.extra_arrays import SERVER, SHARED, Extra, Extras
from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client, Federation
from fedpfl.engine.listener import CheckedReply
from fedpfl.engine.options.norm_limit import LARGEST, NormLimit
from fedpfl.methods.fedpac import HeadCombination
from fedpfl.results.round_record import Round
from fedpfl.rules.mean import Mean
from fedpfl.setup.options.privacy import PrivacySettings

WITH_BATCHNORM = Layout.of([("w", (3, 3)), ("bn.running_mean", (2,)), ("bn.running_var", (2,)), ("b", (1,))])
EXTRAS = Extras(
    [
        Extra("control", SERVER, "", (SHARED,), required=False),
        Extra("features", SERVER, "", (4,), required=False),
        Extra("counts", SERVER, "", (4,), required=False, kind="counts"),
    ],
    shared=4,
)


def limit_of(start=(0, 0, 0, 0), factor=4.0, layout=None, extras=EXTRAS, **privacy):
    """Return a limit, and a rule with five clients that starts from a vector."""
    made = rule(Mean, start, [5] * 5, layout)
    return NormLimit(factor, extras, PrivacySettings(**privacy) if privacy else None, "float32"), made


def play(limit, made, number, vectors, **arrays):
    """Give the replies {client: vector} of a round; return what was refused."""
    done, refused = Round(number), {}
    limit.round_started(made, done, made.participants)
    read, waits = [], limit.compares(made)
    for i, vector in vectors.items():
        reply = Payload(arrays={name: np.float32(by_client[i]) for name, by_client in arrays.items()})
        shared = np.float32(vector)
        try:
            limit.receive(made, made.clients[i], shared, reply)
        except LayoutError as error:
            refused[i] = str(error)
        else:
            read.append(CheckedReply(made.clients[i], shared, reply))
    for client, reason in (limit.compare(read) if waits else {}).items():
        refused[client.id] = reason
    for one in read:
        if one.client.id not in refused:
            limit.added(made, *one)
            done.trained[one.client.id] = {}
    limit.combined(made, done)
    return refused


def test_the_first_limit_follows_from_what_was_sent_and_from_fresh_weights():
    limit, made = limit_of([10, 0, 0, 0])
    assert play(limit, made, 1, {0: [50, 0, 0, 0], 1: [50.1, 0, 0, 0]}).keys() == {1}
    # Fresh: ½·√2 of two rows, ½·√4 of four values that are no rows.
    limit, made = limit_of(layout=Layout.of([("w", (2, 2))]))
    assert play(limit, made, 1, {0: [2.82, 0, 0, 0], 1: [2.83, 0, 0, 0]}).keys() == {1}
    limit, made = limit_of()
    assert play(limit, made, 1, {0: [4, 0, 0, 0], 1: [4.1, 0, 0, 0]}).keys() == {1}


def test_a_refusal_tells_the_norm_and_the_limit():
    limit, made = limit_of()
    message = "its update of the shared arrays has the norm 9, at most 4 is accepted (update-norm-limit = 4)"
    assert play(limit, made, 1, {2: [9, 0, 0, 0]}) == {2: message}


def test_the_first_updates_towards_targets_are_compared_with_each_other():
    limit, made = limit_of(extras=Extras())
    limit.targets = True
    assert limit.compares(made)
    refused = play(limit, made, 1, {i: [norm, 0, 0, 0] for i, norm in enumerate((0, 30, 30, 599, 601))})
    message = "its update of the shared arrays has the norm 601, at most 600 is accepted (update-norm-limit = 4)"
    assert refused == {4: message} and not limit.compares(made)
    # The clients' own norms do not make the limit smaller than what was sent.
    limit, made = limit_of([10, 0, 0, 0], extras=Extras())
    limit.targets = True
    assert play(limit, made, 1, {i: [10, norm, 0, 0] for i, norm in enumerate((0.1, 0.1, 39, 41))}).keys() == {3}


def test_later_limits_follow_from_the_medians_of_accepted_norms_in_the_last_rounds():
    limit, made = limit_of([10, 0, 0, 0])
    large = {i: [10, norm, 0, 0] for i, norm in enumerate((1, 20, 39))}
    assert not play(limit, made, 1, large)
    # 4 × 5 × 20; what is refused does not count among the round's norms.
    assert play(limit, made, 2, {0: [10, 400, 0, 0], 1: [10, 401, 0, 0], 2: [10, 9e9, 0, 0]}).keys() == {1, 2}
    for number in range(3, 6):
        assert not play(limit, made, number, {i: [10, 1, 0, 0] for i in range(3)})
    # The median of 20, 400, 1, 1, 1; what was sent has a norm of 10.
    for number in range(6, 9):
        assert play(limit, made, number, {0: [10, 40, 0, 0], 1: [10, 41, 0, 0]}).keys() == {1}
    # Five rounds count: 1, 1, 40, 40, 40. One round more or fewer, or the last one alone, would have moved the limit.
    assert play(limit, made, 9, {0: [10, 799, 0, 0], 1: [10, 801, 0, 0]}).keys() == {1}


def test_one_of_two_clients_does_not_raise_the_limit():
    limit, made = limit_of()
    for number in range(1, 5):
        assert not play(limit, made, number, {0: [0.1, 0, 0, 0], 1: [4, 0, 0, 0]})
    assert play(limit, made, 5, {1: [4.1, 0, 0, 0]}).keys() == {1}


def test_running_statistics_may_be_as_large_as_the_data_and_variances_not_negative():
    limit, made = limit_of(np.r_[np.ones(9), [0, 0, 1, 1], 0], layout=WITH_BATCHNORM)
    honest = np.r_[np.ones(9), [-1e5, 1e5, 1e6, 1e6], 0]
    negative = np.r_[np.ones(9), [0, 0, -1, 1], 0]
    refused = play(limit, made, 1, {0: honest, 1: honest, 2: negative, 3: np.r_[np.ones(9), [0, 0, 1e10, 1], 0]})
    assert refused.keys() == {2, 3}
    assert refused[2] == "its array 'bn.running_var' has negative variances"
    assert refused[3].startswith("its array 'running statistics' has the norm 1e+10, at most")
    # They do not hide an update of the weights.
    assert play(limit, made, 2, {0: honest, 1: np.r_[np.full(9, 50), honest[9:]]}).keys() == {1}
    assert play(limit, made, 3, {0: 20 * honest, 1: np.r_[np.ones(9), [0, 0, 1e8, 1], 0]}).keys() == {0, 1}


def test_arrays_besides_have_limits_of_their_own_unless_the_rule_checks_them():
    limit, made = limit_of([1, 0, 0, 0])
    sent = {i: [1, 0, 0, 0] for i in range(4)}
    names = {"control": [3.9, 4.1, 0, 0], "features": [500, 500, 10010, 500], "counts": [1e9, 1e9, 1e9, 1e9]}
    arrays = {name: {i: [norm, 0, 0, 0] for i, norm in enumerate(norms)} for name, norms in names.items()}
    refused = play(limit, made, 1, sent, **arrays)
    assert refused.keys() == {1, 2}
    assert refused[1].startswith("its array 'control' has the norm 4.1, at most 4 is accepted")
    assert refused[2].startswith("its array 'features' has the norm 1.001e+04, at most 1e+04 is accepted")
    limit, made = limit_of([1, 0, 0, 0])
    assert not play(limit, made, 1, sent, features={i: [1, 0, 0, 0] for i in range(4)})
    assert play(limit, made, 2, sent, features={0: [1] * 4, 1: [1] * 4, 2: [20, 0, 0, 0], 3: [41] * 4}).keys() == {3}


@pytest.mark.parametrize("value", [3.3e38, -3.3e38, 1e19])
def test_values_that_nothing_can_be_computed_with_are_refused_without_a_limit_too(value):
    limit, made = limit_of(factor=0)
    features = {0: [value] * 4, 1: [1e9] * 4, 2: [0] * 4}
    refused = play(limit, made, 1, {0: [0] * 4, 1: [1e9] * 4, 2: [value, 0, 0, 0]}, features=features)
    assert refused.keys() == {0, 2}
    assert f"at most {LARGEST:.4g} is accepted (whatever update-norm-limit is)" in refused[2]


def test_the_noise_of_clients_is_allowed_for():
    noise = np.random.default_rng(0).normal(size=(200, 1000))
    for noisy in (100.0, 1.0):
        limit, made = limit_of(np.zeros(1000), 1e-3, dp_noise_multiplier=noisy, dp_clip_norm=2.0)
        made.clients = {i: Client(i, 5, 5) for i in range(200)}
        assert not play(limit, made, 1, dict(enumerate(noisy * 2.0 * noise)))
        assert play(limit, made, 2, {0: noisy * 2.0 * 1.3 * noise[0]}).keys() == {0}


def test_nothing_shared_and_less_shared_later_are_no_matter():
    limit, made = limit_of([], layout=Layout(()))
    assert not play(limit, made, 1, {0: [], 1: []})
    limit, made = limit_of([1, 1, 1, 1])
    assert not play(limit, made, 1, {0: [1, 1, 1, 2]})
    made.layout, made.shared = Layout.of([("w", (2,))]), np.ones(2, np.float32)
    assert play(limit, made, 2, {0: [2, 1], 1: [30, 1]}).keys() == {1}


def test_each_client_s_own_start_counts():
    federation = Federation(tuple(Client(i, 5, 5) for i in range(2)), Layout.of([("head.w", (2,)), ("base.w", (2,))]))
    made = HeadCombination(federation, np.zeros(4, np.float32), in_head=lambda name: name.startswith("head"))
    made.heads[1] = 1e6
    limit = NormLimit(4.0, Extras(), None, "float32")
    assert play(limit, made, 1, {0: [1e6, 1e6, 0, 0], 1: [1e6, 1e6, 0, 1]}).keys() == {0}


def test_arrays_without_a_scale_are_compared_with_each_other():
    limit, made = limit_of([1, 0, 0, 0])
    assert limit.compares(made)
    sent, norms = {i: [1, 0, 0, 0] for i in range(5)}, [0, 2, 2, 40, 41]
    refused = play(limit, made, 1, sent, features={i: [norm, 0, 0, 0] for i, norm in enumerate(norms)})
    assert refused == {4: "its array 'features' has the norm 41, at most 40 is accepted (update-norm-limit = 4)"}
    # Of a model that has learned something they may be many times as long; a single one says nothing.
    refused = play(limit, made, 2, sent, features={i: [50 * norm, 0, 0, 0] for i, norm in enumerate(norms)})
    assert refused == {4: "its array 'features' has the norm 2050, at most 2000 is accepted (update-norm-limit = 4)"}
    assert play(limit, made, 3, {0: sent[0]}, features={0: [2e4, 0, 0, 0]}).keys() == {0}
    assert not play(limit, made, 3, {0: sent[0]}, features={0: [1e3, 0, 0, 0]})
    limit, made = limit_of([1, 0, 0, 0], extras=Extras([Extra("features", SERVER, "", (2, 2), kind="means")]))
    rows = {0: [[1, 0], [0, 0]], 1: [[1, 0], [0, 1]], 2: [[1, 0], [4, 0]], 3: [[5, 0], [0, 0]], 4: [[1, 0], [1, 0]]}
    assert play(limit, made, 1, sent, features=rows).keys() == {3}, "means of classes, however many there are"
    limit, made = limit_of(factor=0)
    assert not limit.compares(made)


def test_a_client_does_not_raise_its_own_limit_by_its_own_model():
    federation = Federation(tuple(Client(i, 5, 5) for i in range(3)), Layout.of([("head.w", (2,)), ("base.w", (2,))]))
    made = HeadCombination(federation, np.ones(4, np.float32), in_head=lambda name: name.startswith("head"))
    limit = NormLimit(4.0, Extras(), None, "float32")
    assert not play(limit, made, 1, {i: [1, 1, 1, 1.1] for i in range(3)})
    made.heads[2] = 1e3
    # 4 times the median length of the models that were sent, 2.
    refused = play(limit, made, 2, {0: [1, 1, 1, 1], 1: [1, 1, 1, 8.9], 2: [1e3, 1e3, 1, 9.1]})
    assert refused.keys() == {2}


def test_a_resumed_run_has_the_same_limits():
    limit, made = limit_of([1, 0, 0, 0])
    features = {i: [1, 0, 0, 0] for i in range(2)}
    play(limit, made, 1, {0: [1, 3, 0, 0], 1: [1, 3, 0, 0]}, features=features)
    state = limit.state()
    assert {*state} == {"norms/shared", "norms/features"}
    other, _ = limit_of()
    other.load_state({**state, "shared": made.shared})
    last = {0: [1, 60, 0, 0], 1: [1, 60.1, 0, 0], 2: [1, 0, 0, 0]}
    large = {0: [20, 0, 0, 0], 1: [0, 0, 0, 0], 2: [20.1, 0, 0, 0]}
    assert play(other, made, 2, last, features=large) == play(limit, made, 2, last, features=large) != {}
    limit.load_state({})  # of a run that is older than the limit
    assert limit.state() == {}
