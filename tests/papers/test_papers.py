"""Every file of configs/ and every column of experiments/ at the papers' own size: `make test-papers`.

Three rounds of two clients, on real data (FEDPFL_TEST_DATA). The server has all clients of the paper; those that are
not chosen are silent. What a client does in a round is as the paper says, so this shows that the settings can learn.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from real_data import real_data_dir
from support import run_federation

from fedpfl.core.errors import DataError
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.launch.shipped import experiments
from fedpfl.setup.config import Config
from fedpfl.study.experiment import ExperimentGrid
from fedpfl.study.experiment_file import load
from fedpfl.study.run_store import Store, plan

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3


class Few(SimulationTransport):
    """A simulation in this process in which the smallest client and the median one answer."""

    def __init__(self, config):
        super().__init__(config, workers=0)
        self.data = self._engine.data
        sizes = [self.data.sizes(client)[0] for client in range(config.data.num_clients)]
        order = np.argsort(sizes, kind="stable")
        self.chosen = {int(order[0]), int(order[len(order) // 2])}

    def replies(self, requests, timeout, fail):
        return super().replies([request for request in requests if request.client.id in self.chosen], timeout, fail)


def settings_by_place():
    """Return settings by where they stand: each file of configs/, and a cell of each column of an experiment.

    It is a cell of the paper's own method, where the column has one.
    """
    places = {
        path.name: plan(tomllib.loads(path.read_text(encoding="utf-8")), seed=1).settings
        for path in sorted((ROOT / "configs").glob("*.toml"))
    }
    for name, path in experiments(ROOT / "experiments").items():
        if path.parent.name != "comparisons":  # of no paper
            runs = ExperimentGrid(load(path), "paper", Store(Path("/nowhere")), seeds=1).runs
            ordered = sorted(runs.items(), key=lambda item: not name.startswith(str(item[1].settings["method"])))
            for (_, column, _), run in ordered:
                if not run.generate:  # a script's own data, which the experiment's smoke scale trains on
                    places.setdefault(f"{name}: {column}", run.settings)
    return places


def pytest_generate_tests(metafunc):
    """A test for each place; where they are not asked for, their hundreds of settings are not even read."""
    asked = metafunc.config.option.markexpr == "papers"
    metafunc.parametrize(("place", "settings"), list(settings_by_place().items()) if asked else [])


@pytest.mark.papers
def test_the_papers_own_size(place, settings, tmp_path):
    folder = real_data_dir()
    files = {key: str(folder / Path(settings[key]).name) for key in ("data", "initial-weights") if settings[key]}
    if missing := [path for path in files.values() if not Path(path).exists()]:
        pytest.skip(f"{missing[0]} is not there")
    config = Config.parse({
        **settings, **files, "data-dir": str(folder), "num-server-rounds": ROUNDS, "fraction-train": 1.0,
        "evaluate-every": 1, "new-clients": 0.0, "run-name": "run", "output-dir": str(tmp_path / "runs"),
        "state-dir": str(tmp_path / "state"),
    })  # fmt: skip
    try:
        few = Few(config)
    except DataError as error:
        pytest.skip(str(error))
    lines = run_federation(few, config.flat()).metrics()
    assert len(lines) == ROUNDS and not any(few.chosen & {*map(int, line.get("failed", {}))} for line in lines)
    losses = [line["train_loss"] for line in lines]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] or losses[-1] < 0.1 * np.log(few.data.num_classes), losses
    assert lines[-1]["personalised"]["accuracy"] > 1 / few.data.num_classes
