"""Which models FedFomo's server sends, and what it takes from a reply."""

from __future__ import annotations

import numpy as np
import pytest
from support import play, rule

from fedpfl.core.errors import LayoutError
from fedpfl.core.payload import Payload
from fedpfl.methods.fedfomo import Candidates


def candidates(epsilon=0.0, models=2, clients=4, decay=0.0):
    strategy = rule(Candidates, [0, 0], [1] * clients, models=models)
    strategy.epsilon, strategy.epsilon_decay = epsilon, decay
    play(strategy, 1, {i: [i, i] for i in range(clients)}, weights={i: [] for i in range(clients)})
    return strategy


def sent(strategy, client, number):
    """Return {client: model} of what is attached to a client's message in a round."""
    strategy.round = number
    payload = strategy.attachments(strategy.clients[client], "train")
    numbers = [int(n) for n in str(payload.config["models"]).split(",")]
    return dict(zip(numbers, payload.arrays["models"].reshape(len(numbers), -1).tolist(), strict=True))


def test_nobody_s_model_is_sent_before_it_exists_and_none_for_a_test():
    strategy = rule(Candidates, [0, 0], (1, 1, 1), models=2)
    strategy.round = 1
    assert strategy.attachments(strategy.clients[0], "train") == Payload()
    play(strategy, 1, {1: [5, 5]}, weights={1: []})
    assert sent(strategy, 0, 2) == {1: [5, 5]}
    assert strategy.attachments(strategy.clients[0], "evaluate") == Payload()


def test_models_that_helped_are_sent_again():
    strategy = candidates()
    strategy.preferences[0] = [0, 0.1, 0.9, 0.2]
    assert list(sent(strategy, 0, 2)) == [2, 3]
    assert sent(strategy, 0, 2) == {2: [2, 2], 3: [3, 3]}


def test_weights_add_up_over_the_rounds():
    strategy = candidates(models=3)
    for number in (2, 3):
        order = list(sent(strategy, 0, number))
        play(strategy, number, {0: [0, 0]}, weights={0: [{1: 0.75, 2: 0.0, 3: 0.25}[j] for j in order]})
    assert strategy.preferences[0].tolist() == [0, 1.5, 0, 0.5]


def test_exploration_reaches_everybody_and_follows_the_seed():
    strategy = candidates(epsilon=1.0, models=1)
    strategy.preferences[0] = [0, 9, 0, 0]
    explored = [next(iter(sent(strategy, 0, number))) for number in range(2, 40)]
    assert set(explored) == {1, 2, 3}
    assert explored == [next(iter(sent(strategy, 0, number))) for number in range(2, 40)]


def test_exploration_ends_as_epsilon_falls():
    clients = 40
    strategy = candidates(epsilon=1.0, models=1, decay=0.5, clients=clients)
    best = [(client + 1) % clients for client in range(clients)]
    strategy.preferences[range(clients), best] = 9
    explored = [sum([*sent(strategy, i, number)] != [best[i]] for i in range(clients)) for number in (2, 3, 4)]
    assert 10 < explored[0] < 30 and explored[1:] == [0, 0]  # ε is 1 − 0.5·(number − 1)


@pytest.mark.parametrize("weights", [[0.5], []])
def test_replies_without_proper_weights_are_refused(weights):
    strategy = candidates()
    sent(strategy, 0, 2)
    reply = Payload(arrays={"weights": np.array(weights, np.float32)})
    with pytest.raises(LayoutError):
        strategy.check(strategy.clients[0], np.zeros(2, np.float32), reply)


def test_a_message_that_is_sent_again_is_the_same_though_others_have_answered():
    strategy = candidates(epsilon=0.5)
    first = sent(strategy, 0, 2)
    sent(strategy, 3, 2)
    strategy.begin_round(2)
    reply = Payload(arrays={"weights": np.zeros(2, np.float32)})
    strategy.check(strategy.clients[3], np.full(2, 9, np.float32), reply)
    strategy.add(strategy.clients[3], np.full(2, 9, np.float32), reply)
    strategy.personal_round[3] = 2
    assert sent(strategy, 0, 2) == first
    strategy.finish()
    assert strategy.for_clients[3].tolist() == [9, 9]
