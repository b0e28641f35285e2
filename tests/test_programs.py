"""Programs outside the package: what they import is still there, and those that measure run in small."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from in_process import call_program
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
    arguments = ["benchmarks/gpu.py", "--device", "cpu", "--small", "--record", str(tmp_path / "gpu.json")]
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "gpu.json").read_text())
    # Only other simulators, which are not installed here, are left out.
    peers = {"pfl-research", "pfl-research, 4 processes", "fluke"}
    assert {name.rpartition(" | ")[2] for name in record["values"]["errors"]} <= peers
    parts = record["values"]["parts"]
    rounds = [part["median"] for name, part in parts.items() if "fedpfl, one batch" in name]
    assert len(rounds) >= 3 and all(seconds > 0 for seconds in rounds)
    methods = [part for name, part in parts.items() if name.startswith("method | ")]
    assert methods and all(part["batch"]["distance"] < 1e-2 for part in methods)
    assert all(len(part["accuracy of seeds"]) == 3 and part["accuracy of seeds"][0] == part["cpu"]["accuracy"]
               for part in methods)  # fmt: skip


def test_a_folder_of_papers_runs_keeps_numbers_and_the_interrupted_run_while_it_is_small():
    slim = runpy.run_path(str(ROOT / "experiments" / "comparisons" / "paper_size.py"))["slim"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        numbers = ["config.toml", "task.json", "metrics.jsonl", "summary.md"]
        files = [f"runs/done/{file}" for file in (*numbers, "global.safetensors", "best/client.safetensors")]
        for file in (*files, "runs/begun/config.toml", "state/key/0.safetensors"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(bytes(2**19))

        def left():
            return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}

        assert slim(folder, 3) == ""
        kept = {f"runs/done/{file}" for file in numbers}
        assert left() == {*kept, "runs/begun/config.toml", "state/key/0.safetensors"}
        assert slim(folder, 2) == "deleted: FOLDER had 3 MiB, --keep 2" and left() == kept


@pytest.mark.thorough
def test_papers_at_their_own_size_stop_with_the_budget_and_continue(tmp_path):
    program, folder = "experiments/comparisons/paper_size.py", tmp_path / "runs"
    arguments = [program, str(folder), "--device", "cpu", "--scale", "smoke", "--first", "2", "--seeds", "1"]
    labels = [f"feddecomp-table-1: {row}, CIFAR-10, α 0.5, seed 1" for row in ("FedAvg", "Local")]

    def call(budget):
        record = tmp_path / "record.json"
        more = ["--budget", str(budget), "--record", str(record)]
        done = subprocess.run([sys.executable, *arguments, *more], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(record.read_text())

    first = call(22)  # the second run has not begun or is asked to stop
    assert labels[1] not in first["values"] and {*first["values"], *first["missing"]} == {*labels}
    assert set(first["missing"].values()) == {"the budget is spent"}
    second = call(600)
    assert list(second["values"]) == labels and second["missing"] == {}
    assert all(value["rounds"] == 4 and 0.3 < value["personalised-best"] <= 1 for value in second["values"].values())
    assert call(0)["values"] == second["values"]  # nothing runs again


def images(folder):
    """Write a few images of 28x28 pixels; return their file."""
    file, rng = folder / "images.npz", np.random.default_rng(0)
    np.savez(file, x=rng.integers(0, 256, (100, 28, 28, 1), dtype=np.uint8), y=np.arange(100) % 10)
    return file


@pytest.fixture
def benchmark(monkeypatch):
    """Return what runs a benchmark in this process and returns what it prints."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def run(name, arguments):
        printed, ended = call_program(ROOT / "benchmarks" / name, *arguments.split())
        assert not ended
        return printed

    return run


# The other of its two works differs in model and numbers alone.
def test_the_benchmark_of_simulators_runs_in_small_and_its_loop_ends_with_the_same_model(tmp_path, benchmark):
    small = "--work heavy --num-clients 5 --rounds 1 --repeats 1 --processes 1 --pfl= --fluke="
    printed = benchmark("peers.py", f"--data {images(tmp_path)} {small}")
    distances = re.findall(r"(?:fedpfl|rounding): ([^;\s]+)", printed)
    assert len(distances) == 2 and max(map(float, distances)) < 1e-5
    loop, ours = (line.split(" | ") for line in printed.splitlines() if line.startswith(("| straight", "| fedpfl")))
    assert loop[-1] == ours[-1], "the accuracy"


def test_the_benchmark_of_a_light_client_s_steps_runs_in_small(tmp_path):
    # In a process: it puts clocks into the package.
    arguments = f"benchmarks/light.py --data {images(tmp_path)} --num-clients 5 --rounds 1 --json {tmp_path}/light.json"
    subprocess.run([sys.executable, *arguments.split()], cwd=ROOT, check=True, capture_output=True)
    of_all = json.loads((tmp_path / "light.json").read_text())["all"]
    assert of_all["straight loop, µs"][0] > 0 and of_all["fedpfl, µs"][0] > 0


def test_the_benchmark_of_methods_runs_in_small(tmp_path, benchmark):
    names = ("fedavg", "fedproto", "fedfomo")  # which need nothing, what the server makes, and other clients' models
    small = f"--dataset digits --model mlp --clients 10 --rounds 1 --epochs 1 --json {tmp_path}/a.json"
    printed = benchmark("methods.py", f"{small} {' '.join(f'--method={name}' for name in names)}")
    values = json.loads((tmp_path / "a.json").read_text())
    assert [*values] == [*names] and all(of["of FedAvg's round"][0] > 0 for of in values.values())
    assert all(f"| {name} | " in printed for name in names)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.xdist_group("flower")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes to stop in /proc")
def test_the_benchmark_of_supernodes_runs_in_small_and_leaves_nothing(tmp_path):
    where, kind = tmp_path / "supernodes.json", "SuperNodes of `fedpfl node`, fedpfl"
    arguments = ["benchmarks/supernodes.py", "--rounds", "1", "--repeats", "1", "--kind", kind, "--json", str(where)]
    with tempfile.TemporaryDirectory(prefix="fedpfl-", dir="/tmp") as name:  # sockets lie below it
        environment = {**os.environ, "TMPDIR": name}
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert list(Path(name).glob("fedpfl-*")) == [] and using(Path(name)) == {}  # torch leaves its cache
    record = json.loads(where.read_text())
    assert record.keys() == {kind} and record[kind]["s (median)"][0] > 0
