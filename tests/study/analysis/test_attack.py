"""The attack recovers what it should from gradients that give everything away, and knows no more than a server does."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, simulate
from torch import nn

from fedpfl.core.errors import ConfigError
from fedpfl.results.new_clients import Simulation
from fedpfl.setup.options.privacy import PrivacySettings
from fedpfl.study.analysis import ANALYSES, NotRecorded

# Beside the table that needs it.
attack = sys.modules[ANALYSES["attack"].function.__module__]
ATTACKS, AttackOptions, _attacker_phases = attack.ATTACKS, attack.AttackOptions, attack._attacker_phases
attack_run, observe, psnr, psnr_of_grey = attack.attack_run, attack.observe, attack.psnr, attack.psnr_of_grey
cosine_distance, squared_distance = attack.cosine_distance, attack.squared_distance
label_from_bias, total_variation = attack.label_from_bias, attack.total_variation

QUICK = {**FEW_SAMPLES, "num_server_rounds": 1, "local_epochs": 2, "learning_rate": 0.01, "evaluate_every": 0}
# Each with something of its own: data, attached settings or models, other losses, gradients or forward passes.
UNLIKE = ("ditto", "factorized-fl-plus", "fedem", "fedfac", "fedfomo", "fedreg", "fedrod", "per-fedavg", "pfedsd")


@pytest.mark.parametrize(("kind", "iterations", "least"), [("cosine", 150, 20), ("dlg", 100, 20)])
def test_it_recovers_an_image_from_the_gradients_of_fedavg(tmp_path, kind, iterations, least):
    run = simulate(tmp_path, 2, method="fedavg", model="mlp-200", **QUICK)
    (attempt,) = attack_run(run, AttackOptions(clients=1, kind=kind, iterations=iterations, tv=1e-3))
    assert attempt.psnr > least
    assert attempt.psnr > psnr_of_grey([attempt]) + 10


def test_what_is_seen_is_the_gradient_of_the_shared_arrays(tmp_path):
    run = simulate(tmp_path, 2, method="fedper", **QUICK)
    left = Simulation.of(run)
    seen, _ = observe(left, 1, 3, learning_rate=0.5)
    samples = left.engine.data.train(1)
    assert torch.equal(seen.image, samples.x[3:4])
    assert torch.equal(seen.label, samples.y[3:4])
    model = left.load(1, "train").model
    loss = nn.functional.cross_entropy(model(seen.image), seen.label)
    expected = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )
    assert seen.names == [name for name in expected if not name.startswith("head.")]
    for name, gradient in zip(seen.names, seen.gradients, strict=True):
        torch.testing.assert_close(gradient, expected[name].flatten(), rtol=1e-3, atol=1e-5)
    for guessed, gradient in zip(seen.of(model, seen.image, seen.label), seen.gradients, strict=True):
        torch.testing.assert_close(guessed, gradient, rtol=1e-3, atol=1e-5)


def test_noise_for_differential_privacy_is_in_what_is_seen(tmp_path):
    run = simulate(tmp_path, 2, method="fedavg", dp_noise_multiplier=2.0, dp_clip_norm=0.5, **QUICK)
    left = Simulation.of(run)
    seen, _ = observe(left, 0, 0, learning_rate=0.1)
    update = 0.1 * torch.cat(seen.gradients)  # clipped to 0.5, which is little among so many values
    assert float(update.std()) == pytest.approx(1.0, rel=0.05)
    assert all(torch.equal(a, b) for a, b in zip(seen.gradients, observe(left, 0, 0, 0.1)[0].gradients, strict=True))


def test_only_the_part_of_a_weight_that_travels_is_seen(tmp_path):
    run = simulate(tmp_path, 2, method="feddecomp", **QUICK)
    assert not any("tau" in name for name in observe(Simulation.of(run), 0, 0, 0.01)[0].names)
    run = simulate(tmp_path, 2, method="fedsplit", run_name="split", **QUICK)
    left = Simulation.of(run)
    seen, _ = observe(left, 0, 0, 0.01)
    split = left.rule.state()["split"].astype(bool)
    weight = dict(left.engine.model.named_parameters())["base.conv2.weight"]
    assert seen.gradients[seen.names.index("base.conv2.weight")].numel() == split.sum() * weight[0].numel()


def test_what_a_reply_carries_besides_is_seen_as_well(tmp_path):
    run = simulate(tmp_path, 2, method="factorized-fl", **QUICK)
    left = Simulation.of(run)
    seen, _ = observe(left, 0, 0, 0.01)
    (v,) = [name for name in seen.names if name.endswith(".v")]
    assert v == left.engine.extras.copies["compared"]
    assert seen.sent[v].all()
    assert seen.gradients[seen.names.index(v)].abs().max() > 0
    left.engine.config.of(PrivacySettings).__dict__.update(dp_noise_multiplier=2.0, dp_clip_norm=0.5)
    noisy, _ = observe(left, 0, 0, 0.01)
    noise = 0.01 * (noisy.gradients[noisy.names.index(v)] - seen.gradients[seen.names.index(v)])
    assert float(noise.std()) == pytest.approx(1.0, rel=0.4)


def test_the_attacker_does_not_have_the_client_s_personal_arrays(tmp_path):
    run = simulate(tmp_path, 2, method="fedper", model="mlp-200", **QUICK)
    options = {"clients": 1, "kind": "dlg", "iterations": 60}
    attacks = {which: attack_run(run, AttackOptions(personal=which, **options))[0] for which in ("drawn", "true")}
    assert attacks["true"].distance < 1e-3 < attacks["drawn"].distance
    assert attacks["true"].psnr > 20 > attacks["drawn"].psnr
    left = Simulation.of(run)
    observe(left, 0, 0, 0.01)
    stored = left.engine.sharing.get_personal()
    left.load(0, "train")  # after the step on one image the client's arrays are as they were
    for name, array in left.engine.sharing.get_personal().items():
        np.testing.assert_array_equal(array, stored[name])


def test_the_attacker_does_not_have_the_client_s_data(tmp_path):
    run = simulate(tmp_path, 2, method="fedrod", **QUICK)
    left = Simulation.of(run)
    seen, local = observe(left, 0, 0, 0.01)
    image = torch.zeros_like(seen.image)
    step = replace(seen, phases=_attacker_phases(left, local)).of(left.engine.model, image, seen.label)
    of_client = seen.of(left.engine.model, image, seen.label)  # whose loss is balanced by its numbers of samples
    assert not all(torch.equal(a, b) for a, b in zip(step, of_client, strict=True))
    uniform = nn.functional.cross_entropy(left.engine.config.method.global_model(left.engine.model)(image), seen.label)
    place = seen.names.index("head.bias")
    (expected,) = torch.autograd.grad(uniform, [left.engine.model.head.bias])
    torch.testing.assert_close(step[place], expected)


def test_the_same_seed_finds_the_same_images_and_more_attempts_never_match_worse(tmp_path):
    run = simulate(tmp_path, 3, method="fedavg", **QUICK)
    first, again, other = (
        attack_run(run, AttackOptions(iterations=3, clients=2, images=2, attack_seed=seed)) for seed in (1, 1, 2)
    )
    assert len(first) == 4
    assert all(torch.equal(a.recovered, b.recovered) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a.recovered, b.recovered) for a, b in zip(first, other, strict=True))
    one, three = (attack_run(run, AttackOptions(iterations=5, clients=1, restarts=n))[0] for n in (1, 3))
    assert three.distance <= one.distance


def test_a_label_is_inferred_where_the_classifier_is_shared(tmp_path):
    run = simulate(tmp_path, 2, method="fedavg", **QUICK)
    seen, _ = observe(Simulation.of(run), 0, 5, 0.01)
    assert label_from_bias(seen.gradients[seen.names.index("head.bias")]) == int(seen.label)
    labelled, inferred = (
        attack_run(run, AttackOptions(iterations=2, clients=1, label=w))[0] for w in ("known", "inferred")
    )
    assert torch.equal(labelled.recovered, inferred.recovered)


def test_runs_that_cannot_be_attacked_are_named(tmp_path):
    runs = [simulate(tmp_path, 2, method=m, run_name=m, **QUICK) for m in ("fedavg", "fedper", "local")]
    quick = {"iterations": 2, "clients": 1, "label": "inferred"}
    result = ANALYSES["attack"].make(runs, **quick)
    assert [row[0] for row in result.tables[0].rows] == ["fedavg"]
    assert "fedper sends no head.bias" in result.tables[0].note
    assert "local sends nothing that it trains" in result.tables[0].note
    assert [len(row) for row in result.figures[1].rows.values()] == [1, 1]
    assert result.figures[1].rows["original"][0].shape == (8, 8)
    with pytest.raises(NotRecorded, match="local sends nothing"):
        ANALYSES["attack"].make(runs[2:], **quick)
    with pytest.raises(ConfigError, match="kind = 'guess': must be one of cosine, dlg"):
        ANALYSES["attack"].make(runs, kind="guess")


@pytest.mark.parametrize("method", UNLIKE)
def test_updates_of_unlike_methods_can_be_attacked(tmp_path, method):
    run = simulate(tmp_path, 2, method=method, **{**QUICK, "local_epochs": 1})
    (attempt,) = attack_run(run, AttackOptions(iterations=2, clients=1))
    assert math.isfinite(attempt.psnr)
    assert 0 <= attempt.distance <= 2


def test_distances_and_variation_of_a_small_case():
    a, b = [torch.tensor([3.0]), torch.tensor([0.0, 4.0])], [torch.tensor([4.0]), torch.tensor([0.0, 3.0])]
    assert float(cosine_distance(a, b)) == pytest.approx(1 - 24 / 25)
    assert float(cosine_distance(a, [torch.zeros(1), torch.zeros(2)])) == 1
    assert float(squared_distance(a, b)) == 2
    assert float(total_variation(torch.tensor([[[[0.0, 1.0], [2.0, 5.0]]]]))) == (2 + 4) / 2 + (1 + 3) / 2


def test_psnr_is_that_of_images_from_0_to_1():
    black, grey = torch.full((1, 2, 2), -1.0), torch.zeros(1, 2, 2)
    assert psnr(grey, black) == pytest.approx(-10 * math.log10(0.25))


@pytest.mark.parametrize("kind", ATTACKS)
def test_each_attack_inverts_a_smooth_function(kind):
    torch.manual_seed(0)
    matrix, image = torch.randn(40, 16), torch.rand(1, 1, 4, 4)

    def gradients(x):
        return [torch.tanh(matrix @ x.flatten() / 4)]

    recovered = ATTACKS[kind](
        gradients, gradients(image), torch.zeros_like(image), 200, 0.0, {"cosine": 0.1, "dlg": 1.0}[kind]
    )
    torch.testing.assert_close(recovered, image, rtol=0, atol=0.05)
