"""The app through Flower itself, as a user without the `fedpfl` command runs it: `flwr run .` of its bundle alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from flower_parts import Flower
from installed import environment
from support import exported

from fedpfl.results.export import export_personal
from fedpfl.results.round_line import in_words
from fedpfl.results.summary import outcome

# One thread, and little to do: what the actors get of a busy machine's cores is not for the suite to wait for.
FEW_STEPS = {"num-server-rounds": 2, "local-epochs": 2, "feddecomp-lora-epochs": 1, "batch-size": 32, "threads": 1}


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes to stop in /proc")
def test_flwr_run_of_the_bundle_alone_trains_to_the_same_bits_and_logs_rounds(tmp_path):
    commands = environment(tmp_path / "venv")  # without fedpfl: all of it has to come from the bundle
    elsewhere = subprocess.run([commands / "python", "-c", "import fedpfl"], cwd=tmp_path, capture_output=True)
    assert b"No module named 'fedpfl'" in elsewhere.stderr
    with Flower(commands) as flower:
        app = flower.bundle()
        held = [path for path in app.rglob("*") if path.is_file()]
        assert {path.suffix for path in held} == {".py", ".toml", ".md", ""}
        assert len(held) <= 1000 and max(path.stat().st_size for path in held) < 1_000_000  # the hub's limits
        folder = flower.run(app, tmp_path / "runs", tmp_path / "state", FEW_STEPS)
        log = (flower.folder / f"{folder.path.name}.log").read_text()
    assert outcome(folder)["rounds"] == 2
    for line in folder.metrics():
        assert f"fedpfl: round {line['round']} of 2: {in_words(line)}" in log
    # Flower's default is two virtual nodes, and num-clients = 0 takes as many as there are.
    assert folder.task()["clients"] == 2
    whole = exported(tmp_path / "whole", 2, FEW_STEPS)
    export_personal(folder)
    for name in ("global.safetensors", *(f"personal/client-{client:05d}.safetensors" for client in range(2))):
        assert (folder.path / name).read_bytes() == (whole.path / name).read_bytes(), name
