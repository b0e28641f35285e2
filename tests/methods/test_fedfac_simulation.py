"""FedFac's simulation, small: the planted split is found again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from support import simulate

PLACE = Path(__file__).parents[2] / "experiments" / "fedfac" / "fedfac_simulation.py"
spec = importlib.util.spec_from_file_location("fedfac_simulation", PLACE)
study = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = study
spec.loader.exec_module(study)


@pytest.fixture(scope="module", params=[0.3, 0.5])
def planted(request):
    return study.plant(alpha=0.4, p=request.param, seed=1, clients=12, samples=40)


# By chance 58 % and 50 % of the 200 neurons are on their true side, give or take 4 %.
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_planted_split_is_recovered(planted, dynamic):
    splits = study.recover(planted, dynamic, noise=0.1, seed=1, rounds=3)
    assert len(splits) == (3 if dynamic else 1)
    assert all(study.recovered(split, planted.split) > 0.8 for split in splits)


def test_the_oracle_finds_all_of_it(planted):
    assert np.array_equal(study.oracle(planted), planted.split)


def test_it_is_planted_as_it_says(planted):
    same = (planted.weights == planted.weights[0]).all(axis=(0, 2))
    assert np.array_equal(same, planted.split == 1)
    assert planted.y.mean(axis=1) == pytest.approx(0.5)


@pytest.mark.parametrize("split", study.SPLITS)
def test_every_split_can_be_trained_with(planted, tmp_path, split):
    settings = {**study.write(planted, tmp_path, 1), **study.method_of(split, tmp_path, float(planted.split.mean()))}
    settings.update({"num-server-rounds": 1, "local-epochs": 1})
    run = simulate(tmp_path, 12, **{key.replace("-", "_"): value for key, value in settings.items()})
    split_of_run = run.checkpoint()[1]["split"]
    assert split_of_run.sum() == planted.split.sum()
    if split in ("true", "random"):
        assert np.array_equal(split_of_run, planted.split) == (split == "true")
