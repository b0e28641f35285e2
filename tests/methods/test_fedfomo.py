"""FedFomo: the weights against the equations, the validation part, and local training as its limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import FEW_SAMPLES, federation, head, linear_round, simulate, softmax, train
from torch import nn

from fedpfl.core.errors import ConfigError, LayoutError
from fedpfl.core.extra_arrays import Extras
from fedpfl.core.payload import Payload
from fedpfl.methods.fedfomo import FedFomo, FedFomoSettings
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.training.settings import TrainingSettings


def fedfomo(epochs=1, **settings):
    training = TrainingSettings(local_epochs=epochs, batch_size=100, learning_rate=1e-9, momentum=0.0)
    return FedFomo(FedFomoSettings(**settings), training)


def test_without_models_and_validation_it_is_local_to_the_bit(tmp_path):
    settings = {"fraction_train": 0.5, "num_server_rounds": 3, "local_epochs": 1, **FEW_SAMPLES}
    ours = simulate(tmp_path / "a", 4, method="fedfomo", fedfomo_models=0, fedfomo_validation=0.0, **settings)
    local = simulate(tmp_path / "b", 4, method="local", **settings)
    assert [line["personalised"] for line in ours.metrics()] == [line["personalised"] for line in local.metrics()]
    _, sharing = assemble(Config.parse(ours.config()), (1, 8, 8), 10)
    rows = ours.checkpoint()[1]["for_clients"]
    files = {path.parent.name: path for path in sorted((tmp_path / "b" / "state").rglob("round-*.safetensors"))}
    assert files
    for client, path in files.items():
        row = sharing.layout.unflatten(rows[int(client.removeprefix("client-"))])
        arrays = load_file(path)
        assert row.keys() == arrays.keys()
        assert all(np.array_equal(row[name], array) for name, array in arrays.items())


def task(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 2))
    return rng, x, (x[:, 0] > 0).astype(int)


def loss(x, y, weight, bias):
    p = softmax(x @ weight.reshape(2, 2).T + bias)
    return -np.log(p[np.arange(len(y)), y]).mean()


def on(held):
    """Return the loss of a linear model, one vector, on the validation part."""
    return lambda vector: loss(held.x.numpy(), held.y.numpy(), vector[:4].astype(np.float64), vector[4:])


def gains(loss, before, models):
    """Return by how much each model is better than the one before, for each unit of its distance, or 0."""
    apart = [np.linalg.norm(model - before) for model in models]
    return np.array([max(0, (loss(before) - loss(m)) / d) if d else 0 for m, d in zip(models, apart, strict=True)])


def test_weights_are_gains_over_distances():
    rng, x, y = task(2)
    method = fedfomo(validation=0.5)
    start = linear_round(method, x, y, 2)
    weight, bias = head(start.model)
    held = method._parts(start)[1]  # the client has never trained: its own model is all there is to compare with
    mine = np.concatenate([weight.reshape(-1), bias]).astype(np.float32)
    others = (mine + rng.normal(size=(4, 6))).astype(np.float32)
    others[:2] = mine + np.array([[-1, 0, 1, 0, 0, 0], [-3, 1, 2, 0, 0, 0]])  # two that help
    others[3] = mine
    expected = gains(on(held), mine, others)
    assert (expected[:2] > 0).all() and (expected[2:] == 0).any()
    expected /= expected.sum()
    local = linear_round(method, x, y, 2, message=Payload(arrays={"models": others}))
    reply = train(method, local)
    np.testing.assert_allclose(reply.arrays["weights"], expected, rtol=1e-4, atol=1e-6)
    mixed = mine + expected @ (others.astype(np.float64) - mine)
    np.testing.assert_allclose(vector_of(dict(local.model.named_parameters())), mixed, rtol=1e-4)


def test_distances_are_of_the_parameters_without_running_statistics():
    _, x, y = task(2)
    method, base = fedfomo(validation=0.5), lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(2, affine=False))
    start = linear_round(method, x, y, 2, base=base)
    split, held = method.sharing(start.model), method._parts(start)[1]
    places, mine = split.layout.slices(), split.get_shared().astype(np.float64)
    others = np.stack([mine, mine, mine])
    others[:2, places["head.weight"]] += [[-1, 0, 1, 0], [-6, 0, 6, 0]]
    others[1:, places["base.1.running_mean"]] += 0.3  # far away, and not to be counted
    others[1:, places["base.1.running_var"]] *= 9

    def normalised_loss(vector):
        mean, variance, weight, bias = (
            vector[places[name]] for name in ("base.1.running_mean", "base.1.running_var", "head.weight", "head.bias")
        )
        return loss((held.x.numpy() - mean) / np.sqrt(variance + 1e-5), held.y.numpy(), weight, bias)

    moved = [np.linalg.norm((other - mine)[places["head.weight"]]) for other in others]
    better = [normalised_loss(mine) - normalised_loss(other) for other in others]
    expected = np.array([max(0, gain / m) if m else 0 for gain, m in zip(better, moved, strict=True)])
    assert (expected[:2] > 0).all() and not expected[2]
    message = Payload(arrays={"models": others.astype(np.float32)})
    reply = train(method, linear_round(method, x, y, 2, message=message, base=base))
    np.testing.assert_allclose(reply.arrays["weights"], expected / expected.sum(), rtol=1e-4, atol=1e-6)


def later_round(method, x, y, before, trained, others):
    """Return a client's second round: it began the first with ``before`` and came out of it with ``trained``."""
    local = linear_round(method, x, y, 2, trained=1, message=Payload(arrays={"models": np.array(others, np.float32)}))
    with torch.no_grad():
        for vector, arrays in ((trained, dict(local.model.named_parameters())), (before, remembered(local.model))):
            weight, bias = np.split(np.array(vector, float), [len(vector) - 2])
            arrays["head.weight"].copy_(torch.from_numpy(weight).reshape(2, -1))
            arrays["head.bias"].copy_(torch.from_numpy(bias))
    return local


def remembered(model):
    return model.before.arrays()


def vector_of(arrays):
    return np.concatenate([arrays[name].detach().numpy().reshape(-1) for name in ("head.weight", "head.bias")])


def test_models_and_the_trained_one_are_compared_with_the_one_from_before_training():
    _, x, y = task(4)
    before, trained = np.zeros(6), np.array([-1, 0, 1, 0, 0, 0.0])
    others = np.array([[-3, 1, 2, 0, 0, 0], [3, 0, -3, 0, 0, 0]], float)  # one that helps, one that does not
    method = fedfomo(validation=0.5)
    local = later_round(method, x, y, before, trained, others)
    held = method._parts(local)[1]
    models = np.stack([trained, *others])
    expected = gains(on(held), before, models)
    assert (expected[:2] > 0).all() and expected[2] == 0
    expected /= expected.sum()
    reply = train(method, local)
    np.testing.assert_allclose(reply.arrays["weights"], expected[1:], rtol=1e-4)  # of the others' models alone
    mixed = before + expected @ (models - before)
    np.testing.assert_allclose(vector_of(dict(local.model.named_parameters())), mixed, rtol=1e-4, atol=1e-6)
    # The next round compares with where this one's training began.
    np.testing.assert_allclose(vector_of(remembered(local.model)), mixed, rtol=1e-4, atol=1e-6)


def test_a_client_goes_back_to_before_its_training_where_no_model_is_better():
    method = fedfomo(validation=0.5)
    x, y = np.array([[1.0], [-1.0], [1.0], [-1.0]]), np.array([0, 1, 0, 1])
    before, trained, other = [-1, 1, 0, 0], [-2, 2, 0, 0], [-50, 50, 0, 0]  # each worse than the one before it
    local = later_round(method, x, y, before, trained, [other])
    assert train(method, local).arrays["weights"].tolist() == [0]
    np.testing.assert_allclose(vector_of(dict(local.model.named_parameters())), before, atol=1e-6)


@pytest.mark.parametrize(("samples", "held"), [(1, 1), (2, 1), (3, 1), (10, 2), (100, 20)])
def test_the_validation_part_is_the_same_in_every_round_and_never_trained_on(samples, held):
    method = fedfomo()
    x, y = np.arange(samples, dtype=float)[:, None], np.zeros(samples, int)
    first = method._parts(linear_round(method, x, y, 2))
    later = method._parts(linear_round(method, x, y, 2, trained=6))
    assert [part.x.tolist() for part in first] == [part.x.tolist() for part in later]
    training, judging = ({row[0] for row in part.x.tolist()} for part in first)
    assert len(judging) == held
    assert training | judging == set(range(samples))
    assert not training & judging or samples == 1
    assert method.schedule(linear_round(method, x, y, 2))[0].data.x.tolist() == first[0].x.tolist()


def test_settings_and_messages_that_do_not_fit_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"fedfomo-validation = 0.0: must be > 0 unless fedfomo-models = 0"):
        Config.parse(federation(tmp_path) | {"method": "fedfomo", "fedfomo-validation": 0.0})
    extras = Extras(fedfomo().extras, shared=4)
    with pytest.raises(LayoutError, match="array 'models' is to be any × 4 values of float32 or float16; float32 of "):
        extras.read({"models": np.zeros(5, np.float32)}, "client")
