"""The playbooks as texts: syntax, style, and templates whose values systemd's programs accept. Nothing is applied."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

pytest.importorskip("ansible", reason="ansible-core is not installed (make install)")

from fedpfl.bench.credentials import prepare, prepare_passwords
from fedpfl.results.board_names import VARIABLE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "ansible"
PLAYBOOKS = sorted(path.name for path in FOLDER.glob("*.yml"))
EXAMPLE = FOLDER / "inventory" / "example.yml"
PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
ENVIRONMENT = {**os.environ, "PATH": PATH, "ANSIBLE_NOCOLOR": "1", "NO_COLOR": "1"}


# What a task does with a file's content.
TRANSFERS = {f"ansible.builtin.{name}" for name in ("copy", "template", "fetch", "slurp", "lineinfile", "blockinfile")}

# Where certificates, keys and passwords are.
SECRETS = re.compile("fedpfl_keys|/etc/fedpfl/(keys|local)|/passwords/")


def run(*command, code=0, **environment):
    """Run one of Ansible's commands, which must end with this exit code; return what it prints."""
    variables = {**ENVIRONMENT, **environment}
    done = subprocess.run(command, cwd=FOLDER, env=variables, capture_output=True, text=True, timeout=280)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def play(place, plays, *options, inventory=EXAMPLE, **how):
    """Apply plays to this machine, which they take for the bench of the example; return what Ansible prints."""
    common = {"gather_facts": False, "connection": "local"}
    (place / "play.yml").write_text(json.dumps([{**common, **one} for one in plays]))
    return run("ansible-playbook", "-i", inventory, *options, place / "play.yml", **how)


def tasks():
    """Yield the path of each file of tasks and each task in it, those in blocks too."""

    def flat(entries):
        for entry in entries:
            for key in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks"):
                yield from flat(entry.get(key, []))
            yield entry

    for path in sorted([*FOLDER.glob("*.yml"), *FOLDER.glob("roles/*/tasks/*.yml")]):
        yield from ((path, task) for task in flat(yaml.safe_load(path.read_text())))


def test_ansible_accepts_the_playbooks():
    run("ansible-playbook", "--syntax-check", "-i", EXAMPLE, *PLAYBOOKS)


@pytest.mark.thorough
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
    assert (2, 15) <= Version(version("ansible-core")).release[:2] < (2, 17)


@pytest.fixture
def templates(tmp_path):
    """A play that writes into a folder what the services of a server, and of a device with separate data, read."""
    (task,) = (task for _, task in tasks() if task["name"] == "Policy of the device")
    validate = task["ansible.builtin.template"]["validate"].replace("/opt/fedpfl/venv/bin/python -I", sys.executable)
    names = {"device.env": "device", "supernode.env": "device", "policy.toml": "device", "server.env": "broker"}
    written = {
        name: {"src": f"{FOLDER}/roles/{role}/templates/{name}.j2", "dest": f"{tmp_path}/{name}"}
        for name, role in names.items()
    }
    written["policy.toml"]["validate"] = validate
    variables = {
        "fedpfl_client_data": {4: "/srv/my data.npz", 9: "/srv/another device's.npz"}, "item": 4, "device_position": 1,
        "fedpfl_policy": {"personal-arrays": True, "methods": ["fedavg", "fedper"], "most": {"threads": 2}},
        "fedpfl_superlink_state": "memory", "ansible_python_interpreter": sys.executable,
    }  # fmt: skip
    return {
        "hosts": "nano-2", "roles": ["fedpfl"], "vars": variables,
        "vars_files": [f"{FOLDER}/roles/device/vars/main.yml"],
        "tasks": [{"ansible.builtin.template": file} for file in written.values()],
    }  # fmt: skip


def test_settings_of_the_services_hold_what_their_units_ask_for(tmp_path, templates):
    """Every variable in the units has a value in the templates, for a client with data of its own too."""
    boards = {"ansible.builtin.copy": {"content": "{{ fedpfl_boards | to_json }}", "dest": f"{tmp_path}/boards.json"}}
    templates["tasks"].append(boards)
    play(tmp_path, [templates])
    values = {}
    for path in tmp_path.glob("*.env"):
        values[path.name] = dict(line.split("=", 1) for line in path.read_text().splitlines() if line[:1].isalpha())
    assert values["supernode.env"] == {"PORT": "9095", "NODE_CONFIG": "partition-id=4 data='/srv/my data.npz'"}
    assert values["device.env"]["DEVICE"] == "nano-2" and values["device.env"]["OMP_NUM_THREADS"] == "4"
    assert values["server.env"]["DATABASE"] == ""
    assert Path(values["server.env"][VARIABLE]).name == "boards.json"
    boards = json.loads((tmp_path / "boards.json").read_text())
    assert len(boards) == 10 and boards["nano-4"] == [9, 10, 11]
    assert shlex.split(values["supernode.env"]["NODE_CONFIG"])[1] == "data=/srv/my data.npz"
    policy = tomllib.loads((tmp_path / "policy.toml").read_text())
    shipped = tomllib.loads((ROOT / "jetson" / "policy.toml").read_text())
    folders = [*shipped["data-folders"], "/srv/my data.npz"]
    changed = {"data-folders": folders, "personal-arrays": True, "methods": ["fedavg", "fedper"]}
    changed["most"] = {**shipped["most"], "threads": 2}
    assert policy == {**shipped, **changed}
    names = set().union(*values.values())
    for unit in (ROOT / "deploy" / "systemd").glob("*.service"):
        assert set(re.findall(r"\$\{(\w+)\}", unit.read_text())) <= names, unit.name


def test_a_policy_that_no_worker_could_read_does_not_replace_the_one_in_force(tmp_path, templates):
    (tmp_path / "policy.toml").write_text("in force")
    templates["tasks"] = [task for task in templates["tasks"] if "policy" in task["ansible.builtin.template"]["dest"]]
    output = play(tmp_path, [templates], "-e", '{"fedpfl_policy": {"personal_arrays": true}}', code=2)
    assert "there is no key 'personal_arrays'; did you mean personal-arrays" in output
    assert (tmp_path / "policy.toml").read_text() == "in force"


def test_a_service_that_is_older_than_what_it_reads_is_named_until_it_is_restarted(tmp_path):
    """As after a play that broke off between a new key and the restart: its repeat copies nothing."""
    (tmp_path / "systemctl").write_text(
        "#!/bin/sh\nprintf 'ActiveEnterTimestampMonotonic='; cat \"$HOME/$3\" 2> /dev/null || echo 0\n"
    )
    (tmp_path / "systemctl").chmod(0o755)
    looks = {
        "hosts": "laptop", "tasks": [{"ansible.builtin.include_role": {"name": "common", "tasks_from": "in_force"}}],
        "vars": {
            "ansible_python_interpreter": sys.executable, "common_services": ["broker", "never", "worker"],
            "common_reads": [f"{tmp_path}/no-such-file", f"{tmp_path}/key-*"], "common_restart": "Restart them",
        },
        "handlers": [{
            "name": "Restart them", "ansible.builtin.debug": {"msg": "restarts {{ common_old.stdout_lines }}"},
        }],
    }  # fmt: skip
    started = time.monotonic()
    (tmp_path / "key-1").touch()
    for service, later in (("broker", -0.2), ("worker", 0.2)):
        (tmp_path / service).write_text(str(round((started + later) * 1e6)))
    restart = {
        "hosts": "laptop", "vars": {"ansible_python_interpreter": sys.executable},
        "tasks": [{"ansible.builtin.copy": {
            "content": str(round((started + 0.2) * 1e6)), "dest": f"{tmp_path}/broker",
        }}],
    }  # fmt: skip
    places = {"PATH": f"{tmp_path}:{PATH}", "HOME": str(tmp_path), "TZ": "Asia/Jerusalem"}
    output = play(tmp_path, [looks, restart, looks], "-e", "ansible_become=false", **places)
    assert re.findall(r"restarts \[(.*)\]", output) == ["'broker'"]


def test_boards_that_are_off_or_fail_on_the_way_are_named_at_the_end(tmp_path):
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts = {"nano-1": local, "nano-2": {"ansible_host": "127.0.0.1", "ansible_port": 1}, "nano-3": local, "nano-4": {}}
    children = {
        "server": {"hosts": {"laptop": local}},
        "devices": {"hosts": hosts},
        "absent": {"hosts": {"nano-4": {}}},
    }
    (tmp_path / "inventory.yml").write_text(json.dumps({"testbed": {"children": children}}))
    fails = {"ansible.builtin.assert": {"that": ["inventory_hostname != 'nano-3'"]}}
    devices = {"hosts": "here", "gather_facts": False, "tasks": [fails]}
    plays = yaml.safe_load((FOLDER / "site.yml").read_text())
    (post_tasks,) = (play["post_tasks"] for play in plays if "post_tasks" in play)
    (tmp_path / "play.yml").write_text(json.dumps([
        {"ansible.builtin.import_playbook": f"{FOLDER}/boards.yml"}, {**devices, "post_tasks": post_tasks},
        {"ansible.builtin.import_playbook": f"{FOLDER}/boards_off.yml"},
    ]))  # fmt: skip
    output = run("ansible-playbook", "-i", tmp_path / "inventory.yml", tmp_path / "play.yml", code=2)
    assert "these did not answer, or failed: nano-2, nano-3." in " ".join(output.split())


def secret_tasks():
    """Return the tasks that handle the content of a file which may be a private key or a password."""
    secret = []
    for path, task in tasks():
        for module in TRANSFERS & task.keys():
            source = str(task[module].get("src") or task[module].get("content") or task[module])
            names = task["loop"] if isinstance(task.get("loop"), list) else ["{{ item }}"]
            files = {source.replace("{{ item }}", str(name)) for name in names}
            if SECRETS.search(source) and not all(name.endswith((".pem", ".pub")) for name in files):
                secret.append((path, module, task))
    return secret


def test_a_task_that_handles_a_secret_shows_neither_its_content_nor_a_difference():
    secret = secret_tasks()
    assert {(path.parts[-3], path.stem) for path, _, _ in secret} == {
        ("broker", "main"), ("credentials", "device"), ("credentials", "server"),
    }  # fmt: skip
    for path, _, task in secret:
        assert (task.get("no_log"), task.get("diff")) == (True, False), f"{path.name}: {task['name']}"


@pytest.mark.parametrize(
    "mode", [pytest.param(["--check", "--diff"], marks=pytest.mark.thorough), ["--diff"]], ids=" ".join
)
def test_no_secret_is_in_the_output(tmp_path, mode):
    """The tasks as they are for a bench of two boards, apart from places below another root and this user as owner."""
    bench = yaml.safe_load(EXAMPLE.read_text())
    boards = bench["testbed"]["children"]["devices"]["hosts"]
    for name in [*boards][2:]:
        del boards[name]
    (tmp_path / "bench.yml").write_text(json.dumps(bench))
    keys = tmp_path / "keys"
    prepare(keys, 0, ["192.168.1.10"])
    prepare_passwords(keys, ["server", "watch", *boards])
    secret = []
    for _, module, task in secret_tasks():
        arguments = {key: value for key, value in task[module].items() if key not in ("owner", "group")}
        arguments["dest"] = f"{tmp_path}/machine{arguments['dest']}"
        Path(arguments["dest"]).parent.mkdir(parents=True, exist_ok=True)
        secret.append({key: value for key, value in task.items() if key != "notify"} | {module: arguments})
    variables = {"fedpfl_keys": str(keys), "ansible_python_interpreter": sys.executable}
    about = {"hosts": "nano-2", "roles": ["fedpfl"], "vars": variables, "tasks": secret}
    output = play(tmp_path, [about], "-vvv", *mode, inventory=tmp_path / "bench.yml")
    written = {path.name for path in (tmp_path / "machine").rglob("*") if path.is_file()}
    wanted = {"server.key", "superexec.secret", "broker.password", "server", "watch", *boards}
    assert written >= wanted if mode == ["--diff"] else written == set()
    for path in keys.rglob("*"):
        # Lines, because YAML and JSON quote them in their own ways.
        for line in path.read_bytes().splitlines() if path.is_file() and path.suffix not in (".pem", ".pub") else []:
            if len(line) > 16 and b"PRIVATE KEY" not in line:
                assert line.decode("latin-1") not in output, path.name
    assert "PRIVATE KEY" not in output


def test_a_server_s_old_python_and_a_bundle_without_the_signature_that_the_inventory_asks_for_are_named(tmp_path):
    place = tmp_path / "deploy" / "ansible"
    place.mkdir(parents=True)
    # Where playbooks find it.
    (tmp_path / "jetson").symlink_to(ROOT / "jetson")
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "SHA256SUMS").write_text("")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 3.10\n")
    python.chmod(0o755)
    signers = f"{{{{ '{tmp_path}/signers' if inventory_hostname == 'nano-2' else '' }}}}"
    about = {
        "hosts": "laptop:nano-1:nano-2", "roles": ["fedpfl"],
        "tasks": [
            {"ansible.builtin.include_role": {"name": role, "tasks_from": tasks}, "when": f"inventory_hostname {where}"}
            for role, tasks, where in (("superlink", "python", "== 'laptop'"), ("common", "signed", "!= 'laptop'"))
        ],
        "vars": {
            "ansible_python_interpreter": sys.executable, "fedpfl_server_python": str(python),
            "fedpfl_bundle": f"{tmp_path}/bundle", "fedpfl_allowed_signers": signers,
        },
    }  # fmt: skip
    output = play(place, [about], "-e", "ansible_become=false", code=2)
    assert f"{python} is Python 3.10; set fedpfl_server_python to" in output
    assert f"{tmp_path}/bundle is not signed: it has no SHA256SUMS.sig" in output
    failed = dict(re.findall(r"^(\S+) +: .*\bfailed=(\d)", output, re.M))
    assert failed == {"laptop": "1", "nano-1": "0", "nano-2": "1"}


def test_a_device_makes_its_keys_and_another_where_the_public_one_is_gone(tmp_path):
    """The tasks as they are, on a device below another root, with the test's user as owner."""
    text = (FOLDER / "roles/credentials/tasks/made_by_devices.yml").read_text()
    steps = yaml.safe_load(text.replace("/etc/fedpfl/keys", f"{tmp_path}/device"))[1:]  # without users and folders
    for step in steps:
        for owner in ("owner", "group"):
            step.get("ansible.builtin.file", {}).pop(owner, None)
    keys, device = tmp_path / "keys", tmp_path / "device"
    (keys / "nodes").mkdir(parents=True)
    device.mkdir()
    for number in (3, 4):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", device / f"node-{number}"],
            check=True,
        )
        shutil.copy(device / f"node-{number}.pub", keys / "nodes" / f"node-{number:03d}.pub")
    (keys / "nodes" / "node-004.pub").rename(keys / "nodes" / "node-005.pub")  # 4 was taken out; 5 has a new card
    before = [(device / f"node-{number}").read_bytes() for number in (3, 4)]
    variables = {"fedpfl_keys": str(keys), "ansible_python_interpreter": sys.executable}
    about = {"hosts": "nano-2", "roles": ["fedpfl"], "vars": variables, "tasks": steps}
    assert "PRIVATE KEY" not in play(tmp_path, [about], "-e", "ansible_become=false")
    assert [(device / f"node-{number}").read_bytes() == key for number, key in zip((3, 4), before, strict=True)] == [
        True, False,
    ]  # fmt: skip
    public = {path.stem: path.read_text().split() for path in (keys / "nodes").iterdir()}
    assert {*public} == {"node-003", "node-004", "node-005"}
    for number in (3, 4, 5):
        file = device / f"node-{number}"
        assert file.stat().st_mode & 0o777 == 0o600
        made = subprocess.run(["ssh-keygen", "-y", "-f", file], capture_output=True, text=True, check=True).stdout
        assert made.split()[:2] == public[f"node-{number:03d}"]
    (device / "node-3.pub").write_text("ecdsa-sha2-nistp384 AAAA\nsomething else\n")
    about["vars"]["fedpfl_clients"] = [3]
    assert "must be a public key" in play(tmp_path, [about], "-e", "ansible_become=false", code=2)


def test_no_secret_is_in_the_repository():
    listed = subprocess.run(["git", "ls-files", "deploy"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        assert "PRIVATE KEY" not in (ROOT / name).read_text(), name
    ignored = subprocess.run(["git", "check-ignore", "-q", "deploy/ansible/inventory/testbed.yml"], cwd=ROOT)
    assert ignored.returncode == 0
