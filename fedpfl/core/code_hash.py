"""Tells by a hash whether the code that trains is the same: on server and device, and when a run goes on."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Sequence

# These packages import neither Flower nor anything else of fedpfl but its version, and run under Python 3.8. A client's
# answer follows from them alone. So app and worker compare a hash of their source. Of the rest, the command line above
# all, each may have another version. pyproject.toml (ruff's target), docs/contributing/architecture.md and tests are
# checked against this list.
DEVICE_PACKAGES = (
    "bench/device", "client", "core", "data", "layers", "methods", "models", "rules", "setup", "training",
)  # fmt: skip


@lru_cache(maxsize=None)
def of_package(package: Path = Path(__file__).parents[1]) -> str:
    """Return the hash of the source that trains: the same for a checkout, an installed wheel and an unpacked app."""
    return of_folder(package, DEVICE_PACKAGES)


def of_folder(folder: Path, within: Sequence[str] = ("",)) -> str:
    """Return the hash of the Python files of a folder, or of some folders in it."""
    digest = hashlib.sha256()
    files = [path for name in within for path in (folder / name).rglob("*.py") if path.name[0] != "."]
    for path in sorted(path for path in files if path.is_file()):
        source = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{path.relative_to(folder).as_posix()} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]
