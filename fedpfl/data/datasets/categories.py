"""Columns of words in tables: a feature for each word that the setting ``category-columns`` lists or the data have."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterable, NamedTuple

import numpy as np

from ...core.errors import ConfigError, DataError
from ..settings import DataSettings

# The feature of words that are not listed, and of empty cells.
OTHER = "other"
# More different words are names of something, not categories.
MAX_WORDS = 1000
# Begins the role of such a column among the columns of words.
SIGN = "="


class Category(NamedTuple):
    """A column of words; without a list its words are still to be found."""

    column: str
    words: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its features: one for each word, and one for all others."""
        return tuple(f"{self.column}{SIGN}{word}" for word in (*self.words, OTHER))


def categories(settings: DataSettings) -> list[Category]:
    """Return the columns of words that the setting names."""
    found = []
    for text in filter(None, map(str.strip, settings.category_columns.split(","))):
        column, _, words = text.partition(SIGN)
        listed = tuple(word.strip() for word in words.split("|") if word.strip())
        if len(set(listed)) < len(listed) or OTHER in listed:
            allowed = f"lists a word twice, or {OTHER}, which stands for all words that are not listed"
            raise ConfigError("category-columns", settings.category_columns, allowed)
        found.append(Category(column.strip(), listed))
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
        texts.append(f"{one.column}{SIGN}{'|'.join(words)}")
    return replace(settings, category_columns=",".join(texts))


def as_features(words: Iterable[str], category: Category) -> np.ndarray:
    """Return the features of words, float32 of shape (words, features): 1 for the word, 0 for the others."""
    place = {word: at for at, word in enumerate(category.words)}
    return np.eye(len(category.features), dtype=np.float32)[[place.get(word, len(place)) for word in words]]
