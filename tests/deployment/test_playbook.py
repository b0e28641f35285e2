"""The playbooks applied to a laptop and two boards, each with a systemd, a root and an address of its own.

The boards are installed by `jetson/install.sh` from a bundle, as on a LAN without internet; only, the bundle's packages
are one wheel that points to those of this environment, for this processor. Run by `make test-playbook`; tests build on
each other.
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import machines
import pytest
from waiting import wait_until

from fedpfl import __version__

ROOT = Path(__file__).parents[2]
CLIENTS, SECONDS = 6, 900
BOARDS = {"nano-1": ("10.87.0.11", [0, 1, 2]), "nano-2": ("10.87.0.12", [3, 4, 5])}
LAPTOP = "10.87.0.10"
CONTROL = "/opt/control/bin"
UNCHANGED = dict.fromkeys(["laptop", *BOARDS], 0)
SETTINGS = (
    'method="fedreg" model="small-cnn" dataset="npz" num-classes=10 num-clients=6 threads=1 local-epochs=1 '
    'batch-size=32 seed=3 run-name="first"'
)
# What the system's own tools, ssh and Ansible leave, and what the test itself puts on the laptop.
NOISE = re.compile(
    r"^(etc/(passwd|group|shadow|gshadow|subuid|subgid)-?|etc/\.pwd\.lock|var/(log|cache|tmp)/.*"
    r"|var/lib/(systemd|dbus|chrony|private|sudo|apt|dpkg|mosquitto)(/.*)?|home/nano/.*|root/.*|srv/.*"
    r"|etc/rc[0-6S]\.d/.*|etc/ld.so.cache|etc/mtab)$"
)

# What a play needs for a board's SuperNodes, behind its new secrets, policy and programs.
BROKEN_AT_A_BOARD = ("-e", '{"fedpfl_supernode_port": "{{ 1 / 0 }}"}')

why_not = machines.missing()
pytestmark = [
    pytest.mark.playbook,
    pytest.mark.skipif(why_not is not None, reason=f"no machines can be made here: {why_not}"),
]


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """Write a wheel of pure Python."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text.encode())}\n")
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"])
    made = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return made


def make_bundle(folder: Path, source: Path) -> None:
    """Make what `jetson/wheelhouse.sh` makes, with one wheel for all packages."""
    (folder / "wheels").mkdir(parents=True)
    commands = [e for e in importlib.metadata.distribution("flwr").entry_points if e.group == "console_scripts"]
    entry_points = "[console_scripts]\n" + "".join(f"{e.name} = {e.value}\n" for e in commands)
    packages = wheel(folder / "wheels", "fedpfl_test_packages", "1.0", {
        "fedpfl_test_packages.pth": f"{machines.PACKAGES}\n",
        "fedpfl_test_packages-1.0.dist-info/entry_points.txt": entry_points,
    })  # fmt: skip
    digest = hashlib.sha256(packages.read_bytes()).hexdigest()
    (folder / "requirements-nano.txt").write_text(f"fedpfl-test-packages==1.0 --hash=sha256:{digest}\n")
    for name in ("install.sh", "uninstall.sh", "verify.sh", "training_step.py", "policy.toml"):
        shutil.copy(ROOT / "jetson" / name, folder)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(source)], check=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  ./{p.relative_to(folder)}\n" for p in files)
    (folder / "SHA256SUMS").write_text(sums)


def inventory() -> dict[str, object]:
    ssh = f"-o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={machines.HOME}/.ssh/known_hosts"
    return {"testbed": {
        "vars": {
            "fedpfl_address": LAPTOP, "fedpfl_network": "10.87.0.0/24", "fedpfl_bundle": "/srv/bundle",
            "fedpfl_server_python": f"{machines.PYTHON}/bin/python3.11", "fedpfl_partitions": "/srv/partitions",
            "fedpfl_server_lock": "/srv/bundle/requirements-nano.txt",
            "fedpfl_server_pip_options": ["--no-index", "--find-links", "/srv/bundle/wheels"],
            "fedpfl_allowed_signers": "/srv/signers", "fedpfl_collected": "/srv/collected",
            "fedpfl_install_options": [
                "--any-machine", "--lock", "/opt/fedpfl-bundle/requirements-nano.txt",
                "--python", f"{machines.PYTHON}/bin/python3.11",
            ],
        },
        "children": {
            "server": {"hosts": {"laptop": {
                "ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3",
            }}},
            "devices": {
                "vars": {"ansible_user": "nano", "ansible_ssh_common_args": ssh},
                "hosts": {
                    name: {"ansible_host": address, "fedpfl_clients": clients}
                    for name, (address, clients) in BOARDS.items()
                },
            },
        },
    }}  # fmt: skip


class Bench:
    """The machines, and what is done on the laptop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        places = folder / "machines"
        self.laptop = machines.Machine(places, "laptop", LAPTOP, ROOT, ["mosquitto"])
        self.boards = {name: machines.Machine(places, name, ip, None, ["ssh"]) for name, (ip, _) in BOARDS.items()}
        self.all = [self.laptop, *self.boards.values()]
        self.seconds: list[tuple[str, float]] = []

    def prepare(self) -> None:
        """Give the laptop what its owner has beforehand: a checkout's environment, a bundle, an ssh key."""
        laptop, srv = self.laptop, self.laptop.path("/srv")
        make_bundle(srv / "bundle", ROOT)
        self.sign()
        for venv in ("/opt/control", "/opt/fedpfl/venv"):
            laptop.do(f"{machines.PYTHON}/bin/python3.11", "-m", "venv", venv)
            pip = [f"{venv}/bin/python", "-m", "pip", "--quiet"]
            laptop.do(*pip, "install", "--no-index", "--find-links", "/srv/bundle/wheels", "fedpfl-test-packages")
            # An older one than the packages want, which would hide theirs.
            laptop.do(*pip, "uninstall", "--yes", "setuptools")
        (fedpfl,) = (srv / "bundle").glob("fedpfl-*.whl")
        install = ["-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", f"/srv/bundle/{fedpfl.name}"]
        laptop.do(f"{CONTROL}/python", *install)
        laptop.do(f"{CONTROL}/fedpfl", "partition", "-c", "num-clients=6 seed=3", "--export", "/srv/partitions")
        card = f"{machines.HOME}/.ssh/id_card"
        laptop.do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "of the card", "-f", card)
        public = laptop.path(f"{card}.pub").read_text().strip()
        for board in self.boards.values():
            board.do("install", "-d", "-m", "0700", "-o", "nano", "/home/nano/.ssh")
            board.do("sh", "-c", f"echo '{public}' > /home/nano/.ssh/authorized_keys")
            board.do("systemctl", "start", "chrony")
        (srv / "inventory.json").write_text(json.dumps(inventory()))

    def sign(self) -> None:
        """Sign the bundle, with a key that is made on first use."""
        srv = self.laptop.path("/srv")
        if not (srv / "signer").exists():
            self.laptop.do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/srv/signer")
            (srv / "signers").write_text(f"us {(srv / 'signer.pub').read_text()}")
        self.laptop.do("ssh-keygen", "-q", "-Y", "sign", "-n", "fedpfl", "-f", "/srv/signer", "/srv/bundle/SHA256SUMS")

    def secrets(self) -> dict[str, bytes]:
        """Return the contents of the files that the laptop and the boards keep to themselves."""
        keys = self.laptop.path(f"{machines.HOME}/.fedpfl/testbed-keys")
        files = [path for path in keys.rglob("*") if path.is_file() and path.suffix not in (".pem", ".pub")]
        kept = {path.name: content for path in files if (content := path.read_bytes())}
        for board in self.boards.values():  # which its clients' keys never leave
            made = [path for path in board.path("/etc/fedpfl/keys").glob("node-*") if path.suffix != ".pub"]
            kept |= {path.name: path.read_bytes() for path in made}
        return kept

    def play(self, playbook: str, *options: str, fails: bool = False) -> str:
        """Run a playbook on the laptop; return its output."""
        started = time.monotonic()
        command = ["-m", "ansible", "playbook", "-i", "/srv/inventory.json", f"{playbook}.yml", *options]
        place = ["env", "--chdir=/srv/checkout/deploy/ansible", "ANSIBLE_NOCOLOR=1"]
        done = self.laptop.run(*place, f"{CONTROL}/python", *command, timeout=SECONDS)
        self.seconds.append((playbook, round(time.monotonic() - started, 1)))
        (self.folder / f"{playbook}.log").write_text(done.stdout + done.stderr)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout

    def flwr(self, *arguments: str) -> dict[str, object]:
        """Ask Flower's command as the services' user."""
        told = self.laptop.do(
            "runuser", "--user=fedpfl", "--", "env", "--chdir=/", "HOME=/var/lib/fedpfl", "FLWR_TELEMETRY_ENABLED=0",
            "FLWR_DISABLE_UPDATE_CHECK=1", "/opt/fedpfl/venv/bin/flwr", *arguments, "--format", "json",
        )  # fmt: skip
        return dict(json.loads(told))

    def submit(self, settings: str) -> str:
        """Start a run; return its id."""
        return str(self.flwr("run", "/opt/fedpfl/app", "testbed", "--run-config", settings)["run-id"])

    def status(self, run: str) -> str:
        return str(self.flwr("ls", "--run-id", run)["runs"][0]["status"])

    def wait_for(self, run: str) -> list[dict[str, object]]:
        """Wait for the end of the run `first`; return its lines of metrics."""
        started = time.monotonic()

        def ended() -> str | None:
            status = self.status(run)
            return status if status.startswith("finished") else None

        assert wait_until(ended, hint=self.logs, seconds=SECONDS) == "finished:completed", self.logs()
        self.seconds.append(("run", round(time.monotonic() - started, 1)))
        return [json.loads(line) for line in self.runs("first/metrics.jsonl").read_text().splitlines()]

    def train(self, settings: str) -> list[dict[str, object]]:
        """Carry out a run; return its lines of metrics."""
        return self.wait_for(self.submit(settings))

    def runs(self, path: str) -> Path:
        return self.laptop.path(f"/var/lib/fedpfl/.fedpfl/runs/{path}")

    def logs(self) -> str:
        lines = [machine.run("journalctl", "-u", "fedpfl-*", "-n", "60", "--no-pager").stdout for machine in self.all]
        return "\n".join(lines)

    def nodes(self) -> dict[str, str]:
        """Return the id of each node that is registered, by its name."""
        record = json.loads(self.laptop.path("/var/lib/fedpfl/nodes.json").read_text())
        return {name: values["node"] for name, values in record.items()}

    def online(self) -> set[str]:
        """Return the ids of the nodes that are online."""
        return {node["node-id"] for node in self.flwr("supernode", "list")["nodes"] if node["status"] == "online"}

    def state(self) -> dict[str, bytes]:
        """Return the clients' personal arrays, by board and path."""
        return {
            f"{name}:{path.name}": path.read_bytes()
            for name, board in self.boards.items()
            for path in sorted(board.path("/var/lib/fedpfl/.fedpfl/state").rglob("*"))
            if path.is_file()
        }


def since(machine: machines.Machine, *services: str) -> str:
    """Return when services of a machine were last started."""
    return machine.do("systemctl", "show", "--property=Id,ActiveEnterTimestampMonotonic", *services)


def changed(output: str) -> dict[str, int]:
    """Return the number of changes that Ansible counted on each machine."""
    counts = re.findall(r"^(\S+) +: ok=.* changed=(\d+) .* failed=0 ", output.partition("PLAY RECAP")[2], re.MULTILINE)
    return {name: int(count) for name, count in counts}


def assert_unchanged(output):
    """Check that Ansible counted no change; name the tasks that made one."""
    tasks = re.findall(r"^(?:TASK|RUNNING HANDLER) \[(.*?)\] \*+\n((?:.+\n)*)", output, re.MULTILINE)
    assert [(task, lines) for task, lines in tasks if re.search("^changed: ", lines, re.MULTILINE)] == []
    assert changed(output) == UNCHANGED


def assert_tells_no_secret(bench, output):
    secrets = bench.secrets()
    assert len(secrets) >= CLIENTS + 3 + len(BOARDS) + 2
    assert "PRIVATE KEY" not in output
    for name, content in secrets.items():
        # Line by line, because YAML quotes line ends in its own way.
        lines = [
            line for line in content.decode("latin-1").splitlines() if len(line) > 16 and "PRIVATE KEY" not in line
        ]
        assert [line for line in lines if line in output] == [], name


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("bench"))
    with machines.lan(bench.all):
        bench.prepare()
        bench.before = {machine.name: machine.written() for machine in bench.all}
        yield bench
        print(bench.seconds)


def test_a_fresh_board_gets_the_laptop_s_key(bench):
    """With another key in the place of the password, which --ask-pass would ask for."""
    first = ["--private-key", f"{machines.HOME}/.ssh/id_card"]
    assert changed(bench.play("first-contact", *first)) == {"laptop": 1, **dict.fromkeys(BOARDS, 1)}
    for board in bench.boards.values():
        board.do("sh", "-c", "sed -i '/of the card/d' /home/nano/.ssh/authorized_keys")
    assert changed(bench.play("first-contact")) == UNCHANGED


def test_an_inventory_that_is_wrong_is_told(bench):
    output = bench.play("site", "-e", '{"fedpfl_all_clients": [0, 2, 2]}', fails=True)
    assert "each number once, and not [0, 2, 2]" in output


def test_the_playbook_brings_everything_up(bench):
    output = bench.play("site", "--diff")
    assert set(changed(output)) == {"laptop", *BOARDS}
    assert_tells_no_secret(bench, output)
    assert len(bench.online()) == CLIENTS
    units = {"laptop": ["broker", "superlink", "superexec", "bridge-server"]}
    for name, (_, clients) in BOARDS.items():
        units[name] = ["worker", "forkserver", "bridge-device", *(f"supernode@{client}" for client in clients)]
    for machine in bench.all:
        active = machine.do("systemctl", "is-active", *(f"fedpfl-{unit}" for unit in units[machine.name])).split()
        assert active == ["active"] * len(units[machine.name])
        listening = machine.do("ss", "--listening", "--tcp", "--numeric", "--no-header")
        outside = {line.split()[3] for line in listening.splitlines()} - {"0.0.0.0:22", "[::]:22"}
        outside = {address for address in outside if not address.startswith("127.")}
        assert outside == ({f"{LAPTOP}:8883"} if machine is bench.laptop else set())
    assert bench.laptop.run("systemctl", "is-active", "mosquitto").stdout.strip() == "inactive"


def test_secrets_are_where_they_belong_and_nowhere_else(bench):
    for name, (_, clients) in BOARDS.items():
        board = bench.boards[name]
        keys = board.do("find", "/etc/fedpfl", "-name", "node-?", "-printf", "%f %m %u\\n").splitlines()
        assert sorted(keys) == [f"node-{client} 600 fedpfl" for client in clients]
        others = board.do("find", "/etc", "/var/lib/fedpfl", "-name", "ca.key", "-o", "-name", "superexec.secret")
        assert sorted(others.split()) == ["/etc/fedpfl/local/ca.key", "/etc/fedpfl/local/superexec.secret"]
        password = board.path("/etc/fedpfl/keys/broker.password").read_text()
        assert password == bench.laptop.path(f"{machines.HOME}/.fedpfl/testbed-keys/passwords/{name}").read_text()
    keys = f"{machines.HOME}/.fedpfl/testbed-keys/nodes"
    kept = bench.laptop.do("find", keys, "-type", "f", "-printf", "%f\\n").split()
    assert sorted(kept) == [f"node-{client:03d}.pub" for client in range(CLIENTS)]
    for machine in bench.all:
        assert_tells_no_secret(bench, machine.do("ps", "-e", "-ww", "-o", "args"))


def test_a_second_run_changes_nothing(bench):
    assert_unchanged(bench.play("site"))


def test_a_board_that_is_off_is_named_and_an_absent_one_is_not_waited_for(bench):
    off, here = bench.boards["nano-2"], {f"node-{number}" for number in BOARDS["nano-1"][1]}
    nodes, lost = bench.nodes(), "/etc/fedpfl/supernode-0.env"
    # With the connection that Ansible keeps open for a minute.
    off.do("sh", "-c", "systemctl stop ssh; pkill -u nano sshd || true")
    bench.boards["nano-1"].do("rm", lost)
    output = bench.play("site", fails=True)
    assert "these did not answer, or failed: nano-2." in output
    bench.boards["nano-1"].do("test", "-f", lost)  # what is to be done on the others is done
    bench.laptop.path("/srv/absent.yml").write_text("absent: {hosts: {nano-2: }}\n")
    bench.play("site", "-i", "/srv/absent.yml")
    assert set(bench.nodes()) == here
    off.do("systemctl", "start", "ssh")
    others = {
        bench.laptop: ["fedpfl-broker", "fedpfl-superlink", "fedpfl-superexec", "fedpfl-bridge-server"],
        bench.boards["nano-1"]: ["fedpfl-worker", "fedpfl-bridge-device", "fedpfl-supernode@0"],
    }
    started = {machine: since(machine, *services) for machine, services in others.items()}
    bench.play("site")
    # As for a board that is new: no other machine is restarted.
    assert {machine: since(machine, *services) for machine, services in others.items()} == started
    now = bench.nodes()
    # Flower takes no key a second time, so clients that were away have new ones; nothing else was touched.
    assert {name for name in now if now[name] == nodes[name]} == here
    assert len(now) == len(bench.online()) == CLIENTS


def test_what_a_broken_play_left_is_in_force_after_its_repeat(bench):
    """The play breaks off behind the policy, before the services are restarted."""
    board = bench.boards["nano-1"]
    before = since(board, "fedpfl-worker")
    board.do("rm", "/etc/fedpfl/policy.toml")
    bench.play("site", *BROKEN_AT_A_BOARD, fails=True)
    board.do("test", "-f", "/etc/fedpfl/policy.toml")
    assert since(board, "fedpfl-worker") == before
    bench.play("site")
    assert since(board, "fedpfl-worker") != before


def test_no_play_changes_anything_under_a_run(bench):
    """The run waits for a seventh client."""
    run = bench.submit(SETTINGS.replace("num-clients=6", "num-clients=7 min-clients=7").replace("first", "waits"))
    wait_until(lambda: bench.status(run) == "running", hint=bench.logs, seconds=SECONDS)
    before = since(bench.laptop, "fedpfl-superlink")
    assert bench.laptop.do("pgrep", "--uid", "fedpfl", "--runstates", "RSD", "--full", "flwr-serverapp")
    for playbook in ("site", "update", "rotate-keys", "first-run", "teardown"):
        output = bench.play(playbook, "-e", "fedpfl_remove=everything", fails=True)
        assert f"These runs are under way: {run}." in output
        assert changed(output) == {}
    assert bench.status(run) == "running" and since(bench.laptop, "fedpfl-superlink") == before
    bench.flwr("stop", run)


def test_one_command_carries_out_a_first_round(bench):
    settings = dict(re.findall(r"(\S+)=(\S+)", SETTINGS))
    text = "".join(f"{key} = {value}\n" for key, value in settings.items() if key != "run-name")
    bench.laptop.path("/srv/first.toml").write_text(f"{text}num-server-rounds = 5\n")
    output = bench.play("first-run", "-e", "fedpfl_first_settings=/srv/first.toml")
    assert re.search(r"personalised accuracy \| \d", output)
    assert changed(output) == {"laptop": 1}


def test_secrets_may_be_in_a_vault(bench):
    bench.laptop.path("/srv/vault").write_text("a password\n")
    keys = f"{machines.HOME}/.fedpfl/testbed-keys"
    private = bench.laptop.do("find", keys, "-type", "f", "-perm", "600", "-not", "-name", ".lock").split()
    assert len(private) == 3 + len(BOARDS) + 2
    vault = [f"{CONTROL}/python", "-m", "ansible", "vault"]
    bench.laptop.do(*vault, "encrypt", "--vault-password-file", "/srv/vault", *private)
    assert "PRIVATE KEY" not in bench.laptop.path(f"{keys}/ca.key").read_text()
    assert_unchanged(bench.play("site", "--vault-password-file", "/srv/vault"))
    bench.laptop.do(*vault, "decrypt", "--vault-password-file", "/srv/vault", *private)


def test_a_round_of_fedreg_over_mqtt(bench):
    (line,) = bench.train(f"{SETTINGS} num-server-rounds=1")
    assert line["round"] == 1
    assert "failed" not in line
    assert set(line["personalised"]["each"]) == {str(client) for client in range(CLIENTS)}
    assert 0 < line["global"]["accuracy"] <= 1
    for name, (_, clients) in BOARDS.items():
        log = bench.boards[name].do("journalctl", "-u", "fedpfl-worker", "--no-pager", "--output", "cat")
        assert [client for client in range(CLIENTS) if f"train of client {client}, round 1" in log] == clients
    assert {key.split(":")[0] for key in bench.state()} == set(BOARDS)


def test_an_update_goes_one_device_at_a_time_and_loses_no_state(bench, tmp_path):
    before = bench.state()
    ids = bench.online()
    newer = tmp_path / "newer"
    shutil.copytree(ROOT, newer, ignore=shutil.ignore_patterns(".*", "build", "tests", "__pycache__"))
    version = f"{__version__}.post1"
    for path in ("fedpfl/version.py", "pyproject.toml"):
        text = (newer / path).read_text()
        changed_text, places = re.subn(rf'(version(?:__)?) = "{re.escape(__version__)}"', rf'\1 = "{version}"', text)
        assert places == 1
        (newer / path).write_text(changed_text)
    shutil.rmtree(bench.laptop.path("/srv/bundle"))
    make_bundle(bench.laptop.path("/srv/bundle"), newer)
    assert "/srv/bundle is not signed" in bench.play("update", fails=True)
    bench.sign()
    # It breaks off on the first board, whose services are stopped for the installation.
    bench.play("update", *BROKEN_AT_A_BOARD, fails=True)
    output = bench.play("update")
    headers = re.findall(r"^PLAY \[Devices, one at a time\]", output, re.MULTILINE)
    assert len(headers) == len(BOARDS)
    for machine in bench.all:
        python = "/opt/fedpfl/venv/bin/python"
        assert machine.do(python, "-c", "import fedpfl; print(fedpfl.__version__)").strip() == version
    assert bench.state() == before
    assert bench.online() == ids
    first, second = bench.train(f"{SETTINGS} num-server-rounds=2 resume=true")
    assert (first["round"], second["round"]) == (1, 2)
    assert "failed" not in second


def test_keys_are_replaced_everywhere(bench):
    def secrets():
        contents = {"laptop": bench.laptop.path(f"{machines.HOME}/.fedpfl/testbed-keys/ca.pem").read_bytes()}
        for name, (_, clients) in BOARDS.items():
            for path in ("keys/ca.pem", "keys/broker.password", "local/server.key", f"keys/node-{clients[0]}"):
                contents[f"{name}:{path}"] = bench.boards[name].path(f"/etc/fedpfl/{path}").read_bytes()
        return contents

    before, ids = secrets(), bench.online()
    # It breaks off on the server, its repeat on the boards: each time behind the new secrets, before the restarts.
    output = bench.play("rotate-keys", "--diff", "-e", '{"fedpfl_superlink_state": "{{ 1 / 0 }}"}', fails=True)
    output += bench.play("site", "--diff", *BROKEN_AT_A_BOARD, fails=True)
    output += bench.play("site", "--diff")
    after = secrets()
    assert_tells_no_secret(bench, output)
    assert [name for name in before if before[name] == after[name]] == []
    assert len(bench.online() - ids) == CLIENTS
    assert bench.train(f"{SETTINGS} num-server-rounds=3 resume=true")[-1]["round"] == 3


def test_a_board_with_a_new_card_is_let_in(bench):
    """Its keys and personal arrays are gone with the old one."""
    board, clients = bench.boards["nano-2"], BOARDS["nano-2"][1]
    board.do("sh", "-c", "systemctl stop 'fedpfl-*'; rm -r /etc/fedpfl/keys /var/lib/fedpfl/.fedpfl/state")
    bench.play("site")
    told = bench.laptop.do(
        "testbed", "fedpfl", "resume", "first", "--replaced", ",".join(map(str, clients)), "-c", "num-server-rounds=4"
    )
    line = bench.wait_for(re.fullmatch(r"first goes on as run (\d+): flwr ls testbed\n", told)[1])[-1]
    assert (line["round"], line["clients"]) == (4, list(range(CLIENTS)))


def test_results_and_logs_come_back(bench):
    table = "experiments/tables/table.md"
    bench.laptop.do("install", "-D", "/dev/null", f"/var/lib/fedpfl/.fedpfl/{table}")
    bench.play("collect")
    collected = bench.laptop.path("/srv/collected")
    assert (collected / table).is_file()
    assert {path.name for path in (collected / "logs").iterdir()} == {f"{machine.name}.log.gz" for machine in bench.all}
    log = gzip.decompress((collected / "logs" / "nano-2.log.gz").read_bytes()).decode()
    assert "train of client 3, round 1" in log
    lines = (collected / "runs" / "first" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]
    with (collected / "runs" / "first" / "boards.csv").open() as file:
        measured = [(int(row["round"]), row["board"]) for row in csv.DictReader(file)]
    assert measured == [(number, board) for number in (1, 2, 3, 4) for board in BOARDS]


def test_teardown_leaves_nothing(bench):
    assert "Add -e fedpfl_remove=programs" in bench.play("teardown", fails=True)
    bench.play("teardown", "-e", "fedpfl_remove=everything")
    for machine in bench.all:
        left = {path for path in machine.written() - bench.before[machine.name] if not NOISE.match(path)}
        assert left == set()
        processes = machine.do("ps", "-e", "-o", "args")
        assert not re.search("fedpfl|flower|flwr", processes), processes
        assert "fedpfl" not in machine.do("getent", "passwd") + machine.do("systemctl", "list-unit-files")
        assert "fedpfl" not in machine.path("/etc/chrony/chrony.conf").read_text()
    assert bench.laptop.run("systemctl", "is-active", "mosquitto").stdout.strip() == "active"
