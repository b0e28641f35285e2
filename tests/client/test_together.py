"""Clients that train as one batch, against the same clients one after the other."""

import logging

import numpy as np
import pytest
import torch
from support import federation, needed, quick, run_federation
from torch import nn
from torch.nn import functional as F

import fedpfl
from fedpfl.client import together
from fedpfl.client.together import Memory
from fedpfl.core.stored import read_arrays
from fedpfl.engine.local import LocalTransport
from fedpfl.methods import methods
from fedpfl.setup.config import Config
from fedpfl.training import batched

CLIENTS = 4
# Methods of which some phase runs client by client, with the reason: the method's own doing, not that of a setting.
ONE_BY_ONE = {
    "fedas": {(0, "stack expects each tensor to be equal size")},  # where clients have different classes in a batch
    "feddbe": {(0, "a phase keeps something from one step to the next")},
    "per-fedavg": {(0, "a phase has a gradient of its own")},
    "pfedgate": {(0, "Cannot access data pointer")},
    "pfedme": {(0, "a phase has a gradient of its own")},
}


def run(tmp_path, name, clients_at_once, **given):
    """Return what a run leaves, and the phases that clients did not run together."""
    both = {"num_clients": CLIENTS, "num_server_rounds": 2, "threads": 1, "clients_at_once": clients_at_once, **given}
    values = federation(tmp_path / name, CLIENTS, **both)
    with LocalTransport(Config.parse(values), 0) as transport:
        folder = run_federation(transport, values)
        alone = transport._together.alone if transport._together else None
    arrays = {f"server/{key}": array for key, array in folder.checkpoint()[1].items()}
    for path in (tmp_path / name / "state").rglob("round-*.safetensors"):
        arrays.update({f"{path.parent.name}/{path.stem}/{key}": array for key, array in read_arrays(path).items()})
    return arrays, folder.metrics(), alone


def numbers(line, path=""):
    if isinstance(line, dict):
        for key, value in line.items():
            if not key.startswith("seconds"):
                yield from numbers(value, f"{path}/{key}")
    elif isinstance(line, (int, float)):
        yield path, line


def compare(tmp_path, tolerance=1e-5, **given):
    """Run both ways; return the phases of which clients ran one after the other."""
    both = [run(tmp_path, name, count, **given) for name, count in (("alone", 1), ("together", CLIENTS))]
    (arrays, lines, _), (found, found_lines, alone) = both
    assert arrays.keys() == found.keys()
    for name, array in arrays.items():
        apart = np.linalg.norm(found[name].astype(np.float64) - array) / (np.linalg.norm(array) + 1e-3)
        assert apart <= tolerance, name
    for line, found_line in zip(lines, found_lines, strict=True):
        expected, got = dict(numbers(line)), dict(numbers(found_line))
        assert expected.keys() == got.keys()
        for name, number in expected.items():
            assert got[name] == pytest.approx(number, rel=1e-4, abs=1e-5), name
    return alone


def about(alone):
    return {(place, reason) for _, place, reason in alone}


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_trains_together_as_alone(tmp_path, method):
    given = {"learning_rate": 0.01, **quick(method), **needed(method), "local_epochs": 2}
    alone = about(compare(tmp_path, method=method, **given))
    expected = ONE_BY_ONE.get(method, set())
    assert {place for place, _ in alone} == {place for place, _ in expected}
    assert all(any(words in reason for _, words in expected) for _, reason in alone), alone


@pytest.mark.parametrize(
    "given",
    [
        # Unequal numbers of samples, all of which train; the last batch of each client has another size.
        {"last_batch": "keep", "dirichlet_alpha": 0.2, "min_samples": 10},
        {"last_batch": "even", "dirichlet_alpha": 0.2, "min_samples": 10, "batch_size": 200},
        {"local_steps": 7, "last_batch": "keep"},
        {"optimizer": "adam", "last_batch": "keep", "learning_rate": 0.001, "weight_decay": 0.01},
        {"optimizer": "adamw", "learning_rate": 0.001, "weight_decay": 0.01, "clip_norm": 0.5},
        {"learning_rate_over": "steps", "learning_rate_schedule": "cosine", "last_batch": "keep"},
        {"learning_rate_over": "steps", "learning_rate_warm_up": 3},
        {"learning_rate_schedule": "exponential", "learning_rate_decay": 0.5},
        {"clip_norm": 0.3, "batch_loss": "sum", "learning_rate": 0.002},
        {"class_weights": "balanced", "label_smoothing": 0.1, "dirichlet_alpha": 0.1, "min_samples": 5},
        {"augmentation": "flip-crop"},
        {"keep_momentum": True, "weight_decay": 0.001, "method": "fedrep", "fedrep_p_epochs": 1},
        {"model": "resnet8", "local_epochs": 1, "last_batch": "keep", "train_samples": 33, "learning_rate": 0.005,
         "partitioner": "dirichlet-client", "test_samples": 16},
        {"trainable": "lora"}, {"trainable": "head"},
        {"method": "ditto", "ditto_pull": 1.0, "ditto_p_epochs": 1},
        {"method": "scaffold", "scaffold_control": "start"},
        {"method": "fedala", "num_server_rounds": 3},
        {"method": "feddecomp", "model": "resnet8", "local_epochs": 2, "train_samples": 32, "learning_rate": 0.002,
         "partitioner": "dirichlet-client", "test_samples": 16},
        {"client_models": "small-cnn mlp", "method": "local"},
        {"tune_epochs": 1, "evaluate_trained": True, "diagnostics": True, "method": "fedper"},
    ],
    ids=lambda given: " ".join(f"{key}={value}" for key, value in given.items())[:60],
)  # fmt: skip
def test_every_setting_counts_as_it_does_alone(tmp_path, given):
    assert not compare(tmp_path, 1e-3 if "optimizer" in given else 1e-5, **{"learning_rate": 0.01, **given})


def samples(counts):
    """Return clients with so many training samples each, of noise."""
    rng = np.random.default_rng(0)

    def of(n):
        return rng.normal(size=(n, 6)).astype(np.float32), rng.integers(0, 3, n)

    return [fedpfl.ClientArrays(*of(n), *of(4)) for n in counts]
