"""The README, and code that pages show: it runs, and its commands exist with these options."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from fedpfl.cli import app

ROOT = Path(__file__).parents[2]
SHOWN = [
    "README.md",
    "docs/index.md",
    "docs/gpu.md",
    "docs/cluster.md",
    *(f"docs/tutorial/{path.name}" for path in sorted((ROOT / "docs/tutorial").glob("*.md"))),
]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", ["README.md", "docs/one-round.md"])
def test_the_code_of_a_page_runs(page, tmp_path):
    (code,) = blocks(page, "python")
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d\.\d", done.stdout)


@pytest.mark.parametrize("page", SHOWN)
def test_the_commands_of_a_page_exist_with_these_options(page):
    commands = get_command(app).commands
    for line in "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        name, *words = shlex.split(line, comments=True) or [""]
        if name == "fedpfl":
            commands[words[0]].make_context(words[0], words[1:])
