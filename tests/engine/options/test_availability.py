"""Clients that the user chooses."""

from __future__ import annotations

import pytest
from support import FEW_SAMPLES, LocalGrid, federation, run_federation, simulate

from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.engine.options.availability import available
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


def test_a_function_sees_what_clients_reported_also_after_a_resume(tmp_path):
    seen = {}

    def highest_loss(round, clients, trained):
        seen[round] = dict(trained)
        return sorted((client.id for client in clients), key=lambda i: -trained[i].loss if i in trained else 0)[:2]

    with as_setting("available-clients", highest_loss) as text:
        whole = simulate(
            tmp_path / "whole", 3, available_clients=text, run_name="run", **{**GIVEN, "num_server_rounds": 4}
        )
        expected, before = {**seen}, seen.clear()
        simulate(tmp_path / "part", 3, available_clients=text, run_name="run", **{**GIVEN, "num_server_rounds": 2})
        resumed = simulate(
            tmp_path / "part", 3, available_clients=text, run_name="run", resume=True,
            **{**GIVEN, "num_server_rounds": 4},
        )  # fmt: skip
    assert before is None and seen == expected and column(resumed, "clients") == column(whole, "clients")
    assert [sorted(trained) for trained in expected.values()][:2] == [[], column(whole, "clients")[0]]
    for number, trained in expected.items():
        for client, last in trained.items():
            assert last.round < number and client in column(whole, "clients")[last.round - 1]
            assert 0 < last.loss < 10 and 0 < last.update_norm < 10
    first = [last.loss for last in expected[2].values()]
    assert sum(first) / len(first) == pytest.approx(whole.metrics()[0]["train_loss"])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: [], "leaves no client in round 1"),
        (lambda round: [7], "returns 7 in round 1, and there is no such client"),
        (lambda clients: 3, "returns an int, and must return clients' numbers"),
        (lambda clients: ["x"], "returns a list of a str, and must return clients' numbers"),
        (lambda clients: [True, False, True], "returns a list of a bool, and must return clients' numbers"),
        (lambda clients: (1 // 0 for _ in clients), "raises ZeroDivisionError"),
        (lambda weather: [], "needs an argument 'weather'"),
        (lambda round: 1 / 0, "raises ZeroDivisionError"),
    ],
)
def test_a_wrong_choice_is_one_line(tmp_path, function, message):
    with as_setting("available-clients", function) as text, pytest.raises(FedpflError, match=message):
        simulate(tmp_path, 2, available_clients=text, **GIVEN)


def test_it_is_checked_before_anything_starts(tmp_path):
    for text in ("there.txt", "nowhere:choose"):
        values = federation(tmp_path, 2, available_clients=text, **GIVEN)
        with pytest.raises(ConfigError, match="available-clients"):
            available(Config.parse(values))
