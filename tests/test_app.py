"""The app through Flower itself, as a user without the `fedpfl` command runs it: `flwr run .`."""

from __future__ import annotations

from pathlib import Path

import pytest
from flower_parts import Flower
from support import exported

from fedpfl.results.export import export_personal
from fedpfl.results.summary import outcome

# One thread, and little to do: what the actors get of a busy machine's cores is not for the suite to wait for.
FEW_STEPS = {"num-server-rounds": 2, "local-epochs": 2, "feddecomp-lora-epochs": 1, "batch-size": 32, "threads": 1}


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes to stop in /proc")
def test_flwr_run_trains_the_default_to_the_same_bits_and_ends_finished_completed(tmp_path):
    with Flower() as flower:
        folder = flower.run(flower.app(), tmp_path / "runs", tmp_path / "state", FEW_STEPS)
    assert outcome(folder)["rounds"] == 2
    # Flower's default is two virtual nodes, and num-clients = 0 takes as many as there are.
    assert folder.task()["clients"] == 2
    whole = exported(tmp_path / "whole", 2, FEW_STEPS)
    export_personal(folder)
    for name in ("global.safetensors", *(f"personal/client-{client:05d}.safetensors" for client in range(2))):
        assert (folder.path / name).read_bytes() == (whole.path / name).read_bytes(), name
