"""Texts as rows of whole numbers: plays for next-character prediction, news for classification.

What stands for a character or a word is fixed here, so that devices that never see each other's texts agree on it.
"""

from __future__ import annotations

import csv
import io
import json
import re
import string
import zlib
from pathlib import Path
from typing import Any, Iterator, Mapping

import numpy as np

from ...core.errors import DataError, words_of
from ..arrays import smallest_integers
from ..dataset import Dataset
from ..partitioners import overlap_of
from ..registry import dataset
from ..settings import DataSettings
from .reading_helpers import MAX_JSON, bounded, content_of, data_dir, opened

# -- plays -------------------------------------------------------------------------------------------------------------

CHARACTERS = string.printable  # 100 of them, as many as FedFac's last layer has outputs
CHUNK = 80
# Form feed, which no play has, stands for every character beyond these.
UNKNOWN = CHARACTERS.index("\f")
_CODES = np.full(129, UNKNOWN, np.uint8)
_CODES[[ord(c) for c in CHARACTERS]] = np.arange(len(CHARACTERS))


def encode_characters(text: str) -> np.ndarray:
    """Return the place of each character in ``CHARACTERS``, or ``UNKNOWN``: uint8, shape (characters,)."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    codes: np.ndarray = _CODES[np.minimum(points, 128)]
    return codes


def chunks(text: str, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut running text into samples of 80 characters (uint8, n×80) and the character that follows each (int64, n).

    As LEAF does, each line break counts as a space and several spaces as one.
    """
    codes = encode_characters(re.sub(" {2,}", " ", text.replace("\n", " ")))
    if len(codes) <= CHUNK:
        return np.empty((0, CHUNK), np.uint8), np.empty(0, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(codes, CHUNK + 1)[::step]
    return windows[:, :CHUNK], windows[:, CHUNK].astype(np.int64)


def read_plays(path: Path, step: int = 0, each: bool = False) -> Dataset:
    """Read plays, divided by role; raise ``DataError`` for other files, or if no role says more than 80 characters.

    A folder is in LEAF's layout; a JSON file ``{"play / role": text, …}`` is cut by :func:`chunks`, without overlaps if
    ``step`` is 0. With ``each`` labels are not the character that follows a text, but all characters of the text
    itself.
    """
    if path.is_dir():
        parts, overlap = [_leaf(path / part) for part in ("train", "test")], 0
    else:
        texts = json_of(path)
        if "user_data" in texts:
            raise DataError(
                f"{path}: is one of LEAF's files: its texts are read from a folder with train and test "
                '(dataset = "shakespeare"); others must be saved as npz, with the user of each sample as client'
            )
        if not all(isinstance(text, str) for text in texts.values()):
            raise DataError(f'{path}: must be {{"play / role": text, …}}')
        step = step or CHUNK
        parts = [{role: chunks(text, step) for role, text in texts.items()}]
        # The character to predict belongs to a sample; of texts that do not overlap it is the next one's first.
        overlap = overlap_of(CHUNK + 1, step) if step < CHUNK else 0
    numbers = {role: number for number, role in enumerate(sorted({role for part in parts for role in part}))}
    arrays = [_joined(part, numbers) for part in parts]
    if not len(arrays[0][0]):
        raise DataError(f"{path}: no role has more than {CHUNK} characters")
    (x, y, client), (x_test, y_test, client_test) = arrays[0], arrays[1] if len(arrays) > 1 else (None, None, None)
    if each:
        y, y_test = x.astype(np.int32), None if x_test is None else x_test.astype(np.int32)
    names = tuple(repr(c) if c.isspace() else c for c in CHARACTERS)
    return Dataset.of(
        "shakespeare", x, y, x_test, y_test, client, client_test, class_names=names, vocabulary=len(CHARACTERS),
        overlap=CHUNK if x_test is not None and _run_on(x) else overlap,
    )  # fmt: skip


def _run_on(texts: np.ndarray) -> bool:
    """Tell whether texts begin one character after another, as LEAF's do, by the first ones."""
    first = texts[:1000]
    return bool((first[1:, :-1] == first[:-1, 1:]).all(axis=1).any())


_Chunks = Mapping[str, "tuple[np.ndarray, np.ndarray]"]


def _joined(roles: _Chunks, numbers: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order = sorted(roles)
    xs, ys = [roles[role][0] for role in order], [roles[role][1] for role in order]
    owners = np.repeat(np.array([numbers[role] for role in order], np.int64), [len(y) for y in ys])
    return np.concatenate([np.empty((0, CHUNK), np.uint8), *xs]), np.concatenate([np.empty(0, np.int64), *ys]), owners


def users_of(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield each user of a folder of LEAF's: what errors call its data, its name, and what the file has of it."""
    files, users = sorted(folder.glob("*.json")), set[str]()
    if not files:
        raise DataError(f"{folder}: no json files; LEAF's preprocess.sh writes them")
    for file in files:
        content = json_of(file).get("user_data")
        if not isinstance(content, dict):
            raise DataError(f"{file}: no user_data; must be LEAF's users, num_samples and user_data")
        for user, samples in content.items():
            where = f"{file}: user {user[:40]!r}"
            if user in users:
                raise DataError(f"{where} is in {folder} twice")
            users.add(user)
            yield where, user, samples


def _leaf(folder: Path) -> _Chunks:
    roles: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for where, user, content in users_of(folder):
        samples = content if isinstance(content, dict) else {}
        x, y = _texts(samples.get("x"), CHUNK, f"{where}: x"), _texts(samples.get("y"), 1, f"{where}: y")
        roles[user] = x, y[:, 0].astype(np.int64)
        if len(x) != len(y):
            raise DataError(f"{where} has {len(x)} x and {len(y)} y")
    return roles


def _texts(texts: Any, length: int, where: str) -> np.ndarray:
    """Encode texts of one length; shape (n, length)."""
    if not isinstance(texts, list) or not all(isinstance(text, str) and len(text) == length for text in texts):
        raise DataError(f"{where} must be a list of texts of {length} characters")
    return encode_characters("".join(texts)).reshape(-1, length)


def _find(settings: DataSettings, folder: str, file: str, layout: str) -> Path:
    """Return the folder or else the file of these names in ``data-dir``."""
    root = data_dir(settings)
    if (root / folder).is_dir():
        return root / folder
    if (root / file).is_file():
        return root / file
    raise DataError(f"{root / folder}: not found; put {layout} in {file} next to it")


def json_of(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of at most ``MAX_JSON`` bytes."""
    try:
        content = json.loads(content_of(path, MAX_JSON))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a readable JSON file: {words_of(error)}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a readable JSON file: must be a JSON object")
    return content


@dataset(
    "shakespeare",
    description="the next character in plays, by role",
    size="4,226,158",
    classes="100",
    shape="80 characters",
    source="LEAF's folder shakespeare, or shakespeare.json, in data-dir (Caldas et al. 2018)",
    download=True,
    owned=True,
)
def _shakespeare(settings: DataSettings) -> Dataset:
    layout = 'LEAF\'s train/*.json and test/*.json there, or {"play / role": text, …}'
    return read_plays(_find(settings, "shakespeare", "shakespeare.json", layout), settings.window_step, settings.tokens)


# -- news --------------------------------------------------------------------------------------------------------------

NEWS = ("World", "Sports", "Business", "Sci/Tech")
WORDS = 64  # 95 of 100 items of AG News have no more than 57
VOCABULARY = 2**14
PADDING = 0


def encode_words(text: str, codes: dict[str, int]) -> list[int]:
    """Return the numbers of the first 64 words of a text, followed by zeros.

    A word is a run of letters, digits and underscores in lower case; its number is 1 + CRC-32 (of its UTF-8) modulo 2¹⁴
    − 1, so different words may share one. ``codes`` caches the words met before; start with an empty one.
    """
    words = re.findall(r"\w+", text.lower())[:WORDS]
    for word in words:
        if word not in codes:
            codes[word] = 1 + zlib.crc32(word.encode("utf-8", "surrogatepass")) % (VOCABULARY - 1)
    return [codes[word] for word in words] + [PADDING] * (WORDS - len(words))


def read_news(path: Path) -> Dataset:
    """Read AG News, a folder with ``train.csv`` and ``test.csv`` or one CSV file; ``DataError`` names a wrong line.

    Columns: class (1 World, 2 Sports, 3 Business, 4 Sci/Tech), title, text; a first line ``Class Index,…`` is skipped.
    """
    codes: dict[str, int] = {}
    files = [path / "train.csv", path / "test.csv"] if path.is_dir() else [path]
    parts = [_read_news(file, codes) for file in files]
    x_test, y_test = parts[1] if len(parts) > 1 else (None, None)
    return Dataset.of("ag-news", *parts[0], x_test, y_test, class_names=NEWS, vocabulary=VOCABULARY)


def _read_news(path: Path, codes: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    rows: list[list[int]] = []
    labels: list[int] = []
    try:
        with opened(path) as raw, io.TextIOWrapper(raw, "utf-8", newline="") as file:
            reader = csv.reader(bounded(file, path), strict=True)
            for row in reader:
                if reader.line_num == 1 and row[:1] == ["Class Index"]:
                    continue
                if len(row) < 3 or row[0] not in ("1", "2", "3", "4"):
                    raise DataError(f"{path}, line {reader.line_num}: must be a class from 1 to 4, a title and a text")
                labels.append(int(row[0]) - 1)
                rows.append(encode_words(" ".join(row[1:]), codes))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: not a readable CSV file: {error}") from error
    if not rows:
        raise DataError(f"{path}: no news in it")
    return smallest_integers(np.array(rows), VOCABULARY), np.array(labels, np.int64)


@dataset(
    "ag-news",
    description="news items, classified by their words",
    size="120,000 + 7,600",
    classes="4",
    shape="64 words",
    source="the folder AG_NEWS with train.csv and test.csv, or agnews.csv, in data-dir (Zhang et al. 2015)",
    download=True,
)
def _ag_news(settings: DataSettings) -> Dataset:
    layout = "train.csv and test.csv (class, title, text) there, or all news"
    return read_news(_find(settings, "AG_NEWS", "agnews.csv", layout))
