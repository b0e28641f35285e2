"""LEAF's FEMNIST as one npz file, for ``dataset = "npz"`` and ``partitioner = "natural"``.

It reads the files that LEAF's ``preprocess.sh`` writes (``train/*.json`` and ``test/*.json``, or ``*.json`` of a folder
without these two): ``user_data``, for each writer ``x``, lists of 784 numbers from 0 to 1 (28 × 28 pixels, 1 is paper),
and ``y``, classes from 0 to 61. What LEAF set aside for tests is pooled with the rest: fedpfl divides each writer's
samples itself (``test-fraction``).

    python experiments/fedfac/leaf_femnist.py ~/leaf/data/femnist/data --write ~/.fedpfl/data/femnist.npz
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

SIDE, CLASSES = 28, 62


def files_of(folder: Path) -> list[Path]:
    """Return LEAF's files below a folder, in order."""
    files = [file for part in ("train", "test") for file in sorted((folder / part).glob("*.json"))]
    files = files or sorted(folder.glob("*.json"))
    if not files:
        sys.exit(f"leaf_femnist.py: {folder}: no json files; LEAF's preprocess.sh writes train/*.json and test/*.json")
    return files


def samples_of(writer: str, content: Any, where: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return a writer's images, uint8 n × 28 × 28, and classes; end the program if they are not as LEAF's are."""
    given = content if isinstance(content, dict) else {}
    try:
        x, y = np.array(given["x"], np.float64), np.array(given["y"])
        fits = x.shape == (*y.shape, SIDE * SIDE) and y.dtype.kind == "i" and bool(((x >= 0) & (x <= 1)).all())
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        wanted = f"x must be lists of {SIDE * SIDE} numbers from 0 to 1, y one class for each"
        sys.exit(f"leaf_femnist.py: {where}: {writer}: {wanted}")
    if len(y) and not 0 <= y.min() <= y.max() < CLASSES:
        sys.exit(f"leaf_femnist.py: {where}: {writer}: y must be 0 … {CLASSES - 1}")
    return np.rint(255 * x).astype(np.uint8).reshape(-1, SIDE, SIDE), y.astype(np.int64)


def read(folder: Path) -> dict[str, np.ndarray]:
    """Return ``x``, ``y``, ``client`` (writers in the order of their names) and ``classes`` of LEAF's files."""
    writers: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for file in files_of(folder):
        try:
            users = json.loads(file.read_bytes())["user_data"]
        except (KeyError, TypeError, ValueError):
            users = None
        if not isinstance(users, dict):
            sys.exit(f"leaf_femnist.py: {file}: no user_data; must be LEAF's users, num_samples and user_data")
        for writer, content in users.items():
            writers.setdefault(writer, []).append(samples_of(writer, content, file))
    parts = [(number, *part) for number, writer in enumerate(sorted(writers)) for part in writers[writer]]
    return {
        "x": np.concatenate([x for _, x, _ in parts]),
        "y": np.concatenate([y for *_, y in parts]),
        "client": np.concatenate([np.full(len(y), number) for number, _, y in parts]),
        "classes": np.array([*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]),
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="LEAF's folder data of FEMNIST")
    parser.add_argument("--write", type=Path, metavar="FILE", required=True, help="the npz file")
    options = parser.parse_args()
    arrays = read(options.folder.expanduser())
    options.write.expanduser().parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.write.expanduser(), **arrays)
    print(f"{len(arrays['y']):,} samples of {arrays['client'].max() + 1:,} writers: {options.write}")


if __name__ == "__main__":
    main()
