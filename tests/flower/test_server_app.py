"""What the ServerApp says before anything else."""

from __future__ import annotations

import sys
from logging import Handler, getLogger
from types import ModuleType, SimpleNamespace

import pytest

from fedpfl.flower.grid_transport import FlowerTransport
from fedpfl.flower.server_app import INSTALLS, app


class Lines(Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record) -> None:
        self.lines.append(record.getMessage())


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


@pytest.mark.parametrize("simulated", [True, False])
def test_ray_is_imported_before_torch_in_flowers_simulation_alone(monkeypatch, simulated):
    events = []
    monkeypatch.setattr("fedpfl.flower.server_app.import_module", events.append)
    monkeypatch.setattr("fedpfl.flower.strategy.run_over_flower", lambda grid, values: events.append("run"))
    if simulated:
        monkeypatch.setitem(sys.modules, "flwr.simulation", ModuleType("simulation"))
    else:
        monkeypatch.delitem(sys.modules, "flwr.simulation", raising=False)
    app(grid=None, context=SimpleNamespace(run_config={}))
    assert events == ["ray"] * simulated + ["run"]


def test_the_loop_that_looks_often_waits_shortly_for_the_rest_of_a_reply(monkeypatch):
    changed = []
    monkeypatch.setattr("fedpfl.flower.grid_transport.shorten_pauses", lambda: changed.append(True))
    FlowerTransport(grid=None)
    assert changed
