"""A run that continues another one with more classes: what was learnt of the known ones, found by name, stays."""

import numpy as np
import pytest
import torch
from support import LocalGrid, each_method, engine, federation, needed, quick, run_federation
from torch import nn

import fedpfl
from fedpfl.client.earlier_arrays import places_of, widened
from fedpfl.client.engine import Engine
from fedpfl.core.errors import ConfigError, StateError
from fedpfl.setup.assembly import plain_model
from fedpfl.setup.config import Config

# The new ones are in front of, between and behind the others.
BEFORE, NOW = ("fit", "worn"), ("broken", "fit", "torn", "worn", "wrong")
KNOWN = [1, 3]
# Methods without a place for further classes, and what is in the way.
NO_PLACE = {
    "factorized-fl": "its server keeps known",
    "factorized-fl-plus": "its server keeps known",
    "feddecomp": "its array head.tau_b",
    "fedem": "would predict the known ones otherwise",
    "fedfac": "divides single arrays",
    "fedsplit": "divides single arrays",
    "fedtgp": "its server keeps trained",
    "pfedgate": "its array gate",
    "pfedpara": "its array head.x1",  # the rank of whose factors follows from the number of classes
}
CLIENTS = ("ann", "ben", "cid")


def machines(classes):
    """Return samples of named clients, with the names of their classes as labels."""
    found = {}
    for name in CLIENTS:
        rng = np.random.default_rng([*name.encode()])
        x = rng.normal(size=(40, 1, 8, 8)).astype("float32")
        found[name] = x, np.array(classes)[np.arange(40) % len(classes)]
    return found


def run(tmp_path, classes, **settings):
    places = {"output_dir": tmp_path / "runs", "state_dir": tmp_path / "state", "quiet": True, "workers": 0}
    first = {} if "continue_from" in settings else {"model": "mlp", "seed": 3, "local_epochs": 2, "batch_size": 20}
    return fedpfl.run(**{"data": machines(classes), "num_server_rounds": 1, **first, **settings, **places})


def remark(made):
    (found,) = (line for line in made._folder.task()["remarks"] if line.startswith("continues"))
    return found


@pytest.fixture
def said(monkeypatch):
    """Note what the model of each client says when it is loaded, by client, kind of message, and number of classes."""
    found, load = {}, Engine.load
    x = torch.linspace(-1, 1, 4 * 64).reshape(4, 1, 8, 8)

    def recorded(self, client, message, to_test=False):
        loaded = load(self, client, message, to_test)
        mode, method = self.model.training, self.config.method
        with torch.no_grad():
            model = self.model.eval()
            logits = (model if method.name == "knn-per" else method.personalised(model))(x)
        self.model.train(mode)
        found.setdefault((client, to_test, self.data.num_classes), []).append(logits)
        return loaded

    monkeypatch.setattr(Engine, "load", recorded)
    return found


@pytest.mark.parametrize("method", each_method())
def test_known_classes_are_predicted_as_before_or_the_method_is_refused_before_round_1(tmp_path, said, method):
    first = run(tmp_path, BEFORE, method=method, num_server_rounds=2, **needed(method), **quick(method))
    if method in NO_PLACE:
        with pytest.raises(ConfigError, match=f"{method} cannot go on with more: .*{NO_PLACE[method]}.*; start a new"):
            run(tmp_path, NOW, continue_from=first)
        assert not any(classes == len(NOW) for _, _, classes in said)
        return
    second = run(tmp_path, NOW, continue_from=first)
    assert "; new classes: broken, torn, wrong, next to 2 that are as they were;" in remark(second)
    assert second._folder.task()["class_names"] == [*NOW]
    for client in range(len(CLIENTS)):
        had, now = said[client, True, len(BEFORE)][-1], said[client, False, len(NOW)][0]
        assert now.shape == (4, len(NOW))
        assert torch.allclose(now[:, KNOWN], had, atol=1e-6)
        assert not torch.allclose(now[:, [0, 2]], had, atol=1e-6)


def test_new_rows_are_those_of_a_new_run_with_the_seed_and_a_chain_of_runs_grows_twice(tmp_path, said):
    """Nobody but one client trains after the first run: the others have what they had."""
    first = run(tmp_path, BEFORE, method="fedper", num_server_rounds=2)
    second = run(tmp_path, NOW, continue_from=first, fraction_train=0.01)
    third = run(tmp_path, ("aged", *NOW), continue_from=second, fraction_train=0.01)
    trained = {*second._folder.metrics()[0]["clients"], *third._folder.metrics()[0]["clients"]}
    config = Config.parse(first.settings)
    fresh = {classes: plain_model(config, (1, 8, 8), classes).head.weight for classes in (5, 6)}
    assert trained < {0, 1, 2}
    client = min({0, 1, 2} - trained)
    before, middle, after = (made.model(client=client).head.weight for made in (first, second, third))
    assert torch.equal(middle[KNOWN], before) and torch.equal(middle[[0, 2, 4]], fresh[5][[0, 2, 4]])
    # What it never had of a class of the second run is as the third one draws it.
    assert torch.equal(after[[2, 4]], before) and torch.equal(after[[0, 1, 3, 5]], fresh[6][[0, 1, 3, 5]])
    # Its test and its program found the same arrays, and so does the run when it is resumed.
    x = torch.linspace(-1, 1, 256).reshape(4, 1, 8, 8)
    assert torch.allclose(said[client, True, 6][-1], third.model(client=client)(x))
    more = {"data": machines(("aged", *NOW)), "num_server_rounds": 2, "fraction_train": 0.01}
    again = fedpfl.run(resume=third, quiet=True, workers=0, **more, **places(tmp_path))
    if client not in again._folder.metrics()[-1]["clients"]:
        assert torch.equal(again.model(client=client).head.weight, after)


def places(tmp_path):
    return {"output_dir": tmp_path / "runs", "state_dir": tmp_path / "state"}


def test_it_is_the_same_over_flower_where_personal_arrays_stay_on_the_nodes(tmp_path):
    settings = {"method": "fedper", "dataset": "npz", "partitioner": "natural", "num_server_rounds": 1, "model": "mlp"}
    found = []
    for place in ("local", "nodes"):
        (tmp_path / place).mkdir()
        for name, classes in (("first", BEFORE), ("second", NOW)):
            data = machines(classes)
            file = tmp_path / place / f"{name}.npz"
            x, y = (np.concatenate([pair[at] for pair in data.values()]) for at in (0, 1))
            np.savez(file, x=x.reshape(len(x), -1), y=y, client=np.repeat(CLIENTS, 40), classes=np.array(classes))
            continued = {"continue_from": "first"} if name == "second" else {}
            values = federation(tmp_path / place, 3, run_name=name, data=str(file), **settings, **continued)
            # A node knows how many rows of a head are new, and the server what the classes are called.
            values["class-names"] = ",".join(classes)
            folder = run_federation(LocalGrid(3, values) if place == "nodes" else engine(3, values), values)
        found.append(folder.checkpoint()[1]["shared"].tobytes())
        assert any("; new classes: broken, torn, wrong," in line for line in folder.task()["remarks"])
    assert found[0] == found[1]


class Wide(nn.Module):
    """Has as many hidden numbers as classes: another class would change what it says of the others."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.mix, self.out = nn.Linear(64, 8), nn.Linear(8, num_classes)
        self.shift = nn.Parameter(torch.ones(num_classes))

    def forward(self, x):
        return self.out(self.mix(x.flatten(1)).relu()) + self.shift.sum()


def test_a_model_of_ones_own_that_would_predict_known_classes_otherwise_is_refused(tmp_path):
    first = run(tmp_path, BEFORE, method="fedavg", model=Wide)
    with pytest.raises(ConfigError, match="would predict the known ones otherwise"):
        run(tmp_path, NOW, continue_from=first, model=Wide)


def test_classes_with_numbers_are_the_first_ones(tmp_path):
    def numbered(classes):
        return {name: (x, np.arange(40) % classes) for name, (x, _) in machines(("a",)).items()}

    first = run(tmp_path, NOW, data=numbered(2), method="fedper")
    second = run(tmp_path, NOW, data=numbered(4), continue_from=first, fraction_train=0.01)
    assert "; new classes: 2, 3, next to 2" in remark(second)
    (busy,) = second._folder.metrics()[0]["clients"]
    client = (busy + 1) % 3
    weights = [made.model(client=client).head.weight for made in (first, second)]
    assert torch.equal(weights[1][:2], weights[0])


@pytest.mark.parametrize("text", ["", "a", "0,", "0;1", "-1", "1" * 7, "0,9"])
def test_places_that_a_message_names_are_checked(text):
    with pytest.raises(StateError, match=r"classes-before|more classes"):
        widened(np.ones((2, 3)), np.zeros((4, 3)), places_of(text))


def test_arrays_that_differ_in_more_than_classes_are_refused():
    for shape in ((2, 4), (3, 3), (2,), (2, 3, 1)):
        with pytest.raises(StateError, match="does not become"):
            widened(np.ones(shape), np.zeros((4, 3)), [0, 2])
