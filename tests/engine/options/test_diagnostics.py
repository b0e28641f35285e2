"""``diagnostics``: how far shared and personal arrays move, against what the messages and the clients' files say."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import FEW_SAMPLES, rule, simulate, simulate_and_listen

from fedpfl.core.layout import Layout, decode
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client, Federation
from fedpfl.engine.options.diagnostics import Diagnostics
from fedpfl.methods.fedamp import Attentive
from fedpfl.results.round_record import Round
from fedpfl.rules.mean import Mean


def measure(measured, rule, vectors, change):
    """Let a round pass, in which the rule gets these vectors and ``change`` is what it makes of them."""
    done = Round(1)
    measured.round_started(rule, done, [])
    for client, vector in vectors.items():
        measured.added(rule, rule.clients[client], np.array(vector, np.float32), Payload())
    change()
    measured.combined(rule, done)
    return done.details


def test_distances_of_a_small_case():
    mean, measured = rule(Mean, [0.0, 0.0], [1, 3]), Diagnostics()
    for made, vectors, expected in [
        ([3.0, 4.0], {0: [6.0, 8.0], 1: [3.0, 4.0]}, {"drift": 2.5, "shared-change": 5.0}),
        ([6.0, 8.0], {1: [6.0, 9.0]}, {"drift": 1.0, "shared-change": 10.0}),
    ]:
        new = np.array(made, np.float32)
        assert measure(measured, mean, vectors, lambda new=new: setattr(mean, "shared", new)) == expected
        again = Diagnostics()
        again.load_state(measured.state())
        measured = again


def test_clients_with_models_of_their_own_are_compared_with_those():
    mixed, measured = rule(Attentive, [0.0], [1, 1], alpha=1.0, sigma=1.0), Diagnostics()
    for made, expected in [([[1.0], [2.0]], (3.5, 1.5)), ([[3.0], [6.0]], (0.5, 4.5))]:
        rows = np.array(made, np.float32)
        values = measure(measured, mixed, {0: [3.0], 1: [7.0]}, lambda rows=rows: setattr(mixed, "for_clients", rows))
        assert tuple(values.values()) == expected


def test_running_statistics_do_not_count():
    names = [("bn.weight", (2,)), ("bn.running_mean", (1,)), ("bn.running_var", (1,)), ("fc.weight", (1,))]
    start = np.array([0.0, 0.0, 5.0, 5.0, 0.0], np.float32)
    federation = Federation((Client(0, 1, 1), Client(1, 1, 1)), Layout.of(names))
    mean, measured = Mean(federation, start), Diagnostics()
    made = np.array([2.0, 0.0, 90.0, 80.0, 1.0], np.float32)
    vectors = {0: [2.0, 3.0, 70.0, 60.0, 1.0], 1: [2.0, 0.0, 9.0, 8.0, 4.0]}
    values = measure(measured, mean, vectors, lambda: setattr(mean, "shared", made))
    assert values == {"drift": 3.0, "shared-change": pytest.approx(5**0.5)}


def taus(path):
    """Return all τ = B·A / r of a client's file in one vector, where r is the rank that the paper's code divides by."""
    stored = load_file(path)
    out = []
    for name in sorted(name for name in stored if name.endswith("tau_b") and not name.startswith("first/")):
        b, a = stored[name].astype(np.float64), stored[name.replace("tau_b", "tau_a")].astype(np.float64)
        size = 3 if "conv" in name else 1  # rows of a convolution's B are output channels × kernel rows
        out.append((b @ a).ravel() / (b.shape[1] // size))
    return np.concatenate(out)


def test_feddecomp_s_distances_are_those_of_sigma_and_of_tau(tmp_path):
    settings = {"method": "feddecomp", "feddecomp_init": "code", "num_server_rounds": 2, "diagnostics": True}
    folder, grid = simulate_and_listen(tmp_path, 3, **settings, **FEW_SAMPLES)
    lines = folder.metrics()
    sent = [decode(reply.arrays["shared"]).astype(np.float64) for _, _, reply in grid.training()]
    means = [np.mean(sent[:3], axis=0), np.mean(sent[3:], axis=0)]
    start = decode(grid.training()[0][1].arrays["shared"])
    for line, trained, mean in zip(lines, (sent[:3], sent[3:]), means, strict=True):
        drift = np.mean([np.linalg.norm(sigma - mean) for sigma in trained])
        assert line["details"]["drift"] == pytest.approx(drift, rel=1e-5)
    for line, mean in zip(lines, means, strict=True):
        assert line["details"]["shared-change"] == pytest.approx(np.linalg.norm(mean - start), rel=1e-5)
    states = sorted((tmp_path / "state").glob("*/client-*"))
    for number, line in enumerate(lines, 1):
        moved = [np.linalg.norm(taus(s / f"round-{number:06d}.safetensors")) for s in states]  # every τ starts at 0
        assert line["details"]["personal-change"] == pytest.approx(np.mean(moved), rel=1e-4)
        assert min(moved) > 0


@pytest.mark.parametrize("method", ["feddecomp", "fedamp"])
def test_a_resumed_run_measures_the_same(tmp_path, method):
    settings = {"method": method, "diagnostics": True, "local_epochs": 2, "fraction_train": 0.7, **FEW_SAMPLES}
    whole = simulate(tmp_path / "whole", 3, num_server_rounds=3, **settings)
    simulate(tmp_path / "cut", 3, num_server_rounds=2, **settings)
    longer = simulate(tmp_path / "cut", 3, num_server_rounds=3, resume=True, **settings)
    assert longer.metrics()[-1]["details"] == whole.metrics()[-1]["details"]


def test_measuring_changes_nothing_else(tmp_path):
    settings = {"method": "feddecomp", "num_server_rounds": 1, **FEW_SAMPLES}
    plain = simulate(tmp_path / "a", 2, **settings)
    measured = simulate(tmp_path / "b", 2, diagnostics=True, **settings)
    arrays = [load_file(run.path / "global.safetensors") for run in (plain, measured)]
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
    assert set(plain.metrics()[0]["details"]) == {"tau-per-sigma"}


@pytest.mark.parametrize(("method", "names"), [("local", {"personal-change"}), ("fedavg", {"drift", "shared-change"})])
def test_what_a_method_has_not_is_not_measured(tmp_path, method, names):
    settings = {"num_server_rounds": 2, "local_epochs": 1, "diagnostics": True, **FEW_SAMPLES}
    for line in simulate(tmp_path, 2, method=method, **settings).metrics():
        assert set(line["details"]) == {"gradients", *names}
