"""Words in data: as labels, and in columns of tables, where words and times become features."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from typing import Callable, Iterable, NamedTuple

import numpy as np

from ...core.errors import ConfigError, DataError
from ..dataset import Dataset
from ..settings import DataSettings

# The feature of words that are not listed, and of empty cells.
OTHER = "other"
# More different words are names of something, not categories.
MAX_WORDS = 1000
# Begins the role of such a column among the columns of words.
SIGN = "="
# Stands before what is taken of a column of times, the same number for all clients: days since 2000, of which float32
# keeps a minute and a half, and what the time reads as it is written.
TIMES = "@"
# A day as ISO 8601 has it without hyphens, or a year; pandas writes .0 behind them where others in a column are empty.
_COMPACT = re.compile(r"([0-9]{8}|[0-9]{4})(?:\.0*)?")
_ORIGIN = datetime(2000, 1, 1, tzinfo=timezone.utc)
_OF_TIME: dict[str, Callable[[datetime], float]] = {
    "days": lambda moment: (moment - _ORIGIN).total_seconds() / 86400,
    "hour": lambda moment: moment.hour + moment.minute / 60 + moment.second / 3600,
    "weekday": lambda moment: moment.weekday(),
    "month": lambda moment: moment.month,
}


class Category(NamedTuple):
    """A column of words, or of times; without a list its words are still to be found."""

    column: str
    words: tuple[str, ...]
    sign: str = SIGN

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its features: one for each word, and one for all others; or one for each part of a time."""
        words = self.words if self.sign == TIMES else (*self.words, OTHER)
        return tuple(f"{self.column}{self.sign}{word}" for word in words)


def categories(settings: DataSettings) -> list[Category]:
    """Return the columns of words that the setting names."""
    found = []
    for text in filter(None, map(str.strip, settings.category_columns.split(","))):
        sign = TIMES if TIMES in text and SIGN not in text else SIGN
        column, _, words = text.partition(sign)
        listed = tuple(word.strip() for word in words.split("|") if word.strip())
        if sign == TIMES and not (listed and {*listed} <= _OF_TIME.keys()):
            allowed = f"must name some of {'|'.join(_OF_TIME)} behind {TIMES}, as in {column}{TIMES}days|hour"
            raise ConfigError("category-columns", settings.category_columns, allowed)
        if len(set(listed)) < len(listed) or OTHER in listed:
            allowed = f"lists a word twice, or {OTHER}, which stands for all words that are not listed"
            raise ConfigError("category-columns", settings.category_columns, allowed)
        found.append(Category(column.strip(), listed, sign))
    return found


def with_words(
    settings: DataSettings, words_of: Callable[[str], Iterable[str]], where: object, alone: bool = False
) -> DataSettings:
    """Return the settings with the words of every column, those of the data, sorted, where none are listed.

    ``alone``: others make the same features without seeing these data, so that all words have to be listed.
    """
    known = categories(settings)
    if all(one.words for one in known):
        return settings
    if alone:
        allowed = "must list the words where devices have their own tables, as in mode=auto|manual"
        raise ConfigError("category-columns", settings.category_columns, allowed)
    texts = []
    for one in known:
        words = one.words or tuple(sorted({word.strip() for word in words_of(one.column)} - {"", OTHER}))
        if len(words) > MAX_WORDS:
            raise DataError(f"{where}, column {one.column!r}: has {len(words)} different words, at most {MAX_WORDS} "
                            "become features (category-columns)")  # fmt: skip
        if wrong := next((word for word in words if "," in word or "|" in word), None):
            raise DataError(f"{where}, column {one.column!r}: {wrong[:40]!r} has a , or |, which no category may have")
        texts.append(f"{one.column}{one.sign}{'|'.join(words)}")
    return replace(settings, category_columns=",".join(texts))


def as_features(words: Iterable[str], category: Category) -> np.ndarray:
    """Return the features of words, float32 of shape (words, features): 1 for the word, 0 for the others.

    Of times their parts, NaN of an empty one; :func:`moment` takes all of them.
    """
    if category.sign == TIMES:
        moments, parts = map(moment, words), [_OF_TIME[word] for word in category.words]
        rows = [[part(found) if found else np.nan for part in parts] for found in moments]
        return np.array(rows, np.float32).reshape(-1, len(parts))
    place = {word: at for at, word in enumerate(category.words)}
    return np.eye(len(category.features), dtype=np.float32)[[place.get(word, len(place)) for word in words]]


def as_number(cell: str) -> float:
    """Return the number that a cell is; ``ValueError`` if it is none, such as 1_000, which Python's float takes."""
    if "_" in cell:
        raise ValueError(f"could not convert string to float: {cell[:40]!r}")
    return float(cell)


def form_of(word: str) -> str:
    """Return in which form a time is written: as a day such as 20260131, as a number, or in ISO 8601."""
    try:
        as_number(word)
    except ValueError:
        return "ISO 8601"
    found = _COMPACT.fullmatch(word)
    return "a day" if found and len(found[1]) == 8 and _day(found[1]) else "a number"


def _day(digits: str) -> datetime | None:
    try:
        return datetime(int(digits[:4]), int(digits[4:6]), int(digits[6:]), tzinfo=timezone.utc)
    except ValueError:
        return None


def moment(word: str) -> datetime | None:
    """Return the time that a word in ISO 8601 is, or a number of seconds since 1970; in UTC where no zone is said.

    Eight digits that are a date, as 20260131, are this day. Four digits are None: a year has no month and hour, and as
    seconds it would be in January 1970.
    """
    if found := _COMPACT.fullmatch(word):
        if len(found[1]) == 4:
            return None
        if day := _day(found[1]):
            return day
    try:
        return datetime.fromtimestamp(as_number(word), timezone.utc)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        time = datetime.fromisoformat(word.replace("Z", "+00:00"))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def number_names(data: Dataset) -> None:
    """Put numbers in the place of labels that are names, while a data set is made."""
    labels = {part: y for part, y in (("y_train", data.y_train), ("y_test", data.y_test)) if y is not None}
    if any(y.dtype.kind not in "US" for y in labels.values()):
        raise DataError(f"{data.name}: some labels are names and others numbers")
    words = [np.char.decode(y, "utf-8", "replace") if y.dtype.kind == "S" else y for y in labels.values()]
    found, places = np.unique(np.concatenate([y.reshape(-1) for y in words]), return_inverse=True)
    names = data.class_names
    # As in tables: digits that are names of classes go by these.
    if not {*names} & {*found.tolist()} and all(name.isdecimal() and len(name) < 19 for name in found.tolist()):
        numbers = found.astype(np.int64)
    else:
        names = names or tuple(found.tolist())
        unknown = [name for name in found.tolist() if name not in names]
        if unknown:
            raise DataError(f"{data.name}: the label {unknown[0][:40]!r} is none of the classes {', '.join(names)}")
        numbers = np.array([names.index(name) for name in found.tolist()], np.int64)
    pieces = np.split(numbers[places.reshape(-1)], np.cumsum([y.size for y in words])[:-1])
    for part, y in zip(labels, pieces):
        object.__setattr__(data, part, y.reshape(labels[part].shape))
    object.__setattr__(data, "class_names", names)
