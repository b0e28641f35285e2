"""FedFac's simulation, small: the planted split is found again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from support import simulate

PLACE = Path(__file__).parents[1] / "experiments" / "fedfac_simulation.py"
spec = importlib.util.spec_from_file_location("fedfac_simulation", PLACE)
study = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = study
spec.loader.exec_module(study)

CLIENTS = 12


@pytest.fixture(scope="module")
def planted():
    return study.plant(alpha=0.4, p=0.5, seed=1, clients=CLIENTS, samples=100)


def found(planted, folder, split, rounds):
    settings = {**study.write(planted, folder, 1), **study.method_of(split, folder, float(planted.split.mean()))}
    settings.update({"num-server-rounds": rounds, "local-epochs": 3, "evaluate-every": 0})
    run = simulate(folder, CLIENTS, **{key.replace("-", "_"): value for key, value in settings.items()})
    return run.checkpoint()[1]["split"]


# Of 200 neurons by chance 100 ± 7 are on their true side.
@pytest.mark.parametrize(("split", "rounds"), [("static", 1), ("dynamic", 2)])
def test_the_planted_split_is_recovered(planted, tmp_path, split, rounds):
    assert study.recovered(found(planted, tmp_path, split, rounds), planted.split) > 0.8


def test_a_random_split_is_chance(planted, tmp_path):
    assert 0.35 < study.recovered(found(planted, tmp_path, "random", 1), planted.split) < 0.65


def test_the_oracle_finds_all_of_it(planted):
    assert np.array_equal(study.oracle(planted), planted.split)


def test_shared_neurons_are_the_same_on_all_clients(planted):
    same = (planted.weights == planted.weights[0]).all(axis=(0, 2))
    assert np.array_equal(same, planted.split == 1)
    assert planted.y.mean(axis=1) == pytest.approx(0.5)
