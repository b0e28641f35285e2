"""Federations on texts: every method on the LSTM, what FedDecomp decomposes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from support import LocalGrid, each_method, federation, quick, run_federation, simulate

from fedpfl import models
from fedpfl.core.errors import FedpflError
from fedpfl.results.export import export_personal

# Methods that compute with the input itself.
REFUSE = {
    "pfedgate": "method = 'pfedgate': its gate computes with the input values, but tokens are only numbers of words"
}


@pytest.fixture
def plays(tmp_path):
    """Write two short roles, 4 samples each, and return the settings that read them."""
    roles = {
        f"play / {name}": (line * 40)[: 80 * 4 + 1] for name, line in (("A", "to be, or not "), ("B", "no! yes? "))
    }
    (tmp_path / "shakespeare.json").write_text(json.dumps(roles))
    return {
        "dataset": "shakespeare", "model": "char-lstm", "data_dir": str(tmp_path), "partitioner": "natural",
        "min_samples": 4, "num_server_rounds": 1, "local_epochs": 2, "batch_size": 4, "learning_rate": 0.01,
    }  # fmt: skip


@pytest.mark.parametrize("method", each_method(also=REFUSE))
def test_every_method_trains_on_texts_or_says_why_not(tmp_path, plays, method):
    settings = {**quick(method), **plays, "method": method}
    if method in REFUSE:
        with pytest.raises(FedpflError) as caught:
            simulate(tmp_path, 2, **settings)
        assert str(caught.value).endswith(REFUSE[method])
        return
    line = simulate(tmp_path, 2, **settings).metrics()[0]
    assert line["clients"] == [0, 1]
    assert 0 < line["train_loss"] < 10
    assert np.isfinite(line["personalised"]["loss"])


def test_devices_with_other_vocabularies_are_refused(tmp_path):
    nodes = {}
    for i, tokens in enumerate((9, 10)):
        np.savez(tmp_path / f"{i}.npz", x=np.arange(40).reshape(20, 2) % 9, y=np.arange(20) % 2, vocabulary=tokens)
        nodes[i] = {"data": str(tmp_path / f"{i}.npz")}
    values = federation(tmp_path, 2, model="transformer", num_classes=2)
    with pytest.raises(FedpflError, match="differ from the others': 2 of 10 tokens, most have 2 of 9 tokens"):
        run_federation(LocalGrid(2, values, node_config=nodes), values)


def test_feddecomp_decomposes_attention_and_classifier(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.integers(1, 50, (60, 6)), y=rng.integers(0, 3, 60), vocabulary=50)
    run = simulate(
        tmp_path, 2, method="feddecomp", dataset="npz", data=str(tmp_path / "a.npz"), model="transformer",
        num_server_rounds=1,
    )  # fmt: skip
    stored = load_file(next((tmp_path / "state").rglob("*.safetensors")))
    attention = [f"base.blocks.block{b}.attention.{part}" for b in (1, 2) for part in ("query", "key", "value", "out")]
    assert set(stored) == {f"{layer}.{factor}" for layer in [*attention, "head"] for factor in ("tau_a", "tau_b")}
    assert run.task()["remarks"] == [
        "feddecomp: no low-rank part in base.embedding, base.blocks.block1.forward1, base.blocks.block1.forward2, "
        "base.blocks.block2.forward1, base.blocks.block2.forward2: these weights are σ alone"
    ]
    (path, _) = export_personal(run)
    model = models.build("transformer", (6,), 3, 50)
    model.load_state_dict(load_torch(path))
    sigma = load_file(run.path / "global.safetensors")
    moved = {name for name, array in model.state_dict().items() if not np.array_equal(array.numpy(), sigma[name])}
    assert moved == {f"{layer}.weight" for layer in [*attention, "head"]}
