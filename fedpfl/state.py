"""Personal state: what a client keeps between rounds, on its own disk.

One safetensors file a client and round, under ``state-dir/RUN/client-00003/round-000012.safetensors``, written beside
and renamed, so that a crash or a full disk leaves the last good file. The newest two are kept: a round that is
repeated after a crash starts from where it started before.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Mapping

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from .errors import StateError

KEPT_ROUNDS = 2
_FILE = re.compile(r"round-(\d{6,})\.safetensors")


class ClientState:
    """The stored arrays of one client in one run.

    Parameters
    ----------
    root : Path
        ``state-dir``.
    run : str
        Name of the run.
    client : int
        Client from 0.
    """

    def __init__(self, root: Path, run: str, client: int) -> None:
        self.folder = Path(root).expanduser() / run / f"client-{client:05d}"

    def load(self, before: int) -> dict[str, np.ndarray]:
        """Return the newest arrays of a round earlier than ``before``; empty if there are none.

        Raises
        ------
        StateError
            The file is damaged.
        """
        stored = [(n, path) for n, path in self._files() if n < before]
        if not stored:
            return {}
        path = stored[-1][1]
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError) as error:
            raise StateError(f"{path}: cannot be read ({error}); delete it to go on from the round before") from error

    def save(self, arrays: Mapping[str, np.ndarray], server_round: int) -> None:
        """Store the arrays that the client holds after ``server_round``; does nothing if there are none."""
        if not arrays:
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.folder / f"round-{server_round:06d}.safetensors", save(dict(arrays)))
        earlier = [path for n, path in self._files() if n < server_round]
        for path in earlier[: -(KEPT_ROUNDS - 1)]:
            path.unlink()

    def _files(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        found = ((_FILE.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match.group(1)), path) for match, path in found if match)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new one and nothing between."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
