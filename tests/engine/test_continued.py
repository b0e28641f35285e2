"""A run that continues another one: from its arrays, with data that have changed, by the same nodes."""

import numpy as np
import pytest
from support import FEW_SAMPLES, LocalGrid, each_method, engine, federation, needed, quick, run_federation
from typer.testing import CliRunner

import fedpfl
from fedpfl.cli import app
from fedpfl.client.engine import Engine
from fedpfl.client.state import ClientState
from fedpfl.core.errors import ConfigError, DataError, StateError
from fedpfl.results.export import personal_models
from fedpfl.results.new_clients import Simulation

CLIENTS = 3
KEEP_CLIENTS = {"clustered-fl", "factorized-fl", "factorized-fl-plus", "fedamp", "fedcac", "fedfomo", "fedpac", "ifca"}
FIRST = {"num_server_rounds": 2, "threads": 1, **FEW_SAMPLES}


class Devices(LocalGrid):
    """Nodes that say who they are, as devices do, with a number or only with data of their own."""

    def __init__(self, *arguments, data=(), **options):
        super().__init__(*arguments, **options)
        self.data = data

    def answer(self, kind, payload, node_config):
        payload.config.update({"in-turn": True} if kind == "query" else {})
        if self.data:
            node_config = {"data-path": str(self.data[node_config["partition-id"]])}
        return super().answer(kind, payload, node_config)


def run(tmp_path, name, grid=None, **settings):
    values = federation(tmp_path, CLIENTS, run_name=name, **{**FIRST, **settings})
    return run_federation(engine(CLIENTS, values) if grid is None else grid(CLIENTS, values), values)


def personal(folder, tmp_path, client):
    """Return a client's personal arrays after the round that it trained last."""
    state = ClientState(tmp_path / "state", folder.task()["state_key"], client)
    return state.load(state.rounds()[-1])


@pytest.mark.parametrize("method", ["fedper", "fedpac", "fedamp", "scaffold", "fedfac", "feddyn", "clustered-fl"])
def test_every_client_starts_from_the_arrays_that_it_had(tmp_path, monkeypatch, method):
    first = run(tmp_path, "first", method=method, **quick(method))
    rule, loaded = Simulation.of(first).rule, {}
    load = Engine.load

    def recorded(self, client, message):
        found = load(self, client, message)
        where = {name: part.numpy() for name, part in self.sharing.personal_elements().items()}
        shared = self.sharing.layout.unpack(message.arrays).copy()
        loaded.setdefault(client, (shared, self.sharing.get_personal(), where))
        return found

    monkeypatch.setattr(Engine, "load", recorded)
    given = {**quick(method), "local_epochs": 3}
    second = run(tmp_path, "second", method=method, continue_from="first", **given)
    assert len(loaded) == CLIENTS
    for client, (shared, own, where) in loaded.items():
        assert np.array_equal(shared, rule.outgoing(rule.clients[client]))
        before = personal(first, tmp_path, client) if own else {}
        assert own.keys() == before.keys()
        assert all(np.array_equal(own[name][part], before[name][part]) for name, part in where.items())
    assert second.metrics()[-1]["round"] == 2
    total = sum(train for train, _ in first.task()["samples"])
    told = f"continues first after its round 2; training samples: {total} before, {total} now"
    assert told in second.task()["remarks"]


def test_samples_before_and_now_are_recorded_and_a_chain_of_runs_keeps_absent_clients_arrays(tmp_path):
    first = run(tmp_path, "first", method="fedper")
    one = {"method": "fedper", "num_server_rounds": 1, "fraction_train": 0.34, "train_samples": 80}
    second = run(tmp_path, "second", continue_from="first", **one)
    third = run(tmp_path, "third", continue_from=str(second.path), **one)
    before, now = ([train for train, _ in folder.task()["samples"]] for folder in (first, second))
    assert second.task()["continued"]["samples"] == first.task()["samples"]
    assert min(now) > max(before)
    each = ", ".join(f"client {i} {before[i]} → {now[i]}" for i in range(CLIENTS))
    words = f"training samples: {sum(before)} before, {sum(now)} now ({each})"
    assert any(words in remark for remark in second.task()["remarks"])
    (trained,) = second.metrics()[0]["clients"]
    keys = [first.task()["state_key"]] * CLIENTS
    keys[trained] = second.task()["state_key"]
    assert [key for key, _ in third.task()["continued"]["personal"]] == keys
    exported = dict(personal_models(third))
    for client in {0, 1, 2} - {trained} - {*third.metrics()[0]["clients"]}:
        own, name = personal(first, tmp_path, client), "head.weight"
        assert np.array_equal(exported[client][name].numpy(), own[name])


def test_a_run_that_was_not_finished_is_continued_and_said_to_be_so(tmp_path):
    (run(tmp_path, "first", method="fedper").path / "summary.md").unlink()
    second = run(tmp_path, "second", method="fedper", continue_from="first", num_server_rounds=1)
    words = "continues first after its round 2 of 2; it is not finished; training samples"
    assert any(words in remark for remark in second.task()["remarks"])


def test_it_has_the_same_bits_over_flower_resumed_and_with_workers(tmp_path):
    found = []
    for place, way in (("local", None), ("devices", Devices)):
        run(tmp_path / place, "first", method="fedamp")
        grown = {"method": "fedamp", "continue_from": "first", "train_samples": 80, "fraction_train": 0.67}
        folder = run(tmp_path / place, "second", way, num_server_rounds=2, **grown)
        if way is None:
            folder = run(tmp_path / place, "third", num_server_rounds=1, **grown)
            values = federation(tmp_path / place, CLIENTS, run_name="third", resume=True, **{**FIRST, **grown})
            values["continue-from"] = folder.config()["continue-from"]
            folder = run_federation(engine(CLIENTS, values), values)
            assert folder.task()["continued"]["run"].endswith("first")
        found.append({name: array.tobytes() for name, array in folder.checkpoint()[1].items()})
    assert found[0] == found[1]


def test_nodes_keep_their_numbers_and_another_one_does_not_get_a_client_s(tmp_path, caplog):
    rng, paths = np.random.default_rng(0), []
    for client in range(CLIENTS):
        x = rng.integers(0, 255, (60, 8, 8), dtype=np.uint8)
        paths.append(tmp_path / f"own-{client}.npz")
        np.savez(paths[-1], x=x, y=np.arange(60) % 3)
    own = {"method": "fedper", "dataset": "npz", "num_classes": 3, "num_clients": CLIENTS, "partitioner": "auto"}

    def grid(order):
        return lambda clients, values: Devices(clients, values, data=[paths[i] for i in order])

    first = run(tmp_path, "first", grid((0, 1, 2)), **own)
    second = run(tmp_path, "second", grid((2, 0, 1)), continue_from="first", **own)
    stored = [
        {file.name: file.read_bytes() for file in (tmp_path / "state" / folder.task()["state_key"]).glob("number-*")}
        for folder in (first, second)
    ]
    assert len(stored[0]) == CLIENTS and stored[0] == stored[1]
    # A fourth device joins; the others keep their arrays.
    four = {**own, "num_clients": CLIENTS + 1}
    values = federation(tmp_path, CLIENTS + 1, run_name="grown", continue_from="first", **{**FIRST, **four})
    paths.append(paths[0])
    grown = run_federation(grid((0, 1, 2, 3))(CLIENTS + 1, values), values)
    assert [number for _, number in grown.task()["continued"]["personal"]] == [2, 2, 2, 0]
    assert any("; new: client 3;" in remark for remark in grown.task()["remarks"])
    # Client 1's node is another machine now, with another secret: it gets nothing, and the others go on.
    (ClientState(tmp_path / "state", first.task()["state_key"], 1).folder / "secret").write_text("0" * 64)
    third = run(tmp_path, "third", grid((0, 1, 2)), continue_from="first", **own)
    assert "2 of 3 clients take part in this run; missing: 1" in third.task()["remarks"]
    assert "client = 1: another node has had this number in the run to continue" in caplog.text


def test_what_does_not_fit_is_refused_before_it_starts(tmp_path):
    run(tmp_path, "first", method="fedper")
    for settings, words in (
        ({"method": "fedavg"}, "method = 'fedavg': first, which the run continues, used 'fedper'"),
        ({"seed": 4}, "seed = 4: first, which the run continues, used 3"),
        ({"model": "mlp"}, "model = 'mlp': first, which"),
        ({"continue_from": "none"}, "run = 'none': there is no such run"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(tmp_path, "second", **{"method": "fedper", "continue_from": "first", **settings})
    assert not (tmp_path / "runs" / "second").exists()
    values = federation(tmp_path, CLIENTS, method="fedper", continue_from="first", **FIRST, run_name="four")
    with pytest.raises(ConfigError, match="clients = 4: the run to continue had 3"):
        run_federation(engine(4, values), values)
    empty = run(tmp_path, "empty", method="fedper")
    for file in (empty.path / "checkpoint").iterdir():
        file.unlink()
    with pytest.raises(StateError, match="empty: no round was finished, so there is nothing to continue"):
        run(tmp_path, "second", method="fedper", continue_from="empty")


def test_the_commands_and_the_python_word(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {"dataset": "digits", "method": "fedper", "local_epochs": 1, "num_server_rounds": 1, "workers": 0}
    places = {"output_dir": tmp_path / "runs", "state_dir": tmp_path / "state"}
    first = fedpfl.run(num_clients=2, quiet=True, **small, **places)
    second = fedpfl.run(continue_from=first, workers=0, quiet=True, local_epochs=2)
    assert second.settings["continue-from"] == str(first.path)
    assert second.settings["method"] == "fedper"
    command = ["run", "--continue", str(first.path), "--workers", "0", "--quiet"]
    both = CliRunner().invoke(app, [*command, "--resume", str(first.path)], prog_name="fedpfl")
    assert (both.exit_code, both.stderr.count("\n")) == (2, 1)
    assert "--resume continues one; use one of them" in both.stderr
    done = CliRunner().invoke(app, command, prog_name="fedpfl")
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "runs").glob("*/summary.md"))) == 3


def machines(names):
    """Return samples of named clients, each client's own."""
    found = {}
    for name in names:
        rng = np.random.default_rng([*name.encode()])
        x = rng.normal(size=(40, 4)).astype("float32")
        y = (x[:, 0] > 0).astype("int64")
        found[name] = (x, y)
    return found


def python_run(tmp_path, names, **settings):
    places = {"output_dir": tmp_path / "runs", "state_dir": tmp_path / "state", "quiet": True, "workers": 0}
    new = {} if "continue_from" in settings else {"model": "mlp", "method": "fedper"}
    return fedpfl.run(**{"data": machines(names), "num_server_rounds": 1, **new, **settings, **places})


def test_clients_keep_their_numbers_and_new_ones_come_after_them(tmp_path):
    first = python_run(tmp_path, ("ann", "ben", "cid"), num_server_rounds=2)
    for names in (("zoe", "ann", "ben", "cid"), ("ben", "ann", "cid"), ("ann", "ben")):
        with pytest.raises(ConfigError, match="the run to continue had ann, ben, cid, in this order; new clients come"):
            python_run(tmp_path, names, continue_from=first)
    names = ("ann", "ben", "cid", "zoe")
    # Nobody but one client trains: the others have what they had, or nothing.
    second = python_run(tmp_path, names, continue_from=first, fraction_train=0.01)
    third = python_run(tmp_path, names, continue_from=second, fraction_train=0.01)
    for earlier, later in ((first, second), (second, third)):
        (trained,) = later._folder.metrics()[0]["clients"]
        for name in {*names} - {names[trained], "zoe"}:
            before, after = (run.model(client=name).head.state_dict() for run in (earlier, later))
            assert all(np.array_equal(before[key], after[key]) for key in before)
    assert any("; new: zoe; training" in remark for remark in second._folder.task()["remarks"])


def test_a_method_that_keeps_arrays_of_each_client_has_the_same_clients(tmp_path):
    first = python_run(tmp_path, ("ann", "ben", "cid"), method="fedamp")
    with pytest.raises(ConfigError, match=r"keeps arrays of each client on the server.*\(zoe"):
        python_run(tmp_path, ("ann", "ben", "cid", "zoe"), continue_from=first)
    python_run(tmp_path, ("ann", "ben", "cid"), continue_from=first)


@pytest.mark.parametrize("method", each_method(also=["factorized-fl"]))
def test_every_method_takes_a_new_client_or_says_why_not(tmp_path, method):
    first = python_run(tmp_path, ("ann", "ben"), method=method, **needed(method), **quick(method))
    if method in KEEP_CLIENTS:
        with pytest.raises(
            ConfigError, match=rf"method = '{method}': keeps arrays of each client on the server.*\(zoe"
        ):
            python_run(tmp_path, ("ann", "ben", "zoe"), continue_from=first)
        return
    second = python_run(tmp_path, ("ann", "ben", "zoe"), continue_from=first)
    assert second._folder.metrics()[0]["clients"] == [0, 1, 2] and "failed" not in second._folder.metrics()[0]
    assert second.clients.loc[(1, 2)]["name"] == "zoe" and 0 <= second.clients.loc[(1, 2)]["accuracy"] <= 1


def test_private_runs_count_what_each_client_has_released(tmp_path):
    private = {"dp_noise_multiplier": 1.0, "dp_clip_norm": 1.0}
    first = python_run(tmp_path, ("ann", "ben"), num_server_rounds=2, **private)
    second = python_run(tmp_path, ("ann", "ben", "zoe"), continue_from=first)
    assert second._folder.checkpoint()[1]["releases"].tolist() == [3, 3, 1]


def test_other_classes_are_refused_with_what_to_do(tmp_path):
    names = ("ann", "ben")
    first = python_run(tmp_path, names)
    one = {name: (x, np.zeros_like(y)) for name, (x, y) in machines(names).items()}
    with pytest.raises(ConfigError, match=r"num_classes = 1: the run to continue had 2; .*: num-classes = 2$"):
        python_run(tmp_path, names, continue_from=first, data=one)
    assert python_run(tmp_path, names, continue_from=first, data=one, num_classes=2)._folder.task()["num_classes"] == 2
    words = {name: (x, np.array(["fine", "worn"])[y]) for name, (x, y) in machines(names).items()}
    named = python_run(tmp_path, names, data=words)
    fine = {name: (x, np.full(len(x), "fine")) for name, (x, _) in words.items()}
    with pytest.raises(ConfigError, match='class-names = "fine,worn"'):
        python_run(tmp_path, names, continue_from=named, data=fine)
    again = python_run(tmp_path, names, continue_from=named, data=fine, class_names="fine,worn")
    assert again._folder.task()["class_names"] == ["fine", "worn"]
    torn = {name: (x, np.where(y == "fine", "fine", "torn")) for name, (x, y) in words.items()}
    with pytest.raises(DataError, match="the classes of the data are not those of the run to continue"):
        python_run(tmp_path, names, continue_from=named, data=torn)
    for run, data, kind in ((named, machines(names), "have numbers"), (first, words, "have names")):
        with pytest.raises(DataError, match=f"the classes of the data {kind}, and those of the run to continue had"):
            python_run(tmp_path, names, continue_from=run, data=data)
