"""Lists of names, and shapes, in messages and errors: shortened, compared, and as texts of bounded length."""

from __future__ import annotations

import hashlib
import json
from typing import Sequence

from .errors import printable

# Names that an error shows, and characters of each.
MAX_NAMED, MAX_NAME = 12, 40
# Longer lists travel as their hash alone.
MAX_SENT, MAX_SENT_CHARACTERS = 100, 2000
HASH_DIGITS = 16


def shown(shape: Sequence[int]) -> str:
    """Return a sample's shape as text: ``3x32x32``."""
    return "x".join(map(str, shape)) or "empty"


def shape_of(stored: Sequence[int] | str) -> tuple[int, ...]:
    """Return a sample's shape, which messages have as text, and files as a list."""
    return tuple(map(int, stored.split("x") if isinstance(stored, str) else stored))


def in_short(names: Sequence[str]) -> str:
    """Return names between commas, the first ones if there are many."""
    more = f", … ({len(names)} in all)" if len(names) > MAX_NAMED else ""
    return ", ".join(printable(name, MAX_NAME) for name in names[:MAX_NAMED]) + more


def client_in(text: str, names: Sequence[str]) -> int | None:
    """Return the number of the client that a text names: as the data do, ``#3``, or ``3`` where no name is a number."""
    if text in names:
        return names.index(text)
    numbered = any(name.isdecimal() for name in names)
    number = text[1:] if text[:1] == "#" else "" if numbered else text
    return int(number) if number.isdecimal() and len(number) < 10 else None


def difference(names: Sequence[str], wanted: Sequence[str]) -> str:
    """Tell which wanted names are missing and which are there besides; an empty text if neither."""
    here, there = set(names), set(wanted)
    lists = {"missing": [name for name in wanted if name not in here], "extra": [n for n in names if n not in there]}
    return "; ".join(f"{what}: {in_short(differing)}" for what, differing in lists.items() if differing)


def digest(names: Sequence[str]) -> str:
    """Return a hash of names in their order; an empty text of none."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:HASH_DIGITS] if names else ""


def sent(names: Sequence[str]) -> str:
    """Return names as clients tell them: their hash, followed by themselves if they are few and short."""
    shown = " " + ", ".join(printable(name, MAX_SENT_CHARACTERS) for name in names[:MAX_SENT])
    return digest(names) + (shown if names and len(names) <= MAX_SENT and len(shown) <= MAX_SENT_CHARACTERS else "")


def other_than(text: str, most: str) -> str:
    """Tell how names that :func:`sent` has made differ from those of most clients."""
    names, wanted = (shown[HASH_DIGITS + 1 :].split(", ") for shown in (text, most))
    if not text or not most:
        return "they have no names" if most else f"they are called {in_short(names)}, most have no names"
    if names == [""] or wanted == [""]:
        return "there are too many to tell them; compare the files"
    return difference(names, wanted) or f"their order is {in_short(names)}, that of most {in_short(wanted)}"
