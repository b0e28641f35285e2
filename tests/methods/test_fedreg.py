"""FedReG: both steps against Algorithm 1 written out, the ablations, what travels, difficult clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, simulate_and_listen
from torch.nn import functional as F

from fedpfl import models
from fedpfl.core.errors import NoPlainModel
from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.core.rng import generator
from fedpfl.core.samples import Samples
from fedpfl.methods.base import LocalRound
from fedpfl.methods.fedreg import FedReG, FedReGSettings, rebalance
from fedpfl.training.loop import run_phase
from fedpfl.training.settings import TrainingSettings

SHAPE, CLASSES, THRESHOLD, QUOTA = (1, 8, 8), 3, 12.0, 4
COUNTS = [9, 2, 3]
# One batch an epoch: the order of the samples changes nothing but the last bits.
TRAINING = TrainingSettings(local_epochs=2, batch_size=100, learning_rate=0.1, momentum=0.9)


def method_and_model(model="small-cnn", **settings):
    method = FedReG(FedReGSettings(**settings), TRAINING)
    torch.manual_seed(0)
    return method, method.build(models.build(model, SHAPE, CLASSES))


def data():
    y = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(COUNTS))
    return Samples(torch.rand(len(y), *SHAPE, generator=torch.Generator().manual_seed(1)) * 2 - 1, y)


def local_round(model, number=1):
    samples = data()
    message = Payload({"rebalance-threshold": THRESHOLD, "personal-round": 0})
    return LocalRound(4, number, 7, CLASSES, model, {}, message, lambda: samples, lambda: samples.y.numpy(), Layout(()))


def train(method, model):
    for place, phase in enumerate(method.schedule(local_round(model))):
        run_phase(model, phase, data(), TRAINING, generator(1, "batches", 4, 1, place))


def algorithm_1():
    """Return the arrays after Algorithm 1, on raw arrays and with PyTorch's optimiser."""
    arrays = {name: array.detach().clone() for name, array in method_and_model()[1].state_dict().items()}
    x, y = data()
    x_r, y_r = rebalance(data(), QUOTA, "simple", generator(7, "rebalanced set", 4, 0))

    def base(x):
        for layer in ("base.conv1", "base.conv2"):
            x = F.conv2d(x, arrays[f"{layer}.weight"], arrays[f"{layer}.bias"], padding=1)
            x = F.relu(F.max_pool2d(x, 2))
        return linear("base.fc1", x.flatten(1)).relu()

    def linear(layer, x):
        return F.linear(x, arrays[f"{layer}.weight"], arrays[f"{layer}.bias"])

    def step_1():
        mid = base(x)
        return F.cross_entropy(linear("head", mid) + linear("head_p", mid), y)

    def step_2():
        return F.cross_entropy(linear("head", base(x_r)), y_r)

    def update(prefixes, loss, epochs):
        updated = [array.requires_grad_() for name, array in arrays.items() if name.startswith(prefixes)]
        optimizer = torch.optim.SGD(updated, lr=TRAINING.learning_rate, momentum=TRAINING.momentum)
        for _ in range(epochs):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        for array in updated:
            array.requires_grad_(False)

    update(("base.", "head_p."), step_1, TRAINING.local_epochs)
    update(("base.", "head."), step_2, TRAINING.local_epochs)
    return arrays


def test_both_steps_agree_with_algorithm_1_written_out():
    method, model = method_and_model()
    train(method, model)
    expected = algorithm_1()
    assert model.state_dict().keys() == expected.keys()
    for name, array in model.state_dict().items():
        torch.testing.assert_close(array, expected[name], rtol=1e-4, atol=1e-5)


def moved_by(phase, model):
    return {name.split(".")[0] for name, _ in model.named_parameters() if phase.train(name)}


@pytest.mark.parametrize(
    ("variant", "steps"),
    [
        ("full", [{"base", "head_p"}, {"base", "head"}]),
        ("same-weights", [{"base", "head_p"}, {"base", "head"}]),
        ("one-head", [{"base", "head"}, {"base", "head"}]),
        ("original-only", [{"base", "head_p"}, {"base", "head"}]),
        ("rebalanced-only", [{"base", "head"}]),
    ],
)
def test_the_ablations_leave_out_what_they_say(variant, steps):
    method, model = method_and_model(variant=variant)
    schedule = method.schedule(local_round(model))
    assert [moved_by(phase, model) for phase in schedule] == steps
    on_rebalanced = [phase.data is not None for phase in schedule]
    assert on_rebalanced == {"original-only": [False, False], "rebalanced-only": [True]}.get(variant, [False, True])
    has_head_p = variant not in ("one-head", "rebalanced-only")
    assert method.sharing(model).personal == (["head_p.weight", "head_p.bias"] if has_head_p else [])
    assert (method.personalised(model) is method.global_model(model)) != has_head_p
    effective = method.conclude(local_round(model)).metrics["effective-samples"]
    assert effective == (sum(COUNTS) if variant == "original-only" else 4 + 2 + 3)
    weight_of = method.aggregation.options["weight_of"]
    assert weight_of("base.fc1.weight") == "train-samples"
    assert weight_of("head.weight") == ("train-samples" if variant == "same-weights" else "effective-samples")


def test_the_personal_head_starts_as_a_copy_or_at_random():
    arrays = method_and_model()[1].state_dict()
    drawn = method_and_model(personal_start="random")[1].state_dict()
    for array in ("weight", "bias"):
        assert torch.equal(arrays[f"head_p.{array}"], arrays[f"head.{array}"])
        assert torch.equal(drawn[f"head.{array}"], arrays[f"head.{array}"])
        assert not torch.equal(drawn[f"head_p.{array}"], drawn[f"head.{array}"])


def test_the_rebalanced_set_is_drawn_once():
    method, model = method_and_model()
    first, second = (method.schedule(local_round(model, number))[1].data.x for number in (1, 2))
    assert torch.equal(first, second)


def test_clients_predict_with_both_heads_and_the_global_model_with_one():
    for head_layers, model_name in ((1, "small-cnn"), (2, "small-cnn"), (2, "mlp")):
        method, model = method_and_model(model_name, head_layers=head_layers)
        x = data().x
        torch.testing.assert_close(method.personalised(model)(x), 2 * method.global_model(model)(x))  # equal at first
        with torch.no_grad():
            for name, array in model.named_parameters():
                if name.startswith("head_p."):
                    array.zero_()
        if head_layers == 1:
            assert torch.equal(method.personalised(model)(x), method.global_model(model)(x))


def test_a_head_of_two_layers_is_weighted_and_kept_whole():
    method, model = method_and_model(head_layers=2)
    weight_of = method.aggregation.options["weight_of"]
    effective = {name for name in method.sharing(model).shared if weight_of(name) == "effective-samples"}
    assert effective == {"base.fc1.weight", "base.fc1.bias", "head.weight", "head.bias"}
    shapes = [model.state_dict()[name].shape for name in method.sharing(model).personal]
    assert shapes == [
        model.state_dict()[name].shape for name in ("base.fc1.weight", "base.fc1.bias", "head.weight", "head.bias")
    ]


def test_the_server_s_means_have_their_weights(tmp_path):
    settings = {"method": "fedreg", "num_server_rounds": 1, "local_epochs": 1, **FEW_SAMPLES}
    run, grid = simulate_and_listen(tmp_path, 3, **settings)
    vectors = np.stack([reply.arrays["shared"] for _, _, reply in grid.training()]).astype(np.float64)
    metrics = [reply.metrics for _, _, reply in grid.training()]
    assert any(m["effective-samples"] < m["train-samples"] for m in metrics)
    head = 10 * 64 + 10  # the last arrays of the model
    for metric, part in (("train-samples", slice(0, -head)), ("effective-samples", slice(-head, None))):
        expected = np.average(vectors[:, part], axis=0, weights=[m[metric] for m in metrics])
        values = run.checkpoint()[1]["shared"][part]
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7)
    sizes = [m["train-samples"] for m in metrics]
    assert [message.config["rebalance-threshold"] for _, message, _ in grid.training()] == [sum(sizes) / 3] * 3


def test_two_heads_of_several_layers_have_no_plain_model_and_one_head_is_one():
    method, model = method_and_model(head_layers=2)
    with pytest.raises(NoPlainModel, match="head-layers > 1"):
        method.export(model)
    method, model = method_and_model(head_layers=2, variant="one-head")
    assert method.export(model).keys() == models.build("small-cnn", SHAPE, CLASSES).state_dict().keys()
