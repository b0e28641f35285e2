"""Columns that go by their names: those of tables, DataFrames and clients, in one order."""

from __future__ import annotations

from collections import Counter
from typing import Any, Sequence

from ..core.errors import DataError
from ..core.name_lists import difference


def places(names: Sequence[str], wanted: Sequence[str], where: object, whose: object) -> list[int]:
    """Return the places of ``whose`` columns among those of ``where``; ``DataError`` if they are others."""
    if differ := difference(names, wanted):
        raise DataError(f"{where}: its columns are not those of {whose}; {differ}")
    place = place_of(names, where)
    return [place[name] for name in wanted]


def is_frame(thing: object) -> bool:
    """Tell whether an object is a pandas DataFrame, or one that works like it, without importing pandas."""
    return any(kind.__name__ == "DataFrame" for kind in type(thing).__mro__) and hasattr(thing, "iloc")


def names_in_frame(x: Any) -> list[str]:
    """Return the names of a DataFrame's columns; nothing of other objects, and where columns have numbers alone."""
    names = [*x.columns] if is_frame(x) else []
    return [*map(str, names)] if any(isinstance(name, str) for name in names) else []


def common_order(orders: Sequence[Sequence[str]]) -> tuple[int, tuple[str, ...]]:
    """Return the order of columns of more than half of the clients, else the alphabet's; and who has these names.

    So it does not depend on who is the first: the files of another month, or with a new client, have the same one.
    """
    usual, count = Counter(map(tuple, orders)).most_common(1)[0]
    owner = next(number for number, names in enumerate(orders) if tuple(names) == usual)
    return owner, usual if 2 * count > len(orders) else tuple(sorted(usual))


def place_of(names: Sequence[str], where: object, hint: str = "") -> dict[str, int]:
    """Return the place of each name; ``DataError`` for two of one name."""
    place = {name: index for index, name in enumerate(names)}
    if len(place) < len(names):
        twice = next(name for index, name in enumerate(names) if place[name] != index)
        raise DataError(f"{where}: two columns are called {twice!r}{hint}")
    return place
