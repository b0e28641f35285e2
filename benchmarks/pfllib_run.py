"""Run PFLlib's ``main.py`` with a seed of one's own: its sources have 0 for all runs.

``pfllib_run.py SYSTEM SEED OUTPUT OPTION…``: PFLlib's folder ``system``, the seed, the file for the test accuracies as
a JSON list, and the options of ``main.py``. PFLlib looks for data in ``../dataset`` and writes into ``../results``,
both seen from the working directory.
"""

from __future__ import annotations

import json
import random
import runpy
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch


def main(system: str, seed: int, output: Path, *options: str) -> None:
    """Run it; write what it has recorded."""
    seeded = torch.manual_seed

    def manual_seed(_: Any) -> torch.Generator:
        return seeded(seed)

    # Each client of PFLlib seeds PyTorch anew, always with 0.
    torch.manual_seed = manual_seed
    random.seed(seed)
    np.random.seed(seed)
    sys.argv[:] = ["main.py", *options]
    sys.path.insert(0, system)
    runpy.run_path(str(Path(system) / "main.py"), run_name="__main__")
    (record,) = Path("../results").glob("*.h5")
    with h5py.File(record) as file:
        output.write_text(json.dumps([float(value) for value in file["rs_test_acc"]]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
