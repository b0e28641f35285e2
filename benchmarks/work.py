"""What loop and peers have in common: the work, the models, what they say. Of fedpfl it only has ResNet-8."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Samples = tuple[Tensor, Tensor]


class Work(NamedTuple):
    """The work.

    Attributes
    ----------
    train, test : list of (Tensor, Tensor)
        Each client's images (−1 … 1, channels_last) and labels.
    settings : dict
        ``model`` (``cnn`` or ``mlp``), ``chosen`` clients of a round, ``rounds``, ``epochs``, ``batch-size``,
        ``learning-rate``, ``seed``, and of ``gpu.py`` ``device``.
    """

    train: list[Samples]
    test: list[Samples]
    settings: dict[str, Any]


def read(folder: Path) -> Work:
    """Read what ``peers.py`` or ``gpu.py`` has written; on a GPU products are in TF32, as fedpfl's."""
    settings = json.loads((folder / "work.json").read_text(encoding="utf-8"))
    if settings.get("device") == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    with np.load(folder / "work.npz") as arrays:
        return Work(_clients(arrays, "train"), _clients(arrays, "test"), settings)


def _clients(arrays: Any, part: str) -> list[Samples]:
    x = torch.from_numpy(arrays[f"x_{part}"]).permute(0, 3, 1, 2).to(torch.float32).div_(255).sub_(0.5).div_(0.5)
    y, sizes = torch.from_numpy(arrays[f"y_{part}"]), arrays[f"sizes_{part}"].tolist()
    # Clones: each client's samples lie in memory of their own, channels_last.
    return [
        (a.clone(memory_format=torch.preserve_format), b) for a, b in zip(x.split(sizes), y.split(sizes), strict=True)
    ]


def model(name: str) -> nn.Sequential:
    """Return the model with the tuning that fedpfl and the bare loop have: channels_last, ReLU behind max-pooling."""
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
        )
    if name == "resnet8":  # the same module, so that all compute the same
        from fedpfl.models.builder import build

        return nn.Sequential(build(name, (3, 32, 32), 10)).to(memory_format=torch.channels_last)
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip


def batches(samples: Samples, size: int = 200) -> Any:
    """Cut test samples into batches."""
    return zip(samples[0].split(size), samples[1].split(size), strict=True)


def say(train: float, test: float, steps: int, accuracy: float) -> None:
    """Tell of a finished round: seconds of training and of tests, SGD steps, accuracy on all test samples."""
    line = {"train": train, "test": test, "steps": steps, "accuracy": accuracy}
    print("round", json.dumps(line), file=sys.__stdout__, flush=True)
