"""Grids whose runs end at once need not wait between looks."""

import pytest


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("fedpfl.study.execution.POLL_SECONDS", 0)
