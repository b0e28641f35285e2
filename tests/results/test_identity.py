"""What a run belongs to is known by content: files, the user's modules and the samples themselves."""

import os
import sys

import numpy as np
import pytest
import torch
from grids import Silent
from torch import nn
from waiting import wait_until

import fedpfl
from fedpfl.core import user_code
from fedpfl.core.errors import DataError
from fedpfl.results.identity import changed, contents, identity
from fedpfl.setup.all_settings import tagged
from fedpfl.study.analysis.repetitions import data_of, grouped
from fedpfl.study.execution import Execution, Process
from fedpfl.study.run_store import State, Store, plan

SMALL = {"model": "mlp", "num_server_rounds": 1, "local_epochs": 1, "quiet": True, "workers": 0}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder of one's own, with another one on Python's path."""
    (tmp_path / "app").mkdir()
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path / "app")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    before = set(sys.modules)
    user_code.set_folder(tmp_path / "app")
    yield tmp_path / "app"
    user_code.set_folder(None)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def table(path, factor=1.0, flip=False):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(120, 3)).round(3)
    lines = [f"{a * factor:.3f},{b},{c},{int((a > 0) ^ flip)},{n % 3}" for n, (a, b, c) in enumerate(rows)]
    path.write_text("\n".join(["a,b,c,label,client", *lines]) + "\n")


@pytest.mark.parametrize("key", sorted(tagged("file")))
def test_a_file_of_every_setting_counts_by_its_content_and_not_by_its_path(folder, key):
    for name in ("one", "two"):
        (folder / name).write_text("the same")
    first, second = (contents({key: str(folder / name)}) for name in ("one", "two"))
    assert first == second and first.keys() == {key}
    (folder / "two").write_text("another")
    assert contents({key: str(folder / "two")}) != first
    assert changed({"files": first}, {"files": contents({key: str(folder / "two")})}) == [f"the content of {key}"]
    assert contents({key: str(folder / "none")}) == {}


def test_a_folder_counts_with_the_names_in_it_and_a_file_in_place_of_a_published_data_set_does(folder):
    (folder / "data").mkdir()
    (folder / "data" / "a").write_text("1")
    first = contents({"data": str(folder / "data")})
    (folder / "data" / ".hidden").write_text("2")
    assert contents({"data": str(folder / "data")}) == first
    (folder / "data" / "a").rename(folder / "data" / "b")
    assert contents({"data": str(folder / "data")}) != first
    (folder.parent / "lib" / "c").write_text("3")
    (folder / "data" / "linked").symlink_to(folder.parent / "lib")
    (folder.parent / "lib" / "back").symlink_to(folder / "data")
    with_link = contents({"data": str(folder / "data")})
    (folder.parent / "lib" / "c").write_text("4")
    assert contents({"data": str(folder / "data")}) != with_link
    models = {"client-models": f"0:hf:{folder}/data, 1:hf:{folder.parent}/lib/linked/data"}
    (folder.parent / "lib" / "linked" / "data").mkdir(parents=True)
    of_both = contents(models)
    (folder.parent / "lib" / "linked" / "data" / "config.json").write_text("{}")
    with_config = contents(models)
    (folder / "data" / "b").write_text("5")
    assert len({str(contents(models)), str(of_both), str(with_config)}) == 3
    published = {"dataset": "cifar10", "data-dir": str(folder)}
    assert contents(published) == {}
    (folder / "cifar10.npz").write_text("lossy")
    assert contents(published).keys() == {"data-dir"}


def test_modules_count_wherever_they_are_imported_and_only_those_of_the_settings(folder):
    (folder / "mine.py").write_text(
        "def net():\n    from late import WIDTH\n    import outside.inner\n    return WIDTH\n\n\n"
        "def other():\n    import importlib\n    return __import__('by_call'), importlib.import_module('by_name')\n"
    )
    (folder / "by_call.py").write_text("")
    (folder / "by_name.py").write_text("")
    (folder / "late.py").write_text("WIDTH = 1\n")
    (folder / "other.py").write_text("def method():\n    import mine\n")
    package = folder.parent / "lib" / "outside"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("from . import deeper\n")
    (package / "deeper.py").write_text("X = 1\n")
    values = {"model": "mine:net"}
    first = identity(values)["modules"]
    assert first.keys() == {
        "mine", "late", "by_call", "by_name", "outside", "outside.inner", "outside.deeper"
    }  # fmt: skip
    (folder / "other.py").write_text("# a comment in what another method uses\n")
    assert identity(values)["modules"] == first
    for path in (folder / "late.py", package / "deeper.py"):
        path.write_text("WIDTH = X = 2\n")
        now = identity(values)["modules"]
        assert [name for name in first if now[name] != first[name]] == [path.stem if path.stem == "late" else
                                                                        "outside.deeper"]  # fmt: skip
        first = now
    # What was imported counts as it was then, until it is imported anew.
    text = (folder / "mine.py").read_text()
    (folder / "mine.py").write_text(text + "# edited\n")
    assert identity(values)["modules"] == first
    assert changed({"modules": first}, identity(values, imported=False)) == ["the module mine"]
    user_code.set_folder(folder)
    assert identity(values)["modules"] != first


@pytest.mark.parametrize("how", [{"factor": 10.0}, {"flip": True}])
def test_other_samples_are_not_resumed_nor_analysed_nor_averaged(folder, how):
    options = {**SMALL, "dataset": "table", "data": "people.csv", "output_dir": "runs"}
    table(folder / "people.csv")
    first = fedpfl.run("fedper", run_name="first", **options)
    table(folder / "people.csv", **how)
    with pytest.raises(DataError, match="the samples are not those of the run to resume"):
        fedpfl.run(resume=first, num_server_rounds=2, quiet=True, workers=0)
    with pytest.raises(DataError, match="first: the data have changed since the run"):
        data_of(first._folder)
    second, third = (fedpfl.run("fedper", seed=seed, **options) for seed in (2, 3))
    groups = grouped([run._folder for run in (first, second, third)])
    assert [len(group.runs) for group in groups] == [1, 2]
    assert all(group.label.startswith("fedper, data people.csv (") for group in groups)
    comparison = fedpfl.compare([first, second])
    assert any("These runs are not of the same data" in note for note in comparison.notes)
    table(folder / "people.csv")
    assert fedpfl.run(resume=first, num_server_rounds=2, quiet=True, workers=0).summary["rounds"] == 2


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_a_file_of_the_same_size_and_time_is_another_one_with_other_content(folder, form):
    def write(flip):
        if form == "npz":
            x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
            np.savez(folder / "place", x=x, y=(x[:, 0] > 0) ^ flip, client=np.arange(60) % 3)
            paths = [folder / "place.npz"]
        else:
            (folder / "place").mkdir(exist_ok=True)
            paths = [folder / "place" / f"{name}.csv" for name in ("ann", "ben")]
            for path in paths:
                table(path, flip=flip)
        for path in paths:
            os.utime(path, (1e9, 1e9))

    places = {"npz": "place.npz", "folder": "place"}
    options = {**SMALL, "dataset": form.replace("folder", "clients"), "data": places[form], "output_dir": "runs"}
    options["ignore_columns"] = "client" if form == "folder" else ""
    write(False)
    first = fedpfl.run("fedavg", **options)
    write(True)
    with pytest.raises(DataError, match="the samples are not those of the run to resume"):
        fedpfl.run(resume=first, num_server_rounds=2, quiet=True, workers=0)
    other = fedpfl.run("fedavg", **options)
    assert other._folder.task()["data"] != first._folder.task()["data"]


def test_equal_data_are_one_data_set_wherever_they_lie(folder):
    options = {**SMALL, "dataset": "table", "output_dir": "runs"}
    for name in ("people.csv", "moved.csv"):
        table(folder / name)
    runs = [
        fedpfl.run("fedavg", seed=seed, data=name, **options) for seed, name in ((1, "people.csv"), (2, "moved.csv"))
    ]
    assert len(grouped([run._folder for run in runs])) == 1


def test_functions_of_data_are_called_again_by_each_run(folder):
    (folder / "own.py").write_text("import numpy as np\n\n\ndef data():\n"
                                   "    found = np.load('mine.npz')\n    return found['x'], found['y']\n")  # fmt: skip
    rng, x = np.random.default_rng(0), None
    seen = []
    for _ in range(2):
        x = rng.normal(size=(60, 4)).astype(np.float32)
        np.savez(folder / "mine.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
        run = fedpfl.run("local", dataset="own:data", num_clients=2, output_dir="runs", **SMALL)
        seen.append(run._folder.task()["data"])
    assert len({*seen}) == 2


def test_runs_of_one_module_before_and_after_it_changed_are_no_repetitions(folder):
    runs = []
    for width in (4, 8):
        (folder / "my_network.py").write_text(
            f"from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}),"
            f" nn.Linear({width}, 10))\n"
        )
        values = {**SMALL, "dataset": "digits", "num_clients": 2, "output_dir": "runs", "model": "my_network:net"}
        runs += [fedpfl.run("local", **values, seed=seed)._folder for seed in (1, 2)]
    assert [len(group.runs) for group in grouped(runs)] == [2, 2]


@pytest.mark.parametrize("read", ["as it is imported", "as it builds"])
def test_a_variable_of_the_environment_that_a_models_code_reads_counts(folder, monkeypatch, read):
    width = "int(os.environ.get('WIDTH', '4'))"
    outside, inside = (width, "WIDE") if read == "as it is imported" else ("0", width)
    (folder / "wide.py").write_text(
        f"import os\nfrom torch import nn\nWIDE, ROOT = {outside}, os.environ['PLACE']\n\n\ndef net():\n"
        f"    wide, who = {inside}, os.getenv('USER')\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, wide), nn.Linear(wide, 10))\n"
    )
    monkeypatch.setenv("PLACE", str(folder))
    values = {"method": "local", "dataset": "digits", "num-clients": 2, "num-server-rounds": 1, "model": "wide:net",
              "local-epochs": 1}  # fmt: skip
    store, planned = Store(folder.parent / "grid"), plan(values, 1)
    options = {key.replace("-", "_"): value for key, value in values.items()}
    places = {"output_dir": store.root / "runs", "state_dir": store.root / "state", "quiet": True, "workers": 0}
    run = fedpfl.run(**options, **places, run_name=planned.name, seed=1)
    assert [*run._folder.task()["written_by"]["environment"]] == ["WIDTH"]
    monkeypatch.setenv("PLACE", "/elsewhere")
    assert not store.changed(planned)
    monkeypatch.setenv("WIDTH", "16")
    assert store.changed(planned) == "WIDTH in the environment has changed since the run was planned; start it again"
    if read == "as it builds":
        other = fedpfl.run(**options, **places, run_name="other", seed=2)
        assert [len(group.runs) for group in grouped([run._folder, other._folder])] == [1, 1]
    monkeypatch.delenv("WIDTH")
    assert not store.changed(planned)


def settings(**more):
    return {"method": "fedavg", "dataset": "npz", "data": "x.npz", "num-clients": 2, "model": "mlp",
            "partitioner": "iid", "num-server-rounds": 1, **more}  # fmt: skip


def test_code_that_is_handed_over_counts_by_what_it_computes(folder, caplog):
    def metric(factor):
        def share(outputs, y):
            return factor * (outputs.argmax(1) == y).double().mean()

        return share

    def model(middle):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

            def forward(self, x):
                return self.b(middle(self.a(x)))

        return Net

    class Steeper(model(torch.relu)):
        def forward(self, x):
            return super().forward(2 * x)

    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(40, 4)).astype("float32"), np.arange(40) % 2) for _ in range(2)]
    first = model(torch.relu)
    run = fedpfl.run("fedavg", dataset=data, **{**SMALL, "model": first}, metrics=[metric(1)])
    same = {"resume": run, "dataset": data, "quiet": True, "workers": 0}
    fedpfl.run(**same, model=model(torch.relu), metrics=[metric(1)], num_server_rounds=2)
    assert "the code of" not in caplog.text
    fedpfl.run(**same, model=Steeper, metrics=[metric(2)], num_server_rounds=3)
    assert "the code of Net (Python" in caplog.text and "the code of share (Python" in caplog.text


def test_a_planned_run_is_another_one_with_other_content_and_the_same_in_another_folder(folder, monkeypatch):
    def write(place, seed):
        x = np.random.default_rng(seed).normal(size=(40, 3)).astype(np.float32)
        np.savez(place / "x.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))

    write(folder, 0)
    first = plan(settings(), 1)
    (folder.parent / "elsewhere").mkdir()
    write(folder.parent / "elsewhere", 0)
    monkeypatch.chdir(folder.parent / "elsewhere")
    assert plan(settings(), 1).name == first.name and plan(settings(), 1).key != first.key
    monkeypatch.chdir(folder)
    write(folder, 1)
    second = plan(settings(), 1)
    assert second.name != first.name and second.key == first.key


def test_code_that_changes_while_a_grid_runs_is_not_filed_under_the_name_of_the_old(folder, tmp_path):
    (folder / "mm.py").write_text(
        "import fedpfl\nfrom review import V\n\n\nclass M(fedpfl.Method):\n    name = 'mine'\n"
    )
    (folder / "review.py").write_text("V = 1\n")
    user_code.set_folder(folder)
    values = {"method": "mm:M", "dataset": "digits", "num-clients": 2, "model": "mlp", "num-server-rounds": 1,
              "local-epochs": 1}  # fmt: skip
    runs, store, watcher = [plan(values, seed) for seed in (1, 2)], Store(tmp_path / "store"), Silent()

    def start(run, store, share):
        job = Process(run, store, share)
        if run.name == runs[0].name:
            # It has imported its code.
            wait_until((store.folder(run).path / "config.toml").is_file, lambda: job.outcome() is None)
            (folder / "review.py").write_text("V = 2\n")
        return job

    states = Execution(runs, store, start).run(watcher)
    assert [states[run.name] for run in runs] == [State.FINISHED, State.FAILED]
    assert watcher.heard[-1][2] == "the module review has changed since the run was planned; start it again"
    assert store.folder(runs[0]).task()["written_by"]["modules"] == runs[0].identity["modules"]


def test_files_that_a_loss_and_a_metric_open_while_they_are_called_count(folder):
    for name in ("loss", "metric"):
        np.save(folder / f"of_{name}.npy", 1.0)
    (folder / "opening.py").write_text(
        f"import numpy as np\nfrom torch.nn import functional as F\nHERE = {str(folder)!r}\n"
        "def smooth(outputs, y):\n    return F.cross_entropy(outputs, y) * float(np.load(HERE + '/of_loss.npy'))\n"
        "def share(outputs, y):\n    return float(np.load(HERE + '/of_metric.npy'))\n"
    )
    settings = {"loss": "opening:smooth", "metrics": "opening:share", "dataset": "digits", "model": "mlp",
                "local_epochs": 1}  # fmt: skip
    places = {"output_dir": folder.parent / "runs", "state_dir": folder.parent / "state"}
    run = fedpfl.run("local", **settings, **places, num_clients=2, num_server_rounds=1, workers=1, quiet=True)
    opened = [path.rpartition("/")[2] for path in run._folder.task()["written_by"]["opened"]]
    assert opened == ["of_loss.npy", "of_metric.npy"]


def test_each_run_of_a_process_names_the_files_that_were_opened_for_it(folder, monkeypatch):
    """What the code keeps from an earlier run counts, and each metric names its own files."""
    for name in ("a", "b", "one", "two"):
        np.save(folder / f"{name}.npy", 1.0)
    (folder / "varying.py").write_text(
        f"import functools, os\nimport numpy as np\nfrom torch import nn\nHERE = {str(folder)!r}\n"
        "def load(name):\n    return float(np.load(f'{HERE}/{name}.npy'))\n"
        "kept = functools.lru_cache()(load)\n"
        "def build(num_classes):\n    load(os.environ['WEIGHTS'])\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
        "def keeping(num_classes):\n    kept('a')\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
        "def one(outputs, y):\n    return load('one')\ndef two(outputs, y):\n    return load('two')\n"
    )
    places = {"output_dir": folder.parent / "runs", "state_dir": folder.parent / "state"}
    few = {"dataset": "digits", "num_clients": 2, "num_server_rounds": 1, "local_steps": 1, "workers": 0, "quiet": True}

    def opened(model, weights, *metrics):
        monkeypatch.setenv("WEIGHTS", weights)
        run = fedpfl.run(
            "local", model=f"varying:{model}", metrics=[f"varying:{one}" for one in metrics], **few, **places
        )
        return sorted(path.rpartition("/")[2] for path in run._folder.task()["written_by"]["opened"])

    assert opened("build", "a", "one", "two") == ["a.npy", "one.npy", "two.npy"]
    assert opened("build", "b", "two") == ["b.npy", "two.npy"]
    assert opened("build", "a", "one") == ["a.npy", "one.npy"]
    assert opened("keeping", "", "one") == opened("keeping", "", "one") == ["a.npy", "one.npy"]


@pytest.mark.parametrize("opens", ["as it builds", "as it is imported", "under a computed name"])
def test_a_file_that_a_models_code_opens_by_itself_counts(folder, opens):
    """A sweep runs again what was made with other content; other files, and those that are written, do not count."""
    read = f"scale = float(np.load({str(folder / 'scale.npy')!r}))"
    if opens == "under a computed name":
        read = "import importlib; scale = importlib.import_module('_'.join(['kept', 'apart'])).SCALE"
    inside, outside = (read, "") if opens != "as it is imported" else ("", read)
    (folder / "net.py").write_text(
        f"import numpy as np\nfrom torch import nn\n{outside}\ndef build(num_classes):\n    {inside or 'pass'}\n"
        "    open('log.txt', 'a').close()\n    layer = nn.Linear(2, num_classes)\n"
        "    nn.init.constant_(layer.bias, scale)\n    return nn.Sequential(nn.Flatten(), layer)\n"
    )

    def hold(value):
        np.save(folder / "scale.npy", value)
        (folder / "kept_apart.py").write_text(f"SCALE = {value!r}\n")

    hold(1.0)
    table(folder / "people.csv")
    settings = {"dataset": "table", "data": str(folder / "people.csv"), "ignore-columns": "c", "model": "net:build"}
    settings = {**settings, "method": "local", "num-clients": 3, "num-server-rounds": 1, "local-steps": 1}
    store, planned = Store(folder.parent / "grid"), plan(settings, 1)
    options = {key.replace("-", "_"): value for key, value in settings.items()}
    places = {"output_dir": store.root / "runs", "state_dir": store.root / "state", "run_name": planned.name}
    run = fedpfl.run(**options, **places, seed=1, quiet=True, workers=0)
    opened = [path.rpartition("/")[2] for path in run._folder.task()["written_by"]["opened"]]
    assert opened == ["kept_apart.py" if opens == "under a computed name" else "scale.npy"]
    again = fedpfl.run(**options, **{**places, "run_name": "again"}, seed=1, quiet=True, workers=0)
    assert again._folder.task()["written_by"]["opened"].keys() == run._folder.task()["written_by"]["opened"].keys()
    assert not store.changed(planned)
    hold(2.0)
    assert (
        store.changed(planned) == f"the file {folder / opened[0]} has changed since the run was planned; start it again"
    )
    assert store.state(planned) is State.MISSING
    (folder / opened[0]).unlink()
    assert not store.changed(planned), "a run that was handed over without its files is as it was"
