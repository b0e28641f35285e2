"""A cache on disk of what analyses compute for minutes, for the runs of experiments."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from ...core.checksummed_files import read_arrays, write_arrays
from ...core.errors import StateError
from ...core.files import private_folder
from ...results.run_folder import RunFolder
from ...version import __version__


def cached(
    run: RunFolder, name: str, options: Any, compute: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the arrays that an analysis computes of a run, from a file if it has one for these options.

    A changed run or version of the package makes another file. A run without a folder for a cache is computed each
    time.
    """
    if run.cache is None:
        return compute()
    digest = hashlib.sha256(json.dumps([__version__, name, asdict(options)]).encode())
    for file in ("config.toml", "task.json", "metrics.jsonl"):  # the last has the times of each round
        path = run.path / file
        digest.update(path.read_bytes() if path.is_file() else b"")
    path = run.cache / f"{name}-{digest.hexdigest()[:16]}.safetensors"
    try:
        return read_arrays(path)
    except StateError:  # not there, or damaged
        pass
    arrays = compute()
    private_folder(path.parent)
    write_arrays(path, arrays)
    return arrays
