"""Personal state: what a client keeps between rounds, on its own disk.

One safetensors file a client and round, ``state-dir/KEY/client-00003/round-000012.safetensors``, written under another
name and renamed, so that a crash or a full disk leaves the last good file. The server names the round after which the
client's arrays are wanted (the last one whose reply it has), so a round that is repeated starts exactly where it did;
that round's file and the new one are kept. So is one more before them, because a server whose newest checkpoint is
damaged goes back by a round.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import cached_property
from pathlib import Path
from typing import Mapping

import numpy as np

from ..core.checksummed_files import read_arrays, write_arrays
from ..core.errors import StateError
from ..core.files import make_password, private_folder
from .policy import FILE_BYTES, guard

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SECRET = "secret"
_FILE = re.compile(r"round-(\d{6,})\.safetensors")


def run_state(root: str | Path, key: str) -> Path:
    """Return the folder in ``state-dir`` of the run with a key."""
    require_key(key)
    return Path(root).expanduser() / key


def require_key(key: str) -> None:
    """Raise ``StateError`` for a key that is no name of a folder."""
    if not (isinstance(key, str) and _KEY.fullmatch(key)):
        # The key comes from the network and becomes a path.
        raise StateError(f"state-key = {key!r}: must be letters, digits, '.', '_' and '-'")


class ClientState:
    """The stored arrays of one client in one run: ``ROOT/KEY/client-NUMBER``; no other run has the key."""

    def __init__(self, root: str | Path, key: str, client: int) -> None:
        require_key(key)
        self._root, self._key, self._client = root, key, client

    @cached_property
    def folder(self) -> Path:
        """Where the files are; many clients keep none and never ask."""
        return run_state(self._root, self._key) / f"client-{self._client:05d}"

    def load(self, server_round: int) -> dict[str, np.ndarray]:
        """Return the arrays that the client held after ``server_round``."""
        return read_arrays(self.path(server_round))

    def require_intact(self, server_round: int) -> None:
        """Raise :class:`DamagedFile` if the arrays after ``server_round`` are here, but not as they were written."""
        if self.path(server_round).is_file():
            self.load(server_round)

    def save(self, arrays: Mapping[str, np.ndarray], server_round: int, started_from: int) -> None:
        """Store the arrays that the client holds after ``server_round``; does nothing if there are none."""
        if not arrays:
            return
        if (owner := guard()) is not None:
            owner.require_room(sum(array.nbytes for array in arrays.values()))
        private_folder(self.folder)
        write_arrays(self.path(server_round), arrays)
        earlier = [number for number in self.rounds() if number < min(server_round, started_from)]
        for number in earlier[:-1]:
            self.path(number).unlink()

    def secret(self) -> str:
        """Return the proof that this is the same node as before: made once a run, 64 hexadecimal digits."""
        return hashlib.sha256(f"{self._key}/{self._password()}".encode()).hexdigest()

    def sealed(self, text: str) -> str:
        """Return a hash of a text that nobody else can make: a server compares it within a run, and guesses nothing."""
        return hmac.new(self._password().encode(), text.encode(), "sha256").hexdigest()[:16]

    def _password(self) -> str:
        if (owner := guard()) is not None and not self.of_a_device:
            owner.require_room(FILE_BYTES)
        private_folder(self.folder)
        return make_password(self.folder / _SECRET)

    @property
    def of_a_device(self) -> bool:
        """Whether a server has asked for the secret, as it does of devices and not of a simulation's clients."""
        return (self.folder / _SECRET).is_file()

    def rounds(self) -> list[int]:
        """Return the rounds after which arrays are stored, in order."""
        if not self.folder.is_dir():
            return []
        names = (_FILE.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in names if match)

    def path(self, server_round: int) -> Path:
        """Return where the arrays after a round are."""
        return self.folder / f"round-{server_round:06d}.safetensors"
