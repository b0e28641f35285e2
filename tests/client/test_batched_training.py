"""Clients that train as one batch, against the same clients one after the other."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, add_model, each_method, federation, needed, quick, run_federation
from torch import nn

from fedpfl.client import batched_evaluation
from fedpfl.client.batched_training import BatchedTraining, ClientsAtOnce, _are_finite
from fedpfl.client.engine import Engine
from fedpfl.core.checksummed_files import read_arrays
from fedpfl.engine.rounds import RoundLoop
from fedpfl.engine.simulation_transport import SimulationTransport, default_workers
from fedpfl.engine.transport import TRAIN
from fedpfl.engine.worker_pool import WorkerPool
from fedpfl.models import BaseHeadModel, registry
from fedpfl.rules import norms, running_mean
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting
from fedpfl.training.batched import run_phase_of_many

CLIENTS = 4
# The last of a client's two batches is another size, where all samples train.
UNEVEN = {**FEW_SAMPLES, "train_samples": 50, "test_samples": 16}
# Methods of which some phase runs client by client, with the reason: the method's own doing, not that of a setting.
ONE_BY_ONE = {
    "apple": {(0, "a phase has a gradient of its own")},
    "fedas": {(0, "stack expects each tensor to be equal size")},  # where clients have different classes in a batch
    "floco": {(0, "a phase has a gradient of its own")},
    "per-fedavg": {(0, "a phase has a gradient of its own")},
    "pfedgate": {(0, "Cannot access data pointer")},
    "pfedme": {(0, "a phase has a gradient of its own")},
}
# Methods whose clients are tested one by one: in each round, or in the last, in which their models are written.
ADAPTS, WRITTEN = "the model adapts before its test", "the tested model is used further"
TESTED_ALONE = {
    "fedala": {ADAPTS}, "fedbabu": {ADAPTS}, "per-fedavg": {ADAPTS}, "fedfomo": {WRITTEN}, "ifca": {WRITTEN},
    "pfedfda": {WRITTEN},
    "knn-per": {"a phase uses int values that differ between clients"},
    "pfedgate": {"RuntimeError: Cannot access data pointer of Tensor that doesn't have storage"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def smooth_models(monkeypatch):
    """Add models in which rounding stays rounding: no ReLU or maximum that it could switch."""

    def builder(width, dropout):
        def build(input_shape, num_classes):
            layers = {
                "conv1": nn.Conv2d(input_shape[0], 6, 3, padding=1), "pool1": nn.AvgPool2d(2), "tanh1": nn.Tanh(),
                "drop1": nn.Dropout2d(dropout), "flatten": nn.Flatten(),
                "fc1": nn.Linear(6 * (input_shape[1] // 2) * (input_shape[2] // 2), width), "tanh2": nn.Tanh(),
                "drop2": nn.Dropout(dropout),
            }  # fmt: skip
            return BaseHeadModel(registry.named(**layers), nn.Linear(width, num_classes))

        return build

    for name, width, dropout in (("smooth", 16, 0.0), ("smooth-wide", 24, 0.0), ("smooth-dropout", 16, 0.3)):
        add_model(monkeypatch, name, builder(width, dropout))


def run(tmp_path, name, clients_at_once, workers=0, **settings):
    """Return what a run leaves, the phases that clients did not run together, and why they were tested alone."""
    common = {"model": "smooth", "num_clients": CLIENTS, "num_server_rounds": 2, "threads": 1}
    both = {**common, "clients_at_once": clients_at_once, **settings}
    values = federation(tmp_path / name, CLIENTS, **both)
    with SimulationTransport(Config.parse(values), workers) as transport:
        folder = run_federation(transport, values)
        here = transport.crew if not workers else None
        alone, tested_alone = here and here.together.alone, here and here.tests.alone
    arrays = {f"server/{key}": array for key, array in folder.checkpoint()[1].items()}
    for path in (tmp_path / name / "state").rglob("round-*.safetensors"):
        arrays.update({f"{path.parent.name}/{path.stem}/{key}": array for key, array in read_arrays(path).items()})
    return arrays, folder.metrics(), alone, tested_alone


def numbers(line, path=""):
    if isinstance(line, dict):
        for key, value in line.items():
            if not key.startswith("seconds"):
                yield from numbers(value, f"{path}/{key}")
    elif isinstance(line, (int, float)):
        yield path, line


def compare(tmp_path, tolerance=1e-5, **settings):
    """Run both ways; return the phases of which clients ran one after the other."""
    return compare_all(tmp_path, tolerance, **settings)[0]


def compare_all(tmp_path, tolerance=1e-5, workers=0, **settings):
    """Run both ways; return the phases of which clients ran one after the other, and why they were tested alone."""
    both = [run(tmp_path, "alone", 1, **settings), run(tmp_path, "together", CLIENTS, workers, **settings)]
    (arrays, lines, *_), (together, together_lines, alone, tested_alone) = both
    assert arrays.keys() == together.keys()
    for name, array in arrays.items():
        apart = np.linalg.norm(together[name].astype(np.float64) - array) / (np.linalg.norm(array) + 1e-3)
        assert apart <= tolerance, name
    for line, together_line in zip(lines, together_lines, strict=True):
        expected, got = dict(numbers(line)), dict(numbers(together_line))
        assert expected.keys() == got.keys()
        for name, number in expected.items():
            assert got[name] == pytest.approx(number, rel=1e-4, abs=1e-5), name
    return alone, tested_alone


def about(alone):
    return {(place, reason) for _, place, reason in alone}


@pytest.mark.parametrize("method", each_method(also={*ONE_BY_ONE, *TESTED_ALONE}))
def test_every_method_trains_together_as_alone(tmp_path, method):
    settings = {**FEW_SAMPLES, "learning_rate": 0.01, **quick(method), **needed(method), "local_epochs": 2}
    alone, tested_alone = compare_all(tmp_path, method=method, **settings)
    alone = about(alone)
    assert {reason.partition(" (")[0] for reason in tested_alone} == TESTED_ALONE.get(method, set())
    expected = ONE_BY_ONE.get(method, set())
    assert {place for place, _ in alone} == {place for place, _ in expected}
    assert all(any(part in reason for _, part in expected) for _, reason in alone), alone


@pytest.mark.parametrize(
    "settings",
    [
        # Unequal numbers of samples, all of which train; the last batch of each client has another size.
        {"last_batch": "keep", "dirichlet_alpha": 0.2, "min_samples": 10},
        {"last_batch": "even", "dirichlet_alpha": 0.2, "min_samples": 10, "batch_size": 200},
        {"local_steps": 7, "last_batch": "keep"},
        {"optimizer": "adam", "last_batch": "keep", "learning_rate": 0.001, "weight_decay": 0.01},
        {"optimizer": "adamw", "learning_rate": 0.001, "weight_decay": 0.01, "clip_norm": 0.5},
        {"learning_rate_schedule": "cosine", "learning_rate_warm_up": 1, "last_batch": "keep"},
        {"clip_norm": 0.3, "batch_loss": "sum", "learning_rate": 0.002},
        {"class_weights": "balanced", "dirichlet_alpha": 0.1, "min_samples": 5},
        {"augmentation": "flip-crop"},
        {"keep_momentum": True, "weight_decay": 0.001, "method": "fedrep", "fedrep_p_epochs": 1},
        {"model": "resnet8", "num_server_rounds": 1, "local_epochs": 1, "last_batch": "keep", "train_samples": 33,
         "learning_rate": 0.002, "partitioner": "dirichlet-client", "test_samples": 16},
        {"trainable": "lora"}, {"trainable": "head"},
        {"method": "ditto", "ditto_pull": 1.0, "ditto_p_epochs": 1},
        {"method": "feddecomp", "feddecomp_init": "code", "model": "small-cnn",
         "local_epochs": 2, "train_samples": 32, "learning_rate": 0.002,
         "partitioner": "dirichlet-client", "test_samples": 16},
        {"client_models": "1:smooth-wide,3:smooth-wide", "method": "local"},
        {"tune_epochs": 1, "evaluate_trained": True, "diagnostics": True, "method": "fedper"},
    ],
    ids=lambda settings: " ".join(f"{key}={value}" for key, value in settings.items())[:60],
)  # fmt: skip
def test_every_setting_counts_as_it_does_alone(tmp_path, settings):
    samples = {} if settings.keys() & {"dirichlet_alpha", "partitioner"} else UNEVEN
    assert not compare(tmp_path, **{"learning_rate": 0.01, **samples, **settings})


@pytest.fixture
def noise():
    """Return a context of a data set of clients that have so many training samples each."""
    rng = np.random.default_rng(0)

    def of(count):
        return rng.normal(size=(count, 1, 6, 6)).astype(np.float32), rng.integers(0, 3, count)

    return lambda counts: as_setting("dataset", [(*of(count), *of(4)) for count in counts])


def test_each_client_draws_the_dropout_that_it_draws_alone(tmp_path, noise):
    with noise((40, 17, 33, 64)) as dataset:
        settings = {"dataset": dataset, "model": "smooth-dropout", "last_batch": "keep", "learning_rate": 0.01}
        assert not compare(tmp_path, method="fedrep", fedrep_p_epochs=1, **settings)


@pytest.mark.parametrize("counts", [(2, 40, 17, 9), (33, 64, 2, 65)], ids=str)
def test_clients_of_any_size_train_together_as_alone(tmp_path, noise, counts):
    with noise(counts) as dataset:
        assert not compare(tmp_path, dataset=dataset, last_batch="keep", min_samples=2, learning_rate=0.01)


@pytest.mark.parametrize("error", [ValueError("this one"), SystemExit(3)], ids=repr)
def test_one_client_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, error):
    begin = Engine.begin_training

    def failing(engine, client, message, method, later=False):
        if client == 1:
            raise error
        return begin(engine, client, message, method, later)

    monkeypatch.setattr(Engine, "begin_training", failing)
    assert not compare(tmp_path, **FEW_SAMPLES)


# With arrays of its own, split inside arrays, with phases that run client by client, and whose rule needs each reply.
# With room for the vectors of all groups or of one.
@pytest.mark.parametrize(("method", "room"), [
    ("fedavg", running_mean.ROOM), ("fedavg", 1), ("feddecomp", 1), ("fedsplit", 1), ("per-fedavg", 1), ("fedas", 1),
])  # fmt: skip
def test_vectors_that_are_added_up_where_they_were_computed_have_the_same_sum(tmp_path, monkeypatch, method, room):
    monkeypatch.setattr(running_mean, "MIN_GROUPS", 2)
    monkeypatch.setattr(running_mean, "ROOM", room)
    monkeypatch.setattr(norms, "ROOM", room)
    batches, add = [], running_mean.RunningMean.add_rows

    def counting(total, rows, weights, groups):
        batches.append(groups)
        add(total, rows, weights, groups)

    monkeypatch.setattr(running_mean.RunningMean, "add_rows", counting)
    settings = {"method": method, **needed(method), **FEW_SAMPLES}
    arrays, lines, *_ = run(tmp_path, "here", 3, **settings)
    only_sums = method != "fedas"
    assert batches == ([[0, 0, 1], [1]] * 2 if only_sums else [])
    monkeypatch.setattr(RoundLoop, "_may_stay", lambda loop: False)
    expected, expected_lines, *_ = run(tmp_path, "by the server", 3, **settings)
    assert arrays.keys() == expected.keys() and len(batches) == 4 * only_sums
    for name, array in arrays.items():
        near = "norms/" in name  # summed in another order
        np.testing.assert_allclose(array, expected[name], rtol=1e-6 if near else 0, atol=0, err_msg=name)
    for line, expected_line in zip(lines, expected_lines, strict=True):
        assert dict(numbers(line)) == dict(numbers(expected_line))


def test_clients_whose_predictions_depend_on_the_batch_are_tested_in_batches_of_their_sizes(tmp_path, monkeypatch):
    def build(input_shape, num_classes):
        whole = nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], 8)
        norm = nn.BatchNorm1d(8, track_running_stats=False)
        return BaseHeadModel(registry.named(flatten=nn.Flatten(), fc1=whole, norm=norm), nn.Linear(8, num_classes))

    add_model(monkeypatch, "batch", build)
    sizes, scores = [], batched_evaluation.scores_of_many

    def noting(turns, forwards, members, samples, *others):
        sizes.extend(len(one.y) for one in samples)
        return scores(turns, forwards, members, samples, *others)

    monkeypatch.setattr(batched_evaluation, "scores_of_many", noting)
    settings = {"model": "batch", "dirichlet_alpha": 0.3, "min_samples": 10, "validation_fraction": 0.2}
    assert not compare(tmp_path, method="fedper", last_batch="keep", **settings)
    assert len(set(sizes)) > 2


def test_no_client_waits_for_a_garbage_collection(tmp_path, monkeypatch):
    rounds, run_batch = [], BatchedTraining._run

    def noting(together, clients, *others):
        rounds.extend(weakref.ref(client.training.local) for client in clients)
        run_batch(together, clients, *others)

    monkeypatch.setattr(BatchedTraining, "_run", noting)
    gc.disable()
    try:
        run(tmp_path, "together", CLIENTS, method="fedper", **FEW_SAMPLES)
        assert len(rounds) == 2 * CLIENTS and not any(reference() for reference in rounds)
    finally:
        gc.enable()


def test_a_reply_that_is_refused_is_no_part_of_the_sum(tmp_path, monkeypatch):
    monkeypatch.setattr(running_mean, "MIN_GROUPS", 2)
    end = Engine.end_training

    def ending(engine, training, losses, taken):
        reply = end(engine, training, losses, taken)
        if training.local.client == 1:
            reply.metrics["train-loss"] = float("nan")
        return reply

    monkeypatch.setattr(Engine, "end_training", ending)
    monkeypatch.setattr(BatchedTraining, "train", with_a_long_vector(BatchedTraining.train))
    arrays, lines, *_ = run(tmp_path, "here", 4, **FEW_SAMPLES)
    for line in lines:
        assert line["failed"].keys() == {"1", "3"}
        assert "its update of the shared arrays has the norm" in line["failed"]["3"]
    monkeypatch.undo()
    assert all(np.isfinite(array).all() for name, array in arrays.items() if name.startswith("server/"))


def with_a_long_vector(train):
    """Have client 3 answer with a vector that is far from what it got."""

    def changed(together, tasks, stay):
        for batch in train(together, tasks, stay):
            yield [(client, answer, row * 1e9 if client == 3 else row) for client, answer, row in batch]

    return changed


class Pretended:
    """A memory of which each client of a batch takes as much, beside what is always taken."""

    def __init__(self, size, each, always=100):
        self.size, self.each, self.always = size, each, always
        self.most = always

    def restart(self):
        self.most = self.always

    def train(self, memory, left):
        """Train clients until none is left; return how many each batch had."""
        sizes = []
        while left:
            with memory.measured() as clients:
                clients.extend(range(min(left, memory.clients)))
                self.most = self.always + self.each * len(clients)
            sizes.append(len(clients))
            left -= len(clients)
        return sizes

    def memory(self, clients=0):
        return ClientsAtOnce(clients, lambda: self.size - self.always, lambda: self.most, self.restart)


def test_batches_are_as_large_as_the_memory_that_is_free():
    # 70 % of 900 hold 21 clients of 30; what a setting says stays.
    pretended = Pretended(1000, 30)
    assert pretended.train(pretended.memory(), 50) == [4, 21, 21, 4]
    assert pretended.train(pretended.memory(8), 20) == [8, 8, 4]
    # Fewer than the first batch fit: one at a time is the least.
    pretended = Pretended(1000, 5000)
    assert pretended.train(pretended.memory(), 7) == [4, 1, 1, 1]


def test_a_batch_too_large_for_the_memory_trains_and_is_tested_in_halves(tmp_path, monkeypatch, caplog):
    trained, tested, scores = [], [], batched_evaluation.scores_of_many

    def limited(run, sizes):
        def halves(turns, work, members, *others):
            if len(members) > 2:
                raise torch.cuda.OutOfMemoryError("pretended")
            sizes.append(len(members))
            return run(turns, work, members, *others)

        return halves

    with monkeypatch.context() as patch:
        patch.setattr("fedpfl.client.batched_training.run_phase_of_many", limited(run_phase_of_many, trained))
        assert not compare(tmp_path / "training", method="fedavg", **FEW_SAMPLES)
    monkeypatch.setattr(batched_evaluation, "scores_of_many", limited(scores, tested))
    assert not compare(tmp_path / "tests", method="fedavg", num_server_rounds=1, **FEW_SAMPLES)
    assert trained == [2] * 4 and set(tested) == {2}
    assert caplog.text.count("the memory is too small for 4 clients at once: 2 from now on") == 2


def test_a_cpu_trains_one_client_after_the_other_unless_told(tmp_path):
    values = federation(tmp_path, CLIENTS, num_clients=CLIENTS)
    with SimulationTransport(Config.parse(values), 0) as transport:
        run_federation(transport, values)
        assert transport.crew is None
    together = Config.parse({**values, "clients-at-once": 2})
    assert default_workers(together) == 0 < default_workers(Config.parse(values))


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedreg", "factorized-fl"])
def test_workers_train_a_batch_each_as_on_several_gpus(tmp_path, method, monkeypatch):
    asked, ask = [], WorkerPool.ask

    def noted(self, number, clients, kind, *others):
        asked.append((kind, len(clients)))
        return ask(self, number, clients, kind, *others)

    monkeypatch.setattr(WorkerPool, "ask", noted)
    settings = {**FEW_SAMPLES, "learning_rate": 0.01, **quick(method), **needed(method)}
    compare_all(tmp_path, method=method, workers=2, **settings)
    assert [count for kind, count in asked if kind == TRAIN] == [CLIENTS // 2] * 4  # two rounds


def test_several_gpus_have_a_worker_each(tmp_path, monkeypatch):
    config = Config.parse(federation(tmp_path, CLIENTS, num_clients=CLIENTS))
    config = replace(config, training=replace(config.training, device="cuda"))
    for gpus, workers in ((1, 0), (2, 2), (CLIENTS + 1, CLIENTS)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert default_workers(config) == workers


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_one_number_that_is_not_finite_is_found_in_the_client_that_has_it(number):
    rows = torch.full((3, 5), -3.0e38)  # finite, though their sum is not
    rows[1, 4] = number
    assert _are_finite(rows).tolist() == [True, False, True]
    assert (
        _are_finite(torch.zeros(2, 0)).tolist()
        == _are_finite(torch.ones(2, 3, dtype=torch.int64)).tolist()
        == [True, True]
    )
