import pytest
from deployment_parts import Home
from support import DOUBLE

from fedpfl.core import user_code
from fedpfl.launch.new_project import make
from fedpfl.setup import reference
from fedpfl.setup.all_settings import know_method

PERSONAL_HEAD = """
    def is_shared(self, name, model):
        return not name.startswith("head.")
"""


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    yield home
    home.wait_until_empty()


@pytest.fixture
def app(home):
    """The app of `fedpfl new` in the working folder, with the method in a separate file."""
    app = home.path / "work"
    make(app)
    (app / "mine.py").write_text(DOUBLE + PERSONAL_HEAD)
    settings = (app / "pyproject.toml").read_text()
    assert 'method = "parts:MyMethod"' in settings
    (app / "pyproject.toml").write_text(settings.replace('method = "parts:MyMethod"', 'method = "mine:Double"'))
    user_code.set_folder(app)
    know_method({"method": "mine:Double"})
    reference.update(app)
    assert "double-factor = 2.0" in (app / "pyproject.toml").read_text()
    yield app
    user_code.set_folder(None)
