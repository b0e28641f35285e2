"""Try each method with each kind of data, loss and option, and record which combinations train.

    python docs/tools/support_matrix.py [--method NAME] --commit HASH

One round of four clients each. A cell is "" if the run ended well, else the line
with which it was refused. ``docs/reference/support.md`` shows the record ``figures/support``, which it writes.
A record takes new methods and keeps the others.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from run_records import RECORDS, machine, write
from torch import Tensor, nn

import fedpfl
from fedpfl.methods import methods
from fedpfl.methods.bases.adapters import AdapterMethod

CLIENTS = 4
SAMPLES = 40
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (CLIENTS, SAMPLES, 8, 8), dtype=np.uint8)
LABELS = RNG.permuted(np.tile(np.arange(SAMPLES) % 3, (CLIENTS, 1)), axis=1)
NUMBERS = RNG.normal(size=(CLIENTS, SAMPLES, 5)).astype(np.float32)
STEPS = RNG.normal(size=(CLIENTS, SAMPLES, 3, 32)).astype(np.float32)
TEXTS = fedpfl.Dataset.of(
    "texts",
    RNG.integers(1, 50, (CLIENTS * SAMPLES, 12)),
    LABELS.ravel(),
    client_train=np.repeat(np.arange(CLIENTS), SAMPLES),
    vocabulary=50,
)


class Pixels(nn.Module):
    """The smallest network with a class for each pixel."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(4, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits, clients × classes × height × width."""
        logits: Tensor = self.head(self.features(x))
        return logits


def dense(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Make a network of linear layers with 16 features."""
    size = int(np.prod(input_shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, num_classes))


def convolutions(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Make a network of convolutions with 16 features."""
    layers = nn.Conv2d(input_shape[0], 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(16, num_classes))


def clients(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the data of each client."""
    return list(zip(x, y, strict=True))


PICTURES = {"data": clients(IMAGES, LABELS), "model": "small-cnn"}
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "images": PICTURES,
    "tables": {"data": clients(NUMBERS, LABELS), "model": "mlp"},
    "series": {"data": clients(STEPS, LABELS), "model": "cnn-1d"},
    "texts": {"data": TEXTS, "model": "transformer"},
    "regression": {
        "data": clients(NUMBERS, NUMBERS.sum(2)),
        "model": "mlp",
        "loss": "mse",
    },
    "several labels": {
        "data": clients(NUMBERS, (NUMBERS[:, :, :3] > 0).astype(np.float32)),
        "model": "mlp",
        "loss": "multi-label",
    },
    "segmentation": {
        "data": clients(IMAGES, (IMAGES > 127).astype(np.int64)),
        "model": Pixels,
        "loss": "segmentation",
    },
    "adapters": {"data": clients(IMAGES, LABELS), "model": "small-vit", "trainable": "lora"},
    "different models": {**PICTURES, "model": dense, "client_models": {"0-1": dense, "2-3": convolutions}},
    "privacy": {**PICTURES, "dp_noise_multiplier": 0.1},
    "median": {**PICTURES, "robust_aggregation": "median"},
    "new clients": {**PICTURES, "new_clients": 0.25},
    "server's step": {**PICTURES, "server_optimizer": "momentum"},
}


def outcome(method: str, settings: Mapping[str, Any], folder: str) -> str:
    """Return "" if a round of the method ends well, else why not, in the words of the program."""
    fitting = dict(settings)
    if issubclass(methods()[method], AdapterMethod):
        fitting["trainable"] = "lora"
        if fitting["model"] == "small-cnn":  # it has no layers for adapters before its head
            fitting["model"] = "small-vit"
    try:
        fedpfl.run(
            method=method,
            workers=0,
            quiet=True,
            num_server_rounds=1,
            local_epochs=1,
            learning_rate=0.001,
            output_dir=folder,
            state_dir=f"{folder}/state",
            **fitting,
        )
    except fedpfl.FedpflError as error:
        return " ".join(str(error).split())
    return ""


def main() -> None:
    """Try what is asked for, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", action="append", help="only this one; repeatable")
    parser.add_argument("--commit", required=True, help="of the code that is tried")
    options = parser.parse_args()
    path = RECORDS / "figures" / "support.json"
    values = json.loads(path.read_text(encoding="utf-8"))["values"] if path.exists() else {}
    for method in options.method or methods():
        with tempfile.TemporaryDirectory() as folder:
            values[method] = {name: outcome(method, settings, folder) for name, settings in COLUMNS.items()}
        print(method, {name: why for name, why in values[method].items() if why}, flush=True)
    command = "python docs/tools/support_matrix.py"
    write("figures/support", {"command": command, "commit": options.commit, "values": values, **machine()})


if __name__ == "__main__":
    main()
