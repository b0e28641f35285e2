"""What can be watched: telemetry, a run that is followed, `fedpfl watch`, and the broker's files."""

import csv
import fcntl
import io
import json
import logging
import os
import queue
import signal
import stat
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from mqtt_parts import MOSQUITTO, Broker, Process, publish
from rich.console import Console
from typer.testing import CliRunner
from waiting import wait_until

from fedpfl.bench.mqtt import telemetry, topics
from fedpfl.bench.mqtt.board_record import BoardRecord
from fedpfl.bench.mqtt.broker import BrokerTls, write_broker_files
from fedpfl.bench.mqtt.events import Events, LogEvents, RunFollower
from fedpfl.bench.mqtt.link import PACKET_OVERHEAD, Message
from fedpfl.bench.mqtt.status import MAX_PAYLOAD, Board, EventError, read_event
from fedpfl.cli import app
from fedpfl.cli.watch import _keep, _lines
from fedpfl.core.errors import ConfigError, StateError
from fedpfl.results.run_folder import RunFolder

ROLES = Path(__file__).parents[3] / "deploy" / "ansible" / "roles"


class Recorder:
    online = True

    def __init__(self):
        self.published = []

    def publish(self, message, retain=False):
        self.published.append((message.topic, json.loads(message.payload), retain))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def fake(root, **files):
    """Write files below a root; a name's "__" is a "/"."""
    for name, text in files.items():
        write(root / name.replace("__", "/"), f"{text}\n")


def nano(root):
    """A Jetson Nano with JetPack 4.6: six zones, one of them without a sensor, and three rails, two of them parts."""
    zones = {"AO-therm": 45500, "CPU-therm": 38000, "GPU-therm": 36500, "PLL-therm": 35500, "PMIC-Die": 100000,
             "thermal-fan-est": 37000}  # fmt: skip
    for number, (kind, millidegrees) in enumerate(zones.items()):
        fake(root / f"sys/class/thermal/thermal_zone{number}", type=kind, temp=millidegrees)
    device = root / "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    for number, (rail, milliwatts) in enumerate({"POM_5V_IN": 5200, "POM_5V_GPU": 800, "POM_5V_CPU": 2500}.items()):
        fake(device, **{f"rail_name_{number}": rail, f"in_power{number}_input": milliwatts})
    fake(root / "proc", meminfo="MemTotal: 4059712 kB\nMemFree: 1 kB\nMemAvailable: 2048000 kB",
         stat="cpu  300 0 100 500 100 0 0 0 0 0\ncpu0 1 2 3",
         net__dev="Inter-| Receive\n face |bytes\n lo: 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n"
                  " eth0: 1000 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0")  # fmt: skip


def orin(root):
    """An Orin Nano with JetPack 6: three channels, their sum, and voltages at shunts; a zone that is switched off."""
    monitor = root / "sys/class/hwmon/hwmon3"
    fake(monitor, name="ina3221", curr4_input=2100, in4_input=5000, in5_input=40, in6_input=20, in7_input=100)
    rails = {"VDD_IN": (5040, 1200), "VDD_CPU_GPU_CV": (5040, 300), "VDD_SOC": (5040, 250)}
    for number, (rail, (millivolts, milliamperes)) in enumerate(rails.items(), 1):
        fake(
            monitor, **{f"in{number}_label": rail, f"in{number}_input": millivolts, f"curr{number}_input": milliamperes}
        )
    fake(root / "sys/class/thermal/thermal_zone0", type="cpu-thermal", temp=51000)
    fake(root / "sys/class/thermal/thermal_zone1", type="cv0-thermal", temp=-256000)


def pi(root):
    """A Raspberry Pi 5: one zone, no sensor of power."""
    fake(root / "sys/class/thermal/thermal_zone0", type="cpu-thermal", temp=48250)
    fake(root / "sys/class/hwmon/hwmon1", name="rpi_volt", in0_lcrit_alarm=0)


@pytest.mark.parametrize(("board", "celsius", "milliwatts"), [(nano, 45.5, 5200), (orin, 51.0, 6048), (pi, 48.2, None)])
def test_a_board_s_temperature_and_power(tmp_path, board, celsius, milliwatts):
    board(tmp_path)
    shown = Board()
    shown.add(topics.telemetry("one"), telemetry.read(tmp_path))
    (device,) = shown.devices()
    assert (device["temperature"], device["power"]) == (celsius, milliwatts)


def test_all_that_a_nano_reports(tmp_path):
    nano(tmp_path)
    assert telemetry.read(tmp_path) == {
        "temperature_c": {"AO-therm": 45.5, "CPU-therm": 38.0, "GPU-therm": 36.5, "PLL-therm": 35.5,
                          "thermal-fan-est": 37.0},
        "memory_mib": {"total": 3964, "available": 2000},
        "power_mw": {"POM_5V_IN": 5200, "POM_5V_GPU": 800, "POM_5V_CPU": 2500},
        "cpu_s": {"busy": 4.0, "all": 10.0}, "network_bytes": {"in": 1000, "out": 500},
    }  # fmt: skip
    assert telemetry.read(tmp_path / "nothing") == {}


def test_what_no_sensor_can_have_said_is_left_out(tmp_path):
    """Two zones of one name, a channel that is not connected, and files of another form than the kernel's."""
    for number, (kind, text) in enumerate([("acpitz", 91000), ("acpitz", 27800), ("hot", 4000000), ("odd", "--5")]):
        fake(tmp_path / f"sys/class/thermal/thermal_zone{number}", type=kind, temp=text)
    monitor = tmp_path / "sys/class/hwmon/hwmon3"
    fake(monitor, name="ina3221")
    for number, (rail, milliamperes) in enumerate({"NC": 900, "SYS5V": 300, "broken": 10**15}.items(), 1):
        fake(monitor, **{f"in{number}_label": rail, f"in{number}_input": 5000, f"curr{number}_input": milliamperes})
    fake(tmp_path / "proc", meminfo="MemTotal:\nMemAvailable: much", stat="cpu 1 2",
         net__dev=f"head\nhead\n eth0: 5\n wlan0: {10**19} 0 0 0 0 0 0 0 7 0 0 0 0 0 0 0")  # fmt: skip
    assert telemetry.read(tmp_path) == {
        "temperature_c": {"acpitz": 91.0}, "power_mw": {"SYS5V": 1500}, "network_bytes": {"out": 7},
    }  # fmt: skip


def rows(run):
    with (run / "boards.csv").open() as file:
        return [*csv.DictReader(file)]


def test_what_boards_needed_in_each_round(tmp_path):
    record, watts = BoardRecord(), {"nano-1": 5.0, "nano-2": 2.5}

    def report(second, name):
        values = {
            "time": 1000.0 + second, "power_mw": {"POM_5V_IN": 1000 * watts[name], "POM_5V_CPU": 900},
            "temperature_c": {"CPU": 40 + second}, "memory_mib": {"available": 2000 - second},
            "cpu_s": {"busy": 2.0 * second, "all": 4.0 * second},
            "network_bytes": {"in": 100 * second, "out": 50 * second},
        }  # fmt: skip
        record.hear(name, topics.telemetry(name), json.dumps(values).encode())

    for second in (0, 5, 10):
        for name in watts:
            report(second, name)
    record.round_ended(tmp_path, 1)
    for second in (15, 20, 200, 205):  # for a while nothing was heard
        report(second, "nano-1")
    for wrong in (b"[", b"{}", b'{"time": NaN}', b'{"time": 1206, "power_mw": {"POM_5V_IN": "much"}, "cpu_s": 3}'):
        record.hear("nano-1", topics.telemetry("nano-1"), wrong)
    record.round_ended(tmp_path, 2)
    first, second, third = rows(tmp_path)
    assert first == {
        "round": "1", "board": "nano-1", "seconds": "10.0", "joules": "50.0", "mean_watts": "5.0",
        "highest_celsius": "50", "cpu_share": "0.5", "least_free_mib": "1990", "bytes_in": "1000", "bytes_out": "500",
        "reports": "3",
    }  # fmt: skip
    assert (second["board"], second["joules"]) == ("nano-2", "25.0")
    assert (third["round"], third["board"], third["joules"], third["seconds"]) == ("2", "nano-1", "75.0", "16.0")


def test_a_board_that_reports_what_cannot_be_spoils_nobody_s_lines(tmp_path):
    record, board = BoardRecord(), Board()
    largest = {"temperature_c": {"CPU": 1e300}, "memory_mib": {"available": 1e300}, "power_mw": {"a": 1e308},
               "cpu_s": {"busy": 9e15, "all": 1e15}, "network_bytes": {"in": 1e308}}  # fmt: skip
    least = {kind: {name: -value for name, value in part.items()} for kind, part in largest.items()}
    counts = {"cpu_s": {"busy": 0, "all": 0}, "network_bytes": {"in": 0}}
    for second, values in enumerate([least, {**least, **counts}, {**largest, "cpu_s": {"busy": 2, "all": 1}}]):
        payload = json.dumps({"time": second, **values}).encode()
        record.hear("liar", topics.telemetry("liar"), payload)
        board.receive(Message(topics.telemetry("liar"), payload))
    record.round_ended(tmp_path, 1)
    (line,) = rows(tmp_path)
    measured = {key: value for key, value in line.items() if value not in ("", "0")}
    assert measured == {"round": "1", "board": "liar", "seconds": "2.0", "cpu_share": "1.0", "reports": "3"}
    (device,) = board.devices()
    assert [device[key] for key in ("temperature", "memory", "power")] == [None, None, None]


def test_a_followed_run_has_the_boards_of_its_rounds_alone(tmp_path):
    run, boards = tmp_path / "runs" / "first", BoardRecord()
    follower = RunFollower(Events(Recorder(), "server"), tmp_path / "runs", boards)
    boards.hear("nano-1", topics.telemetry("nano-1"), b'{"time": 1}')
    write(run / "config.toml", "num-server-rounds = 2")
    follower.look()
    boards.hear("nano-2", topics.telemetry("nano-2"), b'{"time": 2}')
    write(run / "metrics.jsonl", json.dumps(round_line(1)) + "\n")
    follower.look()
    assert [(row["round"], row["board"], row["joules"]) for row in rows(run)] == [("1", "nano-2", "")]


def round_line(number):
    each = {"0": 0.5, "1": 0.75}
    return {"round": number, "seconds": 1.0, "bytes_up": 5, "bytes_down": 6, "train_loss": 0.5,
            "personalised": {"accuracy": 0.625, "each": each}, "global": {"accuracy": 0.4}}  # fmt: skip


def test_a_run_is_followed(tmp_path):
    run, recorder = tmp_path / "runs" / "first", Recorder()
    follower = RunFollower(Events(recorder, "server"), tmp_path / "runs")
    follower.look()
    assert recorder.published == []
    write(run / "config.toml", 'method = "fedavg"\ndataset = "digits"\nmodel = "mlp"\nnum-server-rounds = 2\n')
    follower.look()
    topic, state, retained = recorder.published.pop()
    assert (topic, retained) == (topics.RUN_STATE, True)
    assert (state["run"], state["state"], state["round"], state["rounds"]) == ("first", "running", 0, 2)
    write(run / "metrics.jsonl", json.dumps(round_line(1)) + "\n" + '{"round": 2, "half')
    follower.look()
    assert [t for t, _, _ in recorder.published] == [
        topics.RUN_ROUNDS, topics.client(0), topics.client(1), topics.RUN_STATE,
    ]  # fmt: skip
    assert recorder.published[0][1]["personalised"] == {"accuracy": 0.625}
    assert recorder.published[2][1]["accuracy"] == 0.75
    recorder.published.clear()
    write(run / "summary.md", "done")
    follower.look()
    assert [v["state"] for _, v, _ in recorder.published] == ["finished"]
    follower.look()
    assert len(recorder.published) == 1


def test_a_run_whose_settings_are_damaged_is_not_shown_with_those_of_another(tmp_path):
    recorder = Recorder()
    follower = RunFollower(Events(recorder, "server"), tmp_path)
    write(tmp_path / "one" / "config.toml", 'method = "fedper"\nnum-server-rounds = 3\n')
    follower.look()
    write(tmp_path / "two" / "config.toml", "method = [")
    os.utime(tmp_path / "two" / "config.toml", (2e9, 2e9))
    for _ in range(2):
        with pytest.raises(StateError, match=r"two/config\.toml"):
            follower.look()
    assert {values["run"] for _, values, _ in recorder.published} == {"one"}


def test_a_run_that_ends_without_results_is_not_running_for_ever(tmp_path):
    folder, recorder = RunFolder(tmp_path / "first"), Recorder()
    follower = RunFollower(Events(recorder, "server"), tmp_path)
    write(folder.path / "config.toml", "num-server-rounds = 2")
    with folder.exclusive():
        follower.look()
    follower.look()  # killed
    with folder.exclusive():
        follower.look()  # resumed
        folder.fail("no space left")
    follower.look()
    (folder.path / "failed.txt").unlink()
    with folder.exclusive():
        follower.look()
        write(folder.path / "summary.md", "done")
    follower.look()
    states = [(values["state"], values.get("error")) for _, values, _ in recorder.published]
    running = ("running", None)
    assert states == [running, ("stopped", None), running, ("failed", "no space left"), running, ("finished", None)]


def test_a_look_at_a_run_does_not_keep_it_from_going_on(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    with folder.exclusive():
        pass
    with (tmp_path / ".lock").open("rb") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        looked = SimpleNamespace(sleep=lambda seconds: fcntl.flock(looked_at, fcntl.LOCK_UN))
        monkeypatch.setattr("fedpfl.results.run_folder.time", looked)
        with folder.exclusive():
            pass


def test_warnings_are_published_and_cut():
    recorder = Recorder()
    record = logging.makeLogRecord({"msg": "x" * 5000, "levelno": logging.WARNING, "levelname": "WARNING"})
    LogEvents(Events(recorder, "nano-1")).emit(record)
    topic, values, retained = recorder.published[0]
    assert (topic, values["level"], len(values["message"]), retained) == ("fedpfl/log/nano-1", "warning", 500, False)


def drawn(board):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(board.render())
    return console.export_text()


def test_the_board_shows_what_there_is():
    board = Board(clock=lambda: 100.0)
    events = [
        (
            topics.RUN_STATE,
            {"run": "first", "state": "running", "round": 1, "rounds": 9, "method": "fedavg", "dataset": "d"},
        ),
        (topics.RUN_ROUNDS, {"run": "first", **round_line(1)}),
        (topics.client(3), {"run": "first", "accuracy": 0.875}),
        (topics.node_presence("nano-1"), {"state": "online"}),
        (topics.telemetry("nano-1"), {"temperature_c": {"a": 40.0, "b": 51.2}, "power_mw": {"x": 2000}}),
        (topics.BRIDGE_PRESENCE, {"state": "online"}),
        (topics.log("nano-1"), {"level": "warning", "message": "lost [bold]it"}),
    ]
    for topic, values in events:
        board.add(topic, read_event(topic, json.dumps(values).encode()))
    text = drawn(board)
    for part in ("run first: running, round 1 of 9", "62.5 %", "40.0 %", "3 87.5 %", "nano-1", "51 °C", "2000 mW",
                  "bridge: online", "lost [bold]it"):  # fmt: skip
        assert part in text
    board.add(topics.RUN_STATE, {"run": "second", "state": "running"})
    assert "62.5 %" not in drawn(board) and "87.5 %" not in drawn(board)


@pytest.mark.parametrize("order", [1, -1])
def test_the_clients_on_the_board_are_those_of_its_run(order):
    """A broker delivers what it has retained in any order, and has clients of earlier runs."""
    board = Board()
    events = [
        *((topics.client(number), {"run": "old", "accuracy": 0.9}) for number in (2, 3)),
        *((topics.client(number), {"run": "new", "accuracy": 0.3}) for number in (0, 1)),
        (topics.RUN_STATE, {"run": "new", "state": "running"}),
    ]
    for topic, values in events[::order]:
        board.add(topic, values, retained=True)
    assert {name: values["run"] for name, values in board.clients.items()} == {"0": "new", "1": "new"}


def test_a_device_of_which_only_the_broker_speaks_is_silent():
    now = [0.0]
    board = Board(clock=lambda: now[0])
    for name, state in (("dead", "online"), ("alive", "online"), ("off", "offline")):
        board.add(topics.node_presence(name), {"state": state}, retained=True)
    board.add(topics.BRIDGE_PRESENCE, {"state": "online"}, retained=True)
    shown = {device["name"]: (device["state"], device["heard"]) for device in board.devices()}
    assert shown == {"dead": ("online", None), "alive": ("online", None), "off": ("offline", None)}
    now[0] = 80.0
    board.add(topics.telemetry("alive"), {})
    now[0] = 100.0
    shown = {device["name"]: (device["state"], device["heard"]) for device in board.devices()}
    assert shown == {"dead": ("silent", None), "alive": ("online", 20.0), "off": ("offline", None)}
    assert "bridge: silent" in drawn(board)
    now[0] = 200.0
    assert [device["state"] for device in board.devices()] == ["silent", "silent", "offline"]


@pytest.mark.parametrize("payload", [
    b"", b"[1]", b"{", b"[" * 50_000, b"\xff", b" " * 70_000,
    b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"a": ' * 300 + b"1" + b"}" * 300, b'{"seconds": 1' + b"0" * 400 + b"}",
])  # fmt: skip
def test_events_that_are_none_are_refused(payload):
    with pytest.raises(EventError):
        read_event("fedpfl/log/x", payload)


def test_a_watcher_keeps_few_messages_and_none_that_is_too_long():
    arrived = queue.Queue(2)
    for size in (1, MAX_PAYLOAD + 1, MAX_PAYLOAD, 3):
        _keep(arrived, Message("fedpfl/log/nano-1", bytes(size)))
    assert [len(arrived.get_nowait().payload) for _ in range(arrived.qsize())] == [1, MAX_PAYLOAD]


def test_a_payload_cannot_pretend_to_be_of_another_topic(capsys):
    class Arrivals(queue.Queue):
        def get(self, block=True, timeout=None):
            if self.empty():
                raise KeyboardInterrupt
            return super().get()

    arrived = Arrivals()
    arrived.put(Message("fedpfl/log/nano-1", b'{"topic": "fedpfl/run/state", "level": "warning"}'))
    _lines(arrived, 0.0, threading.Event())  # the time is over
    assert capsys.readouterr().out == ""
    with pytest.raises(KeyboardInterrupt):
        _lines(arrived, None, threading.Event())
    assert json.loads(capsys.readouterr().out) == {"topic": "fedpfl/log/nano-1", "level": "warning"}


def test_events_of_other_types_and_with_control_characters_are_shown_harmlessly():
    board = Board()
    evil = {"state": "\x1b[2Jx\x9b1m\n", "round": [1], "rounds": {"a": None}, "temperature_c": [1], "accuracy": "0",
            "personalised": 3, "level": None, "message": {"a": "\x07"}}  # fmt: skip
    for topic in (topics.RUN_STATE, topics.RUN_ROUNDS, topics.client(1), topics.node_presence("a"),
                  topics.telemetry("a"), topics.BRIDGE_PRESENCE, topics.log("a\x1b[2J"), "fedpfl/other"):  # fmt: skip
        board.add(topic, read_event(topic, json.dumps(evil).encode()))
    assert not {"\x1b", "\x9b", "\x07"} & set(drawn(board))


@pytest.mark.xdist_group("mqtt")
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed (Debian: apt-get install mosquitto)")
def test_fedpfl_watch_prints_what_the_broker_has(tmp_path):
    broker = Broker(tmp_path)
    try:
        node = broker.client("nano-1")
        node.publish(topics.node_presence("nano-1"), b'{"state": "online"}', 1, True)
        options = [str(option) for option in broker.options("watch")]
        command = [sys.executable, "-c", "from fedpfl.cli import main; main()", "watch", *options, "--json"]
        watch = Process(command, tmp_path / "watch.log", "presence")
        publish(node, topics.request("nano-1"), b"a request")
        publish(node, topics.telemetry("nano-1"), b'{"power_mw": {}}')
        watch.wait_for("telemetry")
        other = Process(command, tmp_path / "other.log", "presence")  # with the same account
        said = "somebody else has logged in as watch; each watcher needs"
        ended = lambda: {watch.process.poll(), other.process.poll()} != {None}  # noqa: E731
        wait_until(ended, lambda: True, watch.text)
        codes = [one.end(signal.SIGINT) for one in (watch, other)]
        assert sorted(codes) == [0, 1] and (watch.text() + other.text()).count(said) == 1
        assert [json.loads(line) for line in watch.text().splitlines()[:2]] == [
            {"topic": "fedpfl/node/nano-1/presence", "state": "online"},
            {"topic": "fedpfl/node/nano-1/telemetry", "power_mw": {}},
        ]
        node.disconnect()
        node.loop_stop()
    finally:
        broker.end()
    done = CliRunner().invoke(app, ["watch", *options, "--seconds", "0.5"])
    assert done.exit_code == 1
    assert "cannot be reached" in done.stderr


def test_broker_files_keep_their_passwords_and_are_private(tmp_path):
    first = write_broker_files(tmp_path / "b", "127.0.0.1", 1883, ["nano-1"])
    password = first.passwords["nano-1"].read_text()
    again = write_broker_files(tmp_path / "b", "127.0.0.1", 1883, ["nano-1", "nano-2"])
    assert again.passwords["nano-1"].read_text() == password
    assert set(again.passwords) == {"server", "watch", "nano-1", "nano-2"}
    assert (first.changed, again.changed) == (("accounts", "access", "mosquitto.conf"), ("accounts", "access"))
    for path in (tmp_path / "b").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_the_broker_command_writes_only_what_changes(tmp_path):
    def lines(*arguments):
        done = CliRunner().invoke(app, ["broker", str(tmp_path / "b"), *arguments])
        return done.exit_code, (done.stdout + done.stderr).splitlines()

    one = ["--device", "nano-1"]
    assert lines(*one)[1][-1] == "written:   accounts access mosquitto.conf"
    accounts = (tmp_path / "b" / "accounts").read_text().splitlines()
    assert (nothing_new := lines(*one)[1][-1]) == "written:   nothing, everything is up to date"
    # By which the playbook knows that nothing has changed.
    assert f"!= '{nothing_new}'" in (ROLES / "broker/tasks/main.yml").read_text()
    one += ["--listen", "127.0.0.1:1884"]
    assert lines(*one)[1][-1] == "written:   mosquitto.conf"
    one += ["--max-chunk", "65536"]
    assert lines(*one)[1][-1] == "written:   mosquitto.conf"
    assert f"max_packet_size {65536 + PACKET_OVERHEAD}\n" in (tmp_path / "b" / "mosquitto.conf").read_text()
    (tmp_path / "b" / "passwords" / "nano-1").write_text("another")
    assert lines(*one)[1][-1] == "written:   accounts"
    again = (tmp_path / "b" / "accounts").read_text().splitlines()
    assert [a == b for a, b in zip(accounts, again, strict=True)] == [True, True, False]
    assert lines("--tls-key", "k") == (2, ["error: tls-cert = 'k': goes together with --tls-key"])
    missing, other = str(tmp_path / "server.pem"), str(tmp_path / "b" / "access")
    error = f"error: tls-key = '{missing}': there is no such file"
    assert lines("--tls-cert", other, "--tls-key", missing) == (2, [error])
    assert "is not a certificate with a matching key" in lines("--tls-cert", other, "--tls-key", other)[1][-1]
    code, error = lines("--listen", "192.168.1.10:8883")
    assert (code, "needs TLS" in error[-1]) == (2, True)


def test_damaged_accounts_are_written_anew(tmp_path):
    files = write_broker_files(tmp_path, "127.0.0.1", 1883, ["nano-1"])
    accounts = tmp_path / "accounts"
    good = accounts.read_text()
    name = next(line for line in good.splitlines() if line.startswith("nano-1:"))
    accounts.write_bytes(good.encode().replace(name.encode(), b"nano-1:$7$101$abc$\xff"))
    assert write_broker_files(tmp_path, "127.0.0.1", 1883, ["nano-1"]).changed == ("accounts",)
    assert accounts.read_text().splitlines()[:-1] == good.splitlines()[:-1]
    assert write_broker_files(tmp_path, "127.0.0.1", 1883, ["nano-1"]).passwords == files.passwords


@pytest.mark.parametrize("devices", [["a/b"], ["+"], ["#"], [""], ["x:y"], ["a\nuser b"], ["server"], ["a", "a"]])
def test_names_that_are_no_accounts_are_refused(tmp_path, devices):
    with pytest.raises(ConfigError):
        write_broker_files(tmp_path, "127.0.0.1", 1883, devices)


def test_a_broker_for_the_lan_needs_tls(tmp_path):
    with pytest.raises(ConfigError, match="needs TLS"):
        write_broker_files(tmp_path, "192.168.0.2", 8883, ["nano-1"])
    files = write_broker_files(tmp_path, "192.168.0.2", 8883, ["nano-1"], BrokerTls(tmp_path / "c", tmp_path / "k"))
    assert f"certfile {tmp_path / 'c'}" in files.config.read_text()
