"""The suite's own machinery: what ``conftest.py`` promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FILE = """
import os, pytest

@pytest.fixture(scope="module")
def run():
    with open("made", "a") as file:
        file.write("x")

@pytest.mark.parametrize("number", range(8))
def test_it(run, number):
    pass
"""


def test_what_a_file_makes_once_is_made_once_by_all_processes(tmp_path):
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(FILE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "made").read_text() == "xx"
