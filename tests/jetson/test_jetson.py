"""What devices are installed with: the scripts, and the lock, which must hold all that a device imports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "jetson" / "requirements-nano.txt"
STEP = ROOT / "jetson" / "training_step.py"
SCRIPTS = sorted([*ROOT.glob("jetson/*.sh"), *ROOT.glob("tests/jetson/*.sh")])
# Of pyproject's dependencies, what only a server, a simulation or a report imports.
NOT_ON_DEVICES = {"matplotlib", "scikit-learn", "scipy", "tensorboard"}


def tool(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (apt-get install {name})")
    return path


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pins():
    """Return {name: (version, number of hashes)} of the lock."""
    text = re.sub(r"#.*", "", LOCK.read_text()).replace("\\\n", " ")
    versions = {}
    for line in filter(str.strip, text.splitlines()):
        match = re.fullmatch(r"([a-z0-9-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*", line)
        assert match, f"neither a pin nor hashes: {line}"
        versions[match[1]] = (match[2], match[3].count("--hash"))
    return versions


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_can_be_run(path):
    run("bash", "-n", path)
    assert os.access(path, os.X_OK)


def test_shellcheck_finds_nothing():
    run(tool("shellcheck"), "--external-sources", *SCRIPTS, ROOT / "tests" / "jetson" / "helpers.bash")


def test_install_and_uninstall_on_a_pretended_board():
    run(tool("bats"), ROOT / "tests" / "jetson")


def test_every_pin_of_the_lock_has_hashes():
    locked = pins()
    assert len(locked) > 20
    assert [name for name, (_, hashes) in locked.items() if not hashes] == []


def test_torch_is_the_one_that_runs_on_a_cortex_a57():
    assert pins()["torch"][0] == "2.5.1"


def test_the_lock_is_for_devices():
    kept_out = NOT_ON_DEVICES | {"ray", "pytest", "triton"}
    assert [name for name in pins() if name in kept_out or name.startswith("nvidia-")] == []


def test_the_lock_has_what_the_project_says_that_devices_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = pins()
    for text in [*project["dependencies"], *project["optional-dependencies"]["mqtt"]]:
        wanted = Requirement(text)
        if wanted.name not in NOT_ON_DEVICES:
            assert wanted.specifier.contains(locked[wanted.name][0]), text


def test_the_lock_was_made_from_its_input():
    locked = pins()
    for line in (ROOT / "jetson" / "requirements-nano.in").read_text().splitlines():
        if not line.startswith("#"):
            assert Requirement(line).specifier.contains(locked[Requirement(line).name][0]), line


# As on a device: what is installed here but not there cannot be imported.
ONLY_LOCKED = """
import importlib.metadata, re, runpy, sys

allowed = {"fedpfl", *sys.argv[2:]}
owners = importlib.metadata.packages_distributions()

class Missing:
    def find_spec(self, name, path=None, target=None):
        names = {re.sub("[-_.]+", "-", owner).lower() for owner in owners.get(name.partition(".")[0], ())}
        if names and not names & allowed:
            raise ModuleNotFoundError(f"{name} is not on devices", name=name)

sys.meta_path.insert(0, Missing())
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_a_device_trains_with_nothing_but_the_lock_and_to_the_expected_loss():
    output = run(sys.executable, "-c", ONLY_LOCKED, STEP, *pins(), env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert '"steps": 3' in output
