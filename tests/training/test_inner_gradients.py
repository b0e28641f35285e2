"""Steps within a step leave the parameters as they were."""

import numpy as np
import pytest
import torch
from torch import nn

from fedpfl.core.samples import Samples
from fedpfl.training.inner_gradients import cross_entropy, gradient_of, move, parts_of, returning
from fedpfl.training.loop import run_phase
from fedpfl.training.penalties import keep_in_unit
from fedpfl.training.phase import Batch, Phase
from fedpfl.training.settings import TrainingSettings


def data(n=6):
    torch.manual_seed(0)
    return Samples(torch.randn(n, 5), torch.arange(n) % 3)


def whole(samples):
    return Batch(samples.x, samples.y, torch.arange(len(samples.y)))


def test_batches_are_cut_into_equal_parts_or_used_whole():
    def sizes(n, parts):
        batch = Batch(torch.zeros(n, 1), torch.zeros(n), torch.arange(n))
        pieces = parts_of(batch, parts)
        return [len(piece.y) for piece in pieces], sorted(
            {int(position) for piece in pieces for position in piece.positions}
        )

    assert sizes(12, 3) == ([4, 4, 4], list(range(12)))
    assert sizes(7, 2) == ([4, 3], list(range(7)))
    assert sizes(3, 2) == ([3, 3], [0, 1, 2])
    assert sizes(1, 3) == ([1, 1, 1], [0])


def test_a_gradient_is_that_of_the_loss_where_the_parameters_are():
    model, batch = nn.Linear(5, 3), whole(data())
    loss, grads = gradient_of(model, batch, list(model.parameters()))
    cross_entropy(model, batch).backward()
    assert float(loss) == float(cross_entropy(model, batch))
    assert all(torch.equal(g, p.grad) for g, p in zip(grads, model.parameters()))
    _, doubled = gradient_of(model, batch, list(model.parameters()), lambda m, b: 2 * cross_entropy(m, b))
    assert all(torch.equal(d, 2 * g) for d, g in zip(doubled, grads))


def test_the_parameters_return_to_the_bit_even_after_an_error():
    model = nn.Linear(5, 3)
    params, before = list(model.parameters()), [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ZeroDivisionError), returning(params) as start:
        move(params, start, [torch.ones_like(p) for p in params], 0.1)
        assert all(torch.equal(p, b + 0.1) for p, b in zip(params, before))
        assert all(torch.equal(s, b) for s, b in zip(start, before))
        raise ZeroDivisionError
    assert all(torch.equal(p, b) for p, b in zip(params, before))


def test_a_gradient_of_its_own_gets_the_names_of_what_trains():
    model, seen = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), []

    def gradient(model, batch, names, params):
        seen.append((names, [tuple(p.shape) for p in params]))
        return gradient_of(model, batch, params)

    phase = Phase(lambda name: name.startswith("1."), 1, gradient=gradient)
    run_phase(model, phase, data(), TrainingSettings(batch_size=6), np.random.default_rng(0))
    assert seen == [(["1.weight", "1.bias"], [(3, 4), (3,)])]


def test_what_is_kept_in_the_unit_interval_never_leaves_it():
    for step, kept in ((-7.0, 0.0), (0.25, 0.25), (7.0, 1.0)):
        share = nn.Parameter(torch.tensor([step]))
        keep_in_unit(["share"], [share])
        assert share.item() == kept
