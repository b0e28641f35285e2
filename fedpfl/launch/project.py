"""``fedpfl new``: make a Flower app for custom code, with an example of each kind, or the files of a bench."""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import ConfigError
from ..setup.reference import pyproject_block
from ..version import __version__

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

# The versions of Flower that fedpfl was tested with, as in its own pyproject.toml.
FLOWER = "flwr[simulation]>=1.41,<1.43"
# What the app's settings start from; `fedpfl config --update` keeps them.
SETTINGS = {
    "method": "parts:MyMethod", "model": "parts:my_model", "dataset": "parts:my_data", "local-epochs": 2,
}  # fmt: skip

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Personalised federated learning with custom parts"
license = {{ text = "not chosen yet" }}
requires-python = ">=3.11,<4"
# fedpfl is missing here, because Flower must not look it up by its name: install it first (made with {version}).
dependencies = ["{flower}"]

[tool.hatch.build.targets.wheel]
only-include = ["parts.py", "client_app.py", "server_app.py"]

[tool.pytest.ini_options]
pythonpath = ["."]

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

{block}
"""

_APP = '''\
"""What Flower loads on {side}: fedpfl's app, which finds this app's parts next to this file."""

from fedpfl.flower.{name}_app import app

__all__ = ["app"]
'''

_PARTS = '''\
"""The parts of this app: a model, a data set and a method. Keep what you need, and rename it as you like.

A setting names one as MODULE:NAME, here and on devices: model = "parts:my_model". Arguments are given by their names;
leave out those that you do not need. The file should run under the Python of your devices.
"""

from dataclasses import dataclass

import numpy as np
from torch import nn

import fedpfl


def my_model(input_shape, num_classes):
    """Return any module whose last layer is an nn.Linear: that is the head that methods keep personal, or replace."""
    features = int(np.prod(input_shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, num_classes))


def my_data(path):
    """Return (x_train, y_train, x_test, y_test) for each client, or a fedpfl.Dataset that is to be divided.

    `path` is the setting `data`, or on a device that holds its own data their path there. This example draws points of
    two classes, with a different border for each client.
    """
    clients = []
    for client in range(6):
        rng = np.random.default_rng(client)
        x = rng.normal(size=(80, 4)).astype(np.float32)
        y = (x @ rng.normal(size=4) > 0).astype(np.int64)
        clients.append((x[:60], y[:60], x[60:], y[60:]))
    return clients


@dataclass(frozen=True)
class MyMethodSettings:
    """Settings of MyMethod: my-method-personal-layers. After a change here: fedpfl config --update."""

    personal_layers: int = fedpfl.setting(1, "Layers that stay with a client: 0 or 1.", minimum=0, maximum=1)


class MyMethod(fedpfl.Method):
    """Everything except the head is shared; all layers train together."""

    name = "my-method"
    shares = "everything except the head"
    Settings = MyMethodSettings

    def is_shared(self, name, model):
        """Return whether an array of the model is shared; the others are personal."""
        return self.settings.personal_layers == 0 or not name.startswith("head.")
'''

_TEST = '''\
"""The app learns: run by `pytest` in this folder."""

import fedpfl
import pytest

import parts

FEW = {"num_server_rounds": 2, "local_epochs": 1, "quiet": True, "workers": 0}


def test_the_parts_make_a_run(tmp_path):
    run = fedpfl.run(
        method="parts:MyMethod", model="parts:my_model", dataset="parts:my_data", output_dir=tmp_path, **FEW
    )
    assert run.summary["rounds"] == 2
    assert run.model(client=0).training is False


@pytest.mark.parametrize("client", range(2))
def test_clients_have_data(client):
    x_train, y_train, x_test, y_test = parts.my_data("")[client]
    assert len(x_train) == len(y_train) and len(x_test) == len(y_test)
'''

_README = """\
# {name}

A Flower app for personalised federated learning, made by `fedpfl new` of fedpfl {version}. Its own code is `parts.py`:
a model, a data set and a method. It needs fedpfl (`pip install` its checkout or wheel), here and on every device.

```bash
fedpfl run                        # simulate it on this machine
fedpfl run -c 'method="fedavg"'   # the same with another method; `fedpfl methods` lists them
fedpfl up                         # the same as on devices: SuperLink, SuperNodes and workers on this machine
fedpfl report RUN                 # a page about a run
fedpfl config --update            # after a change of a method's settings: writes them into pyproject.toml
pytest                            # the app's tests
```

With Flower's own command: `FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run .`; Flower starts two clients unless
you set the number of nodes. Devices receive `parts.py` in the app's bundle. In Python:
`fedpfl.run(model="parts:my_model", dataset="parts:my_data", method="fedper")`, or with the functions themselves.
"""

_IGNORED = "__pycache__/\n.venv/\n"

_INVENTORY = """\
# The machines of this bench, for fedpfl's playbooks and for `fedpfl up --inventory`. Change names and addresses.
testbed:
  vars:
    # The server's address in the LAN, where boards reach broker and time server, and the LAN itself.
    fedpfl_address: 192.168.1.10
    fedpfl_network: 192.168.1.0/24
    # What jetson/wheelhouse.sh made on the server.
    fedpfl_bundle: ~/bundle
    # nano, orin or pi; auto asks each board.
    fedpfl_target: auto
    # Keys of the policy that the playbook changes on boards; policy.toml explains them.
    fedpfl_policy: {}
  children:
    server:
      hosts:
        laptop:
          ansible_connection: local
    devices:
      vars:
        ansible_user: nano
        ansible_python_interpreter: /usr/bin/python3
      hosts:
        # fedpfl_clients: the numbers of a board's clients; together they are 0, 1, 2 … without a gap.
        board-1: {ansible_host: 192.168.1.11, fedpfl_clients: [0, 1]}
        board-2: {ansible_host: 192.168.1.12, fedpfl_clients: [2, 3]}
"""

_POLICY = """\
# In which runs a board takes part. Its owner decides: no server can change this file.

# A run reads data and initial weights only below these folders; ~ is the home of the worker's user.
data-folders = ["~/.fedpfl/data", "~/partitions"]
# Personal arrays are kept only below these.
state-folders = ["~/.fedpfl/state"]
# Without this line: all methods that are installed.
methods = ["fedavg", "fedper", "local"]
# Own methods, models and data sets of an app, as "MODULE:NAME"; their code must be in code-hashes.
parts = []
# Whether personal arrays may leave the board: evaluate-global, and some methods.
personal-arrays = false
# The minimum of dp-noise-multiplier with dp-where = "client"; 0: no noise is required.
least-dp-noise-multiplier = 0
# The maximum total size of the state folders.
most-state-bytes = 10_000_000_000
"""

_BENCH_SETTINGS = """\
# The settings of a run on this bench; `fedpfl config` explains all of them.
method = "fedper"
model = "small-cnn"
num-server-rounds = 10
# scikit-learn's digits, for the rehearsal. Boards do not have scikit-learn: README.md, step 2.
dataset = "digits"
partitioner = "dirichlet"
dirichlet-alpha = 0.3
# As many as the inventory has.
num-clients = 4
# Seconds after which a round continues without boards that have not replied.
round-timeout = 600.0
"""

_BENCH_README = """\
# {name}

A bench for personalised federated learning: a server and two boards with two clients each, over MQTT. Made by
`fedpfl new --bench` of fedpfl {version}.

| file | what it is |
|---|---|
| `inventory.yml` | machines, their addresses, and which board has which clients |
| `settings.toml` | the settings of the runs |
| `policy.toml` | in which runs a board takes part, for boards that you set up by hand; its owner decides |

## 1. Rehearse it on this machine

You need no boards, but mosquitto (`apt-get install mosquitto`) and `pip install paho-mqtt pyyaml`.

```bash
fedpfl run -c settings.toml                                # a simulation: the reference
fedpfl up --inventory inventory.yml -c settings.toml --web # separate processes for each board, and a live page
```

Both end with the same weights, to the bit.

## 2. Set the boards up

Boards do not have scikit-learn, whose digits the rehearsal uses. Give each board the samples of its clients, your own
or these: after the next command set `fedpfl_partitions: ~/partitions` in `inventory.yml` below `vars:`, and
`dataset = "npz"` and `num-classes = 10` in `settings.toml`. Another rehearsal then uses the same files.

```bash
fedpfl partition -c settings.toml --export ~/partitions
```

You need ssh to each board as `ansible_user`, and a checkout of fedpfl on the server, with `make install`. Its
`docs/testbed.md` has each step with times and what to do when it fails. Here `BENCH` is this folder.

```bash
source .venv/bin/activate                                  # in the checkout
jetson/wheelhouse.sh ~/bundle --python-archive ARCHIVE --python-sha256 SUM   # docs/testbed.md names the source
cd deploy/ansible
ansible devices -i BENCH/inventory.yml -m ansible.builtin.ping
ansible-playbook -i BENCH/inventory.yml site.yml --ask-become-pass
```

By hand instead: `policy.toml` goes to `/etc/fedpfl/policy.toml` of each board before `jetson/install.sh`; the rest
is in `docs/deployment.md`.

## 3. Run, watch, collect

Boards have no scikit-learn, which `digits` needs. So set another `dataset` in `settings.toml`, for example
`"fashion-mnist"`, and copy its files to the boards: `fedpfl_data` in the inventory (`docs/testbed.md`, step 4).

```bash
sudo cp BENCH/settings.toml /opt/fedpfl/settings.toml
as_fedpfl() {{ sudo -u fedpfl env --chdir=/ HOME=/var/lib/fedpfl FLWR_TELEMETRY_ENABLED=0 "$@"; }}
flower() {{ as_fedpfl /opt/fedpfl/venv/bin/flwr "$@"; }}
flower supernode list                                      # four, all online
flower run /opt/fedpfl/app testbed --run-config /opt/fedpfl/settings.toml --stream
flower ls                                                  # finished:completed; flwr run itself returns 0 in any case
```

In another terminal, for boards and rounds on a live page:

```bash
fedpfl watch --web --broker 192.168.1.10:8883 --ca ~/.fedpfl/testbed-keys/ca.pem \\
    --password-file ~/.fedpfl/testbed-keys/passwords/watch
```

Afterwards `ansible-playbook -i BENCH/inventory.yml collect.yml --ask-become-pass` copies results and logs to
`~/.fedpfl/collected`, and `fedpfl report ~/.fedpfl/collected/runs/RUN` makes a page about a run.
"""


def files(name: str) -> dict[str, str]:
    """Return the files of a new app, by name."""
    # The settings of the example's method stand in the block only when its file is there.
    return {
        "pyproject.toml": _PYPROJECT.format(
            name=name, version=__version__, flower=FLOWER, block=pyproject_block(SETTINGS)
        ),
        "server_app.py": _APP.format(side="the server", name="server"),
        "client_app.py": _APP.format(side="a client", name="client"),
        "parts.py": _PARTS, "test_parts.py": _TEST, "README.md": _README.format(name=name, version=__version__),
        ".gitignore": _IGNORED,
    }  # fmt: skip


def bench_files(name: str) -> dict[str, str]:
    """Return the files of a new bench, by name."""
    return {
        "inventory.yml": _INVENTORY, "settings.toml": _BENCH_SETTINGS, "policy.toml": _POLICY,
        "README.md": _BENCH_README.format(name=name, version=__version__),
    }  # fmt: skip


def make(place: Path, bench: bool = False) -> list[Path]:
    """Make a new app, or the files of a bench, in a folder that is not there yet, or is empty; return its files."""
    name = place.absolute().name
    if not _NAME.fullmatch(name):
        raise ConfigError("name", name, "must be lower-case letters, digits and dashes, and begin with a letter")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError("name", str(place), "is there already; choose another name")
    try:
        place.mkdir(parents=True, exist_ok=True)
        made = bench_files(name) if bench else files(name)
        for file, text in made.items():
            (place / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("name", str(place), f"cannot be written ({error.strerror})") from error
    return [place / file for file in made]
