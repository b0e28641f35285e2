"""The packages of a server: all that the project needs, each with hashes, and nothing else is installed there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")


def pins():
    """Return the requirements of the lock; every line must have hashes."""
    text = re.sub(r"#.*", "", (ROOT / "deploy" / "requirements-server.txt").read_text()).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    matches = [re.fullmatch(r"(.*?)((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line) for line in lines]
    assert [line for line, match in zip(lines, matches, strict=True) if match is None] == []
    return [Requirement(match[1].strip()) for match in matches]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_what_the_project_asks_for(python):
    environment = {"python_version": python, "python_full_version": f"{python}.1"}
    versions = {
        pin.name: str(pin.specifier) for pin in pins() if pin.marker is None or pin.marker.evaluate(environment)
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["mqtt"]
    for text in needed + project["build-system"]["requires"]:
        wanted = Requirement(text)
        assert versions[wanted.name].startswith("=="), text
        assert wanted.specifier.contains(versions[wanted.name].removeprefix("==")), text


def test_boards_have_the_server_s_flower():
    locks = [(ROOT / path).read_text() for path in ("deploy/requirements-server.txt", "jetson/requirements-nano.txt")]
    server, board = (re.findall(r"^flwr==\S+", lock, re.MULTILINE) for lock in locks)
    assert server == board and len(board) == 1


def test_the_playbook_and_the_page_install_packages_by_the_lock_alone():
    tasks = (ROOT / "deploy/ansible/roles/superlink/tasks/install.yml").read_text()
    commands = re.findall(r"superlink_pip \+ \[[^\n]*", tasks)
    commands += re.findall(r"\S+/pip install [^\n]*", (ROOT / "docs" / "deployment.md").read_text())
    assert len(commands) == 4
    for command in commands:
        assert "--require-hashes" in command or ("--no-deps" in command and "--no-index" in command), command
