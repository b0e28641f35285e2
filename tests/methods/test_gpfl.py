"""GPFL: the three losses, the conditions and what travels."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedpfl.core.errors import NoPlainModel
from fedpfl.core.payload import Payload
from fedpfl.core.samples import Samples
from fedpfl.methods.base import LocalRound
from fedpfl.methods.gpfl import ConditionalValve
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.training.phase import Batch


@pytest.fixture
def local():
    config = Config.parse({"method": "gpfl", "model": "small-cnn", "gpfl-guidance-weight": 0.5})
    model, sharing = assemble(config, (1, 8, 8), 3)
    samples = Samples(torch.randn(6, 1, 8, 8), torch.tensor([0, 0, 0, 0, 2, 2]))
    made = LocalRound(
        0, 1, 1, 3, model, sharing.received(), Payload(), lambda: samples, lambda: samples.y.numpy(),
        sharing.layout,
    )  # fmt: skip
    config.method.prepare(made)
    return config.method, made


def test_conditions_are_the_mean_and_the_client_s_mix_of_the_received_embeddings(local):
    _, made = local
    received = made.start["embeddings.weight"]
    torch.testing.assert_close(made.model.conditions.arrays()["general"], received.mean(0))
    condition = (4 * received[0] + 2 * received[2]) / 6
    torch.testing.assert_close(made.model.conditions.arrays()["own"], condition)


def test_the_loss_is_the_sum_of_the_three_of_the_paper(local):
    method, made = local
    model, samples = made.model, made.samples
    with torch.no_grad():
        model.embeddings.weight.add_(0.1)  # away from the received ones, which stand still
    z, condition = model.base(samples.x), model.conditions.arrays()["own"]
    general = model.valve(z, model.conditions.arrays()["general"])
    cosine = torch.stack(
        [F.cosine_similarity(general, row.expand_as(general)) for row in model.embeddings.weight], dim=1
    )
    received = made.start["embeddings.weight"]
    distance = sum(((g - received[y]) ** 2).sum() for g, y in zip(general, samples.y)).sqrt()
    expected = F.cross_entropy(model.head(model.valve(z, condition)), samples.y) + F.cross_entropy(cosine, samples.y)
    (phase,) = method.schedule(made)
    batch = Batch(samples.x, samples.y, torch.arange(6))
    torch.testing.assert_close(phase.loss(model, batch), expected + 0.5 * distance)
    torch.testing.assert_close(method.personalised(model)(samples.x), model.head(model.valve(z, condition)))


def test_a_batch_at_its_embeddings_has_a_finite_gradient(local):
    # The Frobenius norm has none at zero; PyTorch takes 0, which a square root written out would not give.
    method, made = local
    (phase,) = method.schedule(made)
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if name.startswith(("base.", "valve.")):
                parameter.zero_()
        made.start["embeddings.weight"].zero_()
    parameters = list(made.model.parameters())
    loss = phase.loss(made.model, Batch(*made.samples, torch.arange(6)))
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, parameters, allow_unused=True) if g is not None)


def test_the_valve_scales_and_shifts_under_a_relu():
    torch.manual_seed(0)
    valve = ConditionalValve(4)
    f, c = torch.randn(5, 4), torch.randn(4)
    torch.testing.assert_close(valve(f, c), (f * (valve.scale(c) + 1) + valve.shift(c)).clamp(min=0))


def test_decay_reaches_embeddings_and_valve_only(local):
    method, made = local
    (phase,) = method.schedule(made)
    names, params = zip(*made.model.named_parameters())
    grads = [torch.zeros_like(param) for param in params]
    phase.penalty.add_gradient(names, params, grads)
    for name, param, grad in zip(names, params, grads):
        weight = 0.1 if name.startswith(("embeddings.", "valve.")) else 0.0
        torch.testing.assert_close(grad, weight * param.detach(), rtol=0, atol=0)


def test_head_and_conditions_stay(local):
    method, made = local
    stays = {name.split(".")[0] for name in made.model.state_dict() if not method.is_shared(name, made.model)}
    assert stays == {"head", "conditions"}
    with pytest.raises(NoPlainModel, match="conditional valve"):
        method.export(made.model)
