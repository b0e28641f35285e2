"""What the ServerApp says before anything else."""

from __future__ import annotations

import sys
from logging import Handler, getLogger
from types import SimpleNamespace

import pytest

from fedpfl.flower.server_app import INSTALLS, app
from fedpfl.flower_private import SHORT_PAUSES


class Lines(Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record) -> None:
        self.lines.append(record.getMessage())


@pytest.mark.parametrize("given", [None, "", "1"])
def test_flower_s_pauses_are_changed_only_where_a_bench_asks_for_it(monkeypatch, given):
    changed = []
    monkeypatch.setattr("fedpfl.flower.strategy.run_over_flower", lambda grid, values: None)
    monkeypatch.setattr("fedpfl.flower.server_app.shorten_pauses", lambda: changed.append(True))
    monkeypatch.delenv(SHORT_PAUSES, raising=False)
    if given is not None:
        monkeypatch.setenv(SHORT_PAUSES, given)
    app(grid=None, context=SimpleNamespace(run_config={}))
    assert bool(changed) is bool(given)


@pytest.mark.parametrize("installs", [True, False])
def test_the_first_line_says_what_an_installation_costs_and_how_to_avoid_it(monkeypatch, installs):
    run = "fedpfl.flower.strategy.run_over_flower"
    monkeypatch.setattr(run, lambda grid, values: getLogger("flwr").warning("run"))
    monkeypatch.setattr(sys, "argv", ["flwr-serverapp", *[INSTALLS] * installs])
    seen = Lines()
    getLogger("flwr").addHandler(seen)
    try:
        app(grid=None, context=SimpleNamespace(run_config={}))
    finally:
        getLogger("flwr").removeHandler(seen)
    assert ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in seen.lines[0]) is installs
    assert seen.lines[-1] == "run"
