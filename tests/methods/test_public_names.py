"""Three methods, written with the public names alone; and the examples of those names."""

from __future__ import annotations

import doctest
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from support import FEW_SAMPLES, arrays, needed, simulate

import fedpfl
from fedpfl.core import extra_arrays
from fedpfl.methods.settings import SETTINGS
from fedpfl.setup.objects import as_setting

FOLDER = Path(fedpfl.__file__).parent / "methods"
METHODS = ["feddbe", "fedtgp", "flexlora"]
# Imports from this package; from other packages they do not begin with a dot.
RELATIVE = re.compile(r"^from \.[\w.]* import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
FUTURE = "from __future__ import annotations\n"


def as_a_user_s(method, monkeypatch):
    """Return the method's class from its file, in which ``from fedpfl import …`` stands in place of relative imports.

    Names that are not public are missing there, and only annotations, which nothing evaluates, may have them.
    """
    file = FOLDER / f"{method.replace('-', '_')}.py"
    text = file.read_text(encoding="utf-8").replace(FUTURE, "")
    names = {name for groups in RELATIVE.findall(text) for name in re.findall(r"\w+", " ".join(groups))}
    public = {name: getattr(fedpfl, name) for name in names & set(fedpfl.__all__)}
    directions, kinds = (
        {"SERVER", "CLIENT", "BOTH", "RECEIVED"},
        {"COUNTS", "SHARES", "COVARIANCE", "POSITIVE", "MEANS"},
    )
    texts = {name: getattr(extra_arrays, name) for name in names & (directions | kinds)}  # texts that Extra takes
    module = types.ModuleType(f"own_{method.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(**public, **texts)
    if "FedProto" in names:
        built_in = fedpfl.method_class("fedproto")
        vars(module).update(FedProto=built_in)
    # A user's file has its class of settings itself, made of `fedpfl.setting`.
    vars(module).update({section.__name__: section for section in map(SETTINGS.__getitem__, SETTINGS)})
    code = RELATIVE.sub("", text).replace(f'name = "{method}"', f'name = "own-{method}"')
    exec(compile(FUTURE + code, module.__name__, "exec"), vars(module))
    (method_class,) = (value for value in vars(module).values() if getattr(value, "name", None) == f"own-{method}")
    return method_class


@pytest.mark.parametrize("method", METHODS)
def test_a_copy_of_a_method_in_a_user_s_file_needs_public_names_alone_and_has_the_same_bits(
    tmp_path, monkeypatch, method
):
    if needed(method):
        pytest.importorskip("peft")
    settings = {"num_server_rounds": 2, "local_epochs": 1, "model": "mlp", **FEW_SAMPLES, **needed(method)}
    ours = simulate(tmp_path / "ours", 2, method=method, **settings)
    with as_setting("method", as_a_user_s(method, monkeypatch)) as name:
        theirs = simulate(tmp_path / "own", 2, method=name, **settings)
    expected, actual = arrays(ours, tmp_path / "ours"), arrays(theirs, tmp_path / "own")
    assert expected.keys() == actual.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(actual[key], array, err_msg=key)


@pytest.mark.parametrize("name", [name for name in fedpfl.__all__ if name not in ("__version__", "PLAIN_SGD")])
def test_every_public_name_has_examples_that_work(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    tests = doctest.DocTestFinder(recurse=False).find(getattr(fedpfl, name), name, globs={})
    assert any(test.examples for test in tests), "a docstring needs a section Examples"
    for test in tests:
        assert not any(doctest.SKIP in example.options for example in test.examples)
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
