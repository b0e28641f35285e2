"""The decorator by which names are registered."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import fedpfl.data
import fedpfl.data.datasets
import fedpfl.models
from fedpfl.core.errors import ConfigError
from fedpfl.core.registry import Registry
from fedpfl.data.registry import DATASETS, PARTITIONERS
from fedpfl.models import external
from fedpfl.models.registry import MODELS
from fedpfl.models.sources import SOURCES
from fedpfl.training.augment import find
from fedpfl.training.settings import AUGMENTATIONS


def test_a_decorator_registers_and_returns_what_it_decorates():
    shapes = Registry("shape")

    @shapes.add("square", lambda function: (4, function))
    def square():
        return "a square"

    shapes.add("circle", lambda function: (0, function))(len)
    assert square() == "a square"
    assert dict(shapes) == {"circle": (0, len), "square": (4, square)}
    assert shapes.find("square")[0] == 4
    with pytest.raises(ConfigError, match=r"shape = 'sqare': must be one of circle, square; did you mean square\?"):
        shapes.find("sqare")
    with pytest.raises(ValueError, match="shape 'circle' is already registered"):
        shapes.add("circle", lambda function: function)(max)


def test_a_file_is_imported_when_one_of_its_names_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "round_of_a_test.py").write_text(
        "import sys\nSHAPES = sys.modules['shapes']\ndef circle(): pass\nSHAPES.add('circle', lambda of: of)(circle)\n"
    )
    shapes = Registry("shape", sort=False, files=[("round_of_a_test", "circle"), ("no_such_file", "square")])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "shapes", shapes)
    assert list(shapes) == ["circle", "square"] and "circle" in shapes and len(shapes) == 2
    assert "round_of_a_test" not in sys.modules and shapes["circle"].__name__ == "circle"
    with pytest.raises(ValueError, match="shape 'square' is already registered"):
        shapes.add("square", lambda of: of)(test_a_file_is_imported_when_one_of_its_names_is_asked_for)


@pytest.mark.parametrize(
    ("registry", "package", "made_by"),
    [
        (DATASETS, fedpfl.data.datasets, lambda entry: entry[1]),
        (PARTITIONERS, fedpfl.data, lambda entry: entry.deal),
        (MODELS, fedpfl.models, lambda entry: entry.builder),
    ],
    ids=["data sets", "partitioners", "models"],
)
def test_every_registered_name_is_listed_with_its_file(registry, package, made_by):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    assert registry._entries.keys() == registry._files.keys()
    assert {name: made_by(entry).__module__ for name, entry in registry.items()} == registry._files


def test_sources_of_models_and_augmentations_are_there():
    assert external.BUILDERS.keys() == SOURCES.keys()
    assert [find(name) is None for name in AUGMENTATIONS[:2]] == [True, False]


def test_names_of_data_sets_and_models_are_known_without_their_files():
    code = (
        "import sys; from fedpfl.setup.config import Config; Config.parse({'method': 'fedavg'})\n"
        "from fedpfl.data.registry import dataset_names; from fedpfl.models import names; dataset_names(), names()\n"
        "parts = ('fedpfl.data.datasets.', 'fedpfl.models.', 'fedpfl.training.augment')\n"
        "print(*(name for name in sys.modules if name.startswith(parts)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shared = {f"fedpfl.models.{name}" for name in ("builder", "registry", "sources")} | {
        "fedpfl.data.datasets.reading_helpers"
    }
    assert {*done.stdout.split()} <= shared
