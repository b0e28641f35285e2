"""What Factorized-FL promises, through the whole of server, strategy and client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, federation, simulate, simulate_and_listen, train

from fedpfl.client.state import ClientState
from fedpfl.core.payload import Payload
from fedpfl.core.samples import Samples
from fedpfl.data.federation import federated_data
from fedpfl.methods.base import LocalRound
from fedpfl.methods.factorized_fl.layers import is_mu
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

ALPHA, BETA = "factorized-fl", "factorized-fl-plus"


def run(tmp_path, nodes=3, **settings):
    """Run a federation and return (folder, sharing, log of its messages)."""
    folder, grid = simulate_and_listen(tmp_path, nodes, **settings)
    task = folder.task()
    _, sharing = assemble(Config.parse(folder.config()), tuple(task["input_shape"]), task["num_classes"])
    return folder, sharing, grid.log


def personal(folder, client):
    """Return a client's newest personal arrays."""
    config, task = folder.config(), folder.task()
    state = ClientState(config["state-dir"], task["state_key"], client)
    return state.load(state.rounds()[-1])


def replies(log, number):
    """Return {client: reply's arrays} of a round's training."""
    arrays_of = {}
    for kind, client, sent, reply in log:
        if kind == "train" and sent.config_records["config"]["round"] == number:
            arrays_of[client] = {name: array.numpy() for name, array in reply.array_records["arrays"].items()}
    return arrays_of


# -- what leaves a client ----------------------------------------------------------------------------------------------


def test_of_alpha_only_u_and_one_v_leave_the_client(tmp_path):
    folder, sharing, log = run(
        tmp_path, method=ALPHA, model="resnet8", num_server_rounds=1, local_epochs=1, **FEW_SAMPLES
    )
    model, _ = assemble(Config.parse(folder.config()), (1, 8, 8), 10)
    expected = {f"{name}.u" for name, m in model.base.named_modules() if isinstance(m, torch.nn.Conv2d)}
    norms = [name for name, m in model.base.named_modules() if isinstance(m, torch.nn.BatchNorm2d)]
    expected |= {f"{name}.{affine}" for name in norms for affine in ("weight", "bias")}
    assert set(sharing.shared) == {f"base.{name}" for name in expected}
    for client, arrays in replies(log, 1).items():
        stored = personal(folder, client)
        assert set(arrays) == {"shared", "compared"}
        last = "base.layer3.0.conv2.v"
        assert np.array_equal(arrays["compared"], stored[last].reshape(-1))
        assert arrays["shared"].size == sharing.layout.size
        sent = b"".join(array.tobytes() for array in arrays.values())
        for name, array in stored.items():
            pieces = np.array_split(np.ascontiguousarray(array).reshape(-1), 5)
            if name != last and array.size >= 20 and array.any():
                assert not any(piece.any() and piece[:4].tobytes() in sent for piece in pieces), name


def test_beta_sends_only_what_is_left_of_mu_in_both_directions(tmp_path):
    settings = {"factorized_fl_l1": 2e-3, "learning_rate": 0.05, "num_server_rounds": 2}
    folder, sharing, log = run(tmp_path, method=BETA, **settings)
    layout = sharing.layout
    assert all(value == 2e-3 for value in layout.sparse.values())
    assert set(layout.sparse) == {name for name in layout.names if is_mu(name)}
    dense = sum(np.prod(shape) for name, shape in layout.entries if name not in layout.sparse)
    entries = layout.size - dense
    for kind, _, sent, reply in log:
        messages = [sent] if kind == "evaluate" else [sent, reply] if kind == "train" else []
        for message in messages:
            arrays = {name: array.numpy() for name, array in message.array_records["arrays"].items()}
            flat = layout.unpack(arrays)
            mu = np.concatenate([flat[place] for name, place in layout.slices().items() if is_mu(name)])
            kept = mu[mu != 0]
            assert np.abs(kept).min(initial=1) >= np.float32(2e-3)
            assert arrays["shared"].size == dense + len(kept)
            assert arrays["shared-kept"].nbytes == -(-entries // 8)
    line = folder.metrics()[-1]
    assert 0 < line["details"]["mu-nonzero"] < 0.95 * entries
    bits, header = -(-entries // 8), 4000
    assert line["bytes_up"] < sum(4 * a["shared"].size + bits + header for a in replies(log, 2).values())


# -- the lines that must hold ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["factorized-fl", "factorized-fl-plus"])
def test_that_nobody_can_be_left_out_is_said_before_round_1(name):
    def remarks(clients, **settings):
        config = Config.parse({"method": name, **{f"factorized-fl-{key}": value for key, value in settings.items()}})
        return config.method.remarks(assemble(config, (1, 8, 8), 10)[0], clients, rounds=5)

    assert remarks(10) == [f"{name}: factorized-fl-min-aggregate = 10: all 10 clients are averaged, however unlike"]
    assert remarks(11) == remarks(10, matching="random") == remarks(10, **{"min-aggregate": 9}) == []


def test_what_is_sent_does_not_depend_on_how_a_client_numbers_its_classes(tmp_path):
    # The numbering is in the classifier alone: with its rows in that order the same arrays leave the client.
    config = Config.parse(federation(tmp_path, method=ALPHA, local_epochs=1, factorized_fl_l1=0.0))
    digits = federated_data(config.data, 3, config.run.seed).train(0)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))  # class c is called order[c]
    sent = []
    for renamed, permuted in ((False, False), (True, True), (True, False)):
        model, sharing = assemble(config, (1, 8, 8), 10)
        if permuted:
            for array in (model.head.v, model.head.bias):
                array.data[order] = array.data.clone()
        samples = Samples(digits.x, order[digits.y] if renamed else digits.y)
        local = LocalRound(
            client=0, round=1, seed=3, num_classes=10, model=model, start=sharing.received(),
            message=Payload(), train_data=lambda samples=samples: samples, train_labels=samples.y.numpy,
            layout=sharing.layout,
        )  # fmt: skip
        start = sharing.get_shared()
        compared = train(config.method, local).arrays["compared"]
        sent.append((sharing.get_shared() - start, compared))
    (plain, v), (same, same_v), (other, _) = sent
    np.testing.assert_allclose(same, plain, atol=1e-6)
    np.testing.assert_allclose(same_v, v, atol=1e-6)
    assert np.abs(other - plain).max() > 1e-3  # with the first rows as they were it does depend on it


# -- options -----------------------------------------------------------------------------------------------------------


def test_similarities_and_matches_of_every_round_are_kept(tmp_path):
    folder = simulate(tmp_path, 4, method=ALPHA, num_server_rounds=3, fraction_train=0.5, **FEW_SAMPLES)
    heard: set[int] = set()
    for line in folder.metrics():
        heard |= set(line["clients"])
        name = f"round-{line['round']:06d}.npy"
        similarity = np.load(folder.path / "arrays" / "similarity" / name)
        assert similarity.shape == (4, 4)
        assert set(np.flatnonzero(~np.isnan(np.diag(similarity)))) == heard
        assert np.array_equal(similarity, similarity.T, equal_nan=True)
        matches = np.load(folder.path / "arrays" / "matches" / name)
        assert (np.diag(matches) > 0).sum() == len(heard)


# -- odd clients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [ALPHA, BETA])
def test_lambda_as_a_threshold_does_not_move_mu(tmp_path, method):
    def trained(penalty, l1):
        settings = {"factorized_fl_penalty": penalty, "factorized_fl_l1": l1, "num_server_rounds": 1, "local_epochs": 1,
                    "factorized_fl_threshold": 1.5}  # fmt: skip
        place = tmp_path / f"{penalty}-{l1}"
        folder, sharing, log = run(place, method=method, **settings, **FEW_SAMPLES)
        return personal(folder, 0) if method == ALPHA else sharing.layout.unpack(replies(log, 1)[0])

    free, threshold, gradient = trained("gradient", 0.0), trained("threshold", 1e-3), trained("gradient", 1e-3)
    if method == ALPHA:
        mus = [name for name in free if is_mu(name)]
        assert mus and all(np.array_equal(free[name], threshold[name]) for name in free)
        assert all(not np.array_equal(gradient[name], free[name]) for name in mus)
    else:  # what is sent lacks the small entries of µ, and nothing else
        assert np.array_equal(threshold[threshold != 0], free[threshold != 0])
        assert 0 < np.count_nonzero(threshold) < np.count_nonzero(free)
        assert not np.array_equal(gradient, threshold)
