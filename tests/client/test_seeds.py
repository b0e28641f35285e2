"""What a method draws from torch's generator: the same numbers whoever plays the client, and whatever came before."""

from __future__ import annotations

import pytest
import torch
from support import FEW_SAMPLES, federation, run_federation, simulate

from fedpfl import Method
from fedpfl.core.payload import Payload
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.results.new_clients import Simulation
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting

SETTINGS = {
    "num_clients": 3, "num_server_rounds": 2, "local_epochs": 1, "validation_fraction": 0.2, "evaluate_trained": True,
    "evaluate_global": True, "threads": 1, **FEW_SAMPLES,
}  # fmt: skip


class Noisy(Method):
    """Draws wherever a method may: for each prediction, and before and after training."""

    name = "noisy"
    paper = "none"
    shares = "the base"

    def is_shared(self, name, model):
        return not name.startswith("head.")

    @torch.no_grad()
    def prepare(self, local):
        local.model.head.bias.add_(0.1 * torch.randn(10))

    def conclude(self, local):
        return Payload(metrics={"drawn": float(torch.rand(()))})

    def personalised(self, model):
        shift = torch.randn(10)
        return lambda x: model(x) + shift + torch.randn(10)


@pytest.fixture
def noisy():
    with as_setting("method", Noisy) as text:
        yield text


def lines(tmp_path, workers, **settings):
    values = federation(tmp_path / str(workers), 3, **{**SETTINGS, **settings})
    with SimulationTransport(Config.parse(values), workers) as transport:
        metrics = run_federation(transport, values).metrics()
    return [{key: value for key, value in line.items() if not key.startswith("seconds")} for line in metrics]


def test_a_method_that_draws_gives_the_same_bits_for_any_number_of_workers(tmp_path, noisy):
    alone = lines(tmp_path, 0, method=noisy)
    assert {"personalised", "global", "validation"} <= alone[-1].keys()
    assert alone == lines(tmp_path, 2, method=noisy)


def test_what_else_is_tested_changes_no_result(tmp_path, noisy):
    few = lines(tmp_path / "few", 0, method=noisy, evaluate_trained=False, evaluate_global=False)
    all_of_them = lines(tmp_path / "all", 0, method=noisy)
    assert [line["personalised"] for line in few] == [line["personalised"] for line in all_of_them]


def test_a_test_of_a_stored_model_does_not_depend_on_the_tests_before(tmp_path, noisy):
    stored = Simulation.of(simulate(tmp_path, 3, method=noisy, num_server_rounds=1, local_epochs=1, tune_epochs=1))
    first = [stored.score(stored.load(client)) for client in range(3)]
    assert [stored.score(stored.load(client)) for client in (2, 1, 0)] == first[::-1]
