"""Buffered rounds: FedBuff's own computation, the same bits after a resume, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support import FEW_SAMPLES, Killed, engine, federation, run_federation

from fedpfl.core.errors import ConfigError
from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client, Federation
from fedpfl.engine import rounds
from fedpfl.engine.options.buffered import BufferedLoop
from fedpfl.engine.options.participation import Participation
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.engine.transport import Reply, Transport
from fedpfl.results.run_folder import RunFolder
from fedpfl.rules.mean import Mean
from fedpfl.setup.config import Config

SIZES, BUFFER, ROUNDS = (30, 50, 70, 110, 190), 2, 10
LAYOUT = Layout.of([("w", (3,))])


def trained(client, w):
    """Return what stands for a client's training."""
    return (0.5 * w + np.array([client, 1.0, -client])).astype(np.float32)


class Arithmetic(Transport):
    """Clients that train as :func:`trained` says, in the simulation's order."""

    first = SimulationTransport.first

    def find_clients(self, *_):
        raise AssertionError("not used")

    def replies(self, requests, wait, fail):
        for request in sorted(requests, key=lambda request: request.client.id):
            message = request.make()
            shared = LAYOUT.pack(trained(request.client.id, LAYOUT.unpack(message.arrays)), "float32")
            numbers = {"train-samples": request.client.train_samples, "train-loss": 1.0}
            yield [Reply(request.client, Payload({"layout": LAYOUT.to_text()}, numbers, shared))]


def reference():
    """Return w after each of FedBuff's updates: K = 2 of five clients that always train, uniform weights."""
    w, sent, ready, now, found = np.zeros(3), {}, {}, 0, []
    for update in range(1, ROUNDS + 1):
        for client in set(range(len(SIZES))) - sent.keys():
            sent[client], ready[client] = (update, w.copy()), now + SIZES[client]
        first = sorted(sent, key=lambda client: (ready[client], client))[:BUFFER]
        now = max(ready[client] for client in first)
        change = np.zeros(3)
        for client in first:
            asked, start = sent.pop(client)
            change += (trained(client, start.astype(np.float32)) - start) / math.sqrt(1 + update - asked)
        w = w + change / BUFFER
        found.append(w)
    return found


def test_ten_updates_are_those_of_fedbuff():
    clients = tuple(Client(i, n, 5) for i, n in enumerate(SIZES))
    rule = Mean(Federation(clients, LAYOUT), np.zeros(3, np.float32), weights="uniform")
    given = {"schedule": "buffered", "buffer-size": BUFFER, "num-server-rounds": ROUNDS + 1, "evaluate-every": 0}
    config = Config.parse({"method": "fedavg", **given})
    attendance = Participation(config, RunFolder(Path("runs") / "fedbuff"), Arithmetic())
    loop = BufferedLoop(BUFFER, rule, config.run, "key", attendance=attendance)
    for number, expected in enumerate(reference(), 1):
        loop.run_round(Arithmetic(), number)
        np.testing.assert_allclose(rule.shared, expected, rtol=1e-5)
    assert loop.round.details["staleness"] > 0


GIVEN = {
    "method": "fedper", "schedule": "buffered", "buffer_size": 2, "num_server_rounds": 5, "local_epochs": 1,
    "threads": 1, "dirichlet_alpha": 0.5,
}  # fmt: skip


def run(tmp_path, **settings):
    values = federation(tmp_path, 4, **{**GIVEN, **settings})
    return run_federation(engine(4, values), values)


def outcome(folder):
    lines = [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in folder.metrics()]
    return (folder.path / "global.safetensors").read_bytes(), lines


def test_a_resumed_run_goes_on_with_the_trainings_on_their_way(tmp_path, monkeypatch):
    whole = outcome(run(tmp_path / "whole"))
    assert max(line["details"]["staleness"] for line in whole[1]) > 0
    assert [len(line["clients"]) for line in whole[1]] == [2] * 5
    real = rounds.RoundLoop.run_round

    def killed(loop, transport, number):
        if number == 4:
            raise Killed
        return real(loop, transport, number)

    monkeypatch.setattr(rounds.RoundLoop, "run_round", killed)
    with pytest.raises(Killed):
        run(tmp_path / "parts")
    monkeypatch.setattr(rounds.RoundLoop, "run_round", real)
    assert outcome(run(tmp_path / "parts", resume=True)) == whole


@pytest.mark.parametrize(("settings", "words"), [
    ({"method": "fedamp"}, "must be synchronous for fedamp: its rule .* does not compute a mean"),
    ({"method": "scaffold"}, "must be synchronous for scaffold"),
    ({"over_selection": 0.5}, "cannot be combined with over-selection"),
    ({"min_replies": 3}, "cannot be combined with min-replies above buffer-size"),
    ({"evaluate_global": True}, "cannot be combined with evaluate-global"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        run(tmp_path, **FEW_SAMPLES, **settings)
