"""Personalised LoRA: every method's idea on adapters and head of a frozen backbone."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from support import ADAPTERS, FEW_SAMPLES, LocalGrid, each_method, federation, quick, run_federation, simulate

from fedpfl import models
from fedpfl.client.message_handler import handle
from fedpfl.core.errors import ConfigError, LayoutError
from fedpfl.core.frozen import frozen, frozen_hash
from fedpfl.core.payload import Payload
from fedpfl.methods import methods
from fedpfl.models.adapters import in_adapter
from fedpfl.results.export import export_personal
from fedpfl.results.new_clients import Simulation
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

# Its import takes seconds: no other test waits for it.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")

SMALL = {"num_server_rounds": 2, "local_epochs": 2, "trainable": "lora", "lora_rank": 2, **FEW_SAMPLES}
REFUSING = sorted(name for name, method in methods().items() if "trainable" in method.refuses)


@pytest.mark.parametrize("method", each_method(without=REFUSING, also=ADAPTERS))
def test_adapters_and_head_alone_are_sent_and_stored(tmp_path, method):
    settings = {**quick(method), **SMALL}
    config = Config.parse(federation(tmp_path, 3, method=method, **settings))
    model, sharing = assemble(config, (1, 8, 8), 10)
    names = {name for name, _ in frozen(model)}
    assert names
    assert not names & {*sharing.shared, *sharing.personal}
    run = simulate(tmp_path, 3, method=method, **settings)
    line = run.metrics()[-1]
    assert 0 < line["personalised"]["accuracy"] <= 1
    written = run.path / "global.safetensors"
    assert not written.is_file() or set(load_file(written)) <= set(sharing.shared)
    for client in (tmp_path / "state").glob("*/client-*"):
        for path in client.glob("round-*.safetensors"):
            assert not names & load_file(path).keys()


@pytest.mark.parametrize("method", REFUSING)
def test_methods_that_take_whole_layers_apart_refuse_in_one_line(method):
    with pytest.raises(
        ConfigError, match=f"trainable = 'head': must be all for {method}: it (factorises|splits) whole"
    ):
        Config.parse({"method": method, "trainable": "head"})


@pytest.mark.parametrize("method", ["fedper", "fedrep", "fedbabu"])
def test_nothing_to_share_is_refused(tmp_path, method):
    with pytest.raises(ConfigError, match=f"trainable = 'head': leaves nothing that {method} shares"):
        simulate(tmp_path, 2, method=method, **{**SMALL, "trainable": "head"})


def clients(run, count):
    left = Simulation.of(run)
    for client in range(count):
        yield client, left, left.load(client)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedrep", "feddecomp", "fedrod", "lg-fedavg", "fedamp"])
def test_the_merged_export_equals_the_adapted_model(tmp_path, method):
    run = simulate(tmp_path, 3, method=method, **{**quick(method), **SMALL})
    files = export_personal(run)
    assert len(files) == 3
    plain = models.build("small-cnn", (1, 8, 8), 10)
    for client, left, local in clients(run, 3):
        arrays = {name: torch.from_numpy(array) for name, array in load_file(files[client]).items()}
        plain.load_state_dict(arrays)
        local.model.eval(), plain.eval()
        x, _ = left.engine.test_samples(client)
        with torch.no_grad():
            predicted = left.engine.config.method.personalised(local.model)(x)
            torch.testing.assert_close(plain(x), predicted, atol=1e-4, rtol=1e-4)
        # What is not adapted is as it was, in every client's model.
        kept = dict(frozen(local.model))
        assert torch.equal(arrays["base.conv1.bias"], kept["base.conv1.base_layer.bias"])
        assert not torch.equal(arrays["base.conv1.weight"], kept["base.conv1.base_layer.weight"])


def test_feddecomp_s_sigma_and_tau_are_two_adapters_side_by_side(tmp_path):
    settings = {**SMALL, "feddecomp_lora_epochs": 1}
    config = Config.parse(federation(tmp_path, 3, method="feddecomp", **settings))
    model, sharing = assemble(config, (1, 8, 8), 10)
    assert {name.split(".")[-2] for name in sharing.shared if in_adapter(name)} == {"default"}
    assert {name.split(".")[-2] for name in sharing.personal if in_adapter(name)} == {"personal"}
    assert [name for name in sharing.personal if not in_adapter(name)] == ["head.tau_b", "head.tau_a"]
    with torch.no_grad():
        for name, array in model.named_parameters():
            if in_adapter(name):
                array.normal_(std=0.2)
    x = torch.randn(4, 1, 8, 8)
    model.eval()
    method = config.method
    both, sigma = method.personalised(model)(x), method.global_model(model)(x)
    assert not torch.allclose(both, sigma, atol=1e-3)
    assert torch.equal(method.personalised(model)(x), both)
    with torch.no_grad():
        for name, array in model.named_parameters():
            if in_adapter(name, "personal"):
                array.zero_()
    torch.testing.assert_close(method.personalised(model)(x), sigma)


@pytest.fixture
def backbones(tmp_path):
    """Return the paths of two files of weights."""
    paths = []
    for seed in range(2):
        torch.manual_seed(seed)
        paths.append(str(tmp_path / f"weights-{seed}.safetensors"))
        save_file(
            {n: a.contiguous() for n, a in models.build("small-cnn", (1, 8, 8), 10).state_dict().items()}, paths[-1]
        )
    return paths


def test_a_device_with_another_backbone_is_refused_before_round_1(tmp_path, backbones):
    values = federation(tmp_path, 2, method="fedavg", **{**SMALL, "trainable": "head", "initial_weights": backbones[0]})
    asked = []

    class OtherBackbone(LocalGrid):
        def answer(self, kind, payload, node_config):
            asked.append(kind)
            file = backbones[node_config["partition-id"]]
            return handle(kind, payload, {**self.run_config, "initial-weights": file}, node_config)

    with pytest.raises(LayoutError, match="client 1: has another model: the frozen arrays differ: the hash"):
        run_federation(OtherBackbone(2, values), values)
    assert set(asked) == {"query"}


def test_a_device_refuses_a_message_for_another_backbone(tmp_path, backbones):
    settings = {**SMALL, "trainable": "head", "initial_weights": backbones[0]}
    run = simulate(tmp_path, 2, method="fedavg", **settings)
    left = Simulation.of(run)
    engine, layout = left.engine, left.engine.sharing.layout
    assert layout.frozen == frozen_hash(engine.model) != ""
    for sent, error in (
        (replace(layout, frozen="0123"), "the hash 0123 arrived"),
        (replace(layout, frozen=""), "none"),
    ):
        config = {"round": 1, "personal-round": 0, "state-key": "key", "layout": sent.to_text()}
        message = Payload(config, arrays=layout.pack(left.rule.shared, "float32"))
        with pytest.raises(LayoutError, match=f"frozen arrays differ: {error}"):
            engine.train(0, message)
