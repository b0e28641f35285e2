"""An app that brings its method, model and data: every way to start a run gives the same bits."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from deployment_parts import SECONDS, wait_for
from flower_parts import Flower
from support import DOUBLE

from fedpfl.bench.credentials import prepare
from fedpfl.bench.superlink import free_port
from fedpfl.core import own_code
from fedpfl.launch.project import make
from fedpfl.results.export import export_personal
from fedpfl.setup import reference
from fedpfl.setup.all_settings import know_method

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc"),
]

# The app's own model and data set, and a method with a personal head in a file beside them.
SETTINGS = {
    "model": "parts:my_model", "dataset": "parts:my_data", "num-clients": 2, "num-server-rounds": 2, "local-epochs": 1,
    "batch-size": 32, "threads": 1, "method": "mine:Double", "double-factor": 3.0,
}  # fmt: skip
PERSONAL_HEAD = """
    def is_shared(self, name, model):
        return not name.startswith("head.")
"""
FILES = ["global.safetensors", *(f"personal/client-{client:05d}.safetensors" for client in range(2))]
EXPERIMENT = """
title = "Mine"
paper = "Nobody, Nothing, 2024"
metrics = ["personalised-last"]
seeds = 1
[settings]
{}
[rows]
"Mine" = {{ method = "mine:Double", double-factor = 3.0 }}
[columns]
"own" = {{}}
[scale.smoke]
remarks = "All."
[scale.small]
remarks = "All."
[paper-values]
missing = "there is none"
"""


def toml(settings, between="\n"):
    return between.join(f"{key}={value!r}" for key, value in settings.items())


GIVEN = toml(SETTINGS, " ")
COMMON = {key: value for key, value in SETTINGS.items() if key not in ("method", "double-factor")}
SEVERAL = {
    "compare": ["compare", "mine:Double", "fedavg", "--seeds", "1", "-c", f"{toml(COMMON, ' ')} double-factor=3.0"],
    "sweep": ["sweep", "--grid", "double-factor=1.0,3.0", "-c", f"{toml(COMMON, ' ')} method='mine:Double'"],
    "experiment": ["experiment", "run", "../own.toml"],
}
THOROUGH = pytest.mark.thorough
REFUSED = "Failed to activate SuperNode."


@pytest.fixture
def app(home):
    """The app of `fedpfl new` in the working folder, with the method in a separate file."""
    app = home.path / "work"
    make(app)
    (app / "mine.py").write_text(DOUBLE + PERSONAL_HEAD)
    settings = (app / "pyproject.toml").read_text()
    assert 'method = "parts:MyMethod"' in settings
    (app / "pyproject.toml").write_text(settings.replace('method = "parts:MyMethod"', 'method = "mine:Double"'))
    own_code.set_folder(app)
    know_method({"method": "mine:Double"})
    reference.update(app)
    assert "double-factor = 2.0" in (app / "pyproject.toml").read_text()
    yield app
    own_code.set_folder(None)


@pytest.fixture
def expected(home, app):
    """The arrays of `fedpfl run`."""
    done(home.start("run", "-c", f"{GIVEN} seed=1 run-name='run'"))
    return arrays(home.runs / "run")


def done(process):
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err


def arrays(folder):
    return [(folder / name).read_bytes() for name in FILES]


@pytest.mark.parametrize("command", [pytest.param(name, marks=THOROUGH if name != "sweep" else ()) for name in SEVERAL])
def test_a_grid_has_the_bits_of_a_run(home, expected, command):
    (home.path / "own.toml").write_text(EXPERIMENT.format(toml(COMMON)))
    done(home.start(*SEVERAL[command], "--output-dir", str(home.path / "out")))
    configs = {path.parent: path.read_text() for path in (home.path / "out" / "runs").glob("*/config.toml")}
    (folder,) = (path for path, text in configs.items() if "double-factor = 3.0" in text)
    assert arrays(folder) == expected


def test_devices_that_have_the_method_from_the_bundle_give_the_bits_of_a_run(home, expected):
    process = home.start("up", "--num-supernodes", "2", "--keep-log", "-c", f"{GIVEN} seed=1 run-name='up'")
    intruder_is_refused(home, process)
    done(process)
    assert arrays(home.runs / "up") == expected
    log = (home.runs / "up" / "flower.log").read_text()  # a worker knows these files from the bundle alone
    assert "worker.sock is available" in log and "this process handles the request" not in log


def intruder_is_refused(home, process):
    """Start a SuperNode like one of the testbed's, but with a key that the SuperLink does not know."""
    wait_for(lambda: home.find("flower-supernode", "partition-id=1"), process)
    about = Path(f"/proc/{min(home.find('flower-supernode', 'partition-id=1'))}")
    command, environment = ((about / name).read_text().split("\0")[:-1] for name in ("cmdline", "environ"))
    command[command.index("--auth-supernode-private-key") + 1] = str(prepare(home.path / "own", 1).node_keys[0])
    command[command.index("--port") + 1] = str(free_port())
    environment = dict(line.split("=", 1) for line in environment) | {"FLWR_HOME": str(home.path / "own" / "flwr")}
    log = home.path / "intruder.log"
    with log.open("wb") as out:
        intruder = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        assert intruder.wait(SECONDS) != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(intruder.pid, signal.SIGKILL)  # its SuperExec
    assert REFUSED in log.read_text()


@pytest.mark.thorough
def test_flowers_simulation_gives_the_bits_of_a_run(app, expected):
    with Flower() as flower:
        places = flower.folder / "runs", flower.folder / "state"
        shutil.copytree(app, flower.folder / "app")
        quoted = {key: f'"{value}"' if isinstance(value, str) else value for key, value in SETTINGS.items()}
        folder = flower.run(flower.folder / "app", *places, {**quoted, "seed": 1})
        own_code.set_folder(flower.folder / "app")
        export_personal(folder)
        assert arrays(folder.path) == expected
