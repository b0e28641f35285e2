import pytest

from .commands import Home


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    yield home
    assert home.nothing_left(), home.processes()
