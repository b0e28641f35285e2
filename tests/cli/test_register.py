"""`fedpfl register` against a `flwr` that keeps its nodes in a file."""

import json
import sys

import pytest
from in_process import call_fedpfl

from fedpfl.bench import superlink

FLWR = """#!{python}
import json, pathlib, sys, fcntl
store = pathlib.Path({store!r})
action, *rest = sys.argv[2:sys.argv.index("--format")]
with (store.parent / "lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    nodes = json.loads(store.read_text()) if store.exists() else {{}}
    answer = {{"success": True}}
    if action == "list":
        gone = [path.name[5:] for path in store.parent.glob("made-*") if path.name[5:] not in nodes]
        answer["nodes"] = [{{"node-id": node, "status": "online"}} for node in nodes]
        answer["nodes"] += [{{"node-id": node, "status": "unregistered"}} for node in gone]
    elif action == "unregister":
        del nodes[rest[0]]
    elif open(rest[0]).read() in (store.parent / "keys").read_text().split("|"):
        answer = {{"success": False, "error-message": "[code: 23] Public key already in use."}}
    else:
        answer["node-id"] = str(1000 + len(list(store.parent.glob("made-*"))))
        (store.parent / ("made-" + answer["node-id"])).touch()
        nodes[answer["node-id"]] = open(rest[0]).read()
        with (store.parent / "keys").open("a") as keys:
            keys.write(nodes[answer["node-id"]] + "|")
    store.write_text(json.dumps(nodes))
print(json.dumps(answer))
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    program = tmp_path / "flwr"
    program.write_text(FLWR.format(python=sys.executable, store=str(tmp_path / "store")))
    program.chmod(0o755)
    (tmp_path / "keys").touch()
    monkeypatch.setattr(superlink, "script", lambda name: str(tmp_path / name))
    for number in range(3):
        (tmp_path / f"node-{number}.pub").write_text(f"key {number}")
    return tmp_path


def register(bench, *numbers, options=()):
    keys = [str(bench / f"node-{number}.pub") for number in numbers]
    done = call_fedpfl("register", *keys, "--record", str(bench / "record"), *options)
    nodes = json.loads((bench / "store").read_text())
    return done, sorted(nodes.values())


def test_what_is_registered_stays(bench):
    done, keys = register(bench, 0, 1)
    assert sorted(done.stdout.splitlines()) == ["2 nodes, 2 of them new", "registered node-0", "registered node-1"]
    assert keys == ["key 0", "key 1"]
    done, _ = register(bench, 0, 1)
    assert done.stdout.splitlines() == ["2 nodes, 0 of them new"]
    done, keys = register(bench, 2)
    assert done.stdout.splitlines() == ["registered node-2", "3 nodes, 1 of them new"]
    assert keys == ["key 0", "key 1", "key 2"], "one more leaves the others where they are"


@pytest.mark.parametrize("prune", [False, True])
def test_a_replaced_key_is_unregistered_and_one_that_is_not_named_where_that_is_asked_for(bench, prune):
    register(bench, 0, 1, 2)
    (bench / "node-1.pub").write_text("new")
    done, keys = register(bench, 0, 1, options=["--prune"] * prune)
    assert keys == ["key 0", *([] if prune else ["key 2"]), "new"]
    gone = {"unregistered node-2"} if prune else set()
    assert set(done.stdout.splitlines()[:-1]) == {"unregistered node-1", "registered node-1"} | gone


def test_nodes_of_a_superlink_that_forgot_them_are_registered_again(bench):
    register(bench, 0, 1)
    (bench / "store").unlink()
    (bench / "keys").write_text("")
    assert register(bench, 0, 1)[1] == ["key 0", "key 1"]


@pytest.mark.parametrize("how", ["the record is lost", "it was unregistered"])
def test_a_key_that_flower_has_had_is_told_with_what_helps_and_the_others_are_noted(bench, how):
    register(bench, 1)
    if how == "the record is lost":
        (bench / "record").unlink()
    else:
        register(bench, 0, options=["--prune"])
    done, _ = register(bench, 0, 1, 2)
    assert done.exit_code == 1 and "fedpfl keys" in done.stderr and "--record" in done.stderr
    assert done.stderr.startswith(f"error: key = {bench / 'node-1.pub'}: ") and done.stderr.count("\n") == 1
    assert sorted(json.loads((bench / "record").read_text())) == ["node-0", "node-2"]
    (bench / "node-1.pub").write_text("new")
    assert {"key 0", "key 2", "new"} <= {*register(bench, 0, 1, 2)[1]}


def test_two_keys_of_one_name_are_refused(bench):
    (bench / "more").mkdir()
    (bench / "more" / "node-0.pub").write_text("another")
    keys = [str(bench / "node-0.pub"), str(bench / "more" / "node-0.pub")]
    done = call_fedpfl("register", *keys, "--record", str(bench / "record"))
    assert (done.exit_code, done.stderr.startswith("error: key = 'node-0': is the name of two files")) == (2, True)
    assert not (bench / "store").exists()


def test_what_cannot_be_read_is_told(bench):
    register(bench, 0)
    assert register(bench, 7)[0].stderr.startswith("error: key = ")
    (bench / "record").write_text("[")
    assert "is not a record of nodes" in register(bench, 0)[0].stderr
