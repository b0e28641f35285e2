"""Words in columns of tables, which become features; and what else is read from a cell: numbers and times."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Callable, Iterable, NamedTuple

import numpy as np

from ...core.errors import ConfigError, DataError
from ..settings import DataSettings

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# That of a second, behind 08:00:00 or T080000.
_FRACTION = re.compile(r"(?:(?<=:\d\d:\d\d)|(?<=[T ]\d{6}))[.,](\d+)")
# Digits of any script, as Python's float takes them.
_WHOLE = re.compile(r"([+-]?\d{1,18})(?:\.0*)?")
# The feature of words that are not listed, and of empty cells.
OTHER = "other"
# More different words are names of something, not categories.
MAX_WORDS = 1000
# Begins the role of such a column among the columns of words.
SIGN = "="


class Category(NamedTuple):
    """A column of words; without a list they are still to be found."""

    column: str
    words: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its features: one for each word, and one for all others."""
        return tuple(f"{self.column}{SIGN}{word}" for word in (*self.words, OTHER))


def categories(settings: DataSettings) -> list[Category]:
    """Return the columns of words that the setting names."""
    columns: list[Category] = []
    for text in filter(None, map(str.strip, settings.category_columns.split(","))):
        column, _, words = text.partition(SIGN)
        listed = tuple(word.strip() for word in words.split("|") if word.strip())
        if len({*map(without_point, listed)}) < len(listed) or OTHER in listed:
            message = f"lists a word twice, or {OTHER}, which stands for all words that are not listed"
            raise ConfigError("category-columns", settings.category_columns, message)
        if column.strip() in [one.column for one in columns]:
            raise ConfigError("category-columns", settings.category_columns, f"lists {column.strip()!r} twice")
        columns.append(Category(column.strip(), listed))
    return columns


def with_words(
    settings: DataSettings, words_of: Callable[[str], Iterable[str]], where: object, alone: bool = False
) -> DataSettings:
    """Return the settings with the words of every column, those of the data, sorted, where none are listed.

    ``alone``: others make the same features without seeing these data, so that all words have to be listed.
    """
    columns = categories(settings)
    if all(one.words for one in columns):
        return settings
    if alone:
        message = "must list the words where devices have their own tables, as in mode=auto|manual"
        raise ConfigError("category-columns", settings.category_columns, message)
    texts = []
    for one in columns:
        there = sorted({word.strip() for word in words_of(one.column)} - {"", OTHER}, reverse=True)
        words = one.words or tuple(sorted({without_point(word): word for word in there}.values()))
        if len(words) > MAX_WORDS:
            raise DataError(f"{where}, column {one.column!r}: has {len(words)} different words, at most {MAX_WORDS} "
                            "become features (category-columns)")  # fmt: skip
        if wrong := next((word for word in words if "," in word or "|" in word), None):
            raise DataError(f"{where}, column {one.column!r}: {wrong[:40]!r} has a , or |, which no category may have")
        texts.append(f"{one.column}{SIGN}{'|'.join(words)}")
    return replace(settings, category_columns=",".join(texts))


def as_features(words: Iterable[str], category: Category) -> np.ndarray:
    """Return the features of words, float32 of shape (words, features): 1 for the word, 0 for the others."""
    place = {without_point(word): number for number, word in enumerate(category.words)}
    return np.eye(len(category.features), dtype=np.float32)[
        [place.get(without_point(word), len(category.words)) for word in words]
    ]


def as_number(cell: str) -> float:
    """Return the number that a cell is; ``ValueError`` if it is none, such as 1_000, which Python's float takes."""
    if "_" in cell:
        raise ValueError(f"could not convert string to float: {cell[:40]!r}")
    return float(cell)


def whole(word: str) -> int | None:
    """Return the whole number that a word is, written as an integer or as a float; None if it is none."""
    match = _WHOLE.fullmatch(word)
    return int(match.group(1)) if match else None


def without_point(word: str) -> str:
    """Return a word, a whole number without its point: 1.0, as a file of floats has it, is 1 of another file."""
    match = _WHOLE.fullmatch(word)
    return match.group(1) if match else word


def is_number(cell: str) -> bool:
    """Tell whether a cell is a number."""
    try:
        as_number(cell)
    except ValueError:
        return False
    return True


def time_of(word: str) -> Decimal | None:
    """Return a time exactly: the number that it is, or the seconds since 1970 of ISO 8601; None of what is none."""
    with suppress(InvalidOperation):  # an exponent that no time has
        if is_number(word):
            return Decimal(word) if isfinite(as_number(word)) else None
        with suppress(ValueError):
            time, fraction = _time_and_fraction(word)
            since = (time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - _EPOCH
            return since.days * 86400 + since.seconds + Decimal(since.microseconds).scaleb(-6) + Decimal(fraction)
    return None


def has_zone(word: str) -> bool:
    """Tell whether a time in ISO 8601 has a zone; a number has none."""
    return not is_number(word) and _time_and_fraction(word)[0].tzinfo is not None


def _time_and_fraction(word: str) -> tuple[datetime, str]:
    """Return a time in ISO 8601 to the second and the fraction of it, since Python's times end at microseconds."""
    fraction = _FRACTION.search(word)
    whole = word[: fraction.start()] + word[fraction.end() :] if fraction else word
    return datetime.fromisoformat(whole.replace("Z", "+00:00")), f"0.{fraction.group(1)}" if fraction else "0"
