"""Models, data sets and methods that users bring."""

from __future__ import annotations

import re
import sys
import textwrap
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch
from support import arrays, federation, run_federation
from torch import nn

from fedpfl import models
from fedpfl.core import references, user_code
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.data import Dataset, DataSettings, federated_data
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.methods import Method, find, methods
from fedpfl.results.run_folder import RunFolder
from fedpfl.setup.all_settings import check_keys, code_in
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting

PARTS = """
    from dataclasses import dataclass

    import numpy as np
    from torch import nn

    from fedpfl.core.settings import setting
    from fedpfl.data import Dataset
    from fedpfl.methods import Method

    def net(input_shape, num_classes):
        features = int(np.prod(input_shape))
        return nn.Sequential(nn.Flatten(), nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, num_classes))

    def points(path):
        x = np.arange(120, dtype=np.float32).reshape(60, 2) / 60
        return [(x[i::3][:15], np.arange(15) % 2, x[i::3][15:], np.arange(5) % 2) for i in range(3)]

    @dataclass(frozen=True)
    class OwnSettings:
        \"\"\"Settings.\"\"\"

        pull: float = setting(0.5, "How strong.", minimum=0)

    class Own(Method):
        \"\"\"Everything but the head travels.\"\"\"

        name = "own"
        shares = "the base"
        Settings = OwnSettings

        def is_shared(self, name, model):
            return not name.startswith("head.")

    number = 3
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """A folder with a file of parts, which is the app's for the time of a test."""
    folder = tmp_path / "app"
    folder.mkdir()
    write(folder, PARTS)
    monkeypatch.chdir(folder)
    user_code.set_folder(folder)
    yield folder
    user_code.set_folder(None)
    assert "parts" not in sys.modules


def write(folder, text, name="parts"):
    (folder / f"{name}.py").write_text(textwrap.dedent(text))


def refusal(kind, text):
    with pytest.raises(FedpflError) as error:
        user_code.find(kind, text)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_reference_is_told_from_a_name():
    assert all(map(references.is_reference, ("parts:net", "a.b:C.d", "python:net#2")))
    assert not any(map(references.is_reference, ("mlp", "parts:", ":net", "hf:./folder", "a b:c", "parts:net-1")))
    assert [references.short_name(text) for text in ("parts:net", "python:net#2", "mlp")] == ["net", "net", "mlp"]


def test_a_run_of_own_parts_learns_as_one_of_the_same_parts_of_the_package(app, tmp_path):
    parts = {"model": "parts:net", "dataset": "parts:points", "method": "parts:Own", "split": "mixed"}
    values = federation(tmp_path, **parts, num_clients=3, batch_size=5, own_pull=0.25)
    assert values["own-pull"] == 0.25
    with SimulationTransport(Config.parse(values), workers=2) as transport:
        folder = run_federation(transport, values)
    assert folder.config()["method"] == "parts:Own" and len(folder.metrics()) == 3
    assert folder.task()["input_shape"] == [2] and folder.task()["clients"] == 3
    first = arrays(folder, tmp_path)
    assert any(name.endswith("/head.weight") for name in first)
    # The same again, played by this process: the same bits.
    values = federation(tmp_path / "again", **parts, num_clients=3, batch_size=5, own_pull=0.25)
    with SimulationTransport(Config.parse(values), workers=0) as transport:
        again = run_federation(transport, values)
    second = arrays(again, tmp_path / "again")
    assert first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
    assert isinstance(again, RunFolder)


def test_a_file_that_has_changed_is_read_anew(app):
    first = federated_data(DataSettings(dataset="parts:points"), 3, 1)
    assert federated_data(DataSettings(dataset="parts:points"), 3, 1) is first
    version = user_code.version()
    write(app, PARTS.replace("/ 60", "/ 30") + "    # longer")
    user_code.set_folder(app)
    assert user_code.version() == version + 1
    data = federated_data(DataSettings(dataset="parts:points"), 3, 1)
    np.testing.assert_array_equal(data.train(0).x, 2 * first.train(0).x)


def test_settings_of_an_own_method_are_known_once_it_is(app):
    assert Config.parse({"method": "parts:Own"}).flat()["own-pull"] == 0.5
    check_keys({"method": "parts:Own", "own-pull": 1.0})
    with pytest.raises(ConfigError, match="own-pul"):
        check_keys({"own-pul": 1.0})
    with pytest.raises(ConfigError, match="own-pull = -1"):
        Config.parse({"method": "parts:Own", "own-pull": -1.0})
    assert "own" not in methods()


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("model", "nothing:net", r"there is no module nothing in .*app, and none that is installed"),
        ("model", "parts:nett", r"there is no nett in .*parts\.py; it has net, points, OwnSettings, Own"),
        ("model", "parts:Own.head", r"there is no head in .*"),
        ("model", "broken:net", r"the module broken cannot be imported: ZeroDivisionError: .* \(broken\.py, line 2\)"),
        ("model", "crooked:net", r"the module crooked cannot be imported: SyntaxError: .* \(crooked\.py, line 1\)"),
        ("model", "json:net", r".*/json\.py has the name of another module, .*json/__init__\.py; rename the file"),
        ("method", "nope", r"must be one of MODULE:NAME.*|must be one of .*or MODULE:NAME for one of your own"),
        ("dataset", "python:x#1", r"is a Python object of the process that made the run; give it again"),
    ],
)
def test_what_is_not_there_is_one_line(app, kind, text, message):
    write(app, "\n1 / 0\n", "broken")
    write(app, "def net(:\n", "crooked")
    write(app, "net = 1\n", "json")
    line = refusal(kind, text)
    shown = "x" if text == "python:x#1" else text  # users do not see by which text a run knows an object
    assert re.fullmatch(f"{kind} = '{re.escape(shown)}': (?:{message})", line), line


MODELS = {
    "ends the program": ("import sys\ndef part(input_shape): sys.exit('bye')",
                         r"raises SystemExit: bye \(parts\.py, line 3\)"),
    "has no words": ("class Mute(Exception):\n    def __str__(self): raise ValueError\n"
                     "def part(input_shape): raise Mute",
                     r"raises Mute: its text cannot be made \(ValueError\) \(parts\.py, line 4\)"),
    "speaks to the terminal": (r"def part(input_shape): raise ValueError('\x1b[2Jgone')",
                               r"raises ValueError:  \[2Jgone \(parts\.py, line 2\)"),
    "raises": ("def part(input_shape): raise ValueError('no such\\n  shape')",
               r"raises ValueError: no such shape \(parts\.py, line 2\)"),
    "no tensor": ("class part(nn.Module):\n    def forward(self, x): return x, x",
                  "gives a tuple; must give a tensor of n x 10 for n samples"),
    "no head": ("class part(nn.Module):\n    def forward(self, x): return x[:, :10]",
                "has no parameters"),
    "no function": ("part = 3", "is an int, and must be a function"),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_a_model_that_is_none_is_one_line(app, case):
    text, message = MODELS[case]
    write(app, f"from torch import nn\n{text}\n")
    user_code.set_folder(app)
    with pytest.raises(ConfigError) as error:
        models.build("parts:part", (64,), 10)
    assert re.fullmatch(f"model = 'parts:part': {message}", str(error.value)), str(error.value)


def test_objects_of_this_process_are_settings_for_a_while(app):
    def local(input_shape, num_classes):
        return nn.Linear(4, num_classes)

    with as_setting("model", local) as text, as_setting("model", lambda: nn.Linear(4, 3)) as other:
        assert re.fullmatch(r"python:local#\d+", text) and re.fullmatch(r"python:model#\d+", other)
        torch.manual_seed(1)
        assert models.build(text, (4,), 3).head.out_features == 3
        user_code.require_sendable(code_in({"method": "fedavg"}))
        with pytest.raises(ConfigError, match="only this process has this object"):
            user_code.require_sendable(code_in({"model": text}))
    assert "give it again" in refusal("model", text)
    with as_setting("method", find("fedper")) as text:
        assert text == "fedpfl.methods.fedper:FedPer" and find(text) is find("fedper")


def test_installed_packages_register_theirs(app, monkeypatch):
    group = {
        "package-net": EntryPoint("package-net", "parts:net", "fedpfl.models"),
        "mlp": EntryPoint("mlp", "parts:net", "fedpfl.models"),
        "broken": EntryPoint("broken", "nothing:net", "fedpfl.models"),
    }
    methods_of_package = {"own": EntryPoint("own", "parts:Own", "fedpfl.methods")}
    data = {"points": EntryPoint("points", "parts:points", "fedpfl.datasets")}
    entry_points = {"model": group, "method": methods_of_package, "dataset": data}
    monkeypatch.setattr(references, "entry_points_of", lambda kind: entry_points[kind])
    config = Config.parse({"model": "package-net", "method": "own", "dataset": "points", "own-pull": 2.0})
    assert issubclass(type(config.method), Method) and config.method.settings.pull == 2.0
    assert models.build("package-net", (4,), 3).head.out_features == 3
    assert federated_data(config.data, 3, 1).num_clients == 3
    assert {"package-net", "broken"} <= set(models.names())
    with pytest.raises(ConfigError, match=r"'mlp': is a name in fedpfl and also in an installed package \(parts:net\)"):
        models.build("mlp", (4,), 3)
    with pytest.raises(ConfigError, match="nothing:net cannot be loaded: ModuleNotFoundError"):
        models.build("broken", (4,), 3)
    check_keys({"own-pull": 1.0})
    del sys.modules["parts"]  # a package's modules are not the app's, and so are never read anew
    assert isinstance(Dataset.of("x", np.zeros((1, 2)), np.zeros(1, int)), Dataset)


def test_a_module_of_no_file_is_not_the_apps(app, monkeypatch):
    # PyTorch makes such modules when it is imported.
    made = "import sys, types\nmade = types.ModuleType('of_no_file')\nmade.__file__ = '_classes.py'\n"
    write(app, made + "sys.modules['of_no_file'] = made\n" + textwrap.dedent(PARTS))
    monkeypatch.setitem(sys.modules, "of_no_file", None)
    del sys.modules["of_no_file"]
    user_code.find("model", "parts:net")
    assert "of_no_file" in sys.modules and "of_no_file" not in user_code._app.modules
