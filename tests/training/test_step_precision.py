"""Steps in bfloat16: what stays float32, and which machines are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpfl import models
from fedpfl.core.errors import ConfigError
from fedpfl.core.samples import Samples
from fedpfl.training.device import require_device
from fedpfl.training.inner_gradients import cross_entropy
from fedpfl.training.loop import run_phase
from fedpfl.training.phase import Phase
from fedpfl.training.settings import TrainingSettings

BF16 = TrainingSettings(batch_size=4, last_batch="keep", learning_rate=0.1, momentum=0.9, precision="bf16")


def everything(name):
    return True


def images():
    torch.manual_seed(0)
    x = torch.randn(10, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    return Samples(x, torch.arange(10) % 3)


def convnet():
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 3)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def test_steps_are_those_of_a_plain_autocast_loop():
    ours, plain, samples = convnet(), convnet(), images()
    run_phase(ours, Phase(everything, epochs=3), samples, BF16, np.random.default_rng(5))
    optimizer, rng = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9), np.random.default_rng(5)
    for _ in range(3):
        for indices in torch.from_numpy(rng.permutation(10)).split(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(plain(samples.x[indices]), samples.y[indices])
            loss.backward()
            optimizer.step()
    for a, b in zip(ours.state_dict().values(), plain.state_dict().values()):
        # The plain loop gathers batches in another memory order, so convolutions round differently: to 8 bits.
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.02)


def test_only_the_forward_pass_is_in_bfloat16():
    model, samples, seen = convnet(), images(), []

    def loss(net, batch):
        logits = net(batch.x)
        seen.append(logits.dtype)
        return F.cross_entropy(logits, batch.y)

    class Penalty:
        def add_gradient(self, names, params, grads):
            seen.extend(tensor.dtype for tensor in (*params, *grads))

    run_phase(model, Phase(everything, 1, loss=loss, penalty=Penalty()), samples, BF16, np.random.default_rng(0))
    assert seen == 3 * [torch.bfloat16, *12 * [torch.float32]]
    assert {t.dtype for t in model.state_dict().values()} == {torch.float32, torch.int64}
    assert model.eval()(samples.x).dtype == torch.float32  # what is tested is not under autocast


def test_a_method_may_move_the_weights_between_two_passes_of_a_step():
    samples, seen = images(), []

    def gradient(net, batch, names, params):
        for _ in range(2):
            loss = cross_entropy(net, batch)
            seen.append(loss.item())
            grads = list(torch.autograd.grad(loss, list(params)))
            with torch.no_grad():
                torch._foreach_sub_(list(params), grads, alpha=0.5)
        return loss, grads

    run_phase(convnet(), Phase(everything, 1, gradient=gradient), samples, BF16, np.random.default_rng(0))
    assert all(second < 0.9 * first for first, second in zip(seen[::2], seen[1::2]))


@pytest.mark.parametrize("name", ["char-lstm", "transformer", "mlp-200", "small-cnn"])
def test_models_train_in_bf16(name):
    texts = name in ("char-lstm", "transformer")
    torch.manual_seed(0)
    x = torch.randint(0, 30, (8, 12)) if texts else images().x[:8]
    samples = Samples(x, torch.arange(8) % 3)
    losses = []
    for precision in ("float32", "bf16"):
        torch.manual_seed(2)
        model = models.build(name, tuple(x.shape[1:]), 3, *([30] if texts else []))
        settings = TrainingSettings(batch_size=4, learning_rate=0.01, precision=precision)
        torch.manual_seed(3)  # dropout
        losses.append(run_phase(model, Phase(everything, 2), samples, settings, np.random.default_rng(0)))
        assert all(torch.isfinite(p).all() for p in model.parameters())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_machines_that_lack_the_device_or_the_precision_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    require_device(BF16)
    with pytest.raises(ConfigError, match=r"^device = 'cuda': this machine has no GPU that PyTorch can use; use cpu$"):
        require_device(TrainingSettings(device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Tegra X1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (5, 3))
    require_device(TrainingSettings(device="cuda"))
    with pytest.raises(ConfigError, match=r"^precision = 'bf16': the GPU NVIDIA Tegra X1 cannot compute with bfloat16"):
        require_device(TrainingSettings(device="cuda", precision="bf16"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 7))
    require_device(TrainingSettings(device="cuda", precision="bf16"))
