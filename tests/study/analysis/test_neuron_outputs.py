"""FedFac's figures 1 and 2, FedReG's figure 6: what neurons put out, and what augmentations make of images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, simulate

from fedpfl.core.errors import ConfigError
from fedpfl.data.federation import federated_data
from fedpfl.setup.config import Config
from fedpfl.study.analysis import ANALYSES

# Beside the tables that need them.
entropy = ANALYSES["neuron-outputs"].function.__globals__["entropy"]


@pytest.mark.parametrize("k", [1, 3, 5])
def test_entropy_is_that_of_known_distributions(k):
    rng = np.random.default_rng(1)
    normal, uniform = rng.normal(0, 2, 2000), rng.uniform(0, 8, 2000)
    assert entropy(normal, k) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 4), abs=0.06)
    assert entropy(uniform, k) == pytest.approx(math.log(8), abs=0.06)


def test_equal_outputs_of_more_than_k_clients_have_no_entropy():
    values = np.array([0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 4.0])
    assert entropy(values, 3) is None and entropy(values, 4) is not None


def test_outputs_are_the_means_over_each_client_s_samples(tmp_path):
    settings = {**FEW_SAMPLES, "method": "local", "model": "mlp-200", "num_server_rounds": 1}
    run = simulate(tmp_path, 5, **settings)
    result = ANALYSES["neuron-outputs"].make([run], neighbours=2)
    heat, *distributions = result.figures
    assert heat.values.shape == (200, 5)
    means = heat.values.mean(axis=1)
    assert (np.diff(means) <= 1e-6).all(), "the neurons with the largest outputs come first"
    ((_, neurons, alike, spread, above),) = result.tables[0].rows
    assert neurons == 200 and above <= 200 - alike
    values = next(iter(distributions[0].groups.values()))
    assert len(values) == 200 - alike and spread.mean == pytest.approx(np.mean(values))
    config = Config.parse(run.config())
    x = federated_data(config.data, 5, config.run.seed).train(3).x
    arrays = {name: torch.from_numpy(array) for name, array in _arrays(tmp_path, 3).items()}
    out = (x.flatten(1) @ arrays["base.fc1.weight"].T + arrays["base.fc1.bias"]).mean(0).numpy()
    order = [int(name) for name in heat.rows]
    np.testing.assert_allclose(heat.values[:, 3], out[order], rtol=1e-4, atol=1e-6)
    with pytest.raises(ConfigError, match="neighbours = 5: must be below 5, the clients of"):
        ANALYSES["neuron-outputs"].make([run], neighbours=5)


def _arrays(tmp_path, client):
    from safetensors.numpy import load_file

    return load_file(max((tmp_path / "state").glob(f"*/client-{client:05d}/round-*.safetensors")))


def test_augmented_images_are_shown_beside_their_originals(tmp_path):
    pytest.importorskip("torchvision")
    run = simulate(tmp_path, 3, **FEW_SAMPLES, method="fedreg", num_server_rounds=1)
    result = ANALYSES["augmentations"].make([run], client=1, images=2, copies=3)
    config = Config.parse(run.config())
    originals = federated_data(config.data, 3, config.run.seed).train(1).x
    assert [figure.title for figure in result.figures] == ["FedReG's augmentation simple", "FedReG's augmentation auto"]
    for figure in result.figures:
        assert [len(images) for images in figure.rows.values()] == [4, 4]
        for place, (first, *copies) in enumerate(figure.rows.values()):
            np.testing.assert_allclose(first, (originals[place, 0].numpy() + 1) / 2, atol=1e-6)
            assert all(copy.shape == first.shape for copy in copies)
    assert [row[:2] for row in result.tables[0].rows] == [["simple", 6], ["auto", 6]]
    assert result.tables[0].rows[0][2] > 0.5
    with pytest.raises(ConfigError, match="client = 3: must be below 3"):
        ANALYSES["augmentations"].make([run], client=3)
