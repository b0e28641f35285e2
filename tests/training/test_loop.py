from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpfl.core.errors import UnusedParameter
from fedpfl.core.samples import Samples
from fedpfl.training.inner_gradients import cross_entropy, gradient_of
from fedpfl.training.loop import evaluate, run_phase
from fedpfl.training.penalties import L1, Proximal
from fedpfl.training.phase import Group, Phase
from fedpfl.training.settings import TrainingSettings

SETTINGS = TrainingSettings(batch_size=4, last_batch="keep", learning_rate=0.1, momentum=0.9, weight_decay=0.01)


def everything(name):
    return True


def images(n=10, channels=3):
    torch.manual_seed(0)
    x = torch.randn(n, channels, 8, 8).contiguous(memory_format=torch.channels_last)
    return Samples(x, torch.arange(n) % 3)


def convnet(norm=False):
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5) if norm else nn.Identity(), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(5 * 36, 3)).to(memory_format=torch.channels_last)


def straight(model, samples, epochs, rng, penalty=lambda model: 0.0, sizes=(4, 4, 2), reduction="mean"):
    """Run the same steps with torch.optim and nothing clever."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=0.01, foreach=True)
    model.train()
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(samples.y)))
        for rows in order[: sum(sizes)].split(list(sizes)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(samples.x[rows]), samples.y[rows], reduction=reduction)
            (loss + penalty(model)).backward()
            optimizer.step()


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("last", "sizes"), [("drop", (4, 4)), ("keep", (4, 4, 2)), ("even", (4, 3, 3))])
def test_a_phase_does_the_steps_of_a_plain_loop(norm, last, sizes):
    ours, reference, samples = convnet(norm), convnet(norm), images()
    settings = replace(SETTINGS, last_batch=last)
    run_phase(ours, Phase(everything, epochs=3), samples, settings, np.random.default_rng(5))
    straight(reference, samples, 3, np.random.default_rng(5), sizes=sizes)
    for a, b in zip(ours.state_dict().values(), reference.state_dict().values()):
        # 1e-5: the plain loop gathers batches in another memory order, so convolutions round differently.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gradient", [None, lambda model, batch, names, params: gradient_of(model, batch, params)])
def test_a_parameter_that_the_loss_does_not_depend_on_has_a_gradient_of_0(gradient):
    model = nn.Sequential(convnet(), nn.Identity())
    model[1].spare = nn.Linear(3, 3)
    before = copy.deepcopy(model[1].spare.state_dict())
    settings = replace(SETTINGS, weight_decay=0.0)
    assert run_phase(model, Phase(everything, 1, gradient=gradient), images(), settings, np.random.default_rng(0)) > 0
    assert all(torch.equal(array, before[name]) for name, array in model[1].spare.state_dict().items())
    alone = Phase(lambda name: "spare" in name, 1, gradient=gradient)
    with pytest.raises(UnusedParameter, match=r"^the loss does not depend on 1\.spare\.weight, 1\.spare\.bias: use it"):
        run_phase(model, alone, images(), SETTINGS, np.random.default_rng(0))


def test_groups_have_rates_of_their_own_and_are_clipped_apart():
    ours, reference, samples = convnet(), convnet(), images(8)
    groups = [Group(lambda name: name.startswith("0."), 0.3, 0.05), Group(lambda name: name == "4.bias", clip_norm=1e9)]
    run_phase(ours, Phase(everything, epochs=3, groups=groups), samples, SETTINGS, np.random.default_rng(5))
    convolution, classifier = list(reference[0].parameters()), list(reference[4].parameters())
    optimizer = torch.optim.SGD(
        [{"params": convolution, "lr": 0.3}, {"params": classifier}], 0.1, 0.9, weight_decay=0.01
    )
    rng, norms = np.random.default_rng(5), []
    for _ in range(3):
        for rows in torch.from_numpy(rng.permutation(8)).split(4):
            optimizer.zero_grad()
            F.cross_entropy(reference(samples.x[rows]), samples.y[rows]).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(convolution, 0.05)))
            optimizer.step()
    assert max(norms) > 0.05  # it was clipped
    for a, b in zip(ours.state_dict().values(), reference.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_group_that_changes_nothing_changes_no_bit():
    ours, reference = convnet(), convnet()
    groups = [Group(lambda name: name.startswith("0."))]
    run_phase(ours, Phase(everything, epochs=3, groups=groups), images(), SETTINGS, np.random.default_rng(5))
    run_phase(reference, Phase(everything, epochs=3), images(), SETTINGS, np.random.default_rng(5))
    for a, b in zip(ours.state_dict().values(), reference.state_dict().values()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("last", ["keep", "even"])
@pytest.mark.parametrize("batch_loss", ["mean", "sum"])
def test_the_loss_is_the_mean_over_all_samples(last, batch_loss):
    model, samples = convnet(), images()
    still = TrainingSettings(batch_size=4, learning_rate=1e-30, last_batch=last, batch_loss=batch_loss)
    loss = run_phase(model, Phase(everything, epochs=2), samples, still, np.random.default_rng(0))
    assert loss == pytest.approx(float(F.cross_entropy(model(samples.x), samples.y)), rel=1e-5)


def test_the_loss_is_the_mean_over_the_samples_of_the_last_epoch_that_were_not_left_out():
    model, samples = convnet(), images()
    still = TrainingSettings(batch_size=4, learning_rate=1e-30, last_batch="drop")
    loss = run_phase(model, Phase(everything, epochs=2), samples, still, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    seen = torch.from_numpy([rng.permutation(10)[:8] for _ in range(2)][1])
    assert loss == pytest.approx(float(F.cross_entropy(model(samples.x[seen]), samples.y[seen])), rel=1e-5)


def test_every_epoch_leaves_other_samples_out():
    samples, seen = images(), []

    def loss(model, batch):
        seen.append(set(batch.positions.tolist()))
        return cross_entropy(model, batch)

    settings = replace(SETTINGS, last_batch="drop")
    run_phase(convnet(), Phase(everything, 12, loss=loss), samples, settings, np.random.default_rng(0))
    assert [len(batch) for batch in seen] == [4] * 24
    epochs = [first | second for first, second in zip(seen[::2], seen[1::2])]
    assert all(len(epoch) == 8 for epoch in epochs)
    assert set().union(*epochs) == set(range(10)), "nothing is lost for good"


def test_a_client_with_less_than_a_batch_trains_on_what_it_has():
    ours, reference, samples = convnet(), convnet(), images(3)
    settings = replace(SETTINGS, last_batch="drop")
    run_phase(ours, Phase(everything, 2), samples, settings, np.random.default_rng(5))
    straight(reference, samples, 2, np.random.default_rng(5), sizes=(3,))
    for a, b in zip(ours.parameters(), reference.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_the_sum_over_a_batch_leaves_penalty_and_weight_decay_as_they_are():
    ours, reference, mean, samples = convnet(), convnet(), convnet(), images()
    anchor = {name: torch.randn_like(p) for name, p in ours.named_parameters()}
    phase = Phase(everything, epochs=2, penalty=Proximal(0.3, anchor))
    run_phase(ours, phase, samples, replace(SETTINGS, batch_loss="sum"), np.random.default_rng(5))

    def pull(model):
        return 0.15 * sum(((p - anchor[n]) ** 2).sum() for n, p in model.named_parameters())

    straight(reference, samples, 2, np.random.default_rng(5), pull, reduction="sum")
    for a, b in zip(ours.parameters(), reference.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    straight(mean, samples, 2, np.random.default_rng(5), pull)
    assert not torch.allclose(ours[4].weight, mean[4].weight, atol=1e-2)


def test_only_the_selected_parameters_move():
    model, samples = convnet(), images()
    before = {name: p.clone() for name, p in model.named_parameters()}
    run_phase(model, Phase(lambda n: n.startswith("4."), epochs=1), samples, SETTINGS, np.random.default_rng(0))
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"4.weight", "4.bias"}
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("phase", [Phase(everything, epochs=0), Phase(lambda name: False, epochs=3)])
def test_nothing_happens_without_epochs_or_parameters(phase):
    model = convnet()
    before = [p.clone() for p in model.parameters()]
    assert run_phase(model, phase, images(), SETTINGS, np.random.default_rng(0)) is None
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_a_proximal_term_has_its_real_gradient():
    ours, reference, samples = convnet(), convnet(), images()
    anchor = {name: torch.randn_like(p) for name, p in ours.named_parameters()}
    phase = Phase(everything, epochs=2, penalty=Proximal(0.3, anchor))
    run_phase(ours, phase, samples, SETTINGS, np.random.default_rng(5))
    straight(
        reference,
        samples,
        2,
        np.random.default_rng(5),
        lambda m: 0.15 * sum(((p - anchor[n]) ** 2).sum() for n, p in m.named_parameters()),
    )
    for a, b in zip(ours.parameters(), reference.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_proximal_term_of_weight_zero_changes_no_bit():
    with_term, without, samples = convnet(), convnet(), images()
    anchor = {name: torch.randn_like(p) for name, p in with_term.named_parameters()}
    run_phase(
        with_term, Phase(everything, 2, penalty=Proximal(0.0, anchor)), samples, SETTINGS, np.random.default_rng(5)
    )
    run_phase(without, Phase(everything, 2), samples, SETTINGS, np.random.default_rng(5))
    assert all(torch.equal(a, b) for a, b in zip(with_term.parameters(), without.parameters()))


def test_an_l1_term_has_its_real_gradient_and_is_0_at_0():
    samples, model, plain = images(8), convnet(), convnet()
    for m in (model, plain):
        with torch.no_grad():
            m[0].weight[0] = 0
    penalty = L1(0.3, lambda name: name == "0.weight")
    run_phase(model, Phase(everything, epochs=1, penalty=penalty), samples, SETTINGS, np.random.default_rng(5))
    optimizer = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    for indices in torch.from_numpy(np.random.default_rng(5).permutation(8)).split(4):
        optimizer.zero_grad()
        (F.cross_entropy(plain(samples.x[indices]), samples.y[indices]) + 0.3 * plain[0].weight.abs().sum()).backward()
        optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(ours, theirs)
    params = [torch.tensor([-2.0, 0.0, 0.5]), torch.ones(2)]
    grads = [torch.zeros(3), torch.zeros(2)]
    L1(0.25, lambda name: name == "mu").add_gradient(["mu", "v"], params, grads)
    assert [g.tolist() for g in grads] == [[-0.25, 0.0, 0.25], [0.0, 0.0]]


def test_a_projection_follows_each_step():
    model, samples, seen = convnet(), images(), []

    def into_a_box(names, params):
        seen.append((list(names), max(float(p.abs().max()) for p in params)))
        for param in params:
            param.clamp_(-0.0625, 0.0625)  # in place, and a user need not say that it has no gradient

    selected = Phase(lambda name: name.startswith("4."), epochs=2, project=into_a_box)
    run_phase(model, selected, samples, SETTINGS, np.random.default_rng(0))
    assert [names for names, _ in seen] == [["4.weight", "4.bias"]] * 6
    assert all(most > 0.0625 for _, most in seen)
    assert max(float(p.abs().max()) for p in model[4].parameters()) == 0.0625


def test_running_statistics_stand_still_on_request():
    model = convnet(norm=True)
    before = model[1].running_mean.clone(), model[1].running_var.clone()
    run_phase(model, Phase(everything, 1, move_statistics=False), images(), SETTINGS, np.random.default_rng(0))
    assert torch.equal(model[1].running_mean, before[0])
    assert torch.equal(model[1].running_var, before[1])
    assert model[1].momentum == 0.1
    run_phase(model, Phase(everything, 1), images(), SETTINGS, np.random.default_rng(0))
    assert not torch.equal(model[1].running_mean, before[0])


@pytest.mark.parametrize("n", [1, 5])
def test_a_lone_sample_trains_even_where_batchnorm_sees_one_value_per_channel(n):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    before = model[1].weight.clone()
    run_phase(model, Phase(everything, 1), images(n), SETTINGS, np.random.default_rng(0))
    assert not torch.equal(model[1].weight, before)
    assert model[2].training
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_batches_tell_which_samples_they_hold():
    samples, seen = images(), []

    def loss(model, batch):
        assert torch.equal(samples.x[batch.positions], batch.x)
        assert torch.equal(samples.y[batch.positions], batch.y)
        seen.extend(batch.positions.tolist())
        return cross_entropy(model, batch)

    run_phase(convnet(), Phase(everything, 2, loss=loss), samples, SETTINGS, np.random.default_rng(0))
    assert sorted(seen) == sorted([*range(10), *range(10)])


def test_a_phase_s_own_data_and_learning_rate_take_precedence():
    model, samples = convnet(), images()
    nothing = Samples(samples.x[:0], samples.y[:0])
    assert run_phase(model, Phase(everything, 1, data=nothing), samples, SETTINGS, np.random.default_rng(0)) is None
    before = model[0].weight.clone()
    run_phase(model, Phase(everything, 1, learning_rate=1e-30), samples, SETTINGS, np.random.default_rng(0))
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(
    "options",
    [{"optimizer": "adam"}, {"momentum": 0.0}, {"momentum": 0.5}, {"weight_decay": 0.0}, {"weight_decay": 0.3}],
)
def test_a_phase_s_own_optimiser_is_as_if_it_were_the_setting(options):
    ours, theirs, usual, samples = convnet(), convnet(), convnet(), images()
    run_phase(ours, Phase(everything, 2, **options), samples, SETTINGS, np.random.default_rng(5))
    run_phase(theirs, Phase(everything, 2), samples, replace(SETTINGS, **options), np.random.default_rng(5))
    run_phase(usual, Phase(everything, 2), samples, SETTINGS, np.random.default_rng(5))
    for a, b, c in zip(ours.parameters(), theirs.parameters(), usual.parameters()):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_scores_are_sums_over_all_batches():
    torch.manual_seed(0)
    x, y = torch.randn(1203, 5), torch.randint(3, (1203,))
    model = nn.Linear(5, 3)
    score = evaluate(model, Samples(x, y))
    assert score.samples == 1203
    assert score.correct == int((model(x).argmax(1) == y).sum())
    assert score.loss_sum == pytest.approx(float(F.cross_entropy(model(x), y, reduction="sum")), rel=1e-5)
