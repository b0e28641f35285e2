"""With ``personal-head`` the classifier stays with the client, whatever the method shares of it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support import each_method, needed, simulate, simulate_and_listen

from fedpfl.core.errors import ConfigError
from fedpfl.core.layout import Layout
from fedpfl.methods import methods
from fedpfl.results.new_clients import Simulation, try_new_clients
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

QUICK = {"model": "mlp-200", "local_epochs": 1, "threads": 1, "feddecomp_lora_epochs": 0, "personal_head": True}
REFUSED = sorted(name for name, method in methods().items() if "personal-head" in method.refuses)


def layout(method, classes=10, **settings):
    config = Config.parse({"method": method, "feddecomp-lora-epochs": 0, **needed(method), **settings})
    return assemble(config, (1, 8, 8), classes)[1].layout


@pytest.mark.parametrize("method", sorted(methods().keys() - {*REFUSED}))
def test_nothing_that_travels_depends_on_the_classes(method):
    kept = layout(method, **{"personal-head": True})
    assert not any("head" in name.split(".") for name in kept.names)
    assert kept == layout(method, 7, **{"personal-head": True})
    assert set(kept.names) == {name for name in layout(method).names if "head" not in name.split(".")}


@pytest.mark.parametrize("method", REFUSED)
def test_a_method_that_cannot_have_it_says_why(method):
    reason = re.escape(methods()[method].refuses["personal-head"])
    with pytest.raises(ConfigError, match=f"personal-head = True: must be false for {method}: it {reason}"):
        Config.parse({"method": method, "personal-head": True})


@pytest.mark.parametrize("method", each_method(without=REFUSED))
def test_every_method_trains_without_sending_it(tmp_path, method):
    if not any("head" in name.split(".") for name in layout(method).names):
        return  # it is personal anyway
    folder, grid = simulate_and_listen(tmp_path, 3, method=method, num_server_rounds=2, **QUICK)
    replies = [reply for _, _, reply in grid.training()]
    assert len(replies) == 6
    for reply in replies:
        sent = Layout.from_text(reply.config["layout"])
        assert not any("head" in name.split(".") for name in sent.names)
        if method != "fedkd":  # which sends factors
            assert reply.arrays["shared"].size == sent.size or "shared-kept" in reply.arrays  # of flexlora zeros stay
    first, last = folder.metrics()
    assert last["personalised"]["loss"] < first["personalised"]["loss"]
    assert "global" not in last, "without a common classifier there is no common model"


def test_fedavg_is_then_fedper_to_the_bit(tmp_path):
    runs = [simulate(tmp_path / m, 3, method=m, num_server_rounds=2, **QUICK) for m in ("fedavg", "fedper")]
    first, second = (run.metrics()[-1]["personalised"] for run in runs)
    assert first == second
    np.testing.assert_array_equal(*(run.checkpoint()[1]["shared"] for run in runs))


def test_evaluate_global_tests_the_mean_of_the_classifiers(tmp_path):
    """After one round of FedAvg both are the same mean: all clients have started from the same classifier."""
    settings = {"method": "fedavg", "num_server_rounds": 1, "evaluate_global": True, **QUICK}
    kept = simulate(tmp_path / "kept", 3, **settings).metrics()[-1]["global"]
    shared = simulate(tmp_path / "shared", 3, **{**settings, "personal_head": False}).metrics()[-1]["global"]
    assert kept["accuracy"] == pytest.approx(shared["accuracy"])


def test_new_clients_train_a_classifier_of_their_own(tmp_path):
    run = simulate(tmp_path, 4, method="fedavg", num_server_rounds=1, new_clients=0.25, **QUICK)
    (accuracy,) = try_new_clients(run, "local-train")["each"].values()
    assert 0 <= accuracy <= 1
    left = Simulation.of(run)
    left.load(0)
    assert left.engine.sharing.personal == ["head.weight", "head.bias"]
