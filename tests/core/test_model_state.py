"""State that is nobody's: whatever a model or a method has besides arrays, each number of workers has one result."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import fedpfl
from fedpfl import models
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.core.model_state import MethodState, ModelState
from fedpfl.core.sharing import Sharing, is_parameter
from fedpfl.models.user_model import made
from fedpfl.training.settings import TrainingSettings

RNG = np.random.default_rng(0)
X = np.stack([RNG.normal(3 * c, 1, size=(40, 4)) for c in range(4)]).astype("float32")
DATA = list(zip(X, (X[..., 0] > X[..., 0].mean(1, keepdims=True)).astype("int64"), strict=True))
FEW = {"data": DATA, "num_server_rounds": 2, "local_epochs": 2, "fraction_train": 0.5, "quiet": True}


class Net(nn.Module):
    """Two layers, of which subclasses change what is between them."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.a, self.out = nn.Linear(input_shape[0], 8), nn.Linear(8, num_classes)
        self.more()

    def more(self):
        pass

    def seen(self, z):
        return z

    def forward(self, x):
        return self.out(torch.relu(self.seen(self.a(x))))


class Cumulative(Net):
    def more(self):
        self.norm = nn.BatchNorm1d(8, momentum=None)

    def seen(self, z):
        return self.norm(z)


class InPlace(Net):
    persistent = True

    def more(self):
        self.register_buffer("mean", torch.zeros(8), persistent=self.persistent)

    def move(self, z):
        self.mean.mul_(0.9).add_(0.1 * z.mean(0).detach())

    def seen(self, z):
        if self.training:
            self.move(z)
        return z - self.mean


class Reassigned(InPlace):
    def move(self, z):
        self.mean = 0.9 * self.mean + 0.1 * z.mean(0).detach()


class Temporary(Reassigned):
    persistent = False


class Counted(Net):
    def more(self):
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def seen(self, z):
        self.steps = self.steps + int(self.training)
        return z / (1 + 0.1 * self.steps)


class Attribute(Net):
    def more(self):
        self.steps = 0

    def seen(self, z):
        self.steps += int(self.training)
        return z / (1 + 0.1 * self.steps)


class Listed(Net):
    def more(self):
        self.batches = [[]]

    def seen(self, z):
        self.batches[0].append(len(z))
        return z / (1 + 0.1 * len(self.batches[0]))


class Drawing(Net):
    def more(self):
        self.rng = np.random.default_rng(0)

    def seen(self, z):
        return z * (1 + 0.1 * float(self.rng.normal())) if self.training else z


class TorchDrawing(Net):
    def more(self):
        self.generator = torch.Generator().manual_seed(0)

    def seen(self, z):
        return z * (1 + 0.1 * torch.rand(8, generator=self.generator)) if self.training else z


class Memory:
    def __init__(self):
        self.steps, self.owner = 0, self


class WithObject(Net):
    def more(self):
        self.memory = Memory()

    def seen(self, z):
        self.memory.steps += int(self.training)
        return z / (1 + 0.1 * self.memory.steps)


class Switched(nn.Module):
    """Counts how often it was told that it trains, or is tested."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def train(self, mode=True):
        self.calls += 1
        return super().train(mode)

    def forward(self, z):
        return z / (1 + 0.1 * self.calls)


class WithSwitched(Net):
    def more(self):
        self.switched = Switched()

    def seen(self, z):
        return self.switched(z)


class Remembering(fedpfl.Method):
    """Keeps something of each client on itself, as where a client is an object."""

    name = "remembering"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.last = {}

    def schedule(self, local):
        epochs = 1 + len(self.last)
        return [fedpfl.Phase(train=fedpfl.everything, epochs=epochs)]

    def conclude(self, local):
        self.last[local.client] = local.round
        return fedpfl.Payload()


def numbers(method, model, **more):
    run = fedpfl.run(method, model=model, **{**FEW, **more})
    return run.rounds[["train_loss", "personalised_loss"]].to_numpy().tolist(), run._folder.task()["remarks"]


MODELS = [
    Cumulative, InPlace, Reassigned, Temporary, Counted, Attribute, Listed, Drawing, TorchDrawing, WithObject,
    WithSwitched,
]  # fmt: skip
NOBODYS = {
    Temporary: "mean", Attribute: "steps", Listed: "batches", Drawing: "rng", TorchDrawing: "generator",
    WithObject: "memory", WithSwitched: "switched.calls",
}  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_no_state_goes_from_client_to_client_and_what_nobody_keeps_is_told(model):
    alone, remarks = numbers("fedper", model, workers=0)
    nobodys = NOBODYS.get(model)
    told = [f"the model changes {nobodys} as it trains" in remark for remark in remarks]
    assert told == [True] * bool(nobodys)
    at_once, _ = numbers("fedper", model, workers=0, clients_at_once=4)
    np.testing.assert_allclose(at_once, alone, rtol=1e-4)


class OfWhatItComputes(Net):
    def more(self):
        self.steps = 0

    def thinned(self, gradient):
        self.steps += 1
        return gradient / (1 + 0.1 * self.steps)

    def seen(self, z):
        if z.requires_grad:
            z.register_hook(self.thinned)
        return z


class EveryKind(Net):
    """Has all that the models above have, and each of it counts in what it computes."""

    kinds = (Cumulative, InPlace, Reassigned, Temporary, Counted, Attribute, Listed, Drawing, TorchDrawing, WithObject,
             WithSwitched, OfWhatItComputes)  # fmt: skip

    def more(self):
        self.parts = nn.ModuleList(kind((4,), 2) for kind in self.kinds)
        for part in self.parts:
            del part.a, part.out

    def seen(self, z):
        for part in self.parts:
            z = part.seen(z)
        return z


def test_every_kind_of_state_has_the_same_bits_with_any_number_of_workers():
    alone, *others = (numbers("fedbn", EveryKind, workers=workers) for workers in (0, 1, 2))
    assert others == [alone] * 2
    names = ("mean", "steps", "batches", "rng", "generator", "memory", "switched.calls")
    assert all(re.search(rf"parts\.\d+\.{re.escape(name)}\b", "".join(alone[1])) for name in names), alone[1]


class OfTheClass(Net):
    steps = 0

    def seen(self, z):
        type(self).steps += int(self.training)
        return z / (1 + 0.1 * self.steps)


STEPS = [0]


class Global(Net):
    def seen(self, z):
        STEPS[0] += int(self.training)
        return z / (1 + 0.1 * STEPS[0])


class Usual(Net):
    names = ("a", "b")

    def seen(self, z):
        return z * len(STEPS) / len(self.names)


class OfAHook(Net):
    """Counts in a variable of a function, which no module has."""

    def more(self):
        steps = [0]

        def counted(module, inputs, out):
            steps[0] += 1
            return out / (1 + 0.1 * steps[0])

        self.a.register_forward_hook(counted)


@pytest.mark.parametrize(
    ("model", "name"),
    [(OfTheClass, "steps"), (Global, "STEPS"), (Usual, ""), (OfAHook, "a value that no module holds")],
)
def test_what_a_model_changes_outside_of_its_modules_is_told(model, name):
    _, remarks = numbers("fedavg", model, workers=0, num_server_rounds=1)
    told = [remark for remark in remarks if f"the model changes {name} as it trains, outside of its modules" in remark]
    assert len(told) == len(remarks) == bool(name)


def thinned(count):
    """Return a hook that makes gradients smaller each time, or always alike."""

    def hook(gradient):
        count[0] += count[1]
        return gradient / (1 + 0.1 * count[0])

    return hook


class OfAGradient(Net):
    grows, of_layer = 1, False

    def more(self):
        hook = thinned([1, self.grows])
        if self.of_layer:
            self.out.register_full_backward_hook(lambda layer, before, after: tuple(map(hook, before)))
        else:
            self.a.weight.register_hook(hook)


class OfALayersGradient(OfAGradient):
    of_layer = True


@pytest.mark.parametrize("model", [OfAGradient, OfALayersGradient, OfWhatItComputes])
def test_hooks_of_gradients_act_for_clients_at_once_and_what_they_count_is_told(model):
    alone, remarks = numbers("fedavg", model, workers=0)
    at_once, _ = numbers("fedavg", model, workers=0, clients_at_once=4)
    np.testing.assert_allclose(at_once, alone, rtol=1e-5)
    usual, _ = numbers("fedavg", Net, workers=0)
    assert abs(alone[0][1] - usual[0][1]) > 1e-3, "the hook did nothing"
    name = "steps" if model is OfWhatItComputes else "a value that no module holds"
    assert [name in remark for remark in remarks] == [True]
    if model is not OfWhatItComputes:
        still = type(f"Still{model.__name__}", (model,), {"grows": 0})
        assert numbers("fedavg", still, workers=0)[1] == []


def test_hooks_of_gradients_that_would_never_be_called_are_refused():
    class Accumulated(Net):
        def more(self):
            self.a.weight.register_post_accumulate_grad_hook(print)

    hooked = "has a hook on the gradient of"
    for method, model, message in (
        ("fedavg", Accumulated, "its parameter a.weight has a post_accumulate_grad_hook, which is never called"),
        ("ditto", OfAGradient, f"{hooked} base.a.weight, which the copies that ditto makes lack: use a layer's"),
    ):
        with pytest.raises(ConfigError, match=message):
            numbers(method, model, workers=0)
    with pytest.raises(ConfigError, match=f"{hooked} a.weight, which a copy of it has not: give the function or class"):
        made(OfAGradient((4,), 2), (4,), 2)


def test_a_model_that_is_another_one_in_each_call_is_told_so_where_a_head_is_needed():
    with pytest.raises(FedpflError, match="gives other numbers for the same input, as it changes a value that no modu"):
        numbers("fedper", OfAHook, workers=0, num_server_rounds=1)


def test_a_torchscript_program_is_refused_in_a_line():
    def scripted(input_shape, num_classes):
        return torch.jit.script(nn.Sequential(nn.Linear(input_shape[0], 8), nn.ReLU(), nn.Linear(8, num_classes)))

    with pytest.raises(
        FedpflError, match="model = 'scripted': is a TorchScript program, which cannot be cut or copied"
    ):
        numbers("fedavg", scripted, workers=0, num_server_rounds=1)


def test_a_last_layer_that_is_used_elsewhere_is_no_head_of_its_own():
    class Decayed(Net):
        def seen(self, z):
            return z * (1 - 0.01 * self.out.weight.square().mean()) if self.training else z

    assert numbers("fedavg", Decayed, workers=0, num_server_rounds=1)[0][0][0] > 0
    message = "model = 'Decayed': uses its nn.Linear 'out' elsewhere than at its end, too; the method needs a head"
    with pytest.raises(FedpflError, match=message):
        numbers("fedper", Decayed, workers=0, num_server_rounds=1)


class Read(nn.Module):
    """A layer of PyTorch's that gives more than one tensor, or takes more than one."""

    def __init__(self, layer, times=1):
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x):
        out = self.layer(*[x] * self.times)
        return out[0] if isinstance(out, tuple) else out


SHIPPED = [
    ("mlp", (6,)), ("small-cnn", (1, 8, 8)), ("small-cnn-bn", (1, 8, 8)), ("resnet8", (3, 32, 32)), ("gru", (3, 9)),
    ("cnn-1d", (3, 30)), ("char-lstm", (5,), 7), ("transformer", (5,), 7), ("decoder", (5,), 7),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        *(pytest.param(lambda name=name, task=task: models.build(name, task[0], 3, *task[1:]), task[0], id=name)
          for name, *task in SHIPPED),
        *((lambda layer=layer: Read(layer(4, 3, num_layers=2)), (5, 4)) for layer in (nn.RNN, nn.GRU, nn.LSTM)),
        (lambda: Read(nn.MultiheadAttention(4, 2), 3), (5, 4)),
        (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), (5, 4)),
        *((lambda norm=norm: norm(nn.Linear(4, 3)), (4,)) for norm in (nn.utils.weight_norm, nn.utils.spectral_norm)),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
    ],
)  # fmt: skip
def test_a_model_computes_with_the_weights_that_train_in_each_turn(build, shape):
    torch.manual_seed(1)
    model = build()
    state = ModelState(model)
    tokens = getattr(model, "vocabulary", 0)
    x = torch.randint(1, 7, (4, *shape)) if tokens else torch.randn(4, *shape)
    for _ in range(2):
        state.restore()
        model.zero_grad()
        model(x).pow(2).sum().backward()
        assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


class InAList(Net):
    def more(self):
        self.layers, self.known = [nn.Linear(8, 8)], [self.a, self.a.weight]
        self.weights, self.scale = [nn.Parameter(torch.ones(8))], torch.ones(8, requires_grad=True)

    def seen(self, z):
        return self.layers[0](z)


def test_layers_and_parameters_that_pytorch_does_not_see_are_told():
    _, remarks = numbers("fedavg", InAList, workers=0, num_server_rounds=1)
    assert [
        remark for remark in remarks if "layers or parameters in base.layers, base.weights, base.scale, which" in remark
    ]


def test_what_a_method_keeps_on_itself_is_told_and_gone_after_each_turn(caplog):
    results = [numbers(Remembering, "mlp", workers=workers, num_server_rounds=4) for workers in (0, 2)]
    assert results[0] == results[1]
    assert sum("the method remembering keeps last on itself" in record.message for record in caplog.records) == 1


LAST = {}


def test_what_a_method_keeps_in_its_class_or_in_global_variables_is_told_once(caplog):
    class InItsClass(fedpfl.Method):
        name = "in-its-class"
        turns = 0

        def conclude(self, local):
            type(self).turns += 1
            return fedpfl.Payload()

    class InAGlobal(fedpfl.Method):
        name = "in-a-global"

        def conclude(self, local):
            LAST[local.client] = local.round
            return fedpfl.Payload()

    for method, name in ((InItsClass, "turns"), (InAGlobal, "LAST")):
        numbers(method, "mlp", workers=0)
        told = f"the method {method.name} changes {name}, which all clients of a process share"
        assert sum(told in record.message for record in caplog.records) == 1


def test_a_method_that_changes_its_samples_in_place_is_refused_and_later_runs_have_the_data_as_they_were():
    class Scaled(fedpfl.Method):
        name = "scaled"

        def schedule(self, local):
            local.samples.x.mul_(0.5)
            return super().schedule(local)

    before, _ = numbers("fedavg", Net, workers=0)
    with pytest.raises(
        FedpflError, match="method = 'scaled': changes its client's samples in place, which other rounds"
    ):
        numbers(Scaled, Net, workers=0)
    assert numbers("fedavg", Net, workers=0)[0] == before


def test_a_method_is_given_back_its_attributes_and_copies_have_their_own():
    method = Remembering(None, TrainingSettings())
    state = MethodState(method)
    copied = state.copied(method)
    copied.last[3] = 1
    copied.more = 2
    assert method.last == {} and state.changed(copied) == ["last", "more"] and state.changed(copied) == []
    method.last[1], method.more = 1, 1
    state.restore()
    assert method.last == {} and not hasattr(method, "more")


def test_a_buffer_of_another_shape_and_a_new_parameter_are_one_line():
    class Growing(Net):
        def more(self):
            self.register_buffer("all", torch.zeros(1))

        def seen(self, z):
            self.all = torch.cat([self.all, z.mean().detach()[None]])
            return z

    class Replaced(Net):
        def seen(self, z):
            self.out.weight = nn.Parameter(0.5 * self.out.weight.detach())
            return z

    for model, message in (
        (Growing, r"its buffer all, \(1,\) of float32, becomes \(2,\) of float32 as it trains; it must keep its"),
        (Replaced, "puts another tensor in the place of its parameter out.weight as it trains; change it in place"),
    ):
        with pytest.raises(FedpflError, match=message):
            numbers("fedavg", model, workers=0)


def test_a_method_that_adds_a_layer_after_build_is_refused():
    class Longer(fedpfl.Method):
        name = "longer"

        def prepare(self, local):
            if not hasattr(local.model, "late"):
                local.model.late = nn.Linear(2, 2)

    with pytest.raises(FedpflError, match="it gets or loses parameters or layers after it was built; build makes all"):
        numbers(Longer, Net, workers=0)


class Codes(InPlace):
    """Keeps a mean of features in a parameter that no gradient moves, as models with code books do."""

    def more(self):
        self.mean = nn.Parameter(torch.zeros(8), requires_grad=False)


class OfOwnScale(InPlace):
    """A normalisation of one's own, whose statistics are frozen with the layer of which they are."""

    def more(self):
        super().more()
        self.scale = nn.Parameter(torch.ones(8))


@pytest.mark.parametrize(("model", "settings"), [(Codes, {}), (OfOwnScale, {"trainable": "head"})])
def test_what_is_frozen_and_changes_as_the_model_trains_is_refused_as_nobody_would_keep_it(model, settings):
    with pytest.raises(
        ConfigError,
        match=rf"{model.__name__}': changes base\.mean as it trains, which is frozen: make it a buffer, or let",
    ):
        numbers("fedavg", model, workers=0, **settings)


def test_a_frozen_batchnorm_rests():
    same = {workers: numbers("fedavg", Cumulative, workers=workers, trainable="head") for workers in (0, 2)}
    assert same[0] == same[2]


def test_a_buffer_is_no_parameter_whatever_its_name():
    model = fedpfl.BaseHeadModel(InPlace((4,), 3), nn.Linear(3, 2))
    layout = Sharing(model, lambda name: True).layout
    assert [name for name in layout.names if not layout.is_parameter(name)] == ["base.mean"]
    assert (~is_parameter(layout)).sum() == 8
    learnt = fedpfl.run("fedavg", model=InPlace, server_optimizer="yogi", workers=0, **FEW).model()
    assert bool(torch.isfinite(learnt.mean).all())
    with pytest.raises(ConfigError, match=r"^dp-noise-multiplier = 1.0: would add noise to base.mean, a buffer"):
        fedpfl.run("fedavg", model=InPlace, dp_noise_multiplier=1.0, workers=0, **FEW)


def test_what_a_method_freezes_in_build_stays_and_is_exported():
    class Still(fedpfl.Method):
        name = "still"

        def build(self, model):
            model.base.a.requires_grad_(False)
            return model

    def arrays(method, rounds):
        run = fedpfl.run(method, model=Net, workers=0, **{**FEW, "num_server_rounds": rounds})
        return run.model().state_dict()

    one, two, free = arrays(Still, 1), arrays(Still, 3), arrays("fedavg", 3)
    assert torch.equal(one["a.weight"], two["a.weight"]) and not torch.equal(one["out.weight"], two["out.weight"])
    assert not torch.equal(free["a.weight"], two["a.weight"])


def test_a_model_that_flattens_by_view_trains_as_one_that_does_not():
    class View(nn.Module):
        def __init__(self, input_shape, num_classes):
            super().__init__()
            self.conv, self.out = nn.Conv2d(input_shape[0], 4, 3, stride=2), nn.Linear(4 * 3 * 3, num_classes)

        def flat(self, z):
            return z.view(len(z), -1)

        def forward(self, x):
            return self.out(self.flat(torch.relu(self.conv(x))))

    class Flat(View):
        def flat(self, z):
            return z.flatten(1)

    def losses(model):
        few = {**FEW, "data": None, "batch_size": 100, "workers": 0}
        run = fedpfl.run("fedrep", dataset="digits", model=model, num_clients=2, **few)
        assert run.model(client=0)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
        return run.rounds.train_loss.tolist()

    np.testing.assert_allclose(losses(View), losses(Flat), rtol=1e-4)


@pytest.mark.parametrize(
    ("end", "labels", "refused"),
    [
        (nn.Sigmoid(), "multi-label", True), (nn.Hardsigmoid(), "cross-entropy", True), (nn.Sigmoid(), "mse", False),
        (nn.Identity(), "multi-label", False), (nn.Softplus(), "multi-label", False),
    ],
)  # fmt: skip
def test_a_sigmoid_at_the_end_is_refused_where_losses_need_logits(end, labels, refused):
    y = {"cross-entropy": RNG.integers(0, 2, (2, 40)), "mse": RNG.random((2, 40)).astype("float32"),
         "multi-label": RNG.integers(0, 2, (2, 40, 3)).astype("float32")}[labels]  # fmt: skip

    def net(input_shape, num_classes):
        return nn.Sequential(nn.Linear(input_shape[0], num_classes), end)

    def run():
        few = {**FEW, "data": list(zip(X[:2], y, strict=True))}
        return fedpfl.run("fedavg", model=net, loss=labels, workers=0, **few)

    if not refused:
        assert len(run().rounds) == 2
        return
    with pytest.raises(ConfigError, match=r"^model = 'net': gives probabilities; leave out the sigmoid at its end"):
        run()
