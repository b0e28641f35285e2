"""Runs from Python: started, loaded, compared, looked at."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from in_process import InProcess
from torch import nn

import fedpfl
from fedpfl.core.errors import NoPlainModel
from fedpfl.results.run_folder import RunFolder

FEW = {
    "num_server_rounds": 2, "local_epochs": 1, "batch_size": 32, "num_clients": 3, "partitioner": "dirichlet-client",
    "train_samples": 64, "test_samples": 32, "quiet": True,
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("elsewhere")


def net(input_shape, num_classes):
    """A model of a user's: no names of ours, no base and head."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(input_shape[0], 4, 3)
            self.norm = nn.BatchNorm2d(4)
            self.hidden = nn.Linear(4 * (input_shape[1] - 2) * (input_shape[2] - 2), 16)
            self.out = nn.Linear(16, num_classes)

        def forward(self, x):
            x = torch.relu(self.norm(self.conv(x))).flatten(1)
            return self.out(torch.relu(self.hidden(x)))

    return Net()


def test_a_run_has_what_the_folder_has(elsewhere, capsys):
    pytest.importorskip("pandas")
    run = fedpfl.run(method="fedper", model="mlp", seed=2, output_dir="runs", workers=2, **{**FEW, "quiet": False})
    said = capsys.readouterr().err
    assert "round 2/2" in said
    lines = RunFolder(run.path).metrics()
    assert run.path.parent == elsewhere / "runs" and run.summary["rounds"] == 2
    assert list(run.rounds.index) == [1, 2]
    assert run.rounds.loc[2, "personalised_accuracy"] == lines[1]["personalised"]["accuracy"]
    assert run.rounds.loc[1, "clients_trained"] == 3
    assert run.rounds[["clients_failed", "clients_unwritten"]].to_numpy().tolist() == [[0, 0], [0, 0]]
    assert run.clients[["failed", "unwritten"]].isna().all(axis=None), "columns that each run has"
    assert run.clients.shape[0] == 6 and run.clients.loc[(2, 1), "accuracy"] == lines[1]["personalised"]["each"]["1"]
    assert run.clients["trained"].all()
    assert run.settings["seed"] == 2 and "fedper on digits" in repr(run)
    # Each client's model is a plain one, and they differ where the method's personal part is.
    first, second = run.model(client=0), run.model(client=1)
    assert not first.training and next(first.parameters()).device.type == "cpu"
    assert torch.equal(first.base[1].weight, second.base[1].weight)
    assert not torch.equal(first.head.weight, second.head.weight)
    with pytest.raises(NoPlainModel, match="fedper has no model that all clients share"):
        run.model()
    with pytest.raises(fedpfl.ConfigError, match="clients 0 … 2"):
        run.model(client=3)
    again = fedpfl.load(run.name, output_dir="runs")
    assert again.summary == run.summary and torch.equal(again.model(0).head.weight, first.head.weight)


def test_the_common_model_is_that_of_the_last_round():
    run = fedpfl.run(method="fedavg", model="mlp", output_dir="runs", workers=0, **FEW)
    assert run.model().state_dict().keys() == run.model(client=1).state_dict().keys()
    common, personal = run.model().state_dict(), run.model(client=1).state_dict()
    assert all(torch.equal(common[name], personal[name]) for name in common)


def test_objects_are_parts(elsewhere):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, 30, 1, 6, 6)).astype(np.float32)
    y = (x.mean(axis=(2, 3, 4)) > 0).astype(np.int64)
    clients = [(x[i, :20], y[i, :20], x[i, 20:], y[i, 20:]) for i in range(3)]

    class Own(fedpfl.Method):
        name = "own"

        def is_shared(self, name, model):
            return not name.startswith("head.")

    settings = {"num_server_rounds": 1, "local_epochs": 1, "output_dir": "runs", "quiet": True}
    run = fedpfl.run(method=Own, model=net, data=clients, workers=2, **settings)
    assert run.summary["rounds"] == 1 and list(run.clients["samples"]) == [10, 10, 10]
    model = run.model(client=2)
    assert type(model).__name__ == "Net" and model.out.out_features == 2
    with torch.no_grad():
        predicted = model(torch.from_numpy(x[2, 20:])).argmax(1).numpy()
    assert np.mean(predicted == y[2, 20:]) == pytest.approx(run.clients["accuracy"].loc[(1, 2)])
    # The same by this process, and with a data set of one's own.
    again = fedpfl.run(method=Own, model=net, data=clients, workers=0, **settings)
    assert torch.equal(again.model(client=2).out.weight, model.out.weight)
    data = fedpfl.Dataset.of("set", x.reshape(90, 1, 6, 6), y.reshape(90))
    third = fedpfl.run(method="fedavg", model=net, data=data, num_clients=2, partitioner="iid", workers=0, **settings)
    assert third.summary["rounds"] == 1
    # What no file holds is given again.
    with pytest.raises(fedpfl.ConfigError, match="is a Python object of the process that made the run; give it again"):
        fedpfl.load(run.path).model(client=2)
    loaded = fedpfl.load(run.path, method=Own, model=net, data=clients)
    assert torch.equal(loaded.model(client=2).out.weight, model.out.weight)
    assert any(thing is clients for thing in loaded._objects.values()), "a list of clients is one object"


WRONG = [
    ("run(learning_rte=1)", "learning-rte = 1: there is no such setting; did you mean learning-rate"),
    ("run(num_clients=-1)", "num-clients = -1: must be at least 0"),
    ("compare(['fedavg', 'fedpr'])", "method = 'fedpr': must be one of"),
    ("compare(['fedavg', 'fedper'], tune={'learning_rate': [-1]})", "learning-rate = -1: must be > 0"),
    ("compare(['fedavg', 'fedper'], on={'dataset': 'digits'})", "on = {'dataset': 'digits'}: must be a list with"),
    ("compare('fedavg', 'fedper', on=[{'method': 'local'}])", "method = 'local': cannot be set in on: `methods` lists"),
    ("sweep({'learning_rte': [1]})", "learning-rte = 1: there is no such setting"),
    ("sweep({'learning_rate': 0.1})", "grid = {'learning_rate': 0.1}: must have a list of values"),
    ("sweep(['learning-rate=0.1'])", "grid = ['learning-rate=0.1']: must be settings with the values to try"),
]
ONE_BY_ONE = """
import sys, fedpfl
assert {name for name in sys.modules if name.startswith('fedpfl.')} == {'fedpfl.version'}
assert "numpy" not in sys.modules and set(fedpfl.__all__) <= set(dir(fedpfl))
for call in sys.argv[1:]:
    try:
        eval(f"fedpfl.{call}")
    except fedpfl.ConfigError as error:
        print(error)
    assert "torch" not in sys.modules, call
"""


def test_the_package_imports_nothing_else_and_answers_a_wrong_setting_without_torch():
    calls = [call for call, _ in WRONG]
    done = subprocess.run([sys.executable, "-c", ONE_BY_ONE, *calls], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for (call, message), line in zip(WRONG, done.stdout.splitlines(), strict=True):
        assert line.startswith(message), call


def test_callbacks_follow_a_run_after_its_own_listeners_and_may_end_it(elsewhere):
    class Follower(fedpfl.Listener):
        def __init__(self):
            self.seen = []

        def run_started(self, folder, remarks):
            self.seen.append("started")

        def added(self, rule, client, shared, reply):
            self.seen.append(client.id)

        def round_ended(self, rule, done, state):
            self.seen.append(done.line["round"])
            return True

        def run_ended(self, reason):
            self.seen.append(f"ended{reason}")

    first, second = Follower(), Follower()
    settings = {**FEW, "model": "mlp", "output_dir": "runs", "workers": 0}
    run = fedpfl.run(method="fedavg", callbacks=[first, second], **settings)
    assert first.seen == second.seen == ["started", 0, 1, 2, 1, "ended"]
    assert len(RunFolder(run.path).metrics()) == 1
    for wrong, message in ((Follower, "the class Follower.*give an instance"), (print, "must be a list of")):
        with pytest.raises(fedpfl.ConfigError, match=message):
            fedpfl.run(method="fedavg", callbacks=[wrong], **settings)


def test_an_interrupted_run_leaves_nobody_and_goes_on(elsewhere, monkeypatch):
    from fedpfl.engine.server_run import Recorder

    record = Recorder.round_ended

    def interrupted(self, rule, done, state):
        recorded = record(self, rule, done, state)
        if done.number == 1:
            raise KeyboardInterrupt
        return recorded

    monkeypatch.setattr(Recorder, "round_ended", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"resume it: fedpfl\.run\(resume='.*/runs/one'\)"):
        fedpfl.run(method="fedper", model="mlp", output_dir="runs", run_name="one", workers=2, **FEW)
    import multiprocessing

    assert multiprocessing.active_children() == []
    monkeypatch.setattr(Recorder, "round_ended", record)
    run = fedpfl.run(resume=fedpfl.load("one", output_dir="runs"), quiet=True)
    whole = fedpfl.run(method="fedper", model="mlp", output_dir="runs", run_name="two", workers=2, **FEW)
    assert run.summary["rounds"] == 2
    assert torch.equal(run.model(0).head.weight, whole.model(0).head.weight)


def test_a_run_that_was_killed_while_it_wrote_its_models_is_resumed(elsewhere, capsys):
    run = fedpfl.run(method="fedper", model="mlp", output_dir="runs", run_name="one", workers=0, **FEW)
    whole = {path.name: path.read_bytes() for path in (run.path / "personal").iterdir()}
    assert len(whole) == 6  # of each client the weights and what describes them
    (run.path / "personal" / "client-00002.safetensors").unlink()
    metrics = (run.path / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    again = fedpfl.run(resume=run, quiet=True)
    assert {path.name: path.read_bytes() for path in (again.path / "personal").iterdir()} == whole
    assert (run.path / "metrics.jsonl").read_bytes() == metrics
    assert "one has finished its 2 rounds; for more: --run-config 'num-server-rounds=4'" in capsys.readouterr().err


def test_a_copy_of_a_run_does_not_go_on_with_the_arrays_of_the_runs_clients():
    run = fedpfl.run("fedper", dataset="digits", model="mlp", output_dir="runs", state_dir="state", **FEW)
    copy = shutil.copytree(run.path, run.path.parent / "copy")
    with pytest.raises(fedpfl.ConfigError, match=f"run-name = 'copy': is a copy of {run.path}, whose clients' arrays"):
        fedpfl.run(resume=copy, num_server_rounds=3, quiet=True)
    shutil.rmtree(run.path)
    assert fedpfl.run(resume=copy, num_server_rounds=3, quiet=True).summary["rounds"] == 3


def test_runs_are_compared_drawn_and_reported(elsewhere):
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    runs = [fedpfl.run(m, model="mlp", output_dir="runs", workers=0, **FEW) for m in ("fedavg", "fedper")]
    comparison = fedpfl.compare(runs[0], fedpfl.load(runs[1].path))
    assert list(comparison.table["run"]) == ["fedavg", "fedper"] and "| fedavg |" in repr(comparison)
    assert comparison.plot().save("both.svg").read_text().startswith("<?xml")
    assert runs[0].plot()._repr_png_().startswith(b"\x89PNG")
    assert runs[0].plot().figure().axes
    drawn = (
        comparison.plot("Two methods", style=["grayscale", {"figure.figsize": (3, 2)}]).save("paper.svg").read_text()
    )
    assert "Two methods" in drawn and 'width="216pt" height="144pt"' in drawn
    assert runs[0].plot(title="One").figure().get_suptitle() == "One"
    with pytest.raises(fedpfl.FedpflError, match="no target was given"):
        comparison.until.shape  # noqa: B018
    with pytest.raises(fedpfl.ConfigError, match="must be methods alone, or runs alone"):
        fedpfl.compare(*runs, target=0.5)
    page = comparison.report("both.html", title="Two methods")
    assert "Two methods" in page.read_text()
    with pytest.raises(fedpfl.ConfigError, match="must end with"):
        runs[0].plot().save("plot.doc")


def test_runs_on_the_same_python_objects_are_compared_by_their_clients(elsewhere):
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(90, 5)).astype(np.float32), rng.integers(0, 2, 90)

    def model(num_classes):
        return nn.Linear(5, num_classes)

    few = {"num_server_rounds": 1, "workers": 0, "quiet": True, "num_clients": 3}
    settings = {"model": model, "partitioner": "iid", **few}
    runs = [fedpfl.run(m, data=(x, y), seed=seed, **settings) for m in ("fedavg", "local") for seed in (1, 2)]
    comparison = fedpfl.compare(runs)
    assert len(comparison.table) == 2 and list(comparison.pairs["clients"]) == [6] and "Holm" in comparison.conclusion
    x += 1  # other data, so another kind of run
    other = fedpfl.run("fedavg", data=(x, y), **settings)
    assert len(fedpfl.compare([*runs, other]).table) == 3


@pytest.fixture
def swept_here(monkeypatch):
    """Make the runs of sweeps in this process."""
    monkeypatch.setattr("fedpfl.study.execution.Process", InProcess)


def test_a_sweep_runs_each_point_once(swept_here):
    pytest.importorskip("pandas")
    settings = {"method": "fedavg", "model": "mlp", "output_dir": "sweeps", **FEW, "num_server_rounds": 1}
    swept = fedpfl.sweep({"learning_rate": [0.1, 0.01]}, **settings)
    assert sorted(swept.table["learning-rate"]) == [0.01, 0.1] and len(swept.runs) == 2
    before = [run.path.stat().st_mtime_ns for run in swept.runs]
    again = fedpfl.sweep({"learning_rate": [0.1, 0.01]}, **settings)
    assert [run.path.stat().st_mtime_ns for run in again.runs] == before
    with pytest.raises(fedpfl.ConfigError, match="jobs = 2: must be 1 with callbacks or Python objects"):
        fedpfl.sweep({"learning_rate": [0.1]}, jobs=2, **{**settings, "model": lambda: nn.Linear(64, 10)})


def test_a_sweep_takes_a_data_set_of_this_process():
    pytest.importorskip("pandas")
    x = np.random.default_rng(0).normal(size=(120, 8)).astype(np.float32)
    data = fedpfl.Dataset.of("mine", x, (x[:, 0] > 0).astype(np.int64))
    few = {"num_clients": 2, "num_server_rounds": 1, "workers": 0, "quiet": True}
    swept = fedpfl.sweep({"learning_rate": [0.1, 0.01]}, method="fedavg", model="mlp", data=data, **few)
    assert swept.failed == {} and len(swept.runs) == 2


def test_a_sweep_finds_parts_of_this_folder_and_knows_when_they_have_changed(swept_here, elsewhere):
    code = "from torch import nn\n\n\ndef net(num_classes):\n    return nn.Sequential(nn.Flatten(), nn.{})\n"
    (elsewhere / "own.py").write_text(code.format("Linear(64, num_classes)"))
    settings = {"method": "fedavg", "model": "own:net", "output_dir": "sweeps", **FEW, "num_server_rounds": 1}
    first = fedpfl.sweep({"learning_rate": [0.1]}, **settings)
    assert len(first.runs) == 1 and first.runs[0].model()[1].bias.shape == (10,)
    (elsewhere / "own.py").write_text(code.format("Linear(64, num_classes, bias=False)"))
    second = fedpfl.sweep({"learning_rate": [0.1]}, **settings)
    assert second.runs[0].name != first.runs[0].name


def test_public_names_are_those_that_are_listed():
    names = {}
    exec("from fedpfl import *", names)
    assert all(names[name] is getattr(fedpfl, name) for name in fedpfl.__all__)
    assert {*fedpfl._PUBLIC, "__version__"} == {*fedpfl.__all__}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        fedpfl.nothing  # noqa: B018


def test_numbers_of_a_call_are_numpy_s_or_python_s_and_wrong_ones_are_told_before_round_1():
    settings = {"model": "mlp", "num_clients": 2, "num_server_rounds": 1, "local_epochs": 1, "quiet": True}
    for wrong in ({"seeds": 0}, {"seeds": 2.5}, {"seeds": True}, {"jobs": 0}, {"workers": -1},
                  {"target": "0.9"}, {"target": math.nan}, {"target": 90.0}, {"target": True}):  # fmt: skip
        ((key, value),) = wrong.items()
        with pytest.raises(fedpfl.ConfigError, match=re.escape(f"{key} = {value!r}: must be ")):
            fedpfl.compare(["fedavg", "local"], **settings, **wrong)
    numbers = {"seeds": np.int64(1), "jobs": np.int64(1), "workers": np.int64(0), "target": np.float32(0.5)}
    assert len(fedpfl.compare(["fedavg", "local"], **settings, **numbers).runs) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methods": ["fedavg", 1]}, "method = 'an int': must be a method's name, a class or a method"),
        ({"name": 3}, "name = 3: must be a folder's name"),
        ({"name": "a\0b"}, "must be a folder's name"),
        ({"name": "a" * 101}, "must be a folder's name, without /, at most 100 characters"),
        ({"tune": {"learning_rate": iter([0.1])}}, "must have a list of values"),
        ({"tune": {"learning_rate": {0.1, 0.2}}}, "must have a list of values"),
    ],
)
def test_what_a_comparison_cannot_take_is_one_line(wrong, message):
    with pytest.raises(fedpfl.ConfigError, match=re.escape(message)):
        fedpfl.compare(**{"methods": ["fedavg", "local"], "seeds": 1, "model": "mlp", "num_clients": 2, **wrong})
