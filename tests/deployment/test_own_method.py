"""An app that brings its method, model and data: every way to start a run gives the same bits."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deployment_parts import SECONDS
from flower_parts import Flower
from support import DOUBLE

from fedpfl.options import own_code
from fedpfl.results.export import export_personal

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


@pytest.fixture
def app(home):
    """The app of `fedpfl new` in the working folder, with the method in a separate file."""
    app = home.path / "work"
    app.rmdir()
    command = [sys.executable, "-c", "from fedpfl.cli import main; main()", "new", "work"]
    subprocess.run(command, cwd=home.path, env=home.environment, check=True, capture_output=True)
    (app / "mine.py").write_text(DOUBLE + PERSONAL_HEAD)
    settings = (app / "pyproject.toml").read_text()
    assert 'method = "parts:MyMethod"' in settings
    (app / "pyproject.toml").write_text(settings.replace('method = "parts:MyMethod"', 'method = "mine:Double"'))
    done(home, "config", "--update")
    assert "double-factor = 2.0" in (app / "pyproject.toml").read_text()
    yield app
    own_code.set_folder(None)


def done(home, *arguments):
    process = home.start(*arguments)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err


def arrays(folder):
    return [(folder / name).read_bytes() for name in FILES]


def test_the_bits_are_the_same(home, app):
    given = toml(SETTINGS, " ")
    done(home, "run", "-c", f"{given} seed=1 run-name='run'")
    expected = arrays(home.runs / "run")
    common = {key: value for key, value in SETTINGS.items() if key not in ("method", "double-factor")}
    several = {
        "compare": ["compare", "mine:Double", "fedavg", "--seeds", "1", "-c", f"{toml(common, ' ')} double-factor=3.0"],
        "sweep": ["sweep", "--grid", "double-factor=1.0,3.0", "-c", f"{toml(common, ' ')} method='mine:Double'"],
        "experiment": ["experiment", "run", "../own.toml"],
    }
    (home.path / "own.toml").write_text(EXPERIMENT.format(toml(common)))
    for name, arguments in several.items():
        done(home, *arguments, "--output-dir", str(home.path / name))
        configs = {path.parent: path.read_text() for path in (home.path / name / "runs").glob("*/config.toml")}
        (folder,) = (path for path, text in configs.items() if "double-factor = 3.0" in text)
        assert arrays(folder) == expected, name
    done(home, "up", "--num-supernodes", "2", "--keep-log", "-c", f"{given} seed=1 run-name='up'")
    assert arrays(home.runs / "up") == expected
    log = (home.runs / "up" / "flower.log").read_text()  # a worker knows these files from the bundle alone
    assert "worker.sock is available" in log and "this process handles the request" not in log
    with Flower() as flower:
        places = flower.folder / "runs", flower.folder / "state"
        shutil.copytree(app, flower.folder / "app")
        quoted = {key: f'"{value}"' if isinstance(value, str) else value for key, value in SETTINGS.items()}
        folder = flower.run(flower.folder / "app", *places, {**quoted, "seed": 1})
        own_code.set_folder(flower.folder / "app")
        export_personal(folder)
        assert arrays(folder.path) == expected
