"""Differential privacy: clipping, noise, accounting, and that nothing passes by them."""

from __future__ import annotations

import json
import stat
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from support import (
    FEW_SAMPLES,
    NO_NOISE,
    LocalGrid,
    each_method,
    federation,
    needed,
    play,
    rule,
    run_federation,
    simulate,
    simulate_and_listen,
)
from typer.testing import CliRunner

import fedpfl
from fedpfl.cli import app
from fedpfl.client.options import privacy as client_module
from fedpfl.client.options.privacy import KEY_FILE, gaussian, noise_key, private_reply, private_update
from fedpfl.core.errors import ConfigError, StateError
from fedpfl.core.extra_arrays import SERVER
from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.core.privacy_accounting import epsilon
from fedpfl.core.server_view import Client
from fedpfl.core.vectors import clipped
from fedpfl.engine.options.privacy import ServerPrivacy
from fedpfl.methods import methods
from fedpfl.methods.fedfac.channel_mean import PartialMean
from fedpfl.methods.fedfac.factor_split import FactorSplit
from fedpfl.results.round_record import Round
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.summary import outcome
from fedpfl.rules import Rule
from fedpfl.rules.mean import Mean
from fedpfl.setup.assembly import assemble, make_rule
from fedpfl.setup.config import Config
from fedpfl.setup.objects import as_setting
from fedpfl.setup.options.privacy import PrivacySettings

KEY = b"k" * 32
DP = {"dp_noise_multiplier": 0.5, "dp_clip_norm": 0.05}
FEW = {**FEW_SAMPLES, "model": "mlp"}


def small(place, clients, **settings):
    """Run a federation on few samples."""
    return simulate(place, clients, **{**FEW, **settings})


def listened(place, clients, **settings):
    """Run one whose grid has noted all messages; return its folder and the grid."""
    return simulate_and_listen(place, clients, **{**FEW, **settings})


def layout_of(size, name="w"):
    return Layout.of([(name, (size,))])


# -- a client's update -----------------------------------------------------------------------------------------------


def test_a_long_update_is_scaled_to_the_norm_and_a_short_one_stays():
    rng = np.random.default_rng(0)
    received, trained = rng.normal(size=(2, 1000)).astype(np.float32)
    update = trained.astype(np.float64) - received
    short = clipped(received, trained, 0.5)
    assert np.linalg.norm(short) == pytest.approx(0.5, rel=1e-12)
    assert short == pytest.approx(update * 0.5 / np.linalg.norm(update), rel=1e-12)
    assert (clipped(received, trained, 1e3) == update).all()
    assert (clipped(received, received, 0.5) == 0).all()


def test_the_noise_is_standard_normal_and_depends_on_key_and_context():
    drawn = gaussian(KEY, b"context", 200_001)
    assert len(drawn) == 200_001
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    assert drawn.std() == pytest.approx(1, abs=0.01)
    assert (gaussian(KEY, b"context", 200_001) == drawn).all()
    for other in (gaussian(KEY, b"other", 200_001), gaussian(b"l" * 32, b"context", 200_001)):
        assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.01
    assert gaussian(KEY, b"", 0).shape == (0,)


def test_a_client_sends_a_clipped_update_with_noise():
    size, settings = 100_000, PrivacySettings(dp_noise_multiplier=0.3, dp_clip_norm=2.0)
    received = np.linspace(-1, 1, size).astype(np.float32)
    trained = received + np.float32(1.0)  # an update of norm 316
    sent = private_update(received, trained, settings, KEY, 1, layout_of(size))
    noise = sent.astype(np.float64) - received - 2.0 / np.sqrt(size)
    assert noise.std() == pytest.approx(0.6, rel=0.01)
    assert abs(noise.mean()) < 0.01
    again = private_update(received, trained, settings, KEY, 1, layout_of(size))
    assert (again == sent).all(), "a repeated round says nothing new"
    others = [
        private_update(received, trained, settings, KEY, 2, layout_of(size)),
        private_update(received, trained, replace(settings, dp_noise_multiplier=0.6), KEY, 1, layout_of(size)),
        private_update(received, trained, replace(settings, dp_clip_norm=1000.0), KEY, 1, layout_of(size)),
        private_update(received, trained + np.float32(0.1) * received, settings, KEY, 1, layout_of(size)),
    ]
    for other in others:
        assert abs(np.corrcoef(other.astype(np.float64) - received, noise)[0, 1]) < 0.02
    clip_only = PrivacySettings(dp_noise_multiplier=0.3, dp_clip_norm=2.0, dp_where="server")
    near = private_update(received, trained, clip_only, KEY, 1, layout_of(size)).astype(np.float64) - received
    assert np.linalg.norm(near) == pytest.approx(2.0, rel=1e-4)


def test_variances_do_not_become_negative():
    layout = Layout.of([("bn.running_mean", (500,)), ("bn.running_var", (500,))])
    zeros = np.zeros(1000, np.float32)
    sent = private_update(zeros, zeros, PrivacySettings(dp_noise_multiplier=1.0), KEY, 1, layout)
    assert sent[:500].min() < 0
    assert sent[500:].min() == 0


def test_the_secret_is_the_client_s_own(tmp_path):
    settings = PrivacySettings(dp_noise_multiplier=1.0)
    key = noise_key(settings, tmp_path / "client", 1, 0)
    assert noise_key(settings, tmp_path / "client", 1, 0) == key
    assert noise_key(settings, tmp_path / "other", 1, 0) != key
    assert stat.S_IMODE((tmp_path / "client" / KEY_FILE).stat().st_mode) == 0o600
    (tmp_path / "client" / KEY_FILE).write_bytes(b"short")
    with pytest.raises(StateError, match=r"noise\.key: is damaged or was changed"):
        noise_key(settings, tmp_path / "client", 1, 0)
    reproducible = PrivacySettings(dp_noise_multiplier=1.0, dp_reproducible=True)
    assert noise_key(reproducible, tmp_path / "none", 1, 0) == noise_key(reproducible, tmp_path / "none", 1, 0)
    assert (
        len({noise_key(reproducible, tmp_path / "none", seed, who) for seed in (1, 2) for who in (0, 1, "server")}) == 6
    )
    assert not (tmp_path / "none").exists()


# -- accounting ------------------------------------------------------------------------------------------------------


def server_privacy(tmp_path, clients=4, **settings):
    options = PrivacySettings(dp_where="server", dp_reproducible=True, **{**DP, **settings})
    return ServerPrivacy(options, range(clients), 3, tmp_path, "float32")


def test_the_server_s_noise_is_made_for_one_client_among_many(tmp_path):
    size = 100_000
    mean = rule(Mean, np.zeros(size), [10, 1000, 10, 10])
    server_privacy(tmp_path).round_started(mean, Round(1), [])
    play(mean, 1, {i: np.full(size, i, np.float32) for i in range(4)})
    noise = mean.shared.astype(np.float64) - 1.5  # all count alike, whatever they have
    assert noise.std() == pytest.approx(0.5 * 0.05 / 4, rel=0.01)
    assert abs(noise.mean()) < 0.01


def test_the_server_clips_what_a_client_should_have_clipped(tmp_path):
    privacy, sent = server_privacy(tmp_path), np.ones(100, np.float32)
    mean = rule(Mean, sent, [10])
    near = privacy.receive(mean, mean.clients[0], sent + np.float32(5), Payload())
    assert np.linalg.norm(near - sent) == pytest.approx(0.05, rel=1e-12)
    assert (privacy.receive(mean, mean.clients[0], sent, Payload()) == sent).all()


def test_the_most_often_asked_client_counts(tmp_path):
    folder = small(tmp_path, 4, method="fedavg", num_server_rounds=4, local_epochs=1, fraction_train=0.5,
                      evaluate_every=0, **DP)  # fmt: skip
    asked = np.zeros(4, int)
    for line in folder.metrics():
        asked[line["clients"]] += 1
        spent = line["privacy"]
        assert spent["releases"] == asked.max()
        assert spent["epsilon"] == epsilon(2 * np.sqrt(asked.max()), 1e-5)
        assert spent["epsilon-replaced"] == epsilon(4 * np.sqrt(asked.max()), 1e-5)
    assert outcome(folder)["epsilon"] == spent["epsilon"]
    assert outcome(folder)["delta"] == 1e-5
    budget = f"ε = {spent['epsilon']:.2f} at δ = 1e-05"
    assert budget in (folder.path / "summary.md").read_text()
    assert budget in CliRunner().invoke(app, ["show", str(folder.path)]).stdout


def test_a_budget_makes_the_noise_and_ends_the_run(tmp_path):
    few = {"method": "fedavg", "local_epochs": 1, "evaluate_every": 1, "dp_clip_norm": 0.1}
    made = small(tmp_path, 2, num_server_rounds=3, dp_epsilon=8.0, **few)
    line = made.metrics()[-1]
    assert (line["round"], line["privacy"]["releases"]) == (3, 3)
    assert line["privacy"]["epsilon"] == pytest.approx(8.0, rel=1e-9)
    assert any("dp-epsilon = 8: z = 1.04" in remark for remark in made.task()["remarks"])
    # Two answers with z = 1 spend 6.6, three 8.4.
    ended = small(tmp_path / "other", 2, num_server_rounds=5, dp_epsilon=8.0, dp_noise_multiplier=1.0, **few).metrics()
    assert len(ended) == 2
    assert ended[-1]["privacy"]["epsilon"] < 8
    with pytest.raises(ConfigError, match=r"dp-epsilon = 0.1: must be larger: one round with dp-noise-multiplier = 1"):
        Config.parse({"method": "fedavg", "dp-epsilon": 0.1, "dp-noise-multiplier": 1.0})
    assert (
        Config.parse({"method": "fedavg", "dp-epsilon": 8.0, "fraction-train": 0.1, "num-server-rounds": 100})
        .of(PrivacySettings)
        .allows(27)
    ), "a client that is drawn far more often than others is allowed for"


def test_what_is_sent_without_shared_arrays_costs_as_much(tmp_path):
    folder = small(tmp_path, 2, method="fedproto", num_server_rounds=1, local_epochs=1, **DP)
    assert folder.metrics()[0]["privacy"]["epsilon"] == epsilon(2.0, 1e-5)


# -- runs ------------------------------------------------------------------------------------------------------------


def sent_besides(config, *required):
    extras = [extra for extra in config.method.extras if extra.goes(SERVER)]
    return {extra.name for extra in extras if extra.required in (required or (True, False))}


def shared_of(folder):
    return folder.checkpoint()[1]["shared"]


@pytest.mark.parametrize("method", each_method(without=NO_NOISE))
def test_every_method_runs_and_nothing_passes_by_the_noise(tmp_path, method):
    quick = {"num_server_rounds": 1, "local_epochs": 2, "learning_rate": 0.005, "method": method, **DP}
    folder, grid = listened(tmp_path, 2, **quick)
    assert np.isfinite(shared_of(folder)).all()
    config = Config.parse(folder.config())
    for client, asked, reply in grid.training():
        if not reply.arrays:
            continue
        besides = set(reply.arrays) - {"shared", "shared-kept"}
        assert sent_besides(config, True) <= besides <= sent_besides(config), client
        assert ("shared" in reply.arrays) == config.method.aggregation.rule.takes_shared
        if "shared-kept" in reply.arrays or "shared" not in reply.arrays:
            continue
        start = asked.arrays["shared"].astype(np.float64)
        noise = np.linalg.norm(reply.arrays["shared"] - start)
        expected = config.of(PrivacySettings).deviation * np.sqrt(len(start))
        assert len(start) == 0 or noise > 0.5 * expected, "no update leaves a client without its noise"


class Telling(fedpfl.Method):
    """Tells the server what it has learnt, in numbers and in words."""

    name, paper, shares = "telling", "none", "everything"

    def conclude(self, local):
        first = float(next(local.model.parameters()).flatten()[0])
        return Payload({"said": str(first)}, {"first-weight": first})


@pytest.mark.parametrize("method", [Telling, "factorized-fl", "fedreg"])
def test_numbers_and_words_of_a_method_leave_only_if_its_rule_needs_them(tmp_path, method):
    sent = []
    for settings in ({}, DP):
        options = {"num_server_rounds": 1, "local_epochs": 1, "learning_rate": 0.005, **settings}
        with as_setting("method", method) if method is Telling else nullcontext(method) as name:
            _, grid = listened(tmp_path / str(len(sent)), 2, method=name, **options)
        replies = [reply for _, _, reply in grid.training()]
        sent.append({word for reply in replies for word in (*reply.metrics, *reply.config)})
    plain, private = sent
    common = {"train-samples", "train-loss", "train-seconds", "layout"}
    assert plain > common
    assert private == common | ({"effective-samples"} if method == "fedreg" else set())


# What a client sends with its vector alone.
ONE_ARRAY = {"fedfac": {"fedfac-turned": "weights"}}


def states_after(method, replies):
    """Return what a method's rule remembers after rounds with these replies of three clients, without noise."""
    config = Config.parse({"method": method, "model": "small-cnn", **needed(method), **ONE_ARRAY.get(method, {})})
    _, sharing = assemble(config, (1, 8, 8), 3)
    sharing.set_shared(np.zeros(sharing.layout.size, np.float32))
    made = make_rule(config, [Client(i, 5 + i, 5) for i in range(3)], sharing)
    made.noise = np.zeros_like
    for number, vectors in enumerate(replies, 1):
        play(made, number, {i: vector[: made.layout.size] for i, vector in enumerate(vectors)})
    return made.shared, {name: array for name, array in made.state().items() if name != "personal_round"}


def depends_on_the_sum_alone(method):
    rng, size = np.random.default_rng(0), 100_000
    # Whole numbers, whose sums are exact in any order.
    replies = rng.integers(-9, 9, (2, 3, size)).astype(np.float32)
    moved = rng.integers(-9, 9, (2, size)).astype(np.float32)
    others = replies + np.stack([moved, -2 * moved, moved], axis=1)
    (first, state), (second, other) = states_after(method, replies), states_after(method, others)
    return np.array_equal(first, second) and all(np.array_equal(state[name], other[name]) for name in state)


@pytest.mark.parametrize("method", sorted(methods()))
def test_what_a_rule_that_adds_the_noise_itself_computes_follows_from_the_sum(method):
    if Config.parse({"method": method}).method.aggregation.rule.only_a_sum:
        assert depends_on_the_sum_alone(method)


def test_a_rule_that_looks_at_each_client_is_found_out():
    assert not depends_on_the_sum_alone("fedfac")
    assert not depends_on_the_sum_alone("fedcac")


def test_leave_to_add_the_noise_is_not_inherited():
    class More(Mean):
        pass

    class Same(Mean):
        only_a_sum = True

    assert (Mean.only_a_sum, More.only_a_sum, Same.only_a_sum) == (True, False, True)
    assert not any(cls.only_a_sum for cls in (FactorSplit, PartialMean, Rule))


def test_other_rules_are_refused_before_the_first_round(tmp_path):
    values = federation(tmp_path, 2, method="fedamp", dp_where="server", **DP)
    grid = LocalGrid(2, values)
    with pytest.raises(ConfigError, match="the server's rule of fedamp is more than a mean of updates; use client"):
        run_federation(grid, values)
    assert {kind for kind, *_ in grid.log} == {"query"}


@pytest.mark.parametrize("method", ["feddecomp", "feddyn", "fedsplit"])
def test_with_noise_at_the_server_clients_clip(tmp_path, method):
    quick = {"num_server_rounds": 1, "local_epochs": 2, "method": method}
    folder, grid = listened(tmp_path, 2, dp_where="server", **quick, **DP)
    assert np.isfinite(shared_of(folder)).all()
    pairs = [(reply.arrays["shared"].astype(np.float64), m.arrays["shared"]) for _, m, reply in grid.training()]
    updates = [np.linalg.norm(trained - received) for trained, received in pairs]
    assert updates == pytest.approx([0.05, 0.05], rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "feddecomp", "evaluate_global": True}, "evaluate-global = true"),
        ({"method": "fedavg", "diagnostics": True}, "diagnostics = true"),
        ({"method": "fedfac", "dp_where": "server"}, "also send 'difference'"),
        ({"method": "factorized-fl", "dp_where": "server"}, "also send 'compared'"),
        ({"method": "fedavg", "dp_where": "moon"}, "one of client, server"),
        ({"method": "fedavg", "dp_clip_norm": 0.0}, "dp-clip-norm = 0.0"),
    ],
)
def test_what_is_not_covered_is_refused(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        federation(tmp_path, 2, **{**DP, **settings})


def test_one_norm_bounds_the_shared_arrays_and_what_is_sent_besides():
    rng = np.random.default_rng(0)
    received, trained = rng.normal(size=(2, 60_000)).astype(np.float32)
    v, first = rng.normal(size=(2, 30_000)).astype(np.float32)
    besides, starts = {"v": v, "weights": rng.random(10_000).astype(np.float32)}, {"v": first}

    def sent(**settings):
        options = PrivacySettings(dp_clip_norm=2.0, **settings)
        return private_reply(received, trained, starts, besides, options, KEY, 1, layout_of(60_000))

    origin = np.concatenate([received, first, np.zeros(10_000, np.float32)]).astype(np.float64)
    shared, others = sent(dp_noise_multiplier=0.3, dp_where="server")
    bounded = np.concatenate([shared, *others.values()]) - origin
    update = np.concatenate([trained, *besides.values()]) - origin
    assert np.linalg.norm(bounded) == pytest.approx(2.0, rel=1e-4)
    assert bounded == pytest.approx(update * 2.0 / np.linalg.norm(update), abs=1e-6)
    shared, others = sent(dp_noise_multiplier=0.3)
    noise = np.concatenate([shared, *others.values()]) - origin - bounded
    for part in np.split(noise, [60_000, 90_000]):
        assert part.std() == pytest.approx(0.6, rel=0.03)
        assert abs(part.mean()) < 0.03


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("factorized-fl", "compared"),
        ("fedfomo", "weights"),
    ],
)
def test_what_is_sent_besides_is_clipped_and_has_noise(tmp_path, monkeypatch, method, name):
    of_method = {"num_server_rounds": 2, "local_epochs": 2, "learning_rate": 0.005, "method": method, **DP}
    made = []

    def spied(received, trained, starts, besides, privacy, *rest):
        sent = private_reply(received, trained, starts, besides, privacy, *rest)
        made.append((besides, starts, sent))
        return sent

    monkeypatch.setattr(client_module, "private_reply", spied)
    folder, grid = listened(tmp_path, 2, **of_method)
    assert len(folder.metrics()) == 2
    replies = [reply for _, _, reply in grid.training()]
    for reply, (besides, _, (shared, others)) in zip(replies, made, strict=True):
        assert set(besides) == set(reply.arrays) - {"shared"} == {name}
        np.testing.assert_array_equal(reply.arrays["shared"], shared)
        np.testing.assert_array_equal(reply.arrays[name], others[name])
        assert len(others[name]) == 0 or (others[name] != besides[name]).all()
    first = [starts["compared"] for _, starts, _ in made if starts]
    assert len(first) == (4 if method == "factorized-fl" else 0)
    assert all((start == first[0]).all() for start in first), "nothing of a client's own is where its v is bounded from"


def outcomes(folder: RunFolder) -> list[dict]:
    timed = ("seconds", "seconds_train", "seconds_evaluate", "bytes_up", "bytes_down")
    return [{k: v for k, v in line.items() if k not in timed} for line in folder.metrics()]


def test_without_noise_nothing_changes(tmp_path):
    quick = {"method": "feddecomp", "num_server_rounds": 1, "local_epochs": 2}
    plain = small(tmp_path / "a", 2, **quick)
    off = small(tmp_path / "b", 2, dp_clip_norm=1e-3, dp_where="server", **quick)
    assert outcomes(plain) == outcomes(off)
    assert (shared_of(plain) == shared_of(off)).all()
    assert not list(tmp_path.rglob(KEY_FILE))


@pytest.mark.parametrize("where", ["client", "server"])
def test_a_resumed_run_goes_on_to_the_bit(tmp_path, where):
    quick = {"method": "fedper", "local_epochs": 1, "dp_where": where, "dp_reproducible": True, **DP}
    whole = small(tmp_path / "whole", 3, num_server_rounds=3, **quick)
    small(tmp_path / "parts", 3, num_server_rounds=1, **quick)
    parts = small(tmp_path / "parts", 3, num_server_rounds=3, resume=True, **quick)
    assert json.dumps(outcomes(parts)) == json.dumps(outcomes(whole))
    assert parts.metrics()[-1]["privacy"]["releases"] == 3
    assert (shared_of(parts) == shared_of(whole)).all()


@pytest.mark.parametrize("where", ["client", "server"])
def test_noise_is_secret_unless_asked_for_otherwise(tmp_path, where):
    quick = {"method": "fedavg", "num_server_rounds": 1, "local_epochs": 1, "dp_where": where, **DP}
    one, other = (small(tmp_path / name, 2, **quick) for name in "ab")
    assert (shared_of(one) != shared_of(other)).any()
    keys = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob(KEY_FILE))
    owners = ["client-00000", "client-00001"] if where == "client" else ["client-00000", "client-00001", "server"]
    assert [path.parent.name for path in keys] == owners
    assert not list(one.path.rglob(KEY_FILE)), "what people pass on as results tells nothing of the noise"
    again = {**quick, "dp_reproducible": True}
    same = [shared_of(small(tmp_path / name, 2, **again)) for name in "cd"]
    assert (same[0] == same[1]).all()
