"""What Factorized-FL promises, through the whole of server, strategy and client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import LocalGrid, federation, run_federation, simulate, train

import fedpfl.setup.config
from fedpfl.client.state import ClientState
from fedpfl.core.errors import ConfigError
from fedpfl.core.payload import Payload
from fedpfl.core.samples import Samples
from fedpfl.data.federation import federated_data
from fedpfl.methods.base import LocalRound
from fedpfl.methods.factorized_fl import FactorizedFL, FactorizedFLPlus
from fedpfl.methods.factorized_fl.layers import is_mu
from fedpfl.results.export import export_personal
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

ALPHA, BETA = "factorized-fl", "factorized-fl-plus"


def run(tmp_path, nodes=3, **settings):
    """Run a federation and return (folder, sharing, log of its messages)."""
    values = federation(tmp_path, nodes, **settings)
    grid = LocalGrid(nodes, values)
    folder = run_federation(grid, values)
    task = folder.task()
    _, sharing = assemble(Config.parse(values), tuple(task["input_shape"]), task["num_classes"])
    return folder, sharing, grid.log


def personal(folder, client):
    """Return a client's newest personal arrays."""
    config, task = folder.config(), folder.task()
    state = ClientState(config["state-dir"], task["state_key"], client)
    return state.load(state.rounds()[-1])


def replies(log, number):
    """Return {client: reply's arrays} of a round's training."""
    found = {}
    for kind, client, sent, reply in log:
        if kind == "train" and sent.config_records["config"]["round"] == number:
            found[client] = {name: array.numpy() for name, array in reply.array_records["arrays"].items()}
    return found


# -- what leaves a client ----------------------------------------------------------------------------------------------


def test_of_alpha_only_u_and_one_v_leave_the_client(tmp_path):
    folder, sharing, log = run(tmp_path, method=ALPHA, model="resnet8", num_server_rounds=1, local_epochs=1)
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


@pytest.mark.parametrize(
    ("method", "factors"),
    [(ALPHA, {"u"}), (BETA, {"u", "v", "mu"})],
)
def test_the_classifier_is_treated_as_any_layer_on_request(tmp_path, method, factors):
    for place, expected in (("personal", set()), ("shared", {f"head.{name}" for name in (*factors, "bias")})):
        values = federation(tmp_path, method=method, **{"factorized_fl_classifier": place})
        _, sharing = assemble(Config.parse(values), (1, 8, 8), 10)
        assert {name for name in sharing.shared if name.startswith("head.")} == expected


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


def test_what_is_reported_is_what_is_sent(tmp_path):
    _, sharing, log = run(tmp_path, nodes=2, method=BETA, num_server_rounds=1, factorized_fl_classifier="shared")
    for kind, _, _, reply in log:
        if kind == "train":
            arrays = {name: array.numpy() for name, array in reply.array_records["arrays"].items()}
            flat = sharing.layout.unpack(arrays)
            kept = sum(np.count_nonzero(flat[p]) for n, p in sharing.layout.slices().items() if is_mu(n))
            assert reply.metric_records["metrics"]["mu-nonzero"] == kept
            assert reply.metric_records["metrics"]["parameters"] == arrays["shared"].size  # all of it is shared


# -- the lines that must hold ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "model"),
    [(ALPHA, "small-cnn"), (ALPHA, "resnet8"), (BETA, "small-cnn")],
)
def test_tau_above_1_is_local_training_to_the_bit(tmp_path, monkeypatch, method, model):
    settings = {"factorized_fl_threshold": 1.5, "factorized_fl_min_aggregate": 1, "factorized_fl_l1": 0.0}
    common = {
        "method": method,
        "model": model,
        "local_epochs": 1,
        "batch_size": 128,
        "permute_labels": True,
        **settings,
    }
    common["num_server_rounds"] = 2
    federated, sharing, _ = run(tmp_path / "a", **common)

    class Alone(FactorizedFL if method == ALPHA else FactorizedFLPlus):
        """The same training with all arrays personal."""

        name = method
        extras = ()

        def is_shared(self, name, model):
            return False

        def conclude(self, local):
            return Payload()

        aggregation = fedpfl.methods.Method.aggregation

    monkeypatch.setattr(fedpfl.setup.config, "find", lambda name: Alone)
    monkeypatch.setattr(fedpfl.flower.strategy, "_is_built_in", lambda method: True)
    from fedpfl.client.engines import _engines

    _engines.clear()
    alone, _, _ = run(tmp_path / "b", **common)
    _engines.clear()
    _, state = federated.checkpoint()
    for client in range(3):
        own = personal(alone, client)
        ours = {**personal(federated, client), **sharing.layout.unflatten(state["for_clients"][client])}
        assert ours.keys() == own.keys()
        for name, array in ours.items():
            assert np.array_equal(array, own[name]), name
    for a, b in zip(federated.metrics(), alone.metrics(), strict=True):
        assert a["personalised"] == b["personalised"]
        assert a["train_loss"] == b["train_loss"]


@pytest.mark.parametrize("method", [ALPHA, BETA])
def test_epsilon_0_and_tau_minus_1_is_the_plain_mean(tmp_path, method):
    settings = {"factorized_fl_scaling": 0.0, "factorized_fl_threshold": -1.0}
    folder, sharing, log = run(tmp_path, method=method, num_server_rounds=2, **settings)
    _, state = folder.checkpoint()
    sent = [sharing.layout.unpack(arrays).astype(np.float64) for _, arrays in sorted(replies(log, 2).items())]
    mean = (sum(sent, np.zeros(sharing.layout.size)) / 3).astype(np.float32)
    for row in state["for_clients"]:
        assert np.array_equal(row, mean)


def test_all_clients_start_from_the_same_factors(tmp_path):
    values = federation(tmp_path, 3, method=ALPHA, num_server_rounds=1)
    first = []

    class Watching(LocalGrid):
        def push_messages(self, messages):
            pushed = list(messages)
            if pushed[0].metadata.message_type == "train" and not first:
                first.extend(m.content.array_records["arrays"]["shared"].numpy() for m in pushed)
            return super().push_messages(pushed)

    run_federation(Watching(3, values), values)
    assert len(first) == 3
    assert all(np.array_equal(first[0], other) for other in first)
    models = [assemble(Config.parse(values), (1, 8, 8), classes)[0].state_dict() for classes in (10, 10, 4)]
    for name, array in models[0].items():
        assert torch.equal(array, models[1][name])
        assert name.startswith("head.") or torch.equal(array, models[2][name])


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


def test_without_mu_a_model_is_little_more_than_its_coefficients(tmp_path):
    run_, sharing, _ = run(tmp_path, method=ALPHA, num_server_rounds=1, factorized_fl_mu=False)
    assert not any(is_mu(name) for name in sharing.personal)
    details = run_.metrics()[0]["details"]
    assert details["mu-nonzero"] == 0
    layers = [(9, 16, 16), (9, 16 * 32, 32), (128, 64, 64), (64, 10, 10)]  # u, v, bias
    assert details["parameters"] == sum(map(sum, layers))


def test_lambda_makes_mu_sparser(tmp_path):
    kept = []
    for l1 in (0.0, 1e-3, 1e-2):
        folder = simulate(tmp_path / str(l1), 2, method=ALPHA, num_server_rounds=1, factorized_fl_l1=l1)
        kept.append(folder.metrics()[0]["details"]["mu-nonzero"])
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize("matching", ["random", "worst"])
def test_the_controls_match_three(tmp_path, matching):
    folder = simulate(tmp_path, 4, method=ALPHA, num_server_rounds=1, factorized_fl_matching=matching)
    assert folder.metrics()[0]["details"]["matched-clients"] == 3
    matches = np.load(folder.path / "arrays" / "matches" / "round-000001.npy")
    assert matches.sum(axis=1).tolist() == [3] * 4
    if matching == "worst":
        assert not np.diag(matches).any()


def test_similarities_and_matches_of_every_round_are_kept(tmp_path):
    folder = simulate(tmp_path, 4, method=ALPHA, num_server_rounds=3, fraction_train=0.5)
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


def test_the_exported_model_predicts_as_the_client_was_tested(tmp_path):
    from fedpfl import models

    folder = simulate(tmp_path, 3, method=BETA, num_server_rounds=2, learning_rate=0.05)
    config = Config.parse(folder.config())
    data = federated_data(config.data, 3, config.run.seed)
    each = folder.metrics()[-1]["personalised"]["each"]
    for client, path in enumerate(export_personal(folder)):
        model = models.build("small-cnn", (1, 8, 8), 10).eval()
        model.load_state_dict({name: torch.from_numpy(array) for name, array in load_file(path).items()})
        x, y = data.test(client)
        assert float((model(x).argmax(1) == y).double().mean()) == pytest.approx(each[str(client)])


# -- odd clients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [ALPHA, BETA])
def test_one_sample_or_one_class_is_enough_to_take_part(tmp_path, method):
    rng = np.random.default_rng(0)
    nodes = {}
    for i, labels in enumerate(([0, 2], [1] * 40, np.arange(40) % 3)):
        x = rng.integers(0, 255, (len(labels), 8, 8), dtype=np.uint8)
        np.savez(tmp_path / f"own{i}.npz", x=x, y=np.array(labels))
        nodes[i] = {"data": str(tmp_path / f"own{i}.npz")}
    settings = {"method": method, "model": "resnet8", "local_epochs": 1, "num_classes": 3, "min_samples": 2}
    values = federation(tmp_path, 3, num_server_rounds=2, **settings)
    folder = run_federation(LocalGrid(3, values, node_config=nodes), values)
    for line in folder.metrics():
        assert line["clients"] == [0, 1, 2]
        assert "failed" not in line


def test_a_reply_without_its_vector_is_the_client_s_failure(tmp_path):
    values = federation(tmp_path, 3, method=ALPHA, num_server_rounds=1)

    class Mute(LocalGrid):
        def push_messages(self, messages):
            ids = list(super().push_messages(messages))
            for message_id in ids:
                reply = self.replies[message_id]
                if reply.metadata.src_node_id == 101 and reply.metadata.message_type == "train":
                    del reply.content.array_records["arrays"]["compared"]
            return ids

    line = run_federation(Mute(3, values), values).metrics()[0]
    assert line["failed"] == {"1": "a reply without the array 'compared' arrived"}
    assert line["clients"] == [0, 2]


def test_a_model_without_a_head_is_refused():
    method = FactorizedFL(FactorizedFL.Settings(), None)
    with pytest.raises(ConfigError, match="has no head"):
        method.build(torch.nn.Sequential(torch.nn.Linear(2, 2)))


@pytest.mark.parametrize("method", [ALPHA, BETA])
def test_lambda_as_a_threshold_does_not_move_mu(tmp_path, method):
    def trained(penalty, l1):
        given = {"factorized_fl_penalty": penalty, "factorized_fl_l1": l1, "num_server_rounds": 1, "local_epochs": 1}
        place = tmp_path / f"{penalty}-{l1}"
        folder, sharing, log = run(place, method=method, **given, **{"factorized_fl_threshold": 1.5})
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
