"""Virtual time: schedules worked out by hand, hours without network, the same bits for workers and after a resume."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support import FEW_SAMPLES, Killed, engine, federation, run_federation, simulate

from fedpfl.core.errors import ConfigError
from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client, Federation
from fedpfl.engine import options, rounds
from fedpfl.engine.options.clock import SECOND, VirtualClock, exchange, first_in_time
from fedpfl.engine.options.devices import Device, DevicesModel, back_online, read_bench
from fedpfl.engine.options.virtual_time import TimedParticipation
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.engine.transport import Reply, Transport
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.summary import outcome as outcome_of
from fedpfl.results.summary import summary
from fedpfl.rules.mean import Mean
from fedpfl.setup.config import Config
from fedpfl.study.report.sections import comparison

LAYOUT = Layout.of([("w", (250,))])
BYTES = 1000  # of a message, as of a reply
# Clients 0 and 1 share a board; client 2 has a faster one behind a slow network. Training samples: 30, 20, 40.
BOARDS = (
    Device((0, 1), train=10.0, test=100.0, up=1000.0, down=2000.0, delay=0.5, watts=10.0, idle_watts=2.0),
    Device((2,), train=40.0, test=100.0, up=100.0, down=500.0, delay=1.0, watts=5.0),
)
CLIENTS = (Client(0, 30, 10), Client(1, 20, 10), Client(2, 40, 10))
# Client 2: down until 2, there at 3, trained at 4, sent at 14, there at 15.
# Client 0: down until 0.5, there at 1, trained at 4, sent at 5, there at 5.5.
# Client 1: down until 1 (behind client 0), there at 1.5, trained from 4 to 6, sent at 7, there at 7.5.
# Tests, all sent at 15. Client 0: down 15.5, there 16, tested 16.1, reply (without bytes) there at 16.6. Client 1: down
# 16, there 16.5, tested 16.6, there 17.1. Client 2: down 17, there 18, tested 18.1, there 19.1.
TESTED = 19.1


class Arithmetic(Transport):
    """Clients whose replies have as many bytes as their messages."""

    first = SimulationTransport.first
    real = False

    def find_clients(self, *_):
        raise AssertionError("not used")

    def replies(self, requests, wait, fail):
        for request in sorted(requests, key=lambda request: request.client.id):
            request.make()
            if request.kind == "train":
                numbers = {"train-samples": request.client.train_samples, "train-loss": 1.0}
                shared = LAYOUT.pack(np.full(250, request.client.id, np.float32), "float32")
                yield [Reply(request.client, Payload({"layout": LAYOUT.to_text()}, numbers, shared))]
            else:
                samples = request.client.test_samples
                numbers = {"personalised-correct": 1, "personalised-loss-sum": 1.0, "personalised-samples": samples}
                yield [Reply(request.client, Payload({}, numbers))]


@pytest.fixture(autouse=True)
def _only_arrays_count(monkeypatch):
    """Have a message or a reply as many bytes as its arrays have, so that they are round numbers; tests' have none."""
    monkeypatch.setattr(rounds, "count_bytes", lambda payload: sum(a.nbytes for a in payload.arrays.values()))


def loop(devices=BOARDS, starts_at=0.0, server_seconds=0.0, **settings):
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    given = {"method": "fedavg", "local-epochs": 1, "num-server-rounds": 2, "devices-model": "bench.toml", **given}
    config = Config.parse(given)
    rule = Mean(Federation(CLIENTS, LAYOUT), np.zeros(250, np.float32))
    attendance = TimedParticipation(config, RunFolder(Path("runs") / "bench"), Arithmetic())
    attendance.clock = VirtualClock(
        DevicesModel(devices, starts_at, server_seconds), lambda client: config.training, BYTES, BYTES
    )
    return options.loop(config)(rule, config.run, "key", attendance=attendance)


def played(made, rounds=2):
    """Return the clients that counted, the late ones and the virtual seconds, of each round."""
    found = []
    for number in range(1, rounds + 1):
        made.run_round(Arithmetic(), number)
        done = made.round
        found.append((sorted(done.trained), done.late, round(done.seconds_virtual, 4)))
    return found


def test_an_exchange_by_hand() -> None:
    free = (0, 0, 0)
    there, free = exchange(BOARDS[0], free, 0, BYTES, 3 * SECOND, BYTES)
    assert (there, free) == (5_500_000, (500_000, 4_000_000, 5_000_000))
    there, free = exchange(BOARDS[0], free, 0, BYTES, 2 * SECOND, BYTES)
    assert (there, free) == (7_500_000, (1_000_000, 6_000_000, 7_000_000))


def test_synchronous_rounds_by_hand() -> None:
    made = loop()
    assert played(made) == [([0, 1, 2], [], TESTED)] * 2
    # 5 s of training and 0.2 s of tests at 8 W more than idle, 2 W all the time; client 2 1 s and 0.1 s at 5 W.
    assert made.round.joules == pytest.approx(5.2 * 8 + 2 * TESTED + 1.1 * 5)


def test_without_tests_a_round_ends_with_the_last_reply() -> None:
    assert played(loop(evaluate_every=2), 1) == [([0, 1, 2], [], 15.0)]


def test_the_server_sends_one_message_after_the_other() -> None:
    # The longest work first: client 2 is sent to after 1 s, client 0 after 2 s, client 1 after 3 s.
    assert played(loop(server_seconds=1.0, evaluate_every=2), 1) == [([0, 1, 2], [], 16.0)]


def test_tests_at_the_start_by_hand() -> None:
    # Tests as in TESTED, at 0: until 4.1. Training from there.
    assert played(loop(test_at="start"), 1) == [([0, 1, 2], [], 4.1 + 15.0)]


def test_over_selection_by_hand() -> None:
    made = loop(fraction_train=0.67, over_selection=0.5, evaluate_every=2)
    # Round 1 ends at 7.5 with clients 0 and 1. Client 2 sends until 14. Round 2, from 7.5 on: clients 0 and 1 as in
    # round 1; client 2 receives from 7.5 to 9.5, trains until 11.5, sends from 14 to 24. The tests, from 15 on: clients
    # 0 and 1 until 17.1; client 2 (in the last round the late are tested, too) down 17, tested 18.1; its reply follows
    # what it still sends, at 24: there at 25.
    assert played(made) == [([0, 1], [2], 7.5), ([0, 1], [2], 7.5 + 10.0)]


def test_a_deadline_by_hand() -> None:
    assert played(loop(round_deadline=6.0, evaluate_every=2), 1) == [([0], [1, 2], 6.0)]
    assert played(loop(round_deadline=6.0, min_replies=2, evaluate_every=2), 1) == [([0, 1], [2], 7.5)]
    assert played(loop(round_deadline=60.0, evaluate_every=2), 1) == [([0, 1, 2], [], 15.0)]


def test_buffered_rounds_by_hand() -> None:
    made = loop(schedule="buffered", buffer_size=1, evaluate_every=0, num_server_rounds=9)
    # Round 1 ends at 5.5 with client 0, which is asked again: down from 5.5 to 6, there at 6.5, trains (the board is
    # free at 6) until 9.5, sends until 10.5, there at 11. Round 2 ends at 7.5 with client 1, which is asked again: down
    # from 7.5 to 8, there at 8.5, trains from 9.5 to 11.5, sends until 12.5, there at 13. Round 3 ends at 11, client 0.
    assert played(made, 3) == [([0], [1, 2], 5.5), ([1], [0, 2], 2.0), ([0], [1, 2], 3.5)]


def test_a_client_without_network_is_asked_when_it_is_back() -> None:
    hour = 1 / 3600
    away = (BOARDS[0], Device((2,), 40.0, 100.0, 100.0, 500.0, 1.0, offline=((8.0, 8.0 + 10 * hour),)))
    made = loop(away, starts_at=8.0, evaluate_every=3, num_server_rounds=3)
    # Round 1 has clients 0 and 1 and ends at 7.5; so does round 2, at 15, as client 2 is back at 10.
    # Round 3 asks all.
    assert played(made, 3)[:2] == [([0, 1], [], 7.5), ([0, 1], [], 7.5)]
    assert made.round.number == 3 and sorted(made.round.trained) == [0, 1, 2] and not made.round.offline


def test_a_round_waits_where_nobody_is_there_and_a_reply_waits_for_the_network() -> None:
    hour = 1 / 3600
    alone = (Device((0, 1, 2), 30.0, 100.0, offline=((0.0, 20 * hour), (21 * hour, 40 * hour))),)
    # From 20 on: 90 samples train for 3 s; the replies wait until 40.
    assert played(loop(alone, evaluate_every=2), 1) == [([0, 1, 2], [], 40.0)]


@pytest.mark.parametrize(("hour", "wait"), [(21.0, 0.0), (22.0, 8.0), (23.5, 6.5), (5.0, 1.0), (6.0, 0.0), (12.0, 1.5)])
def test_hours_without_network(hour, wait) -> None:
    assert back_online(((22.0, 6.0), (12.0, 13.0), (13.0, 13.5)), hour) == pytest.approx(wait)


def test_the_first_in_time() -> None:
    due = {0: 30, 1: 10, 2: 20, 3: 10}
    assert first_in_time(due, 4, None, 1) == [1, 3, 2, 0]
    assert first_in_time(due, 2, None, 1) == [1, 3]
    assert first_in_time(due, 4, 20, 1) == [1, 3, 2]
    assert first_in_time(due, 4, 5, 2) == [1, 3]


# -- whole runs ------------------------------------------------------------------------------------------------------

FILE = """
server-seconds = 0.1
[fast]
clients = "0,2-3"
samples-per-second = 1000.0
watts = 5.0
[slow]
clients = "1"
samples-per-second = 10.0
up-mbit = 1
down-mbit = 1
latency-ms = 20
offline = "1-2"
watts = 10.0
"""
GIVEN = {"method": "fedper", "local_epochs": 1, "num_server_rounds": 4, "threads": 1, **FEW_SAMPLES}
WAYS = {
    "synchronous": {},
    "over-selection": {"fraction_train": 0.5, "over_selection": 1.0},
    "deadline": {"round_deadline": 5.0},
    "buffered": {"schedule": "buffered", "buffer_size": 2},
}


def run(tmp_path, text=FILE, workers=0, **settings):
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "bench.toml"
    path.write_text(text)
    values = federation(tmp_path, 4, **{**GIVEN, "num_clients": 4, "devices_model": str(path), **settings})
    if not workers:
        return run_federation(engine(4, values), values)
    with SimulationTransport(Config.parse(values), workers=workers) as transport:
        return run_federation(transport, values)


def outcome(folder):
    measured = ("seconds", "seconds_train", "seconds_evaluate")
    lines = [{key: value for key, value in line.items() if key not in measured} for line in folder.metrics()]
    return (folder.path / "global.safetensors").read_bytes(), lines


@pytest.mark.parametrize("way", WAYS)
def test_a_run_has_the_same_bits_with_workers_and_after_a_resume(tmp_path, monkeypatch, way):
    whole = outcome(run(tmp_path / "whole", **WAYS[way]))
    assert all(line["seconds_virtual"] > 0 and line["joules"] > 0 for line in whole[1])
    # The slow client's reply is there after some 9 s: it trains its 64 samples for 6.4 s. The others' take two at most.
    # With its tests a buffered round takes some 3 s, so that round 4 takes that reply.
    counted = [1 in line["clients"] for line in whole[1]]
    assert counted == {"synchronous": [True] * 4, "buffered": [False, False, False, True]}.get(way, [False] * 4)
    assert outcome(run(tmp_path / "workers", workers=2, **WAYS[way])) == whole
    real = rounds.RoundLoop.run_round

    def killed(loop, transport, number):
        if number == 3:
            raise Killed
        return real(loop, transport, number)

    monkeypatch.setattr(rounds.RoundLoop, "run_round", killed)
    with pytest.raises(Killed):
        run(tmp_path / "parts", **WAYS[way])
    monkeypatch.setattr(rounds.RoundLoop, "run_round", real)
    with pytest.raises(ConfigError, match=r"devices-model = .*: its content has changed since the run to resume began"):
        run(tmp_path / "parts", FILE.replace("10.0", "11.0"), resume=True, **WAYS[way])
    assert outcome(run(tmp_path / "parts", resume=True, **WAYS[way])) == whole


def test_a_synchronous_run_has_the_arrays_of_a_run_without_a_clock(tmp_path):
    timed = run(tmp_path / "timed")
    values = federation(tmp_path / "plain", 4, **{**GIVEN, "num_clients": 4})
    plain = run_federation(engine(4, values), values)
    assert outcome(timed)[0] == outcome(plain)[0]
    assert "seconds_virtual" not in plain.metrics()[0]


def test_without_a_clock_a_simulation_says_that_it_has_no_deadline(tmp_path):
    remarks = simulate(tmp_path, 2, method="fedavg", num_server_rounds=1, round_deadline=5.0).task()["remarks"]
    assert remarks == ["round-deadline does nothing: a simulation measures no time without devices-model"]


def test_reports_show_the_accuracy_over_virtual_time(tmp_path):
    folder = run(tmp_path)
    seconds = [line["seconds_virtual"] for line in folder.metrics()]
    table, figures, _, _ = comparison([folder])
    assert table.rows[0][table.columns.index("virtual time, s")].mean == pytest.approx(sum(seconds))
    (drawn,) = [figure for figure in figures if figure.title == "Accuracy over virtual time"]
    assert drawn.series["fedper"][0] == pytest.approx(np.cumsum(seconds) / 3600)
    assert outcome_of(folder)["joules"] == pytest.approx(sum(line["joules"] for line in folder.metrics()))
    assert f"{sum(seconds):,.1f} s, " in summary(folder)


def test_real_devices_take_no_devices_model(tmp_path):
    values = federation(tmp_path, 4, **GIVEN, devices_model="bench.toml")

    class Real(Arithmetic):
        real = True

        def find_clients(self, *_):
            raise AssertionError("asked before it was refused")

    with pytest.raises(
        ConfigError, match=r"devices-model = 'bench.toml': must be empty where real devices set the pace"
    ):
        run_federation(Real(), values)


# -- the file --------------------------------------------------------------------------------------------------------

PROFILE = """
train = 100.0
test = 400.0
standard-train = 50.0
standard-test = 100.0
method = "fedper"
model = "small-cnn"
batch-size = 32
input = "1x8x8"
device = "cpu"
threads = 1
machine = "here"
"""


def bench(tmp_path, text, shape=(1, 8, 8), **settings):
    path = tmp_path / "bench.toml"
    path.write_text(text)
    values = federation(tmp_path, 4, **{**GIVEN, "num_clients": 4, "devices_model": str(path), **settings})
    return read_bench(Config.parse(values), shape)


def test_a_file_of_devices(tmp_path):
    (tmp_path / "here.toml").write_text(PROFILE)
    made = bench(tmp_path, """
        starts-at = 8
        measured = "here.toml"
        exchange-seconds = 1.0
        round-trips = 3
        [pair]
        clients = "0-2"
        clients-per-device = 2
        profile = "pi4"
        up-mbit = 8
        latency-ms = 10
        offline = "22-6,12-13.5"
        [own]
        clients = "3"
        profile = "here.toml"
        watts = 20
    """)  # fmt: skip
    assert (made.starts_at, made.server_seconds) == (8.0, 0.17)
    first, second, own = made.devices
    assert (first.clients, second.clients, own.clients) == ((0, 1), (2,), (3,))
    # A Pi has twice as many of this run's samples a second as of the standard's in training, four times in tests.
    assert (first.train, first.test, first.watts) == (590.0 * 2, 2450.0 * 4, 7.2)
    assert (own.train, own.test, own.watts) == (100.0, 400.0, 20.0)
    assert (first.up, first.down, first.delay) == (1e6, math.inf, pytest.approx(0.53))
    assert first.offline == ((22.0, 6.0), (12.0, 13.5))


@pytest.mark.parametrize(("text", "words"), [
    ("[a]\nclients = '0-2'\nsamples-per-second = 1.0", "client 3 has no devices, and must have one"),
    ("[a]\nclients = '0-4'\nsamples-per-second = 1.0", "has a device for client 4, but num-clients is 4"),
    ("[a]\nclients = '0-3,2'\nsamples-per-second = 1.0", "client 2 has 2 devices"),
    ("[a]\nclients = 'all'\nsamples-per-second = 1.0", r"\[a\] clients = 'all': must be numbers and ranges"),
    ("[a]\nclients = '0-3'", r"\[a\] must have either profile or samples-per-second"),
    ("[a]\nclients = '0-3'\nsamples-per-second = -1.0", r"\[a\] samples-per-second = -1.0: must be at least 0"),
    ("[a]\nclients = '0-3'\nprofile = 'pi5'", "profile = 'pi5': must be a .toml file or one of nano, .*mean pi4"),
    ("[a]\nclients = '0-3'\nprofile = 'none.toml'", "none.toml cannot be read: No such file"),
    ("[a]\nclients = '0-3'\nprofile = 'bench.toml'", "bench.toml is not a profile: it lacks train"),
    ("[a]\nclients = '0-3'\nprofile = 'here.toml'", "here.toml is for model = 'mlp-200', and this run has 'small-cnn'"),
    ("[a]\nclients = '0-3'\nprofile = 'nano'", "the profile nano is for method = 'fedavg', and this run has 'fedper'"),
    ("[a]\nclients = '0-3'\nsamples-per-second = 1.0\noffline = '25-3'", "offline = '25-3': must be hours of the day"),
    ("[a]\nclients = '0-3'\nsamples-per-second = 1.0\noffline = '0-12,12-24'", "leaves no hour of the day"),
    ("[a]\nclient = '0-3'", r"\[a\] there is no key 'client'; did you mean clients"),
    ("start-at = 3\n", "there is no key 'start-at'; did you mean starts-at"),
    ("[a", "cannot be read: "),
])  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path, text, words):
    (tmp_path / "here.toml").write_text(PROFILE.replace("small-cnn", "mlp-200"))
    with pytest.raises(ConfigError, match=words) as caught:
        bench(tmp_path, text)
    assert str(caught.value).startswith(f"devices-model = '{tmp_path}/bench.toml': ")
    assert "\n" not in str(caught.value)


def test_a_profile_is_for_one_shape_of_samples(tmp_path):
    (tmp_path / "here.toml").write_text(PROFILE)
    text = "[a]\nclients = '0-3'\nprofile = 'here.toml'"
    assert bench(tmp_path, text, None).devices[0].train == 100.0
    with pytest.raises(ConfigError, match="is for input = '1x8x8', and this run has '1x28x28': measure again"):
        bench(tmp_path, text, (1, 28, 28))
