"""The playbooks as texts: syntax, style, and templates whose values systemd's programs accept. Nothing is applied."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("ansible", reason="ansible-core is not installed (make install)")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "ansible"
PLAYBOOKS = sorted(path.name for path in FOLDER.glob("*.yml"))
EXAMPLE = FOLDER / "inventory" / "example.yml"
PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
ENVIRONMENT = {**os.environ, "PATH": PATH, "ANSIBLE_NOCOLOR": "1", "NO_COLOR": "1"}


def run(*command):
    done = subprocess.run(command, cwd=FOLDER, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_is_a_playbook_for_each_task():
    assert PLAYBOOKS == ["collect.yml", "rotate-keys.yml", "site.yml", "teardown.yml", "update.yml"]


def test_ansible_accepts_the_playbooks():
    run("ansible-playbook", "--syntax-check", "-i", EXAMPLE, *PLAYBOOKS)


def test_ansible_lint_finds_nothing_at_the_level_of_production():
    run("ansible-lint", "--offline", "--strict", "--profile", "production")


def test_yamllint_finds_nothing():
    run("yamllint", "--strict", ".")


def test_only_modules_of_ansible_core_are_used():
    # Collections would have to be installed besides.
    texts = [path.read_text() for path in FOLDER.rglob("*.yml")]
    used = {name for text in texts for name in re.findall(r"^\s+(\w+\.\w+\.\w+):", text, re.MULTILINE)}
    assert {name for name in used if not name.startswith("ansible.builtin.")} == set()


def test_ansible_is_one_that_boards_with_python_3_6_understand():
    version = run("ansible", "--version").split("core ")[1].split("]")[0]
    assert (2, 15) <= tuple(int(part) for part in version.split(".")[:2]) < (2, 17)


def test_the_example_is_the_paper_s_testbed():
    hosts = json.loads(run("ansible-inventory", "-i", EXAMPLE, "--list"))
    clients = [hosts["_meta"]["hostvars"][name]["fedpfl_clients"] for name in hosts["devices"]["hosts"]]
    assert hosts["server"]["hosts"] == ["laptop"]
    assert [len(each) for each in clients] == [3] * 10
    assert sorted(client for each in clients for client in each) == list(range(30))


def test_settings_of_the_services_hold_what_their_units_ask_for(tmp_path):
    """Every variable in the units has a value in the templates, for a client with data of its own too."""
    play = [{
        "hosts": "nano-2", "gather_facts": False, "connection": "local", "roles": ["fedpfl"],
        "vars": {
            "fedpfl_client_data": {4: "/srv/my data.npz", 9: "/srv/another device's.npz"}, "item": 4,
            "device_position": 1, "fedpfl_policy": {"personal-arrays": True, "methods": ["fedavg", "fedper"]},
        },
        "vars_files": [f"{FOLDER}/roles/device/vars/main.yml"],
        "tasks": [
            {
                "ansible.builtin.template": {
                    "src": f"{FOLDER}/roles/{role}/templates/{name}.j2", "dest": f"{tmp_path}/{name}",
                },
                "vars": {"ansible_python_interpreter": sys.executable},
            }
            for role, name in (
                ("device", "device.env"), ("device", "supernode.env"), ("device", "policy.toml"),
                ("broker", "server.env"),
            )
        ],
    }]  # fmt: skip
    (tmp_path / "play.yml").write_text(json.dumps(play))
    run("ansible-playbook", "-i", EXAMPLE, tmp_path / "play.yml")
    values = {}
    for path in tmp_path.glob("*.env"):
        values[path.name] = dict(line.split("=", 1) for line in path.read_text().splitlines() if line[:1].isalpha())
    assert values["supernode.env"] == {
        "PORT": "9095", "NODE_CONFIG": "partition-id=4 num-partitions=30 data='/srv/my data.npz'",
    }  # fmt: skip
    assert values["device.env"]["DEVICE"] == "nano-2"
    assert shlex.split(values["supernode.env"]["NODE_CONFIG"])[2] == "data=/srv/my data.npz"
    policy = tomllib.loads((tmp_path / "policy.toml").read_text())
    shipped = tomllib.loads((ROOT / "jetson" / "policy.toml").read_text())
    folders = [*shipped["data-folders"], "/srv/my data.npz"]
    changed = {"data-folders": folders, "personal-arrays": True, "methods": ["fedavg", "fedper"]}
    assert policy == {**shipped, **changed}
    known = set().union(*values.values())
    for unit in (ROOT / "deploy" / "systemd").glob("*.service"):
        assert set(re.findall(r"\$\{(\w+)\}", unit.read_text())) <= known, unit.name


def test_a_python_that_is_too_old_for_the_server_is_named(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 3.10\n")
    python.chmod(0o755)
    task = {"ansible.builtin.include_role": {"name": "superlink", "tasks_from": "python"}}
    play = [{
        "hosts": "laptop", "gather_facts": False, "connection": "local", "tasks": [task],
        "vars": {"ansible_python_interpreter": sys.executable, "fedpfl_server_python": str(python)},
    }]  # fmt: skip
    (tmp_path / "play.yml").write_text(json.dumps(play))
    command = ["ansible-playbook", "-i", EXAMPLE, "-e", "ansible_become=false", tmp_path / "play.yml"]
    done = subprocess.run(command, cwd=FOLDER, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    assert (done.returncode, f"{python} is Python 3.10; set fedpfl_server_python to" in done.stdout) == (2, True)


def test_no_secret_is_in_the_repository():
    listed = subprocess.run(["git", "ls-files", "deploy"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        assert "PRIVATE KEY" not in (ROOT / name).read_text(), name
    ignored = subprocess.run(["git", "check-ignore", "-q", "deploy/ansible/inventory/testbed.yml"], cwd=ROOT)
    assert ignored.returncode == 0
