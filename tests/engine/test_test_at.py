"""``test-at = "start"``: clients are tested before they train, with what the round before has made."""

from __future__ import annotations

import pytest
from support import FEW_SAMPLES, each_method, quick, simulate

from fedpfl.core.errors import ConfigError
from fedpfl.methods import methods
from fedpfl.methods.base import adapts_itself
from fedpfl.setup.config import Config

# These draw or train before a test, in which the number of the round counts.
ADAPTING = {name for name, method in methods().items() if adapts_itself(method)}


def scores(run, name="personalised"):
    return [line.get(name, {}) for line in run.metrics()]


@pytest.mark.parametrize("method", each_method(without=ADAPTING))
def test_the_scores_at_a_round_s_start_are_those_after_the_one_before(tmp_path, method):
    settings = {**FEW_SAMPLES, **quick(method), "method": method, "local_epochs": 2}
    if method == "fedfomo":
        settings["validation_fraction"] = 0.2
    ends, starts = (simulate(tmp_path / moment, 3, test_at=moment, **settings) for moment in ("end", "start"))
    for name in ("personalised", "global"):
        assert scores(starts, name)[1:] == scores(ends, name)[:-1]
    assert scores(starts)[0]["each"]


def test_the_mean_of_whole_models_is_of_the_round_before_also_after_a_resume(tmp_path):
    settings = {**FEW_SAMPLES, "method": "fedper", "evaluate_global": True, "local_epochs": 1}
    ends, starts = (simulate(tmp_path / moment, 3, test_at=moment, **settings) for moment in ("end", "start"))
    assert scores(starts, "global") == [{}, *scores(ends, "global")[:2]]
    simulate(tmp_path / "resumed", 3, test_at="start", **{**settings, "num_server_rounds": 2})
    resumed = simulate(tmp_path / "resumed", 3, test_at="start", resume=True, **settings)
    assert scores(resumed, "global") == scores(starts, "global")


def test_models_are_not_written_and_not_promised():
    assert not Config.parse({"test-at": "start"}).run.writes_models_after(5)
    with pytest.raises(ConfigError, match="device-models = 'always': must be auto or never with test-at = start"):
        Config.parse({"test-at": "start", "device-models": "always"})
