"""The suite's own machinery: what ``conftest.py`` promises."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def made():
    """Stands for what a file makes once, a run or a server."""


def test_the_tests_that_use_what_their_file_makes_once_stay_in_one_process(made, request):
    assert request.node.get_closest_marker("xdist_group").args == ("test_conftest",)
    if hasattr(request.config, "workerinput"):  # by this name pytest-xdist keeps them together
        assert request.node.nodeid.endswith("@test_conftest")


def test_all_others_may_run_anywhere(request):
    assert request.node.get_closest_marker("xdist_group") is None and "@" not in request.node.nodeid
