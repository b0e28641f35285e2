"""Files that carry the SHA-256 of what they hold, so that damage is noticed when they are read.

The checksum is inside the file: renaming puts it and the content in their place at once. Other readers of the formats
need not know of it. A safetensors file has it among its metadata, a TOML file in a comment above all lines, a JSON
object as its first entry. Files of versions that wrote no checksum are accepted unchecked. No flipped bit, zeroed block
or cut makes a file look like one of those.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Iterable, Mapping

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .errors import ConfigError, DamagedFile, StateError
from .files import open_regular, read_regular, write_atomically

# Of a file of settings, and of a JSON file.
MAX_TOML, MAX_JSON = 2**20, 2**26
_NAME = "sha256"
_FIRST_LINE = re.compile(rb"# sha256 ([0-9a-f]{64})\n")
_FIRST_ENTRY = re.compile(rb'\{"sha256": "([0-9a-f]{64})", ')


class Stored(Dict[str, Any]):
    """The values of a file, by name; asking for one that it lacks raises :class:`DamagedFile`."""

    def __init__(self, path: Path, items: Iterable[Any]) -> None:
        super().__init__(items)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise DamagedFile(self.path, f"{name!r} is missing")


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays with their checksum to a safetensors file for this user alone; see :func:`write_atomically`."""
    write_atomically(path, packed_arrays(arrays), private=True)


def packed_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes that :func:`write_arrays` writes."""
    # An array is written as the bytes behind its pointer.
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    return save(plain, {_NAME: _digest(plain)})


def read_arrays(path: Path) -> Stored:
    """Return the arrays of a safetensors file by name.

    Raises ``DamagedFile`` if it is not as it was written, ``StateError`` if it is missing or unreadable.
    """
    try:
        open_regular(path).close()  # safetensors gives one reason for whatever keeps it from opening a file
        with safe_open(path, framework="np") as file:
            noted, names = file.metadata(), file.keys()
            arrays = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise DamagedFile(path, str(error)) from error
    except OSError as error:
        raise StateError(f"{path}: cannot be read ({error.strerror or error})") from error
    if noted is not None and noted.get(_NAME) != _digest(arrays):
        raise DamagedFile(path)
    return Stored(path, arrays)


def has_checksum(path: Path) -> bool:
    """Tell whether a safetensors file was written by :func:`write_arrays`; raise what ``safe_open`` raises."""
    with safe_open(path, framework="np") as file:
        return _NAME in (file.metadata() or {})


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    names = sorted(arrays)
    digest = hashlib.sha256(json.dumps([(name, arrays[name].dtype.str, arrays[name].shape) for name in names]).encode())
    for name in names:
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def to_toml(values: Mapping[str, Any]) -> str:
    """Return flat values as the text of a TOML file; the standard library only reads TOML."""
    for key, value in values.items():
        if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
            raise ConfigError(key, value, "must be UTF-8, as a path with such a name is not")
    # A JSON string is a TOML string, and JSON's numbers and booleans are TOML's, once NaN is ruled out by the checks.
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())


def write_toml(path: Path, text: str) -> None:
    """Write the text of a TOML file with its checksum; see :func:`write_atomically`."""
    write_atomically(path, f"# sha256 {_sha256(text.encode())}\n{text}".encode(), private=True)


def read_toml(path: Path) -> Stored:
    """Return the values of a TOML file, whose checksum must fit it (``DamagedFile``)."""
    content = read_regular(path, MAX_TOML)
    first_line = _FIRST_LINE.match(content)
    text = content[first_line.end() :] if first_line else content
    if text.startswith(b"#") or (first_line and first_line[1].decode() != _sha256(text)):
        raise DamagedFile(path, "delete its first line to use it without this check")
    try:
        return Stored(path, parse_toml(text.decode()).items())
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, str(error)) from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text; raise what Python's reader does, or ``StateError`` if there is none."""
    for name in ("tomllib", "tomli"):  # in Python since 3.11, and before that the same code as a package
        with suppress(ImportError):
            values: dict[str, Any] = importlib.import_module(name).loads(text)
            _require_short_numbers(values)
            return values
    raise StateError("this Python needs the package tomli to read TOML: pip install tomli")


def _require_short_numbers(value: Any, key: str = "") -> None:
    """Refuse what is no number of TOML's: nothing could show it."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{key[:100]}: a number of more than 64 bits")
    for name, item in value.items() if isinstance(value, dict) else ():
        _require_short_numbers(item, name)
    for item in value if isinstance(value, list) else ():
        _require_short_numbers(item, key)


def json_line(values: Mapping[str, Any]) -> str:
    """Return a JSON object with its checksum as a line."""
    text = json.dumps(values)
    return f'{{"{_NAME}": "{_sha256(text.encode())}", {text[1:]}\n'


def from_json_line(line: bytes, path: Path, first: str) -> Stored:
    """Return the object of such a line, whose checksum must fit it (``DamagedFile``).

    A line that begins with ``first`` has no checksum.
    """
    entry = _FIRST_ENTRY.match(line)
    text = b"{" + line[entry.end() :].rstrip(b"\n") if entry else line
    if entry[1].decode() != _sha256(text) if entry else not line.startswith(f'{{"{first}": '.encode()):
        raise DamagedFile(path)
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: Stored(path, pairs))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, str(error)) from error


def read_json(path: Path) -> Stored:
    """Return the object of a JSON file that carries no checksum; ``DamagedFile`` if it holds none."""
    try:
        content = json.loads(read_regular(path, MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, str(error)) from error
    if not isinstance(content, dict):
        raise DamagedFile(path)
    return Stored(path, content.items())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
