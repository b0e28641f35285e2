"""The bench of an Ansible inventory: what is read of it, and a mistake in each field."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

from fedpfl.bench.inventory import OPTIONAL, REQUIRED, _Groups, read_inventory  # noqa: E402
from fedpfl.core.errors import FedpflError  # noqa: E402

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy" / "ansible" / "inventory" / "example.yml"


def small():
    return {
        "testbed": {
            "vars": {"fedpfl_address": "10.0.0.1", "fedpfl_network": "10.0.0.0/24", "fedpfl_bundle": "~/bundle"},
            "children": {
                "server": {"hosts": {"laptop": {"ansible_connection": "local"}}},
                "devices": {
                    "vars": {"ansible_user": "nano"},
                    "hosts": {
                        "a": {"ansible_host": "10.0.0.11", "fedpfl_clients": [0, 2]},
                        "b": {"ansible_host": "10.0.0.12", "fedpfl_clients": [1]},
                    },
                },
            },
        }
    }


def write(folder, content):
    path = folder / "testbed.yml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_the_example_is_the_paper_s_bench():
    bench = read_inventory(EXAMPLE)
    assert list(bench.devices)[::9] == ["nano-1", "nano-10"]
    assert bench.clients == 30
    assert bench.devices["nano-2"] == (3, 4, 5)
    assert bench.data == {}


def test_variables_are_those_of_the_playbooks():
    defaults = yaml.safe_load((ROOT / "deploy/ansible/roles/fedpfl/defaults/main.yml").read_text())
    derived = {"fedpfl_server", "fedpfl_all_clients", "fedpfl_present_clients", "fedpfl_done_clients", "fedpfl_broker",
               "fedpfl_units", "fedpfl_as_service", "fedpfl_known_clients", "fedpfl_boards"}  # fmt: skip
    assert set(OPTIONAL) == defaults.keys() - derived
    assert not set(REQUIRED) & defaults.keys()


def test_data_of_clients_are_found(tmp_path):
    for name in ("client-0.npz", "client-1.npz", "client-2.npz", "mine.npz"):
        (tmp_path / name).touch()
    content = small()
    content["testbed"]["vars"] |= {
        "fedpfl_partitions": str(tmp_path),
        "fedpfl_client_data": {1: f"{tmp_path}/mine.npz"},
    }
    inventory = read_inventory(write(tmp_path, content))
    assert inventory.data == {0: tmp_path / "client-0.npz", 2: tmp_path / "client-2.npz", 1: tmp_path / "mine.npz"}


def test_a_device_s_model_is_that_of_its_clients(tmp_path):
    content = small()
    content["testbed"]["children"]["devices"]["hosts"]["b"]["fedpfl_model"] = "resnet10"
    inventory = read_inventory(write(tmp_path, content))
    assert inventory.models == dict.fromkeys(inventory.devices["b"], "resnet10")
    assert {inventory.node_settings(client) for client in inventory.devices["b"]} == {" model='resnet10'"}
    assert {inventory.node_settings(client) for client in inventory.devices["a"]} == {""}


def test_a_device_that_is_absent_keeps_its_clients_numbers_and_gaps_are_clients_that_are_missing(tmp_path):
    content = small()
    before = read_inventory(write(tmp_path, content))
    content["testbed"]["children"]["absent"] = {"hosts": {"a": None}}
    bench = read_inventory(write(tmp_path, content))
    assert (bench.devices, bench.absent) == ({"b": before.devices["b"]}, {"a": before.devices["a"]})
    assert bench.clients == before.clients and bench.present == before.devices["b"]
    content["testbed"]["children"]["devices"]["hosts"]["b"]["fedpfl_clients"] = [7]
    bench = read_inventory(write(tmp_path, content))
    assert (bench.clients, bench.present) == (8, (7,))


GROUPS = """
all: {vars: {fedpfl_bundle: of all, fedpfl_address: 10.0.0.1}, children: {testbed: }}
testbed: {vars: {fedpfl_bundle: of testbed, fedpfl_network: 10.0.0.0/24}, children: {server: , devices: }}
server: {hosts: {laptop: }}
devices: {children: {upper: , lower: }}
upper: {vars: {fedpfl_target: nano}, hosts: {a: {fedpfl_clients: [0]}, b: {fedpfl_clients: [1], fedpfl_target: pi}}}
lower: {hosts: {c: }}
others: {hosts: {c: {fedpfl_clients: [2]}}, vars: {fedpfl_target: orin}}
absent: {children: {lower: }}
"""


def test_groups_are_joined_as_ansible_joins_them(tmp_path):
    path = write(tmp_path, GROUPS)
    command = [sys.executable, "-m", "ansible", "inventory", "-i", path, "--list"]
    listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    groups = _Groups(path, yaml.safe_load(GROUPS))
    assert groups.variables == {host: listed["_meta"]["hostvars"][host] for host in ("laptop", "a", "b", "c")}
    bench = read_inventory(path)
    assert (bench.devices, bench.absent) == ({"a": (0,), "b": (1,)}, {"c": (2,)})


def change(path, value):
    def apply(content):
        content = copy.deepcopy(content)
        table = content["testbed"]
        for key in path[:-1]:
            table = table[key]
        if value is None:
            del table[path[-1]]
        else:
            table[path[-1]] = value
        return content

    return apply


A, B = (("children", "devices", "hosts", name) for name in "ab")


MISTAKES = [
    (("vars", "fedpfl_address"), None, "laptop: fedpfl_address is missing"),
    (("vars", "fedpfl_address"), "10.0.0.300", "fedpfl_address: '10.0.0.300' does not appear to be an IPv4"),
    (("vars", "fedpfl_address"), "10.0.1.1", "fedpfl_address 10.0.1.1 is not in 10.0.0.0/24"),
    (("vars", "fedpfl_network"), "10.0.0.1/24", "fedpfl_network: 10.0.0.1/24 has host bits set"),
    (("vars", "fedpfl_client"), [0], "there is no fedpfl_client; did you mean fedpfl_clients"),
    (("vars", "fedpfl_data"), "{{ home }}/data", "fedpfl_data is a template"),
    (("vars", "fedpfl_keys"), "", "laptop: fedpfl_keys: must be a text, not ''"),
    (("vars", "fedpfl_superlink_state"), "disk", "fedpfl_superlink_state: must be database or memory, not 'disk'"),
    (("vars", "fedpfl_superlink_port"), 80000, "fedpfl_superlink_port: must be a port, 1 to 65535, not 80000"),
    (("vars", "fedpfl_broker_port"), "mqtts", "fedpfl_broker_port: must be a port, 1 to 65535, not 'mqtts'"),
    (("vars", "fedpfl_supernode_port"), True, "fedpfl_supernode_port: must be a port, 1 to 65535, not True"),
    (("vars", "fedpfl_broker_port"), "9" * 5000, "fedpfl_broker_port: must be a port, 1 to 65535, not '9999"),
    (("vars", "fedpfl_broker_port"), 0, "fedpfl_broker_port: must be a port, 1 to 65535, not 0"),
    (("vars", "fedpfl_watchers"), ["watch", "a/b"], "fedpfl_watchers: must be a list of names"),
    (("vars", "fedpfl_server_pip_options"), "--no-index", "fedpfl_server_pip_options: must be a list of texts"),
    (("vars", "fedpfl_allowed_signers"), ["a"], "fedpfl_allowed_signers: must be a path or '', not ['a']"),
    (("vars", "fedpfl_install"), "bundel", "fedpfl_install: must be bundle or existing, not 'bundel'"),
    (("vars", "fedpfl_target"), "jetson", "fedpfl_target: must be nano, orin, pi or auto, not 'jetson'"),
    (("vars", "fedpfl_install_options"), ["--swap", 1.5], "fedpfl_install_options: must be a list of texts"),
    (("vars", "fedpfl_rehearsed_board"), "pi", "fedpfl_rehearsed_board: must be nano, or '', not 'pi'"),
    (("vars", "fedpfl_rehearsed_network"), "slow", "fedpfl_rehearsed_network: must be a network or '', as in"),
    (("vars", "fedpfl_threads"), "all", "fedpfl_threads: must be 1 to 1024"),
    (("vars", "fedpfl_model"), "it's", "fedpfl_model: must be a model or ''"),
    (("vars", "fedpfl_policy"), {"personal_arrays": True}, "no key 'personal_arrays'; did you mean personal-arrays?"),
    (("vars", "fedpfl_policy"), {"personal-arrays": "yes"}, "fedpfl_policy: personal-arrays = 'yes': must be true or"),
    (("vars", "fedpfl_policy"), {"delta": "1e-5"}, "laptop: fedpfl_policy: delta = '1e-5': must be a number"),
    (("vars", "fedpfl_watchers"), ["watch", "a"], "a is the name of 2 accounts at the broker (fedpfl_watchers)"),
    (("vars", "fedpfl_watchers"), ["server"], "server is the name of 2 accounts at the broker (fedpfl_watchers)"),
    (("vars", "fedpfl_policy"), "strict", "fedpfl_policy: must be a mapping of the policy's keys to values"),
    (("vars", "fedpfl_during_a_run"), "yes", "fedpfl_during_a_run: must be True or False, not 'yes'"),
    (("vars", "fedpfl_client_data"), ["/x"], "fedpfl_client_data: must be a mapping of clients' numbers to paths"),
    (("vars", "fedpfl_client_data"), {7: "/x"}, "fedpfl_client_data: there is no client 7"),
    (("vars", "fedpfl_client_data"), {0: "x.npz"}, "a: the data of client 0, x.npz, need an absolute path"),
    (("vars", "fedpfl_client_data"), {0: "/nowhere/x.npz"}, "client 0, /nowhere/x.npz, are not on this machine"),
    (("vars", "fedpfl_client_data"), {0: "/it's"}, "a path without apostrophes"),
    (("vars", "fedpfl_client_data"), {0: "/a\nb"}, "a path without apostrophes, line ends and the like"),
    (("vars", "fedpfl_client_data"), {0: "~nobody-here/x"}, "~nobody-here/x: this machine has no such user"),
    (("vars", "fedpfl_rehearsed_network"), f"{'9' * 400}mbit", "fedpfl_rehearsed_network: must be a network or ''"),
    (("vars", "fedpfl_partitions"), "/nowhere", "client 0, /nowhere/client-0.npz, are not on this machine"),
    (("vars",), ["x"], "vars of testbed must be a mapping"),
    (("children", "server", "hosts", "other"), {}, "the group server must have one host, not 2"),
    (("children", "server", "hosts", "laptop"), None, "the group server must have one host, not 0"),
    (("children", "server", "host"), {}, "'host' in the group server: only hosts, children and vars"),
    (("children", "devices"), None, "the group devices has no host"),
    ((*A, "fedpfl_clients"), None, "a: fedpfl_clients must be a list of clients' numbers, not None"),
    ((*A, "fedpfl_clients"), [0, "2"], "a: fedpfl_clients must be a list of clients' numbers"),
    ((*A, "fedpfl_clients"), [], "a: fedpfl_clients must be a list of clients' numbers"),
    ((*A, "fedpfl_clients"), [0, 10**9], "a: fedpfl_clients must be a list of clients' numbers"),
    ((*A, "fedpfl_clients"), [0, 1], "client 1 is on a and on b"),
    (("children", "absent"), {"hosts": {"z": None}}, "z is in the group absent, and not in devices"),
    (("children", "absent"), {"hosts": {"a": None, "b": None}}, "the group devices has no host"),
    ((*A, "ansible_host"), "10.0.0.12", "b: ansible_host 10.0.0.12 is a's"),
    ((*A, "ansible_host"), "10.0.0.1", "a: ansible_host 10.0.0.1 is laptop's"),
    ((*A, "ansible_host"), "10.9.0.2", "a: ansible_host 10.9.0.2 is not in 10.0.0.0/24"),
    ((*A, "ansible_host"), "10.0.0", "a: ansible_host: '10.0.0' does not appear"),
    (("children", "devices", "hosts", "c d"), {"fedpfl_clients": [3]}, "must be 1 to 64 letters, digits"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "message"), MISTAKES)
def test_a_mistake_is_one_line_that_says_where(tmp_path, path, value, message):
    with pytest.raises(FedpflError) as refused:
        read_inventory(write(tmp_path, change(path, value)(small())))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


# Ten aliases in each of ten lists: 10¹⁰ values.
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 11))


@pytest.mark.parametrize(("text", "message"), [
    ("a: [1\nb: 2", "line 2: "), ("- a", "the file must be a mapping"), ("", "the group server must have one host"),
    ("a: !!python/object:os.system {}", "could not determine a constructor"), ("[" * 3000, "not YAML"),
    ("x" * 2_000_000, "it has more than 1,000,000 bytes"),
    ("all: {hosts: {a: {}}}\nall: {}", "line 1: all is there 2 times"),
    ("server:\n  hosts:\n    nano: {}\n    nano: {}", "line 3: nano is there 2 times"),
    ("devices: {hosts: {off: {}}}", "YAML reads the name of a host or group as False: put it into quotes"),
    ("devices: {hosts: {10: {}}}", "as 10: put"), ("devices: {children: {on: {}}}", "as True: put"),
    ("no: {hosts: {a: {}}}", "as False: put"),
    ("a: {children: {b: }}\nb: {children: {a: }}", "the group a is within itself"),
    (f"a: {{vars: {{b: 0x{'f' * 5000}}}}}", "line 1: a number of 5002 characters"),
    ("all: &a {children: {b: *a}}", "more than 100000 values, or an alias within itself"),
    (BOMB, "more than 100000 values, or an alias within itself"),
    ("[" * 100_000, "not YAML"),
])  # fmt: skip
def test_what_is_no_inventory_is_refused(tmp_path, text, message):
    with pytest.raises(FedpflError) as refused:
        read_inventory(write(tmp_path, text))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_pipe_is_not_waited_for_and_a_file_that_is_not_there_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.yml")
    for name, message in (("pipe.yml", "it is no regular file"), ("none.yml", r"none\.yml: No such file")):
        with pytest.raises(FedpflError, match=message):
            read_inventory(tmp_path / name)
