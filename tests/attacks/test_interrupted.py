"""Kills, full disks and Ctrl-C in every command that writes, at moments drawn from a seed; then the same command again.

A moment is a change of a file: made, renamed, removed. `make test-all` draws several of each command and fault.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from fault_parts import FULL, INTERRUPT, KILL, TWICE, Commands
from processes import marked
from waiting import wait_until

from fedpfl.core.checksummed_files import read_arrays
from fedpfl.setup.reference import BEGIN, END

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")]

DATA = 'dataset="digits" model="mlp" local-epochs=1 partitioner="dirichlet-client" train-samples=64 test-samples=32'
TRAIN = f'{DATA} method="fedper" num-server-rounds=2 num-clients=4 learning-rate=0.3 validation-fraction=0.2'
EXPERIMENT = """\
title = "A table"
paper = "Somebody, Something, 2024"
base = "base.toml"
metrics = ["personalised-best"]
seeds = 1
remarks = "All of it."
rows."FedAvg" = { method = "fedavg" }
rows."Local" = { method = "local" }
columns."A" = { dirichlet-alpha = 0.1 }
paper-values.missing = "It is made up."
scale.small.remarks = "Small."
scale.smoke.remarks = "Small."
"""
COMMANDS = {
    "run": ["run", "-q", "--workers", "2", "-c", f'{TRAIN} run-name="new"'],
    "compare": ["compare", "fedavg", "local", "--seeds", "1", "-q", "--name", "it", "-c", f"num-clients=2 {DATA}"],
    "sweep": ["sweep", "-q", "--grid", "learning-rate=0.1,0.2", "-c", f"num-clients=2 num-server-rounds=1 {DATA}"],
    "experiment run": ["experiment", "run", "table.toml", "-q"],
    "personalise": ["personalise", "held", "--workers", "1"],
    "export": ["export", "one"],
    "export best": ["export", "one/best"],
    "report": ["report", "one", "-o", "page.html"],
    "clean": ["clean", "one", "--remove"],
    "partition": ["partition", "-c", 'dataset="digits" num-clients=2', "--export", "parts", "--output", "chart.svg"],
    "config --update": ["config", "--update"],
}
# Of a new run, what is done again is what its own message says.
RESUME = ["run", "-q", "--resume", "new"]
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    with Commands(tmp_path_factory.mktemp("commands") / "home") as commands:
        yield commands


@pytest.fixture(scope="module")
def template(commands, tmp_path_factory):
    """Two finished runs and some files; a copy has to lie at the same place, which the runs name."""
    place = tmp_path_factory.mktemp("template")
    work = place / "work"
    work.mkdir()
    (work / "table.toml").write_text(EXPERIMENT)
    (work / "base.toml").write_text('dataset = "digits"\nnum-clients = 2\nmodel = "mlp"\nnum-server-rounds = 1\n')
    (work / "pyproject.toml").write_text(f'[project]\nname = "app"\n\n{BEGIN}\n{END}\n')
    for name in ("page.html", "chart.svg"):
        (work / name).write_text("theirs")
    for name, more in (("one", ""), ("held", "new-clients=0.3")):
        code, _, err, _ = commands(["run", "-q", "--workers", "1", "-c", f'{TRAIN} run-name="{name}" {more}'], work)
        assert not code, err
    work.rename(place / "kept")
    return place


def fresh(template: Path) -> Path:
    """Return the folder as it was before any command."""
    shutil.rmtree(template / "work", ignore_errors=True)
    shutil.copytree(template / "kept", template / "work")
    return template / "work"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def half_written(folder: Path) -> list[str]:
    """Return the files that are neither whole nor recognisably unfinished."""
    errors = []
    for path in folder.rglob("*"):
        try:
            if path.suffix == ".safetensors":
                read_arrays(path)
            elif path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".toml":
                tomllib.loads(path.read_text())
            elif path.suffix in (".html", ".svg") and path.read_text() != "theirs":
                assert path.read_text().rstrip().endswith(f"</{path.suffix[1:]}>")
        except (ValueError, AssertionError) as error:
            errors.append(f"{path.relative_to(folder)}: {error}")
    return errors


def unfinished(folder: Path) -> list[str]:
    """Return what a command writes on its way and must not leave."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return [name for name in names if name.endswith((".part", ".removed", "/.best", "/.best-before"))]


def repeatable(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the arrays of all files, without the random part of their folders' names."""
    same = (name for name in files if name.endswith(".safetensors"))
    return {re.sub(r"-[0-9a-f]{8}/", "/", name): files[name] for name in same}


def moments(command: str, kind: str, changes: int, count: int) -> list[int]:
    return sorted(random.Random(f"{command} {kind}").sample(range(1, changes + 1), min(count, changes)))


def check(commands: Commands, template: Path, command: str, kind: str, count: int) -> None:
    arguments = COMMANDS[command]
    work = fresh(template)
    code, _, err, changes = commands(arguments, work)
    assert not code and changes, err
    undisturbed, before = contents(work), contents(template / "kept")
    for moment in moments(command, kind, changes, count):
        work = fresh(template)
        code, _, err, _ = commands(arguments, work, kind, moment)
        told = f"{command}, {kind} at change {moment} of {changes}: {err}"
        mark = f"FEDPFL_TEST_MARK={commands.home}"
        wait_until(lambda mark=mark: not marked(mark).keys() - {commands.program.pid}, hint=told)
        # A client that could not store its arrays has failed, in a line of its own.
        beside = ("note: ", "wrote ", "report: ", "round ")
        lines = [line for line in err.splitlines() if line and not line.startswith(beside)]
        assert "Traceback" not in err and "Exception" not in err, told
        if kind == KILL:
            assert code == -9, told
        elif kind == FULL:  # what is only removed or renamed needs no room
            assert (code in (1, 2) and lines[-1].startswith("error: ")) or code == 0, told
        else:
            assert code == 130 and lines[-1].startswith("interrupted"), told
        assert len(lines) <= 1 or kind == KILL or (command in ("compare", "sweep", "experiment run")), told
        assert not half_written(work), told
        assert command == "clean" or not before.keys() - contents(work).keys(), told
        if kind in (FULL, INTERRUPT):
            assert not unfinished(work), told
        assert not [*(commands.home / "tmp").glob("*.part"), *SHARED_MEMORY.glob("*fedpfl*")], told

        code, _, err, _ = commands(arguments, work)
        if code and command == "run":
            (line,) = err.splitlines()
            assert "a run of this name is in" in line, told
            again = ["clean", "new", "--remove"] if "fedpfl clean new --remove" in line else RESUME
            code, _, err, _ = commands(again, work)
            if again != RESUME:
                assert not code, err
                code, _, err, _ = commands(arguments, work)
        elif command == "clean" and "there is no such run" in err:
            code = 0
        assert not code, f"{told}; then {err}"
        assert not unfinished(work), told
        assert repeatable(contents(work)) == repeatable(undisturbed), told


FAULTS = (KILL, FULL, INTERRUPT, TWICE)


# Each fault once, in another command.
@pytest.mark.parametrize(
    ("command", "kind"), [("run", KILL), ("export best", FULL), ("clean", INTERRUPT), ("partition", TWICE)]
)
def test_a_fault_in_a_command_loses_nothing_and_the_same_command_goes_on(commands, template, command, kind):
    check(commands, template, command, kind, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_faults_at_many_moments_lose_nothing(commands, template, command, kind):
    check(commands, template, command, kind, 5)
