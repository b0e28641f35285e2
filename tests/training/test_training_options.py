"""Options of local training, against PyTorch's own."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import FEW_SAMPLES, arrays, each_method, quick, simulate
from torch import nn
from torch.nn import functional as F

from fedpfl.client.engine import _require_fitting
from fedpfl.core import user_code
from fedpfl.core.errors import ConfigError
from fedpfl.core.pixels import scale
from fedpfl.core.samples import Samples
from fedpfl.methods.fedreg import augmented
from fedpfl.setup.config import Config
from fedpfl.training.augment import find, flip_crop
from fedpfl.training.loop import run_phase, sharing_steps
from fedpfl.training.losses import class_weights, weighing_with, weighted_cross_entropy
from fedpfl.training.optim import AdamW
from fedpfl.training.phase import Phase
from fedpfl.training.settings import TrainingSettings


def data(n=24):
    generator = torch.Generator().manual_seed(3)
    return Samples(torch.randn(n, 5, generator=generator), torch.arange(n) % 3)


def model():
    torch.manual_seed(1)
    return nn.Linear(5, 3)


def trained(factor=1.0, epochs=2, **settings):
    ours = model()
    options = TrainingSettings(batch_size=8, local_epochs=epochs, momentum=0.9, **settings)
    (phase,) = sharing_steps([Phase(lambda name: True, epochs)], 24, options)
    run_phase(ours, phase, data(), options, np.random.default_rng(7), factor)
    return ours


def reference(make, epochs=2, clip=0.0, steps=None):
    theirs, (x, y), rng, done = model(), data(), np.random.default_rng(7), 0
    optimizer = make(theirs.parameters())
    while done < (steps or 3 * epochs):
        order = torch.from_numpy(rng.permutation(len(y)))
        for indices in order.split(8)[: (steps or 3 * epochs) - done]:
            optimizer.zero_grad()
            F.cross_entropy(theirs(x[indices]), y[indices]).backward()
            if clip:
                nn.utils.clip_grad_norm_(theirs.parameters(), clip)
            optimizer.step()
            done += 1
    return theirs


def same(ours, theirs):
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def sgd(rate):
    return lambda params: torch.optim.SGD(params, rate, momentum=0.9)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adamw", lambda p: torch.optim.AdamW(p, 0.05, (0.9, 0.999), weight_decay=0.1)),
        ("RMSprop", lambda p: torch.optim.RMSprop(p, 0.05, weight_decay=0.1)),
        ("Adagrad", lambda p: torch.optim.Adagrad(p, 0.05, weight_decay=0.1)),
    ],
)
def test_optimisers_are_torch_s(name, make):
    same(trained(optimizer=name, learning_rate=0.05, weight_decay=0.1), reference(make))


def test_clipping_and_a_factor_are_torch_s():
    same(trained(learning_rate=0.1, clip_norm=0.05), reference(sgd(0.1), clip=0.05))
    same(trained(learning_rate=0.1, factor=0.5), reference(sgd(0.05)))


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_steps_take_the_place_of_epochs(steps):
    same(trained(learning_rate=0.1, local_steps=steps), reference(sgd(0.1), steps=steps))
    assert torch.equal(trained(learning_rate=0.1, local_steps=6).weight, trained(learning_rate=0.1).weight)


def test_the_phases_of_a_round_share_the_steps_in_the_ratio_of_their_own():
    def shared(*phases, steps):
        settings = TrainingSettings(batch_size=8, local_epochs=1, local_steps=steps)
        return [phase.steps for phase in sharing_steps(phases, 24, settings)]

    five, two = (Phase(lambda name: True, epochs) for epochs in (5, 2))
    assert shared(five, two, steps=14) == [10, 4]
    assert shared(replace(five, gradients=3), two, steps=34) == [10, 4]
    assert shared(five, replace(two, epochs=0), steps=7) == [7, None]
    assert shared(five, replace(two, learning_rate=0.0), steps=7) == [7, None]  # which measures a gradient
    assert shared(five, replace(two, data=data(8)), steps=17) == [15, 2]
    assert shared(five, two, steps=1) == [1, 1]
    assert shared(five, two, steps=0) == [None, None]


def test_schedules_are_torch_s():
    def theirs(make, rounds=9):
        optimizer = torch.optim.SGD(model().parameters(), 1.0)
        schedule, rates = make(optimizer), []
        for _ in range(rounds):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return rates

    lr = torch.optim.lr_scheduler

    def warmed_up(optimizer, after):
        return lr.SequentialLR(optimizer, [lr.LinearLR(optimizer, 0.25, total_iters=3), after], [3])

    for name, warm_up, make in (
        ("constant", 0, lambda o: lr.ConstantLR(o, 1.0)),
        ("exponential", 0, lambda o: lr.ExponentialLR(o, 0.5)),
        ("cosine", 0, lambda o: lr.CosineAnnealingLR(o, 9)),
        ("constant", 3, lambda o: lr.LinearLR(o, 0.25, total_iters=3)),
        ("cosine", 3, lambda o: warmed_up(o, lr.CosineAnnealingLR(o, 6))),
        ("exponential", 3, lambda o: warmed_up(o, lr.ExponentialLR(o, 0.5))),
    ):
        settings = TrainingSettings(
            learning_rate_schedule=name, learning_rate_decay=0.5,
            learning_rate_warm_up=warm_up,
        )  # fmt: skip
        assert [settings.rate_factor(number, 9) for number in range(1, 10)] == pytest.approx(theirs(make))


def test_rare_classes_weigh_more():
    y = torch.tensor([0, 0, 0, 2])
    weights = class_weights(y)
    assert weights.tolist() == pytest.approx([4 / 6, 1, 2])
    outputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    padded = torch.cat([weights, torch.ones(2)])
    with weighing_with(weights):
        losses = {how: weighted_cross_entropy(outputs, y, how) for how in ("mean", "sum", "none")}
    assert torch.allclose(losses["sum"], F.cross_entropy(outputs, y, weight=padded, reduction="sum"))
    assert torch.allclose(losses["mean"], losses["sum"] / 4) and torch.allclose(losses["none"].sum(), losses["sum"])
    assert torch.equal(weighted_cross_entropy(outputs, y), F.cross_entropy(outputs, y, reduction="none").mean())
    # All classes count alike: on the whole set the weights of each class sum to the same.
    assert weights[y][y == 0].sum() == pytest.approx(float(weights[y][y == 2].sum()))


def crop_and_rotate(v2):
    return v2.Compose([v2.RandomCrop((8, 6), padding=4), v2.RandomHorizontalFlip(), v2.RandomRotation(15)])


def change_colours(v2):
    return v2.Compose([
        v2.RandomResizedCrop((8, 6), antialias=True), v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8), v2.RandomGrayscale(0.2),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("randaugment", lambda v2: v2.RandAugment()),
        ("flip-rotate", lambda v2: v2.Compose([v2.RandomHorizontalFlip(), v2.RandomRotation(15)])),
        ("crop-flip-rotate", crop_and_rotate),
        ("zoom-flip-colour", change_colours),
    ],
)
@pytest.mark.parametrize(("channels", "normalize"), [(3, "cifar-100"), (1, "half")])
def test_transforms_of_torchvision_change_image_by_image(name, made, channels, normalize):
    v2 = pytest.importorskip("torchvision.transforms.v2")
    pixels = torch.randint(0, 256, (9, channels, 8, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    changed = find(name, normalize)(scale(pixels, normalize), np.random.default_rng(3))
    torch.manual_seed(int(np.random.default_rng(3).integers(2**63 - 1)))
    expected = scale(torch.stack([made(v2)(image) for image in pixels]), normalize)
    assert torch.equal(changed, expected) and not torch.equal(changed, scale(pixels, normalize))
    with pytest.raises(ConfigError, match=f"'{name}': is for grey and colour images; these have 2 channels"):
        find(name)(torch.zeros(1, 2, 8, 8), np.random.default_rng(3))


@pytest.mark.parametrize("name", ["randaugment", "flip-rotate"])
def test_values_that_no_pixel_has_do_not_wrap_around(name):
    pytest.importorskip("torchvision.transforms.v2")
    x = torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8)
    assert find(name)(x, np.random.default_rng(3)).shape == x.shape
    images = torch.cat([x, x.clamp(-0.9, 0.9)])
    slight = torch.where(images.abs() == 1, 1.3 * images, images)  # as splines and noise overshoot
    of_slight, of_images = (find(name)(of, np.random.default_rng(3)) for of in (slight, images))
    assert torch.equal(of_slight, of_images)
    for beyond in (2.1, -2.6):
        with pytest.raises(
            ConfigError, match=f"augmentation = '{name}': is for pixels.*these are .*{beyond}.*use none"
        ):
            find(name)(torch.cat([x, torch.full_like(x, beyond)]), np.random.default_rng(3))
    with pytest.raises(ConfigError, match="fedreg-augmentation = 'simple': is for pixels"):
        augmented(x * 3, "simple", 1, "half")


def test_a_function_of_one_s_own_augments(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import torch\n\n\ndef noise(x, rng):\n    return x + torch.from_numpy(rng.normal(size=x.shape)).float()\n\n\n"
        "def short(x, rng):\n    return x[:1]\n\n\ndef bad(x, rng):\n    raise ValueError('no')\n"
    )
    user_code.set_folder(tmp_path)
    x = torch.zeros(3, 5)
    changed = find("own:noise")(x, np.random.default_rng(1))
    assert torch.equal(changed, torch.from_numpy(np.random.default_rng(1).normal(size=(3, 5))).float())
    for name, message in (("short", r"returns torch.float32 \(1, 5\); it must return a tensor"), ("bad", "raises .*no"),
                        ("none", "there is no none in")):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            find(f"own:{name}")(x, np.random.default_rng(1))
    user_code.set_folder(None)


OPTIONS = {
    "learning_rate_schedule": "exponential", "learning_rate_decay": 0.5, "clip_norm": 1.0, "local_steps": 3,
    "optimizer": "adamw", "learning_rate": 0.003, "augmentation": "flip-crop",
}  # fmt: skip


FEW_STEPS = {"train_samples": 20, "test_samples": 10, "partitioner": "dirichlet-client", "batch_size": 10}


@pytest.mark.parametrize("method", each_method())
def test_every_method_is_resumed_with_all_of_them_and_float16(tmp_path, method):
    settings = {**FEW_STEPS, **OPTIONS, **quick(method), "method": method, "local_steps": 2,
             "class_weights": "balanced", "learning_rate_warm_up": 1, "wire_dtype": "float16"}  # fmt: skip
    if method == "per-fedavg":  # which steps with sgd alone
        settings.update(optimizer="sgd")
    whole = simulate(tmp_path / "a", 2, num_server_rounds=2, **settings)
    simulate(tmp_path / "b", 2, num_server_rounds=1, **settings)
    rest = simulate(tmp_path / "b", 2, num_server_rounds=2, resume=True, **settings)
    one, other = arrays(whole, tmp_path / "a"), arrays(rest, tmp_path / "b")
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    assert all(np.isfinite(line["train_loss"]) and not line.get("failed") for line in whole.metrics())


MORE_THAN_ONE = [
    "fedavg", "fedrep", "ditto", "apfl", "pfedme", "per-fedavg", "fedem", "fedreg", "fedpac", "fedas", "fedala",
    "feddecomp",
]  # fmt: skip


def test_a_round_of_local_steps_computes_as_many_gradients_whatever_the_method(tmp_path):
    for method in MORE_THAN_ONE:
        settings = {**FEW_STEPS, "method": method, "local_steps": 30, "num_server_rounds": 2, "model": "mlp",
                    "diagnostics": True}  # fmt: skip
        lines = simulate(tmp_path / method, 2, **settings).metrics()
        assert all(28 <= line["details"]["gradients"] <= 32 for line in lines), method


def test_images_are_mirrored_and_shifted():
    x = torch.arange(6 * 2 * 8 * 9).float().reshape(6, 2, 8, 9)
    changed = flip_crop(x, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    (top, left), mirrored = rng.integers(0, 9, (2, 6)), rng.random(6) < 0.5
    assert mirrored.any() and not mirrored.all()
    padded = F.pad(x, (4, 4, 4, 4), mode="reflect")
    for image in range(6):
        wanted = padded[image, :, top[image] : top[image] + 8, left[image] : left[image] + 9]
        assert torch.equal(changed[image], wanted.flip(2) if mirrored[image] else wanted)
    assert changed.is_contiguous(memory_format=torch.channels_last)


def test_what_does_not_fit_is_one_line():
    with pytest.raises(ConfigError, match=r"class-weights = 'balanced': must be none for loss = mse"):
        Config.parse({"method": "fedavg", "class-weights": "balanced", "loss": "mse"})
    for name in ("LBFGS", "Optimizer", "adaam", "lr_scheduler"):
        with pytest.raises(ConfigError, match=r"adamw, or the name of a class in torch\.optim"):
            Config.parse({"optimizer": name})
    with pytest.raises(
        ConfigError, match=r"augmentation = 'flip-crop': must be none, or a function of your own, for a table"
    ):
        config = Config.parse({"augmentation": "flip-crop"})
        _require_fitting(config, SimpleNamespace(input_shape=(6,), name="a table", label_kind="cross-entropy"))
    assert AdamW([torch.zeros(2)], 0.1, 0.9, 0.0).weight_decay == 0.0


def test_momentum_that_is_kept_makes_rounds_one_training():
    ours, velocity, rng = model(), {}, np.random.default_rng(7)
    options = TrainingSettings(batch_size=8, local_epochs=1, momentum=0.9, learning_rate=0.1)
    for _ in range(3):
        run_phase(ours, Phase(lambda name: True, 1), data(), options, rng, velocity=velocity)
    same(ours, reference(sgd(0.1), epochs=3))
    assert set(velocity) == {"weight", "bias"} and all(array.any() for array in velocity.values())
    untouched = {name: array.clone() for name, array in velocity.items()}
    run_phase(ours, Phase(lambda name: True, 1, learning_rate=0.0), data(), options, rng, velocity=velocity)
    assert all(torch.equal(velocity[name], array) for name, array in untouched.items())


@pytest.mark.parametrize("method", ["fedavg", "feddecomp", "fedper"])
def test_kept_momentum_is_personal_and_survives_a_resume(tmp_path, method):
    settings = {**FEW_SAMPLES, "method": method, "local_epochs": 2, "fraction_train": 0.67}
    fresh = simulate(tmp_path / "fresh", 3, **settings)
    whole = simulate(tmp_path / "a", 3, keep_momentum=True, **settings)
    simulate(tmp_path / "b", 3, keep_momentum=True, **{**settings, "num_server_rounds": 2})
    resumed = simulate(tmp_path / "b", 3, keep_momentum=True, resume=True, **settings)
    one, other, without = (
        arrays(whole, tmp_path / "a"),
        arrays(resumed, tmp_path / "b"),
        arrays(fresh, tmp_path / "fresh"),
    )
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    shared = [name for name in without if name in one]
    assert any(not np.array_equal(one[name], without[name]) for name in shared)
    assert whole.metrics()[-1]["bytes_up"] == fresh.metrics()[-1]["bytes_up"]
    folders = list((tmp_path / "a" / "state").glob("*/client-*"))
    kept = load_file(max(folders[0].iterdir()))
    momentum = {name for name in kept if name.startswith("momentum/")}
    places = {"feddecomp": {"0", "1"}}.get(method, {"0"})
    assert {name.split("/")[1] for name in momentum} == places and all(kept[name].any() for name in momentum)


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"momentum": 0.0}])
def test_momentum_that_is_not_there_cannot_be_kept(settings):
    with pytest.raises(ConfigError, match="keep-momentum = True: needs optimizer = sgd and momentum above 0"):
        Config.parse({"keep-momentum": True, **settings})
