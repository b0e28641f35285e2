"""The decorator by which names are registered."""

from __future__ import annotations

import pytest

from fedpfl.core.errors import ConfigError
from fedpfl.core.registry import Registry


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


def test_the_files_of_a_package_register_themselves_when_it_is_read(tmp_path, monkeypatch):
    package = tmp_path / "shapes_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from fedpfl.core.registry import Registry\nSHAPES = Registry('shape', __name__)\n"
    )
    (package / "square.py").write_text("from . import SHAPES\nSHAPES.add('square', lambda of: of)(4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    from shapes_of_a_test import SHAPES

    assert list(SHAPES) == ["square"] and SHAPES["square"] == 4 and "circle" not in SHAPES
