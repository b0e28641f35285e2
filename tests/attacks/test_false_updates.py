"""Clients that send false arrays: each of them costs itself its vote and is named, in every method."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
from support import FEW_SAMPLES, NO_NOISE, LocalGrid, arrays, federation, quick, run_federation, simulate

import fedpfl
from fedpfl.core.errors import FedpflError
from fedpfl.engine.rounds import RoundFailed
from fedpfl.methods import methods
from fedpfl.results.run_folder import RunFolder
from fedpfl.setup.config import Config

LARGE = np.float32(0.99) * np.finfo(np.float32).max
CLIENTS = 7


def large(reply):
    """Send values that fit into float32, and whose sum does not, with both signs."""
    signs = np.random.default_rng(0).choice([-1, 1], reply.arrays["shared"].shape)
    reply.arrays["shared"] = (signs * LARGE).astype(np.float32)


def flipped(reply):
    reply.arrays["shared"] = -10 * reply.arrays["shared"]


def not_a_number(reply):
    reply.arrays["shared"] = np.full_like(reply.arrays["shared"], np.nan)


def large_besides(reply):
    for name, array in reply.arrays.items():
        if name not in ("shared", "shared-kept"):
            reply.arrays[name] = np.full_like(array, LARGE)


LIARS = {3: large, 4: flipped, 5: not_a_number, 6: large_besides}


class Liars(LocalGrid):
    """Some clients change what they send, from a round on."""

    def __init__(self, num_nodes, run_config, liars=LIARS, first=1):
        super().__init__(num_nodes, run_config)
        self.liars, self.first = liars, first

    def answer(self, kind, payload, node_config):
        reply = super().answer(kind, payload, node_config)
        liar = self.liars.get(node_config["partition-id"])
        lies = liar is not None and (liar is large_besides or "shared" in reply.arrays)
        if lies and kind == "train" and payload.config["round"] >= self.first:
            liar(reply)
        return reply


ONE_LIAR = partial(Liars, liars={3: large})


def silent(kind, client, message):
    """Stand for liars that do not answer at all."""
    if kind == "train" and client in LIARS:
        raise FedpflError("silent")


def settings(method, **others):
    return {
        "method": method, "num_server_rounds": 3, "local_epochs": 2, "batch_size": 32, "dirichlet_alpha": 1.0,
        **quick(method), "fedreg_augmentation": "none", **others,
    }  # fmt: skip


def state(folder):
    return folder.checkpoint()[1]


def refused(folder):
    """Return {round: {client: reason}}."""
    return {line["round"]: {int(i): why for i, why in line.get("failed", {}).items()} for line in folder.metrics()}


@pytest.mark.attacks
@pytest.mark.parametrize("method", sorted(methods()))
def test_the_run_goes_on_without_each_liar_and_names_it(tmp_path, method):
    folder = simulate(tmp_path / "lies", CLIENTS, Liars, **settings(method))
    made = Config.parse(folder.config()).method
    shares = state(folder)["shared"].size > 0 and made.aggregation.rule.takes_shared
    # Of whole numbers a lie may be a number like any other.
    besides = [extra for extra in made.extras if extra.goes("server") and not extra.exact]
    liars = {3, 4, 5} if shares else set()
    near = (
        {4} if method in ("ffa-lora", "flexlora") else set()
    )  # ten times small adapters is about as much as the first limit
    liars |= {6} if besides else set()
    for number, failed in refused(folder).items():
        # In FedFomo's first round there are no models to weigh; FedDBE sends mean features in the first round alone.
        nothing = (method == "fedfomo" and number == 1) or (method == "feddbe" and number > 1)
        expected = liars - {6} if nothing else liars
        assert expected - near <= failed.keys() <= expected, failed
        for client, why in failed.items():
            reasons = {5: "not finite", 6: "norm|counts|weights|fisher|choice|prototypes|ranks"}.get(client, "norm")
            assert any(word in why for word in reasons.split("|"))
            assert "learning-rate" not in why
    if any(failed.keys() != LIARS.keys() for failed in refused(folder).values()):
        return
    # To the bit what the honest clients make of it alone.
    values = federation(tmp_path / "silence", CLIENTS, **settings(method))
    alone = state(run_federation(LocalGrid(CLIENTS, values, silent), values))
    for name, array in state(folder).items():
        np.testing.assert_array_equal(array, alone[name], err_msg=name)


# 0.01 to 0.1 are usual; with 0.3 many of these runs diverge.
HONEST = {
    "slow": {"learning_rate": 0.03},
    "fast": {"learning_rate": 0.2},
    "noisy": {"dp_noise_multiplier": 0.1, "dp_clip_norm": 0.5, "wire_dtype": "float16"},
}


@pytest.mark.attacks
@pytest.mark.parametrize("method", sorted(methods()))
@pytest.mark.parametrize("kind", HONEST)
def test_nobody_honest_is_refused(tmp_path, method, kind):
    values = settings(method, **HONEST[kind], num_server_rounds=4, dirichlet_alpha=0.3, fraction_train=0.6)
    if method in ("pfedpara", "flexlora", "pfedfda"):  # they diverge with 0.02 and with 0.2, pfedfda with the noise
        values["learning_rate"] = 0.01
    if method == "fedmrl" and kind == "fast":  # what the projection joins diverges with 0.2
        values["learning_rate"] = 0.1
    if kind == "noisy" and method in NO_NOISE:
        with pytest.raises(FedpflError, match="cannot carry noise"):
            simulate(tmp_path, 5, **values)
        return
    failed = refused(simulate(tmp_path, 5, **values))
    assert len(failed) == 4
    assert not any("norm" in why or "variances" in why for of_round in failed.values() for why in of_round.values())


@pytest.mark.attacks
@pytest.mark.parametrize("method", sorted(methods()))
def test_an_honest_run_has_the_same_bits_without_the_limit(tmp_path, method):
    values = settings(method, num_server_rounds=2, **FEW_SAMPLES, model="resnet8")
    with_limit = simulate(tmp_path / "with", 3, **values)
    without = simulate(tmp_path / "without", 3, update_norm_limit=0.0, **values)
    expected, limited = arrays(without, tmp_path / "without"), arrays(with_limit, tmp_path / "with")
    assert expected.keys() == limited.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(limited[name], array, err_msg=name)


FEW = {**FEW_SAMPLES, "model": "mlp", "num_server_rounds": 3, "local_epochs": 1}


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_one_liar_of_four_ends_no_run(tmp_path, method):
    folder = simulate(tmp_path, 4, ONE_LIAR, method=method, **FEW)
    assert [set(failed) for failed in refused(folder).values()] == [{3}] * 3
    assert re.match(r"its update of the shared arrays has the norm \d\.\d+e\+40, at most", refused(folder)[1][3])
    assert np.abs(state(folder)["shared"]).max() < 100


def test_without_a_limit_values_that_nothing_can_be_computed_with_are_refused_all_the_same(tmp_path):
    folder = simulate(tmp_path, 4, ONE_LIAR, method="fedavg", update_norm_limit=0.0, **FEW)
    assert [set(failed) for failed in refused(folder).values()] == [{3}] * 3


@pytest.mark.parametrize("method", ["scaffold", "fedamp"])
def test_a_run_that_failed_over_refusals_goes_on_from_the_round_before(tmp_path, method):
    values_of_all = {**FEW, "method": method, "num_server_rounds": 4}
    whole = simulate(tmp_path / "whole", 4, **values_of_all)
    values = federation(tmp_path / "failed", 4, **values_of_all)
    with pytest.raises(
        RoundFailed, match=r"^round 3: no client trained; clients 0, 1, 2, 3: its update of the shared arrays has"
    ):
        run_federation(Liars(4, values, dict.fromkeys(range(4), large), first=3), values)
    failed = RunFolder(tmp_path / "failed" / "runs" / "run")
    assert failed.checkpoint()[0] == 2
    assert all(np.abs(np.float64(array)).max() < 1e4 for array in failed.checkpoint()[1].values())
    values["resume"] = True
    resumed = run_federation(LocalGrid(4, values), values)
    for name, array in state(whole).items():
        np.testing.assert_array_equal(state(resumed)[name], array, err_msg=name)


def test_a_resumed_run_may_have_another_limit(tmp_path):
    # A device refuses to come back with less: the limit is the server's own.
    simulate(tmp_path, 3, method="fedavg", **{**FEW, "num_server_rounds": 1})
    values = federation(tmp_path, 3, method="fedavg", resume=True, update_norm_limit=1e-6, **FEW)
    with pytest.raises(RoundFailed, match=r"round 2: no client trained; .*\(update-norm-limit = 1e-06\)"):
        run_federation(LocalGrid(3, values), values)


@pytest.mark.attacks
def test_robust_estimates_get_over_what_the_limit_lets_pass(tmp_path):
    def reverse(reply):
        reply.arrays["shared"] = -reply.arrays["shared"]

    values = {
        **FEW, "method": "fedavg", "num_server_rounds": 5, "local_epochs": 2, "learning_rate": 0.1,
        "update_norm_limit": 0.0, "dirichlet_alpha": 100.0,
    }  # fmt: skip
    two_lie = partial(Liars, liars=dict.fromkeys((8, 9), reverse))
    accuracy = {}
    for kind in ("none", "clip", "median", "trimmed-mean", "krum"):
        run = simulate(tmp_path / kind, 10, two_lie, robust_aggregation=kind, **values)
        accuracy[kind] = run.metrics()[-1]["global"]["accuracy"]
    assert min(accuracy[kind] for kind in accuracy if kind != "none") > accuracy["none"] + 0.1, accuracy


def test_honest_clients_whose_targets_lie_elsewhere_count_and_liars_do_not():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 60, 4)).astype(np.float32)
    data = [
        (of_one, (level + of_one[:, 0]).astype(np.float32)) for level, of_one in zip((0, 2, 4, 18, 22), x, strict=True)
    ]

    class Lies(methods()["fedavg"]):
        name = "lies"

        def conclude(self, local):
            if local.client == 0:
                for array in local.model.parameters():
                    array.data.mul_(1e4)
            return super().conclude(local)

    few = {"model": "mlp", "loss": "mse", "num_server_rounds": 2, "learning_rate": 0.005, "workers": 0, "quiet": True}
    assert fedpfl.run("fedavg", data=data, **few).rounds.clients_trained.tolist() == [5, 5]
    run = fedpfl.run(Lies, data=data, **few)
    assert {client for _, client, _ in run._folder.history().failures()} == {0}


def test_a_smaller_learning_rate_is_named_where_nobody_s_update_is_accepted(tmp_path):
    with pytest.raises(RoundFailed, match=r"\(update-norm-limit = 4\); a smaller learning-rate may help$"):
        simulate(tmp_path / "all", 2, method="fedavg", learning_rate=30.0, **FEW_SAMPLES)
    folder = simulate(tmp_path / "one", 4, ONE_LIAR, method="fedavg", **FEW)
    reasons = [reason for _, _, reason in folder.history().failures()]
    assert reasons and not any("learning-rate" in reason for reason in reasons)
