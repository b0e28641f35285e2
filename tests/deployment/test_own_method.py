"""An app that brings its method, model and data: grids and Flower's simulation give the bits of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deployment_parts import OWN_PARTS, SECONDS, toml
from flower_parts import Flower
from support import exported

from fedpfl.core import user_code
from fedpfl.results.export import export_personal

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.slow,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc"),
]

SETTINGS = {**OWN_PARTS, "num-clients": 2}
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


COMMON = {key: value for key, value in SETTINGS.items() if key not in ("method", "double-factor")}
SEVERAL = {
    "compare": ["compare", "mine:Double", "fedavg", "--seeds", "1", "-c", f"{toml(COMMON, ' ')} double-factor=3.0"],
    "sweep": ["sweep", "--grid", "double-factor=1.0,3.0", "-c", f"{toml(COMMON, ' ')} method='mine:Double'"],
    "experiment": ["experiment", "run", "../own.toml"],
}


@pytest.fixture
def expected(home, app):
    """The arrays of a run in this process."""
    return arrays(exported(home.path / "expected", 2, {**SETTINGS, "seed": 1}).path)


def done(process):
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err


def arrays(folder):
    return [(folder / name).read_bytes() for name in FILES]


# In the suite stands a sweep with a method of the user's in tests/api/test_own_methods.py.
@pytest.mark.parametrize("command", SEVERAL)
def test_a_grid_has_the_bits_of_a_run(home, expected, command):
    (home.path / "own.toml").write_text(EXPERIMENT.format(toml(COMMON)))
    done(home.start(*SEVERAL[command], "--output-dir", str(home.path / "out")))
    configs = {path.parent: path.read_text() for path in (home.path / "out" / "runs").glob("*/config.toml")}
    (folder,) = (path for path, text in configs.items() if "double-factor = 3.0" in text)
    assert arrays(folder) == expected


def test_flowers_simulation_gives_the_bits_of_a_run(app, expected):
    with Flower() as flower:
        places = flower.folder / "runs", flower.folder / "state"
        shutil.copytree(app, flower.folder / "app")
        quoted = {key: f'"{value}"' if isinstance(value, str) else value for key, value in SETTINGS.items()}
        folder = flower.run(flower.folder / "app", *places, {**quoted, "seed": 1})
        user_code.set_folder(flower.folder / "app")
        export_personal(folder)
        assert arrays(folder.path) == expected
