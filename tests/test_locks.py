"""The locks of a server and of development: all that is needed, each file with hashes, and no index's address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
# By lock: the extras that it covers, and packages besides.
LOCKS = {
    "deploy/requirements-server.txt": (["mqtt"], []),
    "requirements-dev.txt": (["dev"], ["axe-playwright-python", "uv"]),
}


def pins(lock):
    """Return the requirements of a lock; every line must have hashes."""
    text = re.sub(r"#.*", "", (ROOT / lock).read_text()).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    matches = [re.fullmatch(r"(.*?)((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line) for line in lines]
    assert [line for line, match in zip(lines, matches, strict=True) if match is None] == []
    return [Requirement(match[1].strip()) for match in matches]


def needed(extras):
    """Yield what the project and these extras ask for, also through extras of extras."""
    for text in [*PROJECT["project"]["dependencies"], *(text for extra in extras for text in EXTRAS[extra])]:
        wanted = Requirement(text)
        if wanted.name == "fedpfl":
            yield from needed(sorted(wanted.extras))
        else:
            yield wanted


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_what_the_project_asks_for(lock, python, machine):
    environment = {
        "python_version": python, "python_full_version": f"{python}.9", "platform_machine": machine,
        "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
    }  # fmt: skip
    there = [pin for pin in pins(lock) if pin.marker is None or pin.marker.evaluate(environment)]
    versions = {pin.name: str(pin.specifier) for pin in there}
    assert len(versions) == len(there)
    extras, more = LOCKS[lock]
    for wanted in [*needed(extras), *map(Requirement, [*more, *PROJECT["build-system"]["requires"]])]:
        assert versions[wanted.name].startswith("=="), wanted
        assert wanted.specifier.contains(versions[wanted.name].removeprefix("==")), wanted


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index(lock):
    assert not re.search(r"https?://|file:|^ *-(?!-hash)", (ROOT / lock).read_text(), re.MULTILINE)


def test_boards_have_the_server_s_flower():
    locks = [(ROOT / path).read_text() for path in ("deploy/requirements-server.txt", "jetson/requirements-nano.txt")]
    server, board = (re.findall(r"^flwr==\S+", lock, re.MULTILINE) for lock in locks)
    assert server == board and len(board) == 1


def test_the_playbook_and_the_page_install_packages_by_the_lock_alone():
    tasks = (ROOT / "deploy/ansible/roles/superlink/tasks/install.yml").read_text()
    commands = re.findall(r"superlink_pip \+ \[[^\n]*", tasks)
    commands += re.findall(r"\S+/pip install [^\n]*", (ROOT / "deploy" / "systemd" / "README.md").read_text())
    assert len(commands) == 4
    for command in commands:
        assert "--require-hashes" in command or ("--no-deps" in command and "--no-index" in command), command


def test_each_accepted_vulnerability_names_a_lock_and_a_reason():
    audited = re.search(r"^LOCKS := \$\(DEV_LOCK\) (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert {"requirements-dev.txt", *audited} == {*LOCKS, "jetson/requirements-nano.txt"}
    for line in (ROOT / "deploy" / "accepted-vulnerabilities.txt").read_text().splitlines():
        if not line.startswith("#"):
            lock, number, reason = line.split(" ", 2)
            assert (ROOT / lock).is_file() and re.fullmatch(r"(CVE|GHSA|PYSEC)-[\w-]+", number) and reason, line
