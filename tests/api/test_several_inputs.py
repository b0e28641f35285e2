"""Samples of several inputs, a tuple or a dict of arrays: read from anything, in runs, exports and on devices."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import LocalGrid, arrays, each_method, federation, needed, quick, run_federation
from torch import nn
from torch.utils import data as td

import fedpfl
from fedpfl.core.claims import require_description
from fedpfl.core.errors import ConfigError, DataError, FedpflError, LayoutError
from fedpfl.core.inputs import inputs_of
from fedpfl.core.names import shape_of, stored
from fedpfl.data import DataSettings, FederatedData
from fedpfl.data.datasets.npz import read_npz
from fedpfl.data.datasets.python_objects import CustomLoader
from fedpfl.data.packing import fitting, packed
from fedpfl.setup.objects import as_setting

N, CLASSES = 24, 3
# Numbers that float32 does not hold.
BASE = 2**53 + 1
LAYOUT = "{ids: int64 4, image: float32 1x6x6, mask: bool 4, meta: float32 3}"


class Net(nn.Module):
    """An image, tokens with their mask, and numbers; refuses other types than users expect."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.tokens = nn.Conv2d(1, 4, 3), nn.Embedding(20, 6)
        self.hidden, self.out = nn.Linear(4 * 16 + 6 + 3, 16), nn.Linear(16, num_classes)

    def forward(self, image, ids, meta, mask):
        assert (image.dtype, ids.dtype, mask.dtype) == (torch.float32, torch.int64, torch.bool)
        words = (self.tokens(ids % 20) * mask.unsqueeze(2)).sum(1)
        return self.out(self.hidden(torch.cat([self.conv(image).relu().flatten(1), words, meta], 1)).relu())


class Pair(nn.Module):
    """Takes an image and numbers by their places."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        assert input_shape == ((1, 6, 6), (3,))
        self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(4 * 16 + 3, num_classes)

    def forward(self, picture, numbers):
        return self.out(torch.cat([self.conv(picture).relu().flatten(1), numbers], 1))


class OfDict(Pair):
    """Takes both in one dict."""

    def __init__(self, num_classes):
        super().__init__(((1, 6, 6), (3,)), num_classes)

    def forward(self, batch):
        return super().forward(batch["image"], batch["meta"])


def samples(seed, n=N):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % CLASSES
    x = {
        "image": rng.normal(size=(n, 1, 6, 6)).astype(np.float32), "ids": BASE + rng.integers(0, 20, (n, 4)),
        "meta": (rng.normal(size=(n, 3)) + y[:, None]).astype(np.float32), "mask": rng.random((n, 4)) < 0.7,
    }  # fmt: skip
    return x, y


def pair(seed, n=N):
    x, y = samples(seed, n)
    return (x["image"], x["meta"]), y


CLIENTS = [samples(seed) for seed in range(3)]


def read(source, **values):
    return CustomLoader("data", source)(DataSettings(**{"min_samples": 2, **values}), 1)


def run(method, model, tmp_path, data=CLIENTS, **given):
    own = {key: value for key, value in quick(method).items() if key.startswith(method.replace("-", "_"))}
    usual = {
        "num_server_rounds": 2, "local_epochs": 2, "batch_size": 8, "learning_rate": 0.05, "quiet": True, "workers": 0,
        "output_dir": tmp_path / "runs", "state_dir": tmp_path / "state",
    }  # fmt: skip
    return fedpfl.run(method=method, model=model, data=data, **{**usual, **needed(method), **own, **given})


# -- rows of numbers -----------------------------------------------------------------------------------------------

KINDS = {
    "float32": st.floats(-(2.0**99), 2.0**99, width=32), "bool": st.booleans(), "int16": st.integers(-9, 2**15 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1), "uint8": st.integers(0, 255), "uint32": st.integers(0, 2**32 - 1),
}  # fmt: skip


@st.composite
def inputs(draw):
    """Arrays of several inputs, named or not."""
    count = draw(st.integers(1, 5))
    made = []
    for _ in range(count):
        kind = draw(st.sampled_from(sorted(KINDS)))
        shape = (3, *draw(st.lists(st.integers(1, 3), max_size=3)))
        size = int(np.prod(shape))
        made.append(np.array(draw(st.lists(KINDS[kind], min_size=size, max_size=size)), kind).reshape(shape))
    if draw(st.booleans()):
        return tuple(made)
    names = draw(st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True), min_size=count,
                          max_size=count, unique=True))  # fmt: skip
    return dict(zip(names, made, strict=True))


@settings(max_examples=80, deadline=None)
@given(inputs())
def test_rows_hold_every_input_exactly(x):
    rows = packed(x, "x")
    layout = rows.inputs
    assert rows.dtype == np.float32 and rows.shape == (3, layout[0]) and tuple(layout) == rows.shape[1:]
    given = x if isinstance(x, dict) else dict(enumerate(x))
    each = layout.unpacked(torch.from_numpy(rows.view(np.ndarray)))
    found = {part.name: values for part, values in zip(layout.parts, each, strict=True)}
    assert found.keys() == {str(key) for key in given}
    for key, values in given.items():
        of_torch = {"f": torch.float32, "b": torch.bool}.get(values.dtype.kind, torch.int64)
        assert found[str(key)].dtype == of_torch
        np.testing.assert_array_equal(found[str(key)].numpy(), values)
    # One alone is as one of many, and what is laid end to end is what it was.
    one = {key: values[1] for key, values in x.items()} if isinstance(x, dict) else tuple(each[1] for each in x)
    np.testing.assert_array_equal(packed(one, "x", rows=False), rows[1])
    assert np.concatenate([rows[:1], rows[1:]]).inputs == layout
    # By text, as JSON and copied it is the same layout, and no tuple of numbers is one.
    for again in (inputs_of(str(layout)), shape_of(json.loads(json.dumps(stored(layout)))), copy.deepcopy(layout),
                  pickle.loads(pickle.dumps(layout))):  # fmt: skip
        assert (again, hash(again), tuple(again)) == (layout, hash(layout), tuple(layout))
    assert layout != tuple(layout)
    np.testing.assert_array_equal(fitting(x, layout), rows)


@settings(max_examples=30, deadline=None)
@given(x=inputs())
def test_a_file_of_a_client_s_samples_is_read_as_they_were(tmp_path_factory, x):
    data = FederatedData.of_client(read([(x, np.arange(3)), (x, np.arange(3))]), DataSettings(min_samples=2), 0, 1)
    path = tmp_path_factory.mktemp("file") / "own.npz"
    np.savez(path, **data.arrays(0))
    again = read_npz(path)
    assert again.inputs == data.input_shape
    for part in ("train", "test"):
        wanted = np.asarray(packed(x, "x"))[getattr(data.share(0), part) % 3]
        np.testing.assert_array_equal(getattr(again, f"x_{part}"), wanted)


@pytest.mark.parametrize(
    "text",
    [
        "", "(", "()", "{}", "(float32 3", "(float32 0)", "(float32 3x)", "(float64 3)", "{float32 3}", "(a: bool)",
        "{b: bool, a: bool}", "{a: bool, a: bool}", "(float32 3,float32 3)", "{1: bool}", "(float32 ²)",
        "(" + ", ".join(["bool"] * 33) + ")", "(" + "bool, " * 2000 + "bool)", "{a: float32 1x1x1x1x1x1x1}",
    ],
)  # fmt: skip
def test_a_text_that_is_no_layout_is_refused_before_anything_is_made_of_it(text):
    with pytest.raises(LayoutError, match="input-shape = ") as error:
        inputs_of(text)
    assert len(str(error.value)) < 200
    config = {"client": 0, "num-clients": 1, "num-classes": 2, "layout": "[]", "input-shape": text}
    with pytest.raises(LayoutError, match="input-shape = "):
        require_description(config, {"train-samples": 1, "test-samples": 1}, 10)


def test_a_layout_larger_than_a_device_s_memory_is_refused():
    config = {"client": 0, "num-clients": 1, "num-classes": 2, "layout": "[]"}
    require_description({**config, "input-shape": LAYOUT}, {"train-samples": 1, "test-samples": 1}, 10)
    for text in ("(float32 99999999)", "(float32 9000x9000, bool)", f"({', '.join(['int64 99999x99999x99999'] * 32)})"):
        with pytest.raises(LayoutError, match="has more than 16777216 values"):
            require_description({**config, "input-shape": text}, {"train-samples": 1, "test-samples": 1}, 10)


# -- from what they are read ---------------------------------------------------------------------------------------


class Samples(td.Dataset):
    """What users of PyTorch have: ((a, b), y) or ({…}, y) for each sample."""

    def __init__(self, x, y, change=lambda x: x):
        self.x, self.y, self.change = x, y, change

    def __len__(self):
        return len(self.y)

    def __getitem__(self, at):
        if isinstance(self.x, dict):
            return self.change({key: torch.as_tensor(each[at]) for key, each in self.x.items()}), int(self.y[at])
        return self.change(tuple(each[at] for each in self.x)), int(self.y[at])


def tensors_of(x):
    if isinstance(x, dict):
        return {key: torch.as_tensor(each) for key, each in x.items()}
    return tuple(map(torch.as_tensor, x))


def sources():
    """Yield the same samples as users may have them, by name, of (x, y)."""
    yield "arrays", lambda x, y: (x, y)
    yield "a dict of x and y", lambda x, y: {"x": x, "y": y}
    yield "tensors", lambda x, y: (tensors_of(x), torch.as_tensor(y))
    yield "a Dataset", Samples
    yield "a DataLoader", lambda x, y: td.DataLoader(Samples(x, y), batch_size=5)
    yield (
        "batches",
        lambda x, y: td.DataLoader(Samples(x, y), batch_size=5, collate_fn=lambda items: td.default_collate(items)),
    )
    yield "read later", lambda x, y: fedpfl.Lazy(Samples(x, y), y)


@pytest.mark.parametrize(("kind", "make"), [pytest.param(*each, id=each[0]) for each in sources()])
@pytest.mark.parametrize("made", [samples, pair], ids=["named", "by place"])
def test_all_of_them_are_the_same_samples(kind, make, made):
    (x, y), (more, y_more) = made(1), made(2)
    wanted = packed(x, "x")
    one, several = read(make(x, y)), read({"anna": make(x, y), "ben": make(more, y_more)})
    tested = read((make(x, y), make(more, y_more)))
    for data in (one, several, tested):
        rows = data.x_train[:N]
        rows = rows.rows(None, np.arange(N)) if kind == "read later" else rows
        np.testing.assert_array_equal(rows, wanted)
        assert data.inputs == data.input_shape == wanted.inputs and data.y_train[:N].tolist() == y.tolist()
    assert (several.client_names, len(several.y_train)) == (("anna", "ben"), 2 * N)
    assert len(tested.y_test) == N


def test_a_data_set_of_one_s_own_and_files_have_them_too(tmp_path):
    x, y = samples(1)
    wanted = packed(x, "x")
    data = fedpfl.Dataset.of("mine", x, y, x, y, class_names=("a", "b", "c"))
    assert data.inputs == wanted.inputs and read(data).inputs == wanted.inputs
    np.testing.assert_array_equal(data.x_test, wanted)
    np.savez(tmp_path / "own.npz", y=y, **{f"x_{key}": each for key, each in x.items()})
    assert read_npz(tmp_path / "own.npz").inputs == wanted.inputs
    two, y = pair(1)
    np.savez(
        tmp_path / "two.npz",
        y_train=y,
        y_test=y,
        **{f"x_{part}_{at}": two[at] for part in ("train", "test") for at in (0, 1)},
    )
    assert str(read_npz(tmp_path / "two.npz").inputs) == "(float32 1x6x6, float32 3)"
    # A list of arrays of all samples can be nothing else; a list of as many arrays as labels are the samples.
    assert read(([*two], y)).inputs == packed(two, "x").inputs
    assert read((list(two[1]), y)).inputs is None


def changed(**more):
    x, y = samples(9)
    return {key: each for key, each in {**x, **more}.items() if each is not None}, y


def test_the_order_of_names_does_not_matter():
    x, y = samples(1)
    backwards = dict(reversed(x.items()))
    data = read([(x, y), (backwards, y)])
    assert str(data.inputs) == LAYOUT
    np.testing.assert_array_equal(data.x_train[:N], data.x_train[N:])


OTHERS = {
    "one lacks an input": (changed(meta=None), "{ids: int64 4, image: float32 1x6x6, mask: bool 4}"),
    "one has one more": (changed(zoom=np.ones((N, 1), np.uint8)), LAYOUT.replace("3}", "3, zoom: int16 1}")),
    "one is called otherwise": (changed(meta=None, Meta=samples(9)[0]["meta"]), "{Meta: float32 3, ids: int64 4"),
    "one has another size": (changed(meta=np.ones((N, 4), np.float32)), LAYOUT.replace("32 3}", "32 4}")),
    "one has another type": (changed(mask=np.ones((N, 4), np.float32)), LAYOUT.replace("bool", "float32")),
}


@pytest.mark.parametrize("case", OTHERS)
def test_clients_with_other_inputs_are_refused_with_both(case, tmp_path):
    other, shown = OTHERS[case]
    with pytest.raises(DataError) as error:
        read({"anna": CLIENTS[0], "ben": other})
    assert str(error.value).startswith("data: client ben: x has samples of ") and "\n" not in str(error.value)
    assert shown in str(error.value) and LAYOUT in str(error.value)
    with pytest.raises(DataError) as error:
        read([(Samples(*CLIENTS[0]), Samples(*other))])
    assert shown in str(error.value) and LAYOUT in str(error.value)
    for name, (x, y) in {"anna": CLIENTS[0], "ben": other}.items():
        (tmp_path / "clients").mkdir(exist_ok=True)
        np.savez(tmp_path / "clients" / f"{name}.npz", y=y, **{f"x_{key}": each for key, each in x.items()})
    with pytest.raises(FedpflError) as error:
        run("local", Net, tmp_path, data=str(tmp_path / "clients"), dataset="clients")
    assert "ben.npz" in str(error.value) and shown in str(error.value) and LAYOUT in str(error.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (changed(meta=np.full((N, 3), np.nan)), "input meta holds a value that is not finite"),
        (changed(meta=np.full((N, 3), 1e39)), "input meta holds a value that is not finite"),
        (changed(meta=np.full((N, 3), "a")), "input meta is <U1: inputs are floats, whole numbers or booleans"),
        (changed(meta=np.ones((N, 3), complex)), "input meta is complex128"),
        (changed(ids=np.full((N, 4), 2**63, np.uint64)), "input ids holds 9223372036854775808: whole numbers must be"),
        (changed(meta=np.ones((N - 1, 3))), f"input meta has {N - 1} samples, and ids {N}"),
        (changed(meta=np.ones((N, 0))), "input meta has the shape (0,) in a sample"),
        (({"a b": np.ones((N, 2)), "c": np.ones(N)}, np.arange(N) % 2), "'a b' cannot be an argument's name"),
        ((tuple(np.ones((N, 1)) for _ in range(33)), np.arange(N) % 2), "has 33 inputs; a model may have 1 to 32"),
        ((pair(1)[0], np.arange(N + 1) % 2), f"has {N + 1} labels for {N} samples"),
        (Samples(*CLIENTS[0], change=lambda x: {**x, "meta": x["meta"][: 1 + int(x["ids"][0]) % 3]}), "sample"),
    ],
)
def test_inputs_that_no_row_holds_are_one_line(source, said):
    with pytest.raises(DataError) as error:
        read(source)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_files_that_are_half_of_either_are_refused(tmp_path):
    x, y = samples(1)
    named = {f"x_{key}": each for key, each in x.items()}
    for more, said in (
        ({"x": x["meta"]}, "array x_image (24×1×6×6) is not used"), ({"vocabulary": 20}, "has several inputs"),
        ({"x_train": x["meta"], "y_train": y}, "no array x_test"),
        ({"x_train_meta": x["meta"]}, "has both x and x_train"),
    ):  # fmt: skip
        np.savez(tmp_path / "own.npz", y=y, **named, **more)
        with pytest.raises(DataError) as error:
            read_npz(tmp_path / "own.npz")
        assert said in str(error.value)
    with pytest.raises(DataError, match=r"x_train has inputs .*, and x_test "):
        fedpfl.Dataset.of("mine", x, y, {"meta": x["meta"]}, y)
    with pytest.raises(DataError, match="both parts must have a tuple or dict of arrays"):
        fedpfl.Dataset.of("mine", x, y, x["meta"], y)


# -- models and settings -------------------------------------------------------------------------------------------


def sequential(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3, num_classes))


def of_parts(num_classes):
    return fedpfl.BaseHeadModel(nn.Flatten(), nn.Linear(3, num_classes))


class Other(Net):
    def forward(self, image, ids):
        return super().forward(image, ids, None, None)


class TooFew(Net):
    def forward(self, image, ids, meta, mask):
        return self.out(self.hidden(meta))


class Whole(nn.Module):
    """Takes any two inputs."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.out = nn.Linear(sum(shape[-1] for shape in input_shape), num_classes)

    def forward(self, first, second):
        return self.out(torch.cat([first.float(), second.float()], 1))


WHOLE = [((np.ones((N, 4), np.int8), np.ones((N, 4), bool)), np.arange(N) % CLASSES)] * 2
NUMBERS = [((np.ones((N, 4)), np.ones((N, 4), bool)), np.arange(N) % CLASSES)] * 2


def with_gaps(seed=0):
    x, y = samples(seed)
    return {**x, "meta": np.where(x["meta"] > 1, np.nan, x["meta"])}, y


GAPS = with_gaps()


@pytest.mark.parametrize("whose", ["client", "all"])
@pytest.mark.parametrize("gaps", [False, True])
def test_each_input_of_floats_is_scaled_by_itself_and_others_stay(whose, gaps):
    clients = [with_gaps(seed) if gaps else samples(seed) for seed in range(3)]
    given = {"standardize": whose, "impute": "mean" if gaps else "refuse", "min_samples": 2}
    with as_setting("dataset", clients) as text:
        data = FederatedData(DataSettings(dataset=text, partitioner="natural", **given), 3, 1)
        plain = FederatedData(DataSettings(dataset=text, partitioner="natural", impute="mean", min_samples=2), 3, 1)
    names = [part.name for part in data.input_shape.parts]
    for client in range(3):
        each, raw = (dict(zip(names, of.input_shape.unpacked(of.train(client).x), strict=True)) for of in (data, plain))
        assert all(torch.isfinite(each[name]).all() for name in ("image", "meta"))
        measured = [client] if whose == "client" else range(3)
        for name, axes in (("image", (0, 2, 3)), ("meta", (0,))):
            rows = [clients[i][0][name][data.share(i).train - N * i] for i in measured]
            mean, deviation = (f(np.concatenate(rows), axes, keepdims=True) for f in (np.nanmean, np.nanstd))
            expected = (raw[name].numpy() - mean) / deviation
            np.testing.assert_allclose(each[name], expected, rtol=1e-3, atol=1e-4)
        for name in ("ids", "mask"):
            assert torch.equal(each[name], raw[name])
    assert (data.scaling(0) is data.scaling(1)) == (whose == "all")


@pytest.mark.parametrize("kind", ["noise=3", "rotation=4"])
def test_feature_skew_changes_the_inputs_of_floats(kind):
    with as_setting("dataset", CLIENTS) as text:
        of = [
            FederatedData(DataSettings(dataset=text, partitioner="natural", feature_skew=skew, min_samples=2), 3, 1)
            for skew in (kind, "none")
        ]
    names = [part.name for part in of[0].input_shape.parts]
    for client in range(3):
        each, raw = (dict(zip(names, data.input_shape.unpacked(data.train(client).x), strict=True)) for data in of)
        assert torch.equal(each["ids"], raw["ids"]) and torch.equal(each["mask"], raw["mask"])
        if kind == "rotation=4":
            assert torch.equal(each["image"], torch.rot90(raw["image"], client + 1, (2, 3)))
            assert torch.equal(each["meta"], raw["meta"])
        else:
            for name in ("image", "meta"):
                assert float((each[name] - raw[name]).std()) == pytest.approx(client + 1, rel=0.3)


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        ("mlp", {}, f"model = 'mlp': takes one input, and the data have {LAYOUT}: give a model of your own"),
        ("torchvision:resnet18", {}, "takes one input, and the data have"),
        (sequential, {}, "is a Sequential, which passes on one input"),
        (of_parts, {}, "is a BaseHeadModel, which passes on one input"),
        (Other, {}, "its forward(image, ids) does not take the inputs {ids: int64 4,"),
        (TooFew, {}, f"does not take inputs of {LAYOUT}: "),
        (Whole, {"data": WHOLE, "standardize": "client"}, "none for dataset, of whose inputs (int16 4, bool 4) none"),
        (Whole, {"data": WHOLE, "feature_skew": "noise=1"}, "none of the inputs (int16 4, bool 4) holds floats"),
        (Whole, {"data": NUMBERS, "feature_skew": "rotation=2"}, "only square images can be rotated"),
        (Net, {"data": [GAPS, GAPS]}, 'x, input meta holds a value that is not finite (NaN or infinity); impute = "me'),
        (Net, {"augmentation": "flip-crop"}, "must be none for dataset, whose samples have several inputs"),
        (Net, {"augmentation": lambda x, rng: x}, "must be none for dataset, whose samples have several inputs"),
        (Net, {"normalize": "cifar-10"}, "must be half for dataset, which holds no images"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_with_them_is_refused_before_round_1(model, given, said, tmp_path):
    with pytest.raises(FedpflError) as error:
        run("fedavg", model, tmp_path, **given)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


@pytest.mark.parametrize("method", each_method())
def test_every_method_trains_such_a_model(method, tmp_path):
    made = run(method, Net, tmp_path, num_server_rounds=1)
    assert made._folder.task()["input_shape"] == LAYOUT
    assert np.isfinite(made.rounds["train_loss"].tolist()).all() and 0 <= made.summary["personalised_accuracy"] <= 1


def test_the_same_bits_for_any_number_of_workers_and_over_flower(tmp_path):
    found = []
    for workers in (0, 1, 2):
        made = run("fedper", Net, tmp_path / str(workers), workers=workers)
        found.append(arrays(made._folder, tmp_path / str(workers)))
    with as_setting("model", Net) as model, as_setting("dataset", CLIENTS) as data:
        own = {"method": "fedper", "model": model, "dataset": data, "num_server_rounds": 2, "batch_size": 8}
        values = federation(tmp_path / "flower", 3, **own, learning_rate=0.05, seed=1)
        folder = run_federation(LocalGrid(3, values), values)
    found.append(arrays(folder, tmp_path / "flower"))
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(np.array_equal(other[key], found[0][key]) for key in other)


@pytest.mark.parametrize(
    ("model", "data"), [(Net, CLIENTS), (Pair, [pair(i) for i in range(2)])], ids=["named", "places"]
)
def test_models_are_given_back_as_the_user_has_them(model, data, tmp_path):
    made = run("fedper", model, tmp_path, data=data, device_models="always")
    module = made.model(client=1)
    assert type(module) is model and not module._forward_pre_hooks
    x, tensors = data[1][0], tensors_of(data[1][0])
    outputs = (module(**tensors) if isinstance(x, dict) else module(*tensors)).detach()
    (folder,) = (tmp_path / "state").glob("*/client-00001")
    written = fedpfl.load_model(folder)
    np.testing.assert_allclose(written.predict(x), outputs.softmax(1), atol=1e-6)
    assert written.about["input-shape"] == str(packed(x, "x").inputs)
    # As programs they have an input for each, by the names of the forward's arguments.
    (path,) = made.export("torchscript", client=1)
    script = torch.jit.load(path)
    again = script(**tensors) if isinstance(x, dict) else script(*tensors)
    np.testing.assert_allclose(again.detach(), outputs, atol=1e-5)
    runtime = pytest.importorskip("onnxruntime")
    (path,) = made.export("onnx", client=1)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    assert names == (["image", "ids", "meta", "mask"] if isinstance(x, dict) else ["picture", "numbers"])
    feed = x if isinstance(x, dict) else dict(zip(names, x, strict=True))
    np.testing.assert_allclose(session.run(None, feed)[0], outputs, rtol=1e-3, atol=1e-4)
    assert fedpfl.load_model(path.with_suffix(".json")).about["input-shape"] == str(packed(x, "x").inputs)


def test_a_forward_of_one_dict_is_given_it(tmp_path):
    data = [({"image": x[0], "meta": x[1]}, y) for x, y in (pair(0), pair(1))]
    made = run("fedavg", OfDict, tmp_path, data=data)
    x = {key: torch.as_tensor(each) for key, each in data[0][0].items()}
    assert made.model()(x).shape == (N, CLASSES)
    (path,) = made.export("torchscript")
    np.testing.assert_allclose(torch.jit.load(path)(x).detach(), made.model()(x).detach(), atol=1e-5)


class Lenient(Net):
    def forward(self, image, ids, meta, mask, zoom=None):
        return super().forward(image, ids, meta, mask)


def test_a_run_that_goes_on_needs_the_same_inputs(tmp_path):
    first = run("fedper", Lenient, tmp_path, num_server_rounds=1)
    more = run("fedper", Lenient, tmp_path, num_server_rounds=1, continue_from=first)
    assert more.summary["rounds"] == 1
    other = [changed(zoom=np.ones((N, 1), np.uint8))] * 3
    with pytest.raises(ConfigError) as error:
        run("fedper", Lenient, tmp_path, data=other, continue_from=first)
    assert LAYOUT in str(error.value) and "zoom: int16 1}" in str(error.value)


# -- devices -------------------------------------------------------------------------------------------------------


def nodes_of(tmp_path, clients):
    """Write each device's own file, and return what its owner says of it."""
    tmp_path.mkdir(parents=True, exist_ok=True)
    for number, (x, y) in enumerate(clients):
        arrays_of = {f"x_{key}": each for key, each in x.items()}
        np.savez(tmp_path / f"own{number}.npz", y=y, classes=["a", "b", "c"], **arrays_of)
    return {number: {"data-path": str(tmp_path / f"own{number}.npz")} for number in range(len(clients))}


class OfImages(Pair):
    """Is the same network, whatever else a sample has."""

    def __init__(self, num_classes):
        super().__init__(((1, 6, 6), (3,)), num_classes)

    def forward(self, image, **more):
        return super().forward(image, image[:, 0, 0, :3])


def test_a_device_s_model_scales_each_input_as_its_client_did(tmp_path):
    shifted = [({**x, "meta": 100 + 50 * x["meta"]}, y) for x, y in CLIENTS]
    on_devices(tmp_path, shifted, Net, device_models="always", standardize="client")
    place, (x, _) = next((tmp_path / "state").glob("*/client-00002")), shifted[2]
    with as_setting("model", Net):
        model, plain = fedpfl.load_model(place), fedpfl.load_model(place)
    mean, deviation = (np.array(plain.about.pop(key), np.float32) for key in ("mean", "deviation"))
    assert mean.shape == (1 + 3,) and mean[1:] == pytest.approx([150] * 3, rel=0.3), "one channel, three features"
    scaled = {**x, "image": (x["image"] - mean[0]) / deviation[0], "meta": (x["meta"] - mean[1:]) / deviation[1:]}
    np.testing.assert_allclose(model.predict(x), plain.predict(scaled), rtol=1e-4)
    assert not np.allclose(model.predict(x), plain.predict(x), rtol=0.1)


def on_devices(tmp_path, clients, model=Lenient, **given):
    with as_setting("model", model) as model:
        own = {"method": "fedper", "model": model, "num_server_rounds": 2, "batch_size": 8, "num_classes": CLASSES}
        values = federation(tmp_path, len(clients), **own, num_clients=len(clients), **given)
        grid = LocalGrid(len(clients), values, node_config=nodes_of(tmp_path / "own", clients))
        return run_federation(grid, values)


def test_devices_train_on_files_of_several_inputs(tmp_path):
    folder = on_devices(tmp_path, CLIENTS, device_models="always")
    assert [line["clients"] for line in folder.metrics()] == [[0, 1, 2]] * 2
    assert folder.task()["input_shape"] == LAYOUT
    with as_setting("model", Lenient):
        model = fedpfl.load_model(next((tmp_path / "state").glob("*/client-00002")))
        x = CLIENTS[2][0]
        assert model.predict(x).shape == (N, CLASSES) and model.about["class-names"] == ["a", "b", "c"]
        # Whole numbers may be of any type, and stand for floats.
        again = {"ids": x["ids"].tolist(), "image": np.ones((N, 1, 6, 6), int), "mask": x["mask"], "meta": x["meta"]}
        assert np.isfinite(model.predict(again)).all()
        for wrong, said in (
            (x["meta"], "samples are a ndarray; the model takes a dict of {ids: int64 4"),
            ((x["image"], x["ids"]), "samples are a tuple; the model takes a dict of {ids: int64 4"),
            ({"meta": x["meta"]}, "inputs are missing: ids, image, mask; the model takes"),
            ({**x, "zoom": x["meta"]}, "inputs are extra: zoom"),
            ({**x, "mask": x["ids"]}, "input mask is int64 (24, 4)"),
            ({**x, "ids": x["meta"]}, "input ids is float32 (24, 3)"),
            ({**x, "ids": x["ids"][:0]}, "input ids is int64 (0, 4)"),
            ({**x, "meta": x["meta"][:3]}, "input meta has 3 samples"),
            ({**x, "meta": x["meta"] * np.nan}, "not finite"),
        ):  # fmt: skip
            with pytest.raises(DataError) as error:
                model.predict(wrong)
            assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("case", OTHERS)
def test_a_device_with_other_inputs_is_left_out_with_both_named(case, tmp_path, caplog):
    (x, y), shown = OTHERS[case]
    folder = on_devices(tmp_path, [CLIENTS[0], (x, y), CLIENTS[2]], OfImages, min_clients=2)
    assert [line["clients"] for line in folder.metrics()] == [[0, 2]] * 2
    (said,) = [record.getMessage() for record in caplog.records if "client 1 cannot take part" in record.getMessage()]
    assert shown in said and LAYOUT in said and "\n" not in said


class There(LocalGrid):
    """Some of the devices."""

    there = (0, 1)

    def get_node_ids(self):
        return [100 + number for number in self.there]


def test_a_device_that_comes_after_the_run_needs_the_same_inputs(tmp_path):
    with as_setting("model", OfImages) as model:
        given = {"method": "fedper", "model": model, "num_server_rounds": 2, "batch_size": 8, "num_classes": CLASSES}
        there = {"num_clients": 3, "min_clients": 2, "device_models": "always", "node_timeout": 1.0}
        values = federation(tmp_path, 3, **given, **there)
        grid = There(3, values, node_config=nodes_of(tmp_path / "own", CLIENTS))
        assert [line["clients"] for line in run_federation(grid, values).metrics()] == [[0, 1]] * 2
        again = {**values, "resume": True, "personalise": "local-train", "min-clients": 1}

        def come(folder, clients):
            grid = There(3, again, node_config=nodes_of(folder, clients))
            grid.there = (2,)
            run_federation(grid, again)

        with pytest.raises(FedpflError) as error:
            come(tmp_path / "other", [*CLIENTS[:2], OTHERS["one lacks an input"][0]])
        assert "{ids: int64 4, image: float32 1x6x6, mask: bool 4}" in str(error.value) and LAYOUT in str(error.value)
        come(tmp_path / "own", CLIENTS)
        found = fedpfl.load_model(next((tmp_path / "state").glob("*/client-00002")))
    assert found.predict(CLIENTS[2][0]).shape == (N, CLASSES)


def test_frames_are_no_inputs_by_place():
    pandas = pytest.importorskip("pandas")
    image, meta = (pandas.DataFrame(np.ones((N, 2))) for _ in range(2))
    for x in ({"image": np.ones((N, 2)), "meta": meta}, (image, meta)):
        for source in ((x, np.arange(N) % 2), {"x": x, "y": np.arange(N) % 2}, [(x, np.arange(N) % 2)]):
            with pytest.raises(
                DataError, match=r"input \w+ of x is a DataFrame: inputs go by place; give its .to_numpy"
            ):
                CustomLoader("data", source)(DataSettings(), 1)


def test_the_program_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/how-to/models.md").read_text(encoding="utf-8")
    (code,) = re.findall(
        r"```python\n(.*?)^```$", page.split("\n## Several inputs\n")[1].split("\n## ")[0], re.M | re.S
    )
    found = {}
    exec(code.replace('method="fedper"', 'method="fedper", num_server_rounds=1, quiet=True, workers=0'), found)
    assert found["run"].summary["rounds"] == 1
    assert "{image: float32 1x8x8, words: int64 5}" in (found["run"].path / "task.json").read_text()
