"""Programs outside the package: what they import is still there, and two that no page runs work."""

from __future__ import annotations

import ast
import json
import os
import runpy
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import pytest
from processes import using

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("benchmarks", "docs/gallery", "docs/tools", "experiments/*", "experiments/*/analyses")
    for path in ROOT.glob(f"{folder}/*.py")
)


def test_what_a_program_imports_exists():
    for program in PROGRAMS:
        for node in ast.walk(ast.parse((ROOT / program).read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.split(".")[0] in {"fedpfl", "starlette"}
            ):
                module = import_module(node.module)
                missing = [name.name for name in node.names if not hasattr(module, name.name)]
                # A name may be a module that nobody has imported yet.
                assert [name for name in missing if not _is_module(f"{node.module}.{name}")] == [], program


def _is_module(name):
    try:
        import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def test_the_readme_s_picture_can_be_drawn_from_the_records(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "tools"))
    picture = import_module("picture")
    monkeypatch.setattr(picture, "PICTURE", tmp_path / "methods.png")
    picture.main()
    assert (tmp_path / "methods.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_the_gpu_benchmark_runs_in_small_on_a_cpu(tmp_path):
    words = ["benchmarks/gpu.py", "--device", "cpu", "--small", "--record", str(tmp_path / "gpu.json")]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "gpu.json").read_text())
    # Only other simulators, which are not installed here, are left out.
    assert {name.rpartition(" | ")[2] for name in record["values"]["errors"]} <= {"pfl-research", "fluke"}
    parts = record["values"]["parts"]
    rounds = [part["median"] for name, part in parts.items() if "fedpfl, one batch" in name]
    assert len(rounds) >= 3 and all(seconds > 0 for seconds in rounds)
    methods = [part for name, part in parts.items() if name.startswith("method | ")]
    assert methods and all(part["batch"]["distance"] < 1e-2 for part in methods)
    assert all(len(part["accuracy of seeds"]) == 3 and part["accuracy of seeds"][0] == part["cpu"]["accuracy"]
               for part in methods)  # fmt: skip


def test_the_benchmark_of_methods_runs_in_small(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    where = tmp_path / "a.json"
    options = {"dataset": "digits", "model": "mlp", "clients": 20, "rounds": 1, "epochs": 1, "json": where}
    words = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    names = ("fedavg", "fedproto", "fedfomo")  # which need nothing, what the server makes, and other clients' models
    monkeypatch.setattr(sys, "argv", ["methods.py", *words, *(f"--method={name}" for name in names)])
    runpy.run_path(str(ROOT / "benchmarks" / "methods.py"), run_name="__main__")
    values = json.loads(where.read_text())
    assert [*values] == [*names] and all(of["of FedAvg's round"][0] > 0 for of in values.values())
    printed = capsys.readouterr().out
    assert all(f"| {name} | " in printed for name in names)


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes to stop in /proc")
def test_the_benchmark_of_supernodes_runs_in_small_and_leaves_nothing(tmp_path):
    where, kind = tmp_path / "supernodes.json", "SuperNodes of `fedpfl node`, fedpfl"
    words = ["benchmarks/supernodes.py", "--rounds", "1", "--repeats", "1", "--kind", kind, "--json", str(where)]
    with tempfile.TemporaryDirectory(prefix="fedpfl-", dir="/tmp") as name:  # sockets lie below it
        environment = {**os.environ, "TMPDIR": name}
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert list(Path(name).glob("fedpfl-*")) == [] and using(Path(name)) == {}  # torch leaves its cache
    record = json.loads(where.read_text())
    assert record.keys() == {kind} and record[kind]["s (median)"][0] > 0


@pytest.fixture
def long_life(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("long_life")


def test_the_faults_of_a_long_life_follow_from_the_seed_and_are_of_every_kind(long_life):
    faults = [long_life.fault_of(1, number) for number in range(1, 301)]
    assert faults == [long_life.fault_of(1, number) for number in range(1, 301)]
    assert {fault.kind for fault in faults if fault} == set(long_life.FAULTS)
    assert 90 <= sum(fault is not None for fault in faults) <= 150


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, []),
        ({"same_bits": False}, ["run 19 (fedavg, no fault) has other bits than a simulation"]),
        ({"same_bits": False, "failed": {"2": {"1": "lost"}}}, []),
        ({"threads": 1}, ["worker: 17 threads grew to 27 in 15 runs"]),
        ({"files": 1}, ["worker: 17 open files grew to 27 in 15 runs"]),
        ({"memory": 0.5}, ["worker: its memory grows by 0.50 MiB a run, from 102.5 to 109.5"]),
        ({"memory": 0.3}, []),
        ({"left": 1}, ["files of bench: 15 grew to 29 in 15 runs"]),
    ],
)
def test_a_long_life_s_growth_is_found(long_life, change, told):
    outcomes = []
    for number in range(20):
        memory, threads, opened, left = (number * change.get(at, 0) for at in ("memory", "threads", "files", "left"))
        sizes = {"worker": (7, 100.0 + memory, 10 + threads, 10 + opened)}
        files = {"bench": (10 + left, 1.0), "shared memory": (0, 0.0)}
        outcomes.append(long_life.Outcome(number, "fedavg", "", 20.0, {}, True, sizes, files))
    outcomes[-1].same_bits = change.get("same_bits", True)
    outcomes[-1].failed = change.get("failed", {})
    assert long_life.judge(outcomes) == told


def test_what_a_method_needs_once_is_no_growth(long_life):
    """A worker that is started late has its first run of a method late."""
    outcomes = []
    for number in range(40):
        sizes = {"worker": (7 + (number > 10), 700.0 if number <= 10 or number > 24 else 540.0, 10, 10)}
        method = "fedreg" if number in (2, 25, 30) else "fedavg"
        files = {"bench": (10, 1.0), "shared memory": (0, 0.0)}
        outcomes.append(long_life.Outcome(number, method, "", 20.0, {}, True, sizes, files))
    assert long_life.judge(outcomes) == []
