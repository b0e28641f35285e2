from __future__ import annotations

import pytest
import torch

from fedpfl.training.adaptive import Adam
from fedpfl.training.optim import SGD


def run(ours, reference, steps=6):
    """Feed both optimisers the same gradients and return both parameter lists."""
    torch.manual_seed(0)
    a = [torch.randn(4, 3), torch.randn(5)]
    b = [p.clone().requires_grad_() for p in a]
    ours, reference = ours(a), reference(b)
    for _ in range(steps):
        grads = [torch.randn_like(p) for p in a]
        for p, g in zip(b, grads):
            p.grad = g.clone()
        ours.step(grads)
        reference.step()
    return a, b


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_sgd_is_torch_s_to_the_bit(momentum, weight_decay):
    a, b = run(
        lambda p: SGD(p, 0.1, momentum, weight_decay),
        lambda p: torch.optim.SGD(p, 0.1, momentum, weight_decay=weight_decay, foreach=True),
    )
    assert all(torch.equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_adam_is_torch_s_but_for_rounding(weight_decay):
    # torch updates the mean by a fused lerp, this one by a product and a sum: the last bit may differ.
    a, b = run(
        lambda p: Adam(p, 0.01, 0.9, weight_decay),
        lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.999), weight_decay=weight_decay),
    )
    for x, y in zip(a, b):
        torch.testing.assert_close(x, y.detach(), rtol=1e-6, atol=1e-7)
