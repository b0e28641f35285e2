"""``fedpfl new``: make a Flower app for custom code, with an example of each kind."""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import ConfigError
from ..setup.reference import pyproject_block

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

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
description = "Personalised federated learning with parts of its own"
license = {{ text = "not chosen yet" }}
requires-python = ">=3.11"
# And fedpfl, which has to be installed already: Flower must not look it up by its name.
dependencies = ["flwr[simulation]>=1.41,<2"]

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
"""What Flower loads on {side}; all of it is fedpfl's, which finds this app's parts next to this file."""

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

    `path` is the setting `data`; on a device that holds data of its own, it is where those lie. This example makes
    points in two classes up; each client has a border of its own.
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
    """Everything travels but the head, and all of it trains at once."""

    name = "my-method"
    shares = "everything but the head"
    Settings = MyMethodSettings

    def is_shared(self, name, model):
        """Return whether an array of the model travels; the others are personal."""
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

A Flower app for personalised federated learning, made by `fedpfl new`. Its own code is `parts.py`: a model, a data
set and a method. Everything else is fedpfl's, which has to be installed (`pip install` its checkout or wheel), here and
on every device.

```bash
fedpfl run                        # simulate it on this machine
fedpfl run -c 'method="fedavg"'   # the same with another method; `fedpfl methods` lists them
fedpfl up                         # the same as on devices: SuperLink, SuperNodes and workers on this machine
fedpfl report RUN                 # a page about a run
fedpfl config --update            # after a change of a method's settings: writes them into pyproject.toml
pytest                            # the app's tests
```

With Flower's own command: `FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run .`; Flower takes two clients unless
it is told how many nodes there are. `parts.py` travels to devices in the app's bundle. In Python:
`fedpfl.run(model="parts:my_model", dataset="parts:my_data", method="fedper")`, or with the functions themselves.
"""

_IGNORED = "__pycache__/\n.venv/\n"


def files(name: str) -> dict[str, str]:
    """Return the files of a new app, by name."""
    # The settings of the example's method stand in the block only when its file is there.
    return {
        "pyproject.toml": _PYPROJECT.format(name=name, block=pyproject_block(SETTINGS)),
        "server_app.py": _APP.format(side="the server", name="server"),
        "client_app.py": _APP.format(side="a client", name="client"),
        "parts.py": _PARTS, "test_parts.py": _TEST, "README.md": _README.format(name=name), ".gitignore": _IGNORED,
    }  # fmt: skip


def make(place: Path) -> list[Path]:
    """Make a new app in a folder that is not there yet, or is empty; return its files."""
    name = place.absolute().name
    if not _NAME.fullmatch(name):
        raise ConfigError("name", name, "must be lower-case letters, digits and dashes, and begin with a letter")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError("name", str(place), "is there already; choose another name")
    try:
        place.mkdir(parents=True, exist_ok=True)
        for file, text in files(name).items():
            (place / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("name", str(place), f"cannot be written ({error.strerror})") from error
    return [place / file for file in files(name)]
