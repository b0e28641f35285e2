"""Clients that are there in some rounds alone, or that the user chooses."""

from __future__ import annotations

import os

import pytest
from support import FEW_SAMPLES, LocalGrid, federation, run_federation, simulate

from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.engine.options.available import check
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting

GIVEN = {"method": "fedper", "local_epochs": 1, "num_server_rounds": 3, **FEW_SAMPLES}


def column(folder, name):
    return [line.get(name, []) for line in folder.metrics()]


def test_a_file_says_who_is_there(tmp_path):
    file = tmp_path / "there.csv"
    file.write_text("client,first,last\n0,1,3\n1,1,1\n2,2,3\n3,3,3\n3,1,1\n")
    run = simulate(tmp_path, 4, available_clients=str(file), **GIVEN)
    assert column(run, "clients") == [[0, 1, 3], [0, 2], [0, 2, 3]]
    assert all(len(line["personalised"]["each"]) == 4 for line in run.metrics())
    half = simulate(tmp_path / "half", 4, available_clients=str(file), fraction_train=0.5, **GIVEN)
    for asked, there in zip(column(half, "asked"), column(run, "clients"), strict=True):
        assert len(asked) == max(1, round(len(there) / 2)) and set(asked) <= set(there)


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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("round,client\n1,0\n", "must begin with the line client,first,last"),
        ("client,first,last\n0,1\n", "line 2: must be a client and two rounds"),
        ("client,first,last\n0,1,x\n", "line 2: must be a client and two rounds"),
        ("client,first,last\n0,3,1\n", "line 2: rounds count from 1"),
        ("client,first,last\n0,0,1\n", "line 2: rounds count from 1"),
        ("client,first,last\n9,1,3\n", "leaves no client in round 1"),
        ("client,first,last\nann,1,3\n", "no client of this name"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, content, words):
    file = tmp_path / "there.csv"
    if content is not None:
        file.write_text(content)
    with pytest.raises(FedpflError, match=words):
        simulate(tmp_path, 2, available_clients=str(file), **GIVEN)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "there.csv")
    with pytest.raises(ConfigError, match="it is no regular file"):
        simulate(tmp_path, 2, available_clients=str(tmp_path / "there.csv"), **GIVEN)


def test_it_is_checked_before_anything_starts(tmp_path):
    for text in ("there.txt", "nowhere:choose"):
        values = federation(tmp_path, 2, available_clients=text, **GIVEN)
        with pytest.raises(ConfigError, match="available-clients"):
            check(Config.parse(values))
    with pytest.raises(ConfigError, match="cannot be combined with available-clients"):
        Config.parse({"method": "fedavg", "schedule": "buffered", "available-clients": "there.csv"})
