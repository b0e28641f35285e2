"""Writes a client's model as a device does at a run's end, and predicts with it; prints one line of JSON.

Run by `arm64.sh` on the emulated board: ``python own_model.py FOLDER``. The model stays in FOLDER, and so do samples.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from fedpfl.client.device_model import load_model
from fedpfl.client.message_handler import handle
from fedpfl.core.payload import Payload
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

CLASSES, SAMPLES, LOOKS, BATCH = 10, 80, 20, 32


def main(folder: Path) -> None:
    """Train a round, be tested at its end, which writes the model, and measure how long a prediction takes."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (SAMPLES, 32, 32, 3), dtype=np.uint8)
    np.savez(folder / "own.npz", x=x, y=np.arange(SAMPLES) % CLASSES)
    config = Config.parse({
        "method": "fedper", "model": "convnet", "dataset": "npz", "num-classes": CLASSES, "local-epochs": 1,
        "batch-size": 20, "num-server-rounds": 1, "device-models": "always", "state-dir": f"{folder}/state",
    })  # fmt: skip
    _, sharing = assemble(config, (3, 32, 32), CLASSES)
    arrays = sharing.layout.pack(sharing.get_shared(), config.run.wire_dtype)
    layout, node = sharing.layout.to_text(), {"partition-id": 0, "num-partitions": 1, "data": f"{folder}/own.npz"}
    for kind, personal in (("train", 0), ("evaluate", 1)):
        about = {"layout": layout, "round": 1, "personal-round": personal, "state-key": "step"}
        handle(kind, Payload(about, {}, arrays), config.flat(), node)
    model = load_model(folder / "state" / "step" / "client-00000")
    measured = {"round": model.about["round"], "tested": model.about["tested"]}
    for count in (1, BATCH):
        seconds = []
        for _ in range(LOOKS):
            begun = time.perf_counter()
            model.predict(x[:count])
            seconds.append(time.perf_counter() - begun)
        measured[f"ms a sample, {count} at a time"] = round(1000 * statistics.median(seconds) / count, 2)
    print(json.dumps(measured))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
