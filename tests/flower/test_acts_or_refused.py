"""What is accepted acts, what cannot act is refused in one line: over all strategies, and setting by setting."""

from __future__ import annotations

import logging
from importlib.metadata import version

import numpy as np
import pytest
import torch
from flower_apps import CLASSES, FEATURES, AppGrid, Net, data_of, flowers_app, initial, samples
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as ServerSide
from packaging.version import Version
from torch import nn

import fedpfl
from fedpfl import strategies
from fedpfl.methods import Method, methods
from fedpfl.models.registry import named
from fedpfl.setup.all_settings import all_settings
from fedpfl.setup.config import Config
from fedpfl.strategies import keep


def test_a_plain_app_is_refused_or_does_what_the_method_says():
    """Accepted: with an app of Flower's, nodes end with other arrays than under FedAvg and FedPer, round by round."""
    ended = {}
    for method in methods().values():
        seen = {}

        def look(message, context, call_next, seen=seen):
            if message.metadata.message_type == "evaluate":
                arrays = message.content["arrays"].to_torch_state_dict()
                seen[context.node_id] = {name: array.numpy().tobytes() for name, array in arrays.items()}
            return call_next(message, context)

        # Clusters split at once where the thresholds let them.
        more = {"first_split": 1, "epsilon1": 1e6, "epsilon2": 0.0} if method.name == "clustered-fl" else {}
        grid = AppGrid(flowers_app([keep(), look]))
        try:
            getattr(strategies, method.__name__)(**more).start(grid, initial(), num_rounds=2)
        except fedpfl.ConfigError as error:
            assert "needs more of a client than shared arrays" in str(error) and "\n" not in str(error)
            assert not grid.sent
            continue
        assert method.schedule is Method.schedule and method.adaptation is Method.adaptation
        ended[method.name] = seen
    assert set(ended) == {"fedavg", "fedper", "fedbn", "lg-fedavg", "fedcac", "clustered-fl", "local", "pfedhn"}
    assert len({str(seen) for seen in ended.values()}) == len(ended), "two of them did the same"
    assert len(set(map(str, ended["fedavg"].values()))) == 1, "each node has the mean"


def other_values(field):
    """Yield values that a setting may have and usually has not."""
    limits, usual = field.metadata["limits"], field.default
    if isinstance(usual, bool):
        yield not usual
    elif isinstance(usual, str):
        yield from limits.choices() if limits.choices else ["*fc1*", "loss"]
    else:
        yield from map(type(usual), (usual / 2, usual + 1, 0.5, usual + 3))


def test_every_setting_acts_on_nodes_with_loops_of_their_own_or_is_refused():
    """A setting without effect is one that a resumed run may change: a limit, or how long somebody waits."""

    def batches(context):
        client = context.node_config["partition-id"]
        x, y = map(torch.from_numpy, samples(client, count=40 if client < 3 else 400))
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10)

    def seen(**settings):
        grid = AppGrid(flowers_app([keep()], batches), 4)
        rounds = {} if "num_server_rounds" in settings else {"num_rounds": 2}
        strategy = strategies.FedAvg(**{"fraction_train": 0.75, "state_key": "key", **settings})
        strategy.start(grid, initial(), **rounds)
        sent = [(kind, client, message.content.array_records.values()) for kind, client, message in grid.sent]
        return [
            (kind, client, [array.numpy().tobytes() for record in records for array in record.values()])
            for kind, client, records in sent
        ]

    usual, accepted = seen(), set()
    for key, field in all_settings(look=False).items():
        if key not in Config.parse({"method": "local"}).flat() or key in ("method", "model"):
            continue
        name, limits = key.replace("-", "_"), field.metadata["limits"]
        value = next(v for v in other_values(field) if v != field.default and limits.complaint(v) is None)
        try:
            without_effect = seen(**{name: value}) == usual
        except fedpfl.ConfigError as error:
            assert "\n" not in str(error)
            continue
        accepted.add(key)
        assert not without_effect or "free" in field.metadata["tags"], (key, value)
    assert {"robust-aggregation", "server-optimizer", "seed", "evaluate-every"} <= accepted


def net_in_parts():
    """A model whose head need not be looked for: each setting builds it anew."""
    base = named(fc1=nn.Linear(FEATURES, 8), norm=nn.BatchNorm1d(8), relu=nn.ReLU())
    return fedpfl.BaseHeadModel(base, nn.Linear(8, CLASSES))


@pytest.mark.parametrize("side", ["clients", "strategy", "train_config", "evaluate_config"])
def test_every_setting_acts_on_nodes_with_client_app_or_is_refused(side):
    """One side has a setting that the other has not: clients answer otherwise, or it is refused."""

    def answers(**settings):
        theirs, ours = (settings if side == part else {} for part in ("clients", "strategy"))
        in_messages = {side: ConfigRecord(settings)} if side.endswith("config") else {}
        data = lambda context: samples(0, 45 + 90 * context.node_config["partition-id"])  # noqa: E731
        seen, app = [], strategies.client_app(model=net_in_parts, data=data, **theirs)

        def noted(kind, client, message):
            reply = app(message, grid.contexts[client])
            records = [] if reply.has_error() else [*reply.content.values()]
            values = [pair for record in records for pair in record.items() if "second" not in pair[0]]
            seen.append((kind, client, [(name, str(getattr(value, "data", value))) for name, value in values]))
            return reply

        grid = AppGrid(app, 2, broken=noted)
        ours = {"local_epochs": 1, "num_server_rounds": 2, "min_train_nodes": 1, **ours}
        strategies.FedAvg(model=net_in_parts, **ours).start(grid, ArrayRecord(), **in_messages)
        return seen

    usual, acting, every = answers(), set(), all_settings(look=False)
    of_tables = {key for key, field in every.items() if "dataset" in field.metadata["only"]}
    # Weights to download, too few samples, how fast it is.
    elsewhere = {"download-weights", "min-samples", "threads"}
    arguments = {"method", "model", "data", "state-dir"}
    usual_by_another_name = {"partition-seed": 1, "split": "mixed"}
    for key in sorted(Config.parse({"method": "fedavg"}).flat().keys() - of_tables - elsewhere - arguments):
        field = every[key]
        complaint, same = field.metadata["limits"].complaint, (field.default, usual_by_another_name.get(key))
        value = next(v for v in other_values(field) if v not in same and complaint(v) is None)
        try:
            changed = answers(**{key.replace("-", "_"): value})
        except fedpfl.FedpflError as error:
            assert "\n" not in str(error)
            continue
        acting.add(key)
        is_limit = side == "strategy" and ("free" in field.metadata["tags"])
        assert changed != usual or is_limit, (key, value)
    of_training = {"learning-rate", "momentum"}
    assert {"validation-fraction", "seed"} <= acting
    assert not of_training & acting if side == "evaluate_config" else of_training <= acting
    assert ("tune-epochs" in acting) == (side != "train_config")
    if side == "clients":
        of_strategy = {"update-norm-limit", "fedavg-weights", "num-server-rounds", "max-weight-share"}
        assert not acting & (of_strategy | {"device-models"})


def test_fedprox_of_flower_is_sent_to_apps_that_add_the_term():
    grid = AppGrid(flowers_app())
    strategies.FedProx(proximal_mu=0.3, fraction_evaluate=0.0).start(grid, initial(), num_rounds=1)
    assert {message.content["config"]["proximal-mu"] for _, _, message in grid.sent} == {0.3}
    with pytest.raises(fedpfl.ConfigError, match="or proximal_mu=, as Flower's FedProx"):
        strategies.FedProx(mu=0.3).start(grid, initial())
    with pytest.raises(fedpfl.ConfigError, match=r"proximal_mu = 0\.3: is no setting here: only FedProx has it"):
        strategies.FedAvg(proximal_mu=0.3)


@pytest.mark.parametrize("hidden", ["start", "run_federation"])
def test_a_mod_of_ones_own_acts_in_both_loops(hidden, tmp_path):
    def shifted(message, context, call_next):
        reply = call_next(message, context)
        for name, record in list(reply.content.array_records.items()):
            reply.content[name] = ArrayRecord({n: Array(a.numpy() + np.float32(0.01)) for n, a in record.items()})
        return reply

    results = []
    for mods in (None, [shifted]):
        app = strategies.client_app(model=Net, data=data_of, mods=mods)
        more = {} if hidden == "start" else {"output_dir": str(tmp_path)}
        first = [ArrayRecord()] if hidden == "start" else []
        strategy = strategies.FedAvg(model=Net, local_epochs=1, **more)
        results.append(getattr(strategy, hidden)(AppGrid(app), *first, num_rounds=1).arrays["fc1.weight"].numpy())
    np.testing.assert_allclose(results[1] - results[0], 0.01, atol=1e-5)


def test_the_log_says_who_was_asked_and_counted(caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        strategies.FedAvg(fraction_train=0.5).start(AppGrid(flowers_app([keep()]), 6), initial(), num_rounds=1)
    for half, asked in (("train", 3), ("evaluate", 6)):
        assert f"configure_{half}: Sampled {asked} nodes (out of 6)" in caplog.text
        assert f"aggregate_{half}: Received {asked} results and 0 failures" in caplog.text


@pytest.mark.skipif(
    Version(version("flwr")) < Version("1.26"), reason="Flower's own wrapper refuses arrays without dimensions there"
)
def test_wrappers_for_privacy_are_refused_where_they_cannot_be_right():
    def uneven(kind, client, message):
        reply = flowers_app([keep()])(message, grid.contexts[client])
        if kind == "train":
            reply.content["metrics"]["num-examples"] = 1 + 999 * (client == 0)
        return reply

    def without_samples(kind, client, message):
        reply = flowers_app([keep()])(message, grid.contexts[client])
        if kind == "train" and client == 0:
            reply.content["metrics"]["num-examples"] = 0
        return reply

    def wrapped(strategy):
        return ServerSide(strategy, noise_multiplier=0.1, clipping_norm=1.0, num_sampled_clients=3)

    grid = AppGrid(flowers_app([keep()]), broken=uneven)
    with pytest.raises(fedpfl.ConfigError, match=r"must be equal in DifferentialPrivacy.*weights='uniform'"):
        wrapped(strategies.FedAvg()).start(grid, initial(), num_rounds=1)
    inner = strategies.FedPer(head="fc2")
    with pytest.raises(fedpfl.ConfigError, match="weighted_by_key= may name a metric that is"):
        wrapped(inner).start(grid, inner.shared(initial()), num_rounds=1)
    assert wrapped(strategies.FedAvg(weights="uniform")).start(grid, initial(), num_rounds=1).arrays
    with pytest.raises(fedpfl.ConfigError, match=r"has to be started with strategy.shared\(arrays\)"):
        wrapped(strategies.FedPer(head="fc2")).start(grid, initial(), num_rounds=1)
    with pytest.raises(fedpfl.ConfigError, match="cannot be given inside DifferentialPrivacyServerSideFixedClipping"):
        wrapped(strategies.FedAvg(model=Net)).start(grid, ArrayRecord(), num_rounds=1)
    grid.broken = without_samples
    with pytest.raises(fedpfl.ConfigError, match=r"num_sampled_clients = 3: .* 2 replies count, and its noise is for"):
        wrapped(strategies.FedAvg()).start(grid, initial(), num_rounds=1)
    grid.broken = lambda *_: None
    inner = strategies.FedPer(head="fc2")
    assert wrapped(inner).start(grid, inner.shared(initial()), num_rounds=2).arrays
