"""docs/how-to/troubleshooting.md: the errors that it quotes are the errors that are printed."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import fedpfl

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
HEAD = ["size", "colour", "client", "label"]
ROWS = [[f"{number / 7:.2f}", number % 3, "ab"[number % 2], "yn"[number % 5 == 0]] for number in range(80)]


class NoHead(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.weighting = nn.Conv1d(1, classes, 1)

    def forward(self, x):
        return self.weighting(x.unsqueeze(1)).mean(2)


def no_head(input_shape, num_classes):
    return NoHead(num_classes)


def softmax(input_shape, num_classes):
    return nn.Sequential(nn.Linear(input_shape[0], num_classes), nn.Softmax(1))


def table(folder, rows):
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEAD, *rows])
    return path


@pytest.mark.parametrize(
    "quoted, first_row, settings",
    [
        ("there is no such setting; did you mean …?", {}, {"learning_rat": 0.1}),
        ("needs …, but the input is …; models that fit: mlp, …", {}, {"model": "small-cnn"}),
        ("column '…': is empty", {0: ""}, {}),
        ("column '…': … category-columns", {1: "red"}, {}),
        ("none of the … owners of the samples has min-samples", {}, {"min_samples": 1000}),
        ("this machine has no GPU that PyTorch can use", {}, {"device": "cuda"}),
        ("the method needs a head", {}, {"model": no_head, "method": "fedper"}),
        ("leave out the softmax at its end", {}, {"model": softmax}),
        ("the training diverged", {0: "1e30"}, {"learning_rate": 100.0}),
        ("the norm …, at most … is accepted", {}, {"update_norm_limit": 1e-6, "learning_rate": 0.5}),
    ],
)
def test_an_error_of_the_page_is_printed(quoted, first_row, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert f"`{quoted}`" in PAGE
    rows = [[first_row.get(place, cell) for place, cell in enumerate(row)] for row in ROWS]
    with pytest.raises(fedpfl.FedpflError) as raised:
        fedpfl.run(
            **{"dataset": "table", "data": str(table(tmp_path, rows)), "model": "mlp", **settings},
            num_server_rounds=2, local_epochs=1, workers=0, quiet=True, output_dir=str(tmp_path / "runs"),
            state_dir=str(tmp_path / "state"),
        )  # fmt: skip
    pattern = ".*".join(map(re.escape, quoted.split("…")))
    assert re.search(pattern, str(raised.value)), str(raised.value)
