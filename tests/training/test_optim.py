from __future__ import annotations

import pytest
import torch

from fedpfl.core.errors import ConfigError
from fedpfl.training.optim import SGD, USUAL_MOMENTUM, Adam, make_optimizer
from fedpfl.training.settings import TrainingSettings


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


def test_an_optimiser_by_torch_s_name_has_torch_s_defaults_and_uses_the_momentum_that_is_given():
    default = TrainingSettings().momentum
    assert default == USUAL_MOMENTUM
    for name, momentum, expected in (
        ("RMSprop", default, {}), ("RMSprop", 0.1, {"momentum": 0.1}), ("SGD", default, {"momentum": default}),
        ("Adam", 0.5, {"betas": (0.5, 0.999)}), ("NAdam", 0.5, {"betas": (0.5, 0.999)}), ("Adadelta", default, {}),
    ):  # fmt: skip
        kind = getattr(torch.optim, name)
        a, b = run(
            lambda params, name=name, momentum=momentum: make_optimizer(name, params, 0.1, momentum, 0.0),
            lambda params, kind=kind, expected=expected: kind(params, lr=0.1, **expected),
        )
        assert all(torch.equal(p, q) for p, q in zip(a, b)), (name, momentum)
    with pytest.raises(ConfigError, match=r"^momentum = 0.5: is not used by Adadelta$"):
        TrainingSettings(optimizer="Adadelta", momentum=0.5).check(None)
    with pytest.raises(ConfigError, match=r"^weight-decay = 0.1: is not used by Rprop$"):
        TrainingSettings(optimizer="Rprop", weight_decay=0.1).check(None)
    TrainingSettings(optimizer="Adamax", momentum=0.5, weight_decay=0.1).check(None)
