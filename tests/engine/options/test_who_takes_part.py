"""Clients that the user chooses."""

from __future__ import annotations

import pytest
from support import FEW_SAMPLES, LocalGrid, federation, run_federation, simulate

from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.engine.options.participation import available
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting

GIVEN = {"method": "fedper", "local_epochs": 1, "num_server_rounds": 3, **FEW_SAMPLES}


def column(folder, name):
    return [line.get(name, []) for line in folder.metrics()]


def test_a_function_chooses(tmp_path):
    def largest(round, clients, rng):
        assert rng.random() < 1
        return sorted((client.id for client in clients), key=lambda i: -clients[i].train_samples)[:round]

    with as_setting("available-clients", largest) as text:
        run = simulate(tmp_path, 4, available_clients=text, **GIVEN)
        again = simulate(tmp_path / "again", 4, LocalGrid, available_clients=text, **GIVEN)  # over Flower
        values = federation(tmp_path / "workers", 4, available_clients=text, **GIVEN)
        workers = run_federation(SimulationTransport(Config.parse({**values, "num-clients": 4}), workers=2), values)
    assert column(again, "clients") == column(workers, "clients") == column(run, "clients")
    samples = [train for train, _ in run.task()["samples"]]
    wanted = sorted(range(4), key=lambda i: -samples[i])
    assert column(run, "clients") == [sorted(wanted[:of]) for of in (1, 2, 3)]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: [], "leaves no client in round 1"),
        (lambda round: [7], "returns 7 in round 1, and there is no such client"),
        (lambda clients: 3, "returns an int, and must return numbers"),
        (lambda clients: ["x"], "returns a list, and must return numbers"),
        (lambda weather: [], "needs an argument 'weather'"),
        (lambda round: 1 / 0, "raises ZeroDivisionError"),
    ],
)
def test_a_wrong_choice_is_one_line(tmp_path, function, words):
    with as_setting("available-clients", function) as text, pytest.raises(FedpflError, match=words):
        simulate(tmp_path, 2, available_clients=text, **GIVEN)


def test_it_is_checked_before_anything_starts(tmp_path):
    for text in ("there.txt", "nowhere:choose"):
        values = federation(tmp_path, 2, available_clients=text, **GIVEN)
        with pytest.raises(ConfigError, match="available-clients"):
            available(Config.parse(values))
