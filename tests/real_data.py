"""Real data sets for tests that need them; nothing of them is part of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UNPACK = ROOT.parent / "shared" / "data" / "unpack.py"
PACKS = ("mnist", "fashion_mnist", "cifar10", "cifar100", "har", "femnist", "shakespeare", "agnews")


def real_data_dir() -> Path:
    """Return a folder with ``PACKS`` as MNIST/raw, FashionMNIST/raw, NAME.npz, shakespeare.json and agnews.csv.

    The environment variable FEDPFL_TEST_DATA names it; otherwise the packs beside the checkout are unpacked once. The
    calling test is skipped where there are neither.
    """
    folder = os.environ.get("FEDPFL_TEST_DATA")
    if folder:
        if not Path(folder).is_dir():
            pytest.fail(f"FEDPFL_TEST_DATA = {folder!r}: no such folder")
        return Path(folder)
    if not UNPACK.is_file():
        pytest.skip(f"no real data: FEDPFL_TEST_DATA is not set and there is no {UNPACK.name} beside the checkout")
    return _unpacked()


@lru_cache(maxsize=1)
def _unpacked() -> Path:
    stamp = int(UNPACK.stat().st_mtime)
    user = os.getuid() if hasattr(os, "getuid") else "user"
    target = Path(tempfile.gettempdir()) / f"fedpfl-test-data-{user}-{stamp}-{len(PACKS)}"
    if not target.is_dir():
        # Into a folder of its own first: several test processes may get here at once, one of them wins the rename.
        work = Path(tempfile.mkdtemp(prefix="fedpfl-unpack-"))
        subprocess.run([sys.executable, str(UNPACK), str(work), *PACKS], check=True, stdout=subprocess.DEVNULL)
        try:
            work.rename(target)
        except OSError:
            shutil.rmtree(work)
    return target
