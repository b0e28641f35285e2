"""Words in data: as labels, and in columns of tables, where words and times become features."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from typing import Callable, Iterable, NamedTuple, Sequence

import numpy as np

from ...core.errors import ConfigError, DataError
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
# Forms of a column of times: seconds since 1970, ISO 8601, years alone, which are refused, and other digits without
# hyphens. The whole column decides which one it is, since 202601 could also be a number of seconds.
SECONDS, ISO, YEAR, DAY = "seconds", "ISO", "YYYY", "YYYYMMDD"
_COMPACT = {
    "YYYYMM": "%Y%m",
    DAY: "%Y%m%d",
    "YYYYMMDDHH": "%Y%m%d%H",
    "YYYYMMDDHHMM": "%Y%m%d%H%M",
    "YYYYMMDDHHMMSS": "%Y%m%d%H%M%S",
}
_FORMS = (SECONDS, ISO, *_COMPACT)
_YEARS = range(1800, 2201)
# pandas writes .0 behind whole numbers where others in a column are empty.
DIGITS = re.compile(r"([0-9]+)(?:\.0*)?")
_ORIGIN = datetime(2000, 1, 1, tzinfo=timezone.utc)
_OF_TIME: dict[str, Callable[[datetime], float]] = {
    "days": lambda moment: (moment - _ORIGIN).total_seconds() / 86400,
    "hour": lambda moment: moment.hour + moment.minute / 60 + moment.second / 3600,
    "weekday": lambda moment: moment.weekday(),
    "month": lambda moment: moment.month,
}


class Category(NamedTuple):
    """A column of words, or of times; without a list its words are still to be found, and the form of times may be."""

    column: str
    words: tuple[str, ...]
    sign: str = SIGN
    form: str = ""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its features: one for each word, and one for all others; or one for each part of a time.

        The form of digits that could also be seconds follows: clients that read them otherwise have other names.
        """
        words = self.words if self.sign == TIMES else (*self.words, OTHER)
        form = f":{self.form}" if self.form in _COMPACT and self.form != DAY else ""
        return tuple(f"{self.column}{self.sign}{word}{form}" for word in words)


def categories(settings: DataSettings) -> list[Category]:
    """Return the columns of words that the setting names."""
    columns = []
    for text in filter(None, map(str.strip, settings.category_columns.split(","))):
        sign = TIMES if TIMES in text and SIGN not in text else SIGN
        column, _, words = text.partition(sign)
        listed = tuple(word.strip() for word in words.split("|") if word.strip())
        form = next((word for word in listed if sign == TIMES and word in _FORMS), "")
        listed = tuple(word for word in listed if word != form)
        if sign == TIMES and not (listed and {*listed} <= _OF_TIME.keys()):
            message = f"must name some of {'|'.join(_OF_TIME)} behind {TIMES}, as in {column}{TIMES}days|hour"
            raise ConfigError("category-columns", settings.category_columns, message)
        if len(set(listed)) < len(listed) or OTHER in listed:
            message = f"lists a word twice, or {OTHER}, which stands for all words that are not listed"
            raise ConfigError("category-columns", settings.category_columns, message)
        columns.append(Category(column.strip(), listed, sign, form))
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
        words = one.words or tuple(sorted({word.strip() for word in words_of(one.column)} - {"", OTHER}))
        if len(words) > MAX_WORDS:
            raise DataError(f"{where}, column {one.column!r}: has {len(words)} different words, at most {MAX_WORDS} "
                            "become features (category-columns)")  # fmt: skip
        if wrong := next((word for word in words if "," in word or "|" in word), None):
            raise DataError(f"{where}, column {one.column!r}: {wrong[:40]!r} has a , or |, which no category may have")
        texts.append(f"{one.column}{one.sign}{'|'.join(filter(None, (*words, one.form)))}")
    return replace(settings, category_columns=",".join(texts))


def as_features(words: Iterable[str], category: Category) -> np.ndarray:
    """Return the features of words, float32 of shape (words, features): 1 for the word, 0 for the others.

    Of times their parts, NaN of an empty one; :func:`moment` takes all of them.
    """
    if category.sign == TIMES:
        moments, parts = (moment(word, category.form) for word in words), [_OF_TIME[word] for word in category.words]
        rows = [[part(time) if time else np.nan for part in parts] for time in moments]
        return np.array(rows, np.float32).reshape(-1, len(parts))
    place = {word: number for number, word in enumerate(category.words)}
    return np.eye(len(category.features), dtype=np.float32)[[place.get(word, len(place)) for word in words]]


def as_number(cell: str) -> float:
    """Return the number that a cell is; ``ValueError`` if it is none, such as 1_000, which Python's float takes."""
    if "_" in cell:
        raise ValueError(f"could not convert string to float: {cell[:40]!r}")
    return float(cell)


def is_number(cell: str) -> bool:
    """Tell whether a cell is a number."""
    try:
        as_number(cell)
    except ValueError:
        return False
    return True


def form_of(words: Iterable[str], compact: Sequence[str] = tuple(_COMPACT)) -> str:
    """Return the form in which the times of a column are written; all of its words together decide."""
    filled = {word.strip() for word in words} - {""}
    numbers = [word for word in filled if is_number(word)]
    if 2 * len(numbers) < len(filled) or not filled:
        return ISO
    for form in compact:
        count = sum(moment(word, form) is not None for word in numbers)
        # Some of many seconds look like months or hours, and a few of many hours may be mistyped.
        if count and count >= len(filled) * (0.5 if form == DAY else 0.9):
            return form
    digits = [match for word in filled if (match := DIGITS.fullmatch(word)) and len(match[1]) == len(YEAR)]
    return YEAR if len(digits) == len(filled) else SECONDS


def moment(word: str, form: str) -> datetime | None:
    """Return the time that a word of a column in this form is, in UTC where no zone is said; None if it is none.

    A year alone is no time: it has no month and hour, and as seconds it would be in January 1970.
    """
    try:
        if form == SECONDS:
            return datetime.fromtimestamp(as_number(word), timezone.utc)
        if form == ISO:
            time = datetime.fromisoformat(word.replace("Z", "+00:00"))
            return None if is_number(word) else time if time.tzinfo else time.replace(tzinfo=timezone.utc)
        match = DIGITS.fullmatch(word)
        if form == YEAR or not match or len(match[1]) != len(form):
            return None
        time = datetime.strptime(match[1], _COMPACT[form]).replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return time if form == DAY or time.year in _YEARS else None
