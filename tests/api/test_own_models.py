"""What a user's model says of itself holds under every method: what is frozen, types of arrays, computed weights."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support import ADAPTERS, FEW_SAMPLES, LocalGrid, arrays, each_method, engine, federation, needed, run_federation
from support import run_small as run
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, prune

import fedpfl
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.models.external import with_head
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting

SPLITS = ["fedfac", "fedsplit"]
SLICES = ["fedrolex", "heterofl"]
REPLACES = ["factorized-fl", "factorized-fl-plus", "feddecomp", "pfedpara"]
# Methods that train or set the head, which must not be frozen.
NEED_HEAD = ("fedgh", "fednh", "floco", "lg-fedavg", "pfedfda")


class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.hidden, self.out = nn.Linear(256, 16), nn.Linear(16, num_classes)

    def forward(self, x):
        return self.out(self.hidden(self.norm(self.conv(x)).relu().flatten(1)).relu())


def changed(change):
    """Return a function that builds the net and does something to it."""

    def build(input_shape, num_classes):
        net = Net(input_shape, num_classes)
        change(net)
        return net

    return build


def freezing(*parts):
    def freeze(net):
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(not name.startswith(parts))

    return freeze


def models_of(made):
    """Yield the models that a run can give back."""
    for client in (0, None):
        try:
            yield made.model(client=client)
        except fedpfl.NoPlainModel as reason:
            assert "\n" not in str(reason)


def refused(method, model, tmp_path):
    """Return the one line with which a model is refused, before anything has trained."""
    with pytest.raises(fedpfl.ConfigError) as error:
        run(method, model, tmp_path)
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))
    assert "\n" not in str(error.value)
    return str(error.value)


# -- requires_grad ------------------------------------------------------------------------------------------------


def sent(made):
    """Return the arrays that all clients share; nothing where the server makes a model for each."""
    path = made.path / "global.safetensors"
    return load_file(path) if path.is_file() else {}


@pytest.mark.parametrize("parts", [("hidden.bias", "norm"), ("out",)], ids=str)
@pytest.mark.parametrize("method", each_method(also=[*REPLACES, *SPLITS, *SLICES]))
def test_what_a_model_freezes_neither_trains_nor_travels(method, parts, tmp_path):
    built = []

    def change(net):
        freezing(*parts)(net)
        built.append({name: array.detach().clone() for name, array in net.named_parameters()})

    model = changed(change)
    whole = method in ("factorized-fl", "factorized-fl-plus", "pfedpara", *SPLITS, *SLICES)
    if whole or ("out" in parts and method in NEED_HEAD):
        assert "whole" in refused(method, model, tmp_path) or not whole
        return
    made = run(method, model, tmp_path)
    names = [name for name, parameter in Net((1, 8, 8), 10).named_parameters() if name.startswith(parts)]
    travel = [name for name in sent(made) if "lora" not in name]
    assert not [name for name in travel if name.removeprefix("base.").replace("head", "out").startswith(parts)]
    said = [line for line in made._folder.task()["remarks"] if "requires_grad=False" in line]
    assert len(said) == 1
    assert all(name.replace("out.", "head.") in said[0] for name in names[:3])
    of_head = [line for line in made._folder.task()["remarks"] if "the head is frozen by the model" in line]
    assert bool(of_head) == ("out" in parts and method in ("fedbabu", "fedper", "fedrep"))
    added = ["conv.weight"] if needed(method) else []  # an adapter's product, in what is exported
    folded = ["out.bias"] if method == "feddbe" else []
    for net in models_of(made):
        for name in set(names) - {*added, *folded}:
            assert torch.equal(net.get_parameter(name), built[0][name]), name
            assert not net.get_parameter(name).requires_grad


def test_what_trains_is_what_both_the_setting_and_the_model_say(tmp_path):
    made = run("fedavg", changed(freezing("out.bias", "conv")), tmp_path, trainable="base.hidden*, base.conv*")
    assert set(sent(made)) == {"base.hidden.weight", "base.hidden.bias", "head.weight"}


def test_a_model_that_freezes_everything_is_refused(tmp_path):
    assert "freezes all its parameters" in refused("fedavg", changed(lambda net: net.requires_grad_(False)), tmp_path)


def test_a_method_with_nothing_left_to_share_is_refused(tmp_path):
    model = changed(freezing("conv", "norm", "hidden"))
    assert "leaves nothing that fedper shares" in refused("fedper", model, tmp_path)


def test_frozen_word_vectors_stay(tmp_path):
    def texts(input_shape, num_classes, vocabulary):
        vectors = torch.arange(3.0 * vocabulary).reshape(vocabulary, 3) / vocabulary
        return nn.Sequential(
            nn.Embedding.from_pretrained(vectors), nn.Flatten(), nn.Linear(3 * input_shape[0], num_classes)
        )

    tokens = np.random.default_rng(0).integers(0, 9, (60, 5))
    data = fedpfl.Dataset.of("texts", tokens, tokens[:, 0] % 2, vocabulary=9)
    made = run("fedavg", texts, tmp_path, dataset=data, partitioner="iid", train_samples=20, test_samples=8)
    assert torch.equal(made.model()[0].weight, torch.arange(27.0).reshape(9, 3) / 9)


def test_a_recurrent_layer_may_be_frozen(tmp_path):
    class Recurrent(nn.Module):
        def __init__(self, input_shape, num_classes):
            super().__init__()
            self.lstm, self.out = nn.LSTM(8, 6, batch_first=True).requires_grad_(False), nn.Linear(6, num_classes)

        def forward(self, x):
            return self.out(self.lstm(x[:, 0])[0][:, -1])

    made = run("ditto", Recurrent, tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(made.model().lstm.parameters(), made.model(0).lstm.parameters(), strict=True)
    )
    assert not [name for name in sent(made) if "lstm" in name]


def test_a_user_s_own_adapters_train_on_their_frozen_layers(tmp_path):
    peft = pytest.importorskip("peft")

    def adapted(input_shape, num_classes):
        net = peft.get_peft_model(Net(input_shape, num_classes), peft.LoraConfig(target_modules=["hidden"], r=2))
        net.base_model.model.out.requires_grad_(True)
        return net

    made = run("fedavg", adapted, tmp_path)
    assert not [name for name in sent(made) if "base_layer" in name or "conv" in name]
    assert type(made.model(client=0)) is type(made.model()) is peft.PeftModel


class Changing(Net):
    """Has whole numbers and booleans, one of which counts, and frozen parameters."""

    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.register_buffer("primes", torch.tensor([123456789, 2147483647, 2**62 + 1]))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("bytes", torch.tensor([255, 1], dtype=torch.uint8))
        self.conv.requires_grad_(False)

    def forward(self, x):
        self.steps += self.training
        return super().forward(x) + 0.001 * self.steps


class Drawing(Net):
    """Draws from NumPy's and Python's global generators."""

    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.order = np.random.permutation(16)
        with torch.no_grad():
            self.hidden.bias.fill_(random.random())

    def forward(self, x):
        h = self.hidden(self.norm(self.conv(x)).relu().flatten(1)).relu()
        return self.out(h[:, self.order] * np.random.uniform(0.5, 1) + random.random())


@pytest.mark.parametrize("net", [Changing, Drawing])
def test_workers_and_flower_s_messages_give_the_same_bits(tmp_path, net):
    runs = []
    with as_setting("model", net) as text:
        for place in ("flower", "here", "workers"):
            settings = {"method": "fedper", "model": text, "num_clients": 3, "num_server_rounds": 2, **FEW_SAMPLES}
            values = federation(tmp_path / place, 3, **settings)
            if place == "workers":
                with SimulationTransport(Config.parse(values), workers=2) as transport:
                    folder = run_federation(transport, values)
            else:
                folder = run_federation(LocalGrid(3, values) if place == "flower" else engine(3, values), values)
            runs.append(arrays(folder, tmp_path / place))
    for other in runs[1:]:
        assert other.keys() == runs[0].keys()
        for name, array in runs[0].items():
            np.testing.assert_array_equal(other[name], array, err_msg=name)


# -- types of arrays ----------------------------------------------------------------------------------------------


# Adapters freeze the layer whose counter moves, which is refused.
@pytest.mark.parametrize("method", each_method(without=[*REPLACES, *SPLITS, *SLICES, *ADAPTERS]))
def test_whole_numbers_stay_what_they_are_on_their_client(method, tmp_path):
    made = run(method, Changing, tmp_path)
    assert not {name.rpartition(".")[2] for name in sent(made)} & {"primes", "steps", "mask", "bytes"}
    for net in models_of(made):
        assert net.primes.tolist() == [123456789, 2147483647, 2**62 + 1]
        assert net.mask.tolist() == [True, False]
        assert net.bytes.tolist() == [255, 1]


def test_a_counter_goes_on_from_round_to_round(tmp_path):
    made = run("fedavg", Changing, tmp_path, num_server_rounds=3)
    assert made.model(client=0).steps.item() == made.rounds.index.max() * 2  # epochs of one batch
    assert made.model().steps.item() == 0


def with_array(dtype, parameter):
    def change(net):
        array = torch.ones(3, dtype=dtype)
        if parameter:
            net.extra = nn.Parameter(array, requires_grad=dtype.is_floating_point or dtype.is_complex)
        else:
            net.register_buffer("extra", array)

    return changed(change)


@pytest.mark.parametrize("parameter", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.bfloat16, torch.complex128])
def test_what_would_change_on_its_way_is_refused(dtype, parameter, tmp_path):
    what = f"its array base.extra is {str(dtype)[6:]}, but shared arrays travel as float32"
    assert what in refused("fedavg", with_array(dtype, parameter), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_what_does_not_travel_keeps_its_type(dtype, tmp_path):
    made = run("local", with_array(dtype, False), tmp_path)
    assert made.model(client=0).extra.dtype == dtype


def test_a_type_that_no_file_holds_is_refused(tmp_path):
    what = "base.extra is bfloat16, which cannot be stored; use float32"
    assert what in refused("local", with_array(torch.bfloat16, False), tmp_path)
    frozen = changed(lambda net: setattr(net, "extra", nn.Parameter(torch.ones(2).bfloat16(), requires_grad=False)))
    assert what in refused("fedavg", frozen, tmp_path)


@pytest.mark.parametrize("state", [{"steps": 1}, torch.ones(2)])
def test_a_state_that_is_no_array_of_the_model_is_refused(state, tmp_path):
    class Counting(Net):
        def get_extra_state(self):
            return state

        def set_extra_state(self, state):
            raise AssertionError("never kept")

    for method in ("local", "fedavg"):
        assert "keeps a state by get_extra_state (_extra_state)" in refused(method, Counting, tmp_path)


def renamed(module, arrays, prefix, metadata):
    arrays[f"{prefix}scale"] = arrays.pop(f"{prefix}norm.weight")


def removed(module, arrays, prefix, metadata):
    del arrays[f"{prefix}norm.running_mean"]


def added(module, arrays, prefix, metadata):
    arrays[f"{prefix}version"] = torch.tensor(2)


def copied(module, arrays, prefix, metadata):
    for name in arrays:
        arrays[name] = arrays[name].clone()


# As what trains would not be what is sent, kept and written to files.
@pytest.mark.parametrize(
    ("hook", "what"),
    [
        (renamed, "lacks norm.weight"), (removed, "lacks norm.running_mean"), (added, "adds version"),
        (copied, "has a copy of conv.weight"),
    ],
)  # fmt: skip
def test_a_state_dict_that_is_not_the_model_s_arrays_is_refused(hook, what, tmp_path):
    model = changed(lambda net: net._register_state_dict_hook(hook))
    said = refused("ditto", model, tmp_path)
    assert f"its state_dict() {what}; it must be its parameters and buffers" in said


def test_a_frozen_parameter_may_have_any_type(tmp_path):
    def change(net):
        net.table = nn.Parameter(torch.tensor([2**62 + 1]), requires_grad=False)
        net.waves = nn.Parameter(torch.ones(2, dtype=torch.complex64) * 1j, requires_grad=False)

    for net in models_of(run("fedavg", changed(change), tmp_path)):
        assert net.table.tolist() == [2**62 + 1]
        assert net.waves.tolist() == [1j, 1j]


# -- the forward pass in training, and layers ---------------------------------------------------------------------


def in_training(function):
    class Other(Net):
        def forward(self, x):
            logits = super().forward(x)
            return function(logits) if self.training else logits

    return Other


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda logits: (logits, logits), "gives a tuple in training mode; must give a tensor of n x 10"),
        (lambda logits: {"out": logits}, "gives a dict in training mode; must give a tensor"),
        (lambda logits: logits[:, :5], "gives 5 numbers for a sample in training mode; the data need 10"),
        (lambda logits: logits @ logits, r"does not take inputs of 1x8x8 in training mode: "),
    ],
)
def test_what_is_wrong_in_training_mode_is_found_before_round_1(function, message, tmp_path):
    assert message in refused("fedavg", in_training(function), tmp_path)


def test_the_check_leaves_running_statistics_and_counters_alone():
    net = Changing((1, 8, 8), 10)
    before = {name: array.clone() for name, array in net.state_dict().items()}
    state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    with_head(net, (1, 8, 8), 10)
    after = {**net.state_dict(), **{f"out.{name}": array for name, array in before.items() if name == "none"}}
    assert all(torch.equal(after[name], array) for name, array in before.items() if name in after)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (np.random.get_state()[1] == state[1]).all()
    assert random.getstate() == state[2]


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "feddecomp", "pfedme", "scaffold", "per-fedavg", "fedas"])
def test_parameters_without_a_gradient_stay_as_they_are(method, tmp_path):
    def change(net):
        net.spare, net.out = nn.Linear(3, 3), net._modules.pop("out")  # the head stays the last layer
        nn.init.constant_(net.spare.bias, 0.5)

    made = run(method, changed(change), tmp_path)
    assert made.model(client=0).spare.bias.tolist() == [0.5] * 3


def computed(how, layer):
    return changed(lambda net: how(net.get_submodule(layer)))


COMPUTE = {
    "weight norm": parametrizations.weight_norm,
    "old spectral norm": utils.spectral_norm,
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
}


@pytest.mark.parametrize("how", COMPUTE)
@pytest.mark.parametrize("layer", ["conv", "out"])
@pytest.mark.parametrize("method", ["factorized-fl", "feddecomp", "fedfac", "fedgh", "fedavg"])
def test_layers_that_compute_their_weight_work_or_are_refused(method, layer, how, tmp_path):
    model = computed(COMPUTE[how], layer)
    replaced = method in REPLACES or (method in SPLITS and layer == "conv")
    headless = layer == "out" and how == "weight norm"
    needs_head = method in ("factorized-fl", "fedgh")
    if headless and needs_head:
        assert "needs a head" in refused(method, model, tmp_path)
    elif replaced:
        assert "computes its weight from other arrays" in refused(method, model, tmp_path)
    elif layer == "out" and method == "fedgh":
        assert "computes its weight" in refused(method, model, tmp_path)
    else:
        assert all(isinstance(net, Net) for net in models_of(run(method, model, tmp_path)))


# -- random numbers -----------------------------------------------------------------------------------------------


def test_models_that_draw_from_numpy_or_python_agree_and_leave_the_user_s_generators_alone(tmp_path):
    np.random.seed(7)
    random.seed(7)
    wanted = np.random.random(), random.random()
    runs = []
    for place in "ab":
        np.random.seed(7)
        random.seed(7)
        made = run("fedavg", Drawing, tmp_path / place)
        model = made.model()
        assert (np.random.random(), random.random()) == wanted
        runs.append((model.state_dict(), model.order.tolist(), made.summary["personalised_accuracy"]))
    (one, order, accuracy), (other, *rest) = runs
    assert rest == [order, accuracy]
    assert all(torch.equal(array, other[name]) for name, array in one.items())


# -- what a test, a metric or a process may do to a run ----------------------------------------------------------------


class Crowd(nn.Module):
    """Cannot predict for one sample alone."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.norm = nn.BatchNorm1d(input_shape[0], track_running_stats=False)
        self.out = nn.Linear(input_shape[0], num_classes)

    def forward(self, x):
        return self.out(self.norm(x))


def test_the_last_sample_of_a_test_is_not_tested_alone(tmp_path):
    from fedpfl.training.loop import EVALUATION_BATCH

    rng = np.random.default_rng(0)
    count = EVALUATION_BATCH + 1
    x = rng.normal(size=(count, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    run = fedpfl.run(
        data=[(x, y, x, y)] * 2, model=Crowd, method="fedavg", num_server_rounds=1, local_epochs=1, quiet=True,
        workers=0, output_dir=str(tmp_path),
    )  # fmt: skip
    assert run.clients["accuracy"].notna().all()
    assert "failed" not in run._folder.metrics()[0]


@pytest.mark.parametrize("wrong", [lambda: float("inf"), lambda: 1 / 0])
def test_a_metric_that_fails_loses_itself_alone_and_is_named_once(wrong, tmp_path, caplog):
    def mine(outputs, y):
        return wrong() if len(y) > 2 else 0.5  # two samples are tried before round 1

    run = fedpfl.run(
        method="fedavg", dataset="digits", model="mlp", num_clients=2, num_server_rounds=2, local_epochs=1, quiet=True,
        workers=0, metrics=[mine, "f1-macro"], output_dir=str(tmp_path),
    )  # fmt: skip
    assert [record.message.count("'mine'") for record in caplog.records if "left out" in record.message] == [1]
    scores = run._folder.metrics()[0]["personalised"]
    assert 0 <= scores["accuracy"] <= 1
    assert scores.get("mine") is None
    assert 0 <= run.summary["metrics"]["f1-macro"] <= 1


def test_the_last_sample_of_an_epoch_is_not_trained_on_alone(tmp_path):
    x = np.random.default_rng(0).normal(size=(33, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    run = fedpfl.run(
        data=[(x, y, x, y)] * 2, model=Crowd, method="fedavg", num_server_rounds=1, local_epochs=1, quiet=True,
        workers=0, output_dir=str(tmp_path), batch_size=32, last_batch="keep",
    )  # fmt: skip
    assert run.rounds["clients_trained"].tolist() == [2]


def in_pool(output_dir):
    run = fedpfl.run(
        method="fedavg", dataset="digits", model="mlp", num_clients=2, num_server_rounds=1, local_epochs=1,
        quiet=True, output_dir=output_dir,
    )  # fmt: skip
    return run.summary["rounds"]


def asks_for_workers(output_dir):
    try:
        fedpfl.run(dataset="digits", num_clients=2, workers=2, quiet=True, output_dir=output_dir)
    except fedpfl.ConfigError as error:
        return str(error)


def test_a_run_in_a_pool_of_processes(tmp_path):
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(in_pool, [str(tmp_path)]) == [1]
        (said,) = pool.map(asks_for_workers, [str(tmp_path)])
    assert "workers = 2: must be 0 in a process of multiprocessing.Pool" in said
