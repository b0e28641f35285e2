"""FedSplit and FedFac through the whole of server, strategy and client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import FEW_SAMPLES, simulate, simulate_and_listen

from fedpfl import models
from fedpfl.core.errors import ConfigError, LayoutError
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client
from fedpfl.methods.fedfac.fedsplit import hidden_layers, norm_of
from fedpfl.results.new_clients import Simulation
from fedpfl.setup.assembly import assemble, make_rule
from fedpfl.setup.config import Config

CONV2 = ["base.conv2.weight", "base.conv2.bias"]


def shared(folder):
    return load_file(folder.path / "global.safetensors")


def personal(tmp_path, client):
    newest = sorted((tmp_path / "state").glob(f"*/client-{client:05d}/round-*.safetensors"))[-1]
    return load_file(newest)


def splits(folder):
    return [np.load(path) for path in sorted((folder.path / "arrays" / "split").iterdir())]


def built(model="small-cnn", shape=(1, 8, 8), **settings):
    config = Config.parse({"model": model, "method": "fedfac", **settings})
    return config, *assemble(config, shape, 10)


# -- what must hold --------------------------------------------------------------------------------------------------


def test_after_the_static_split_no_client_specific_channel_leaves_a_client(tmp_path):
    settings = {"method": "fedfac", "fedfac_variant": "static", "num_server_rounds": 3, **FEW_SAMPLES}
    folder, grid = simulate_and_listen(tmp_path, 3, **settings)
    kept = int((splits(folder)[0] == 0).sum())
    assert kept == 16
    assert len(splits(folder)) == 1
    full = 13706
    sent = {number: [reply.arrays for _, _, reply in grid.training(number)] for number in (1, 2, 3)}
    sizes = {number: {one["shared"].size for one in arrays} for number, arrays in sent.items()}
    less = full - kept * (16 * 9 + 1)
    assert sizes == {1: {full}, 2: {less}, 3: {less}}
    later = b"".join(array.tobytes() for arrays in sent[2] + sent[3] for array in arrays.values())
    for client in range(3):
        stored = personal(tmp_path, client)
        assert {name: len(array) for name, array in stored.items()} == dict.fromkeys(CONV2, kept)
        for row in stored["base.conv2.weight"].reshape(kept, -1):
            assert row[:4].tobytes() not in later
    assert shared(folder)["base.conv2.weight[shared]"].shape == (16, 16, 3, 3)


def test_a_dynamic_round_averages_the_shared_and_keeps_the_client_specific_channels(tmp_path):
    settings = {"method": "fedfac", "num_server_rounds": 2, "fedfac_turned": "weights", **FEW_SAMPLES}
    folder, grid = simulate_and_listen(tmp_path, 3, **settings)
    _, sharing = assemble(Config.parse(folder.config()), (1, 8, 8), 10)
    vectors = {client: reply.arrays["shared"] for client, _, reply in grid.training(1)}
    samples = [reply.metrics["train-samples"] for _, _, reply in grid.training(1)]
    total = sum(np.float64(n) * v.astype(np.float64) for n, v in zip(samples, vectors.values(), strict=True))
    mean = (total / sum(samples)).astype(np.float32)
    # What a client trains from in round 2, put together by hand.
    split = splits(folder)[0]
    client, message, _ = grid.training(2)[0]
    assert np.array_equal(message.arrays["split"], split)
    assert np.array_equal(message.arrays["shared"], mean)
    elements = sharing.channels.elements(split)
    sharing.accept({"split": split})
    sharing.set_shared(mean)
    vector = vectors[client]
    sharing.set_personal({name: sharing.layout.unflatten(vector)[name] for name in CONV2})
    assert np.array_equal(sharing.get_shared(), np.where(elements, mean, vector))
    second = folder.metrics()[1]["details"]
    assert second["unchanged-channels"] == (split == splits(folder)[1]).mean()
    assert "unchanged-channels" not in folder.metrics()[0]["details"]
    communalities = np.load(folder.path / "arrays" / "communalities" / "round-000002.npy")
    assert communalities.shape == (32,)
    assert (communalities[splits(folder)[1] == 1].min() >= communalities[splits(folder)[1] == 0].max()).all()


@pytest.mark.parametrize("turned", ["difference", "weights"])
def test_what_a_channel_takes_that_turns_shared_or_personal(turned):
    config, _, sharing = built(**{"fedfac-turned": turned, "fedfac-factor": "random"})
    strategy = rule(config, sharing)
    start = strategy.shared.copy()
    before = np.ones(32, np.uint8)
    before[:16] = 0
    strategy.split = before
    changing = strategy.channels.changing(before)
    # Both clients' own channels started 10 above what the server has, and moved by 1 and 2.
    vectors = [start + np.float32(i + 1) + np.where(changing, np.float32(10), 0) for i in range(2)]
    strategy.begin_round(2)
    for i, (client, vector) in enumerate(zip(strategy.clients.values(), vectors, strict=True)):
        reply = Payload(arrays={"difference": np.full(changing.sum(), i + 1, np.float32)})
        strategy.check(client, vector, reply)
        strategy.add(client, vector, reply)
    strategy.finish()
    after, mean = strategy.split, start + 1.5
    elements = strategy.channels.elements(after)
    assert 0 < (after[:16] == 1).sum() < 16
    if turned == "weights":
        np.testing.assert_allclose(strategy.shared, mean + np.where(changing, 10, 0), rtol=1e-6)
    else:  # Algorithm 2
        np.testing.assert_allclose(strategy.shared, np.where(elements, mean, start), rtol=1e-5, atol=1e-6)
        strategy.split = before
        strategy.begin_round(3)
        with pytest.raises(LayoutError, match=f"without the array 'difference' of {changing.sum()} values"):
            strategy.check(client, vector, Payload())


def rule(config, sharing):
    return make_rule(config, [Client(i, 10, 5) for i in range(2)], sharing)


# -- what belongs to a channel ---------------------------------------------------------------------------------------


def test_batchnorm_follows_its_kernel_and_other_layers_are_shared():
    _, model, sharing = built("resnet8", (3, 32, 32))
    assert sharing.channels.layers == (
        (
            "base.layer3.0.conv2.weight",
            *(f"base.layer3.0.bn2.{n}" for n in ("weight", "bias", "running_mean", "running_var")),
        ),
    )
    split = np.zeros(256, np.uint8)
    split[::2] = 1
    elements = sharing.channels.elements(split)
    for name, place in sharing.channels.layout.slices().items():
        if name in sharing.channels.layers[0]:
            assert (elements[place].reshape(256, -1) == split[:, None]).all()
        else:
            assert elements[place].all()
    assert norm_of(model, "base.layer2.0.conv1") == "base.layer2.0.bn1"


def test_the_code_s_split_keeps_biases_and_batchnorm_of_the_layer_personal():
    _, _, sharing = built(**{"fedfac-splits": "weight"})
    assert sharing.channels.layers == (("base.conv2.weight",),)
    assert "base.conv2.bias" not in sharing.layout.names
    _, _, sharing = built("resnet8", (3, 32, 32), **{"fedfac-splits": "weight"})
    left = [name for name in sharing.personal if name not in sharing.shared]
    assert left == [f"base.layer3.0.bn2.{n}" for n in ("weight", "bias", "running_mean", "running_var")]


@pytest.mark.parametrize("method", ["fedfac", "fedavg"])
def test_running_statistics_can_stay_with_the_client(method):
    _, _, sharing = built("resnet8", (3, 32, 32), **{"method": method, f"{method}-share-buffers": False})
    assert not any("running" in name for name in sharing.layout.names)
    assert sum("running" in name for name in sharing.personal) == 18


@pytest.mark.parametrize(
    ("model", "count", "numbers", "names"),
    [
        ("resnet18", 17, "16,17", ["base.layer4.1.conv1", "base.layer4.1.conv2"]),
        ("vgg16", 15, "15", ["base.classifier.3"]),
        ("fedavg-cnn", 3, "2", ["base.conv2"]),
        ("fedavg-cnn", 3, "base.fc1, base.conv1", ["base.conv1", "base.fc1"]),
        ("resnet18", 17, "auto", ["base.layer4.1.conv2"]),
        ("mlp", 2, "auto", ["base.fc2"]),
        ("char-lstm", 1, "1", ["base.fc1"]),
    ],
)
def test_layers_are_numbered_as_in_the_paper(model, count, numbers, names):
    with torch.device("meta"):
        text = model == "char-lstm"
        plain = models.build(model, (80,) if text else (3, 32, 32), 10, 100 if text else 0)
    assert len(hidden_layers(plain)) == count
    config = Config.parse({"method": "fedfac", "model": model, "fedfac-layers": numbers})
    assert config.method.layers(plain) == names


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fedfac-kappa", "0", "must be a number above 0 and at most 1"),
        ("fedfac-kappa", "high", "must be a number above 0 and at most 1"),
        ("fedfac-tau", "1.5", "must be a number from 0 to 1, inf, -inf or mean, or one for each"),
        ("fedfac-tau", "nan", "must be a number from 0 to 1, inf, -inf or mean, or one for each"),
        ("fedfac-tau", "0.5,0.5", "must be one number, or one for each of 1 layers"),
        ("fedfac-layers", "4", "'4' must be a number from 1 to 3 or one of base.conv1, base.conv2, base.fc1"),
        ("fedfac-layers", "head", "'head' must be a number from 1 to 3"),
    ],
)
def test_wrong_settings_are_one_line(key, value, message):
    with pytest.raises(ConfigError) as error:
        built(**{key: value})
    assert str(error.value).startswith(f"{key} = {value!r}: ")
    assert message in str(error.value)


def test_kappa_and_tau_can_differ_by_layer(tmp_path):
    run = simulate(
        tmp_path, 2, method="fedfac", fedfac_layers="1,2,3", fedfac_tau="0.25,inf,-inf", fedfac_kappa="0.5,0.75,0.9",
        num_server_rounds=1, **FEW_SAMPLES,
    )  # fmt: skip
    conv1, conv2, fc1 = np.split(splits(run)[0], [16, 48])
    assert (conv1.sum(), conv2.sum(), fc1.sum()) == (12, 0, 64)


# -- variants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [[1], np.full(32, 2, np.uint8), np.ones(32, np.float32), np.ones((1, 32), np.uint8)])
def test_a_bad_split_from_the_network_is_refused(split):
    _, _, sharing = built()
    with pytest.raises(LayoutError, match="a split arrived as"):
        sharing.accept({"split": np.asarray(split)})


# -- a given split ---------------------------------------------------------------------------------------------------


def test_fedsplit_takes_the_split_that_fedfac_found(tmp_path):
    fedfac = simulate(tmp_path / "a", 2, method="fedfac", num_server_rounds=1, **FEW_SAMPLES)
    path = fedfac.path / "arrays" / "split" / "round-000001.npy"
    settings = {"fedsplit_split": str(path), "num_server_rounds": 2, **FEW_SAMPLES}
    run = simulate(tmp_path / "b", 2, method="fedsplit", **settings)
    assert np.array_equal(run.checkpoint()[1]["split"], np.load(path))


def test_a_random_split_has_the_share_asked_for_and_follows_the_seed():
    def split(seed):
        config, _, sharing = built(**{"method": "fedsplit", "fedsplit-shared": 0.25, "seed": seed})
        return rule(config, sharing).split

    assert split(1).sum() == 8
    assert np.array_equal(split(1), split(1))
    assert not np.array_equal(split(1), split(2))


@pytest.mark.parametrize("content", [None, np.ones(31, np.uint8), np.full(32, 0.5)])
def test_a_split_file_that_does_not_fit_is_one_line(tmp_path, content):
    path = tmp_path / "split.npy"
    if content is not None:
        np.save(path, content)
    config, _, sharing = built(**{"method": "fedsplit", "fedsplit-split": str(path)})
    with pytest.raises(ConfigError, match=r"fedsplit-split = .*: must be random or a NumPy file with a 0 or 1 for"):
        rule(config, sharing)


# -- around it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["dynamic", "static"])
@pytest.mark.parametrize("mask", ["none", "shared", "personal"])
def test_a_mask_puts_noise_into_one_sides_weights_before_training_and_tests(tmp_path, mask, variant):
    quick = {"local_epochs": 1, "num_server_rounds": 1, "threads": 1, **FEW_SAMPLES}
    folder = simulate(tmp_path, 2, method="fedfac", fedfac_mask=mask, fedfac_variant=variant, **quick)
    left, (split,) = Simulation.of(folder), splits(folder)
    replaced = (split == {"none": 2, "shared": 1, "personal": 0}[mask]).nonzero()[0].tolist()

    def masked(client):
        local = left.load(client, "train")
        before = local.start
        left.engine.config.method.prepare(local)
        after = {name: array.clone() for name, array in local.model.state_dict().items()}
        assert {name for name in before if not torch.equal(after[name], before[name])} == set(
            CONV2[:1] if replaced else ()
        )
        weight = after[CONV2[0]]
        rows = (weight != before[CONV2[0]]).reshape(len(weight), -1).any(1)
        assert rows.nonzero().flatten().tolist() == replaced
        assert not replaced or 0.9 < float(weight[replaced].std()) < 1.1
        return weight[replaced]

    first, again, other = masked(0), masked(0), masked(1)
    assert torch.equal(first, again)
    assert not replaced or not torch.equal(first, other)
