"""Answers to ``pull-messages`` that are not known to have reached their SuperNode.

The SuperLink takes a message out when it hands it over, so that a lost answer is a lost message, for which the round
would wait until its time limit. Hence an answer is stored before it is sent, and stays until the device side confirms
that it wrote it to the SuperNode.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import replace
from pathlib import Path

from ...core.errors import ConfigError
from ...core.files import write_atomically
from .frames import MAX_MESSAGE_BYTES, FrameError
from .http_bytes import Response

logger = logging.getLogger(__name__)

# A SuperNode that has not come back after so long has been given up by every round that waited for it.
KEEP_SECONDS = 3600.0
# Bytes of answers that are kept at a time, of one device and of all.
MAX_BYTES = 2 * MAX_MESSAGE_BYTES
MAX_ALL_BYTES = 4 * MAX_BYTES

# A clock that nobody sets: answers that are waited for must not be too old at once.
_now = time.monotonic


class Parked:
    """Answers by device and key of the request, in memory and on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], tuple[float, Response]] = {}
        self._keys: dict[tuple[str, str], str] = {}  # by device and receipt
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError("state-dir", str(folder), f"cannot be made ({error.strerror})") from error
        for path in folder.glob("*.answer"):
            self._load(path)
        self._answers = dict(sorted(self._answers.items(), key=lambda item: item[1][0]))  # the newest last

    def put(self, device: str, key: bytes, response: Response) -> Response:
        """Store an answer and return it with its receipt."""
        stored = replace(response, receipt=secrets.token_hex(16))
        with self._lock:
            before = self._answers.pop((device, key.hex()), None)  # so that the newest comes last
            if before is not None:
                self._keys.pop((device, before[1].receipt), None)
            self._answers[device, key.hex()] = (_now(), stored)
            self._keys[device, stored.receipt] = key.hex()
            try:
                # Not for a loss of power: that ends the SuperLink, and the run that the answer belongs to, as well.
                write_atomically(self._path(device, key.hex()), stored.encode(), private=True, durable=False)
            except OSError as error:  # the SuperLink has given it away: it must be handed over nevertheless
                logger.error("%s: an answer is kept in memory only (%s)", self._folder, error)
            self._sweep(device)
        return stored

    def get(self, device: str, key: bytes) -> Response | None:
        """Return the answer that is still to be delivered, if there is one."""
        with self._lock:
            found = self._answers.get((device, key.hex()))
            if found is None:
                return None
            if _now() - found[0] > KEEP_SECONDS:
                self._remove(device, key.hex())
                return None
            return found[1]

    def drop(self, device: str, receipt: str) -> bool:
        """Forget a device's answer with this receipt, which was handed over; return whether there was one."""
        with self._lock:
            key = self._keys.get((device, receipt))
            if key is not None:
                self._remove(device, key)
            return key is not None

    def _remove(self, device: str, key: str) -> None:
        _, response = self._answers.pop((device, key))
        self._keys.pop((device, response.receipt), None)
        try:
            self._path(device, key).unlink(missing_ok=True)
        except OSError as error:
            logger.error("%s: a stored answer cannot be removed (%s)", self._folder, error)

    def _sweep(self, device: str) -> None:
        """Remove answers that were not fetched in time, and the oldest of a device that has too many, or of all."""
        now, own, everything = _now(), 0, 0
        for (owner, key), (since, response) in reversed(list(self._answers.items())):
            everything += len(response.body)
            own += len(response.body) if owner == device else 0
            if now - since > KEEP_SECONDS:
                self._remove(owner, key)
            elif everything > MAX_ALL_BYTES or (owner == device and own > MAX_BYTES):
                words = "an answer for %s is dropped: more than %d bytes wait for it, or %d for all devices"
                logger.error(words, owner, MAX_BYTES, MAX_ALL_BYTES)
                self._remove(owner, key)

    def _load(self, path: Path) -> None:
        device, _, key = path.stem.rpartition("@")
        try:
            about = path.stat()
            age = max(0.0, time.time() - about.st_mtime)
            if age > KEEP_SECONDS or about.st_size > MAX_MESSAGE_BYTES:
                path.unlink()
            else:
                response = Response.decode(path.read_bytes())
                self._answers[device, key] = (_now() - age, response)
                self._keys[device, response.receipt] = key
        except (FrameError, OSError) as error:
            logger.warning("%s is damaged and is left out: %s", path, error)

    def _path(self, device: str, key: str) -> Path:
        return self._folder / f"{device}@{key}.answer"
