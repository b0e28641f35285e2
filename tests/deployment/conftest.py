import pytest
from deployment_parts import Home


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    yield home
    home.wait_until_empty()
