"""Trains three batches as a client does, and says whether the loss is what it is on every other machine.

Run by `install.sh` with the installed Python. Prints one line of JSON; exit code 1 if the loss is wrong. The samples
and the first weights follow from a seed, so that the mean loss of the three steps is known beforehand.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from pathlib import Path

STEPS, BATCH_SIZE, TEST_SAMPLES, CLASSES = 3, 20, 20, 10
EXPECTED_LOSS = 2.302013
TOLERANCE = 1e-5


def main() -> None:
    """Import what a device runs (Flower is among it), train, compare, report."""
    started = time.perf_counter()
    import numpy as np
    import torch

    import fedpfl.bench.device.worker
    import fedpfl.bench.forkserver
    import fedpfl.cli.bridge
    import fedpfl.flower.client_app
    from fedpfl.client.message_handler import handle
    from fedpfl.core.payload import Payload
    from fedpfl.setup.assembly import assemble
    from fedpfl.setup.config import Config

    imported = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        samples = STEPS * BATCH_SIZE + TEST_SAMPLES
        npz = Path(folder) / "own.npz"
        np.savez(
            npz,
            x=rng.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8),
            y=np.arange(samples) % CLASSES,
        )
        config = Config.parse(
            {
                "method": "fedavg", "model": "convnet", "dataset": "npz", "num-classes": CLASSES, "local-epochs": 1,
                "batch-size": BATCH_SIZE, "test-fraction": TEST_SAMPLES / samples, "state-dir": f"{folder}/state",
            }
        )  # fmt: skip
        _, partition = assemble(config, (3, 32, 32), CLASSES)
        message = Payload(
            arrays=partition.layout.pack(partition.get_shared(), config.run.wire_dtype),
            config={"layout": partition.layout.to_text(), "round": 1, "personal-round": 0, "state-key": "step"},
        )
        node = {"partition-id": 0, "num-partitions": 1, "data": str(npz)}
        reply = handle("train", message, config.flat(), node)
    loss = float(reply.metrics["train-loss"])
    report = {
        "loss": loss,
        "expected-loss": EXPECTED_LOSS,
        "steps": reply.metrics["train-samples"] // BATCH_SIZE,
        "seconds-per-step": round(float(reply.metrics["train-seconds"]) / STEPS, 3),
        "import-seconds": round(imported - started, 1),
        "fedpfl": fedpfl.__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(report))
    if not abs(loss - EXPECTED_LOSS) <= TOLERANCE:  # NaN, too
        sys.exit(f"error: the loss is {loss:.6f} and should be {EXPECTED_LOSS:.6f}: this machine computes wrongly")


if __name__ == "__main__":
    main()
