"""The script of roles and a decoder that has read other plays: tests follow training, and the model takes the data."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedpfl.models import build

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "comparisons" / "plays.py"


def test_roles_and_a_decoder_that_has_read_other_plays(tmp_path: Path) -> None:
    for folder in ("first", "again"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [str(SCRIPT), "--steps", "3", "--seed", "2", "--write", str(tmp_path / folder)])
            runpy.run_path(str(SCRIPT), run_name="__main__")
    with np.load(tmp_path / "first" / "roles.npz") as file:
        data = dict(file)
    assert set(data["client_train"]) == set(data["client_test"]) and len(set(data["client_train"])) == 3
    assert np.array_equal(data["x_train"], data["y_train"]) and data["x_test"].shape[1] == 80
    model = build("decoder", (80,), 100, int(data["vocabulary"]))
    weights = load_file(tmp_path / "first" / "decoder.safetensors")
    model.load_state_dict(weights)
    again = load_file(tmp_path / "again" / "decoder.safetensors")
    assert all(torch.equal(array, again[name]) for name, array in weights.items())
