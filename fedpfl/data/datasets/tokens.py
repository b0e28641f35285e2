"""Texts as rows of whole numbers, by a tokenizer that the user names."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from ...core import references, user_code
from ...core.errors import RAISED, ConfigError, DataError, in_one_line
from ...core.samples import IGNORED_TOKEN, MAX_TOKENS
from ..arrays import smallest_integers
from .reading_helpers import content_of, need
from .text import PADDING, WORDS

MAX_FILE = 2**28
MAX_LENGTH = 2**14


class Tokenizer(NamedTuple):
    """A maker of numbers from texts."""

    name: str  # the same for clients whose numbers mean the same
    encode: Callable[[str], Any]
    vocabulary: int
    length: int


def find(text: str) -> Tokenizer:
    """Return the tokenizer that the setting names: a function, or a file of Hugging Face's ``tokenizers``.

    A function gets a text and gives its numbers; its attribute ``vocab_size`` is the number of different ones, padding
    (0) included, and ``max_length`` how many of them a sample has.
    """
    if references.is_reference(text):
        tokenizer = user_code.find("tokenizer", text)
        if not hasattr(tokenizer, "get_vocab_size"):
            encode = user_code.guarded("tokenizer", text, tokenizer)
            size, length = getattr(tokenizer, "vocab_size", None), getattr(tokenizer, "max_length", WORDS)
            if not isinstance(size, int) or not 1 <= size <= MAX_TOKENS:
                message = "needs an attribute vocab_size, the number of different tokens with 0 for padding, as in "
                message += f"{references.short_name(text)}.vocab_size = 5000; at most {MAX_TOKENS}"
                raise ConfigError("tokenizer", text, message)
            if not isinstance(length, int) or not 1 <= length <= MAX_LENGTH:
                raise ConfigError("tokenizer", text, f"its max_length must be a whole number from 1 to {MAX_LENGTH}")
            return Tokenizer(references.short_name(text), encode, size, length)
        return _of_hugging_face(text, tokenizer, references.short_name(text))
    path = Path(text).expanduser()
    if not path.is_file():
        raise ConfigError(
            "tokenizer", text, f"is no file on this machine; must be {references.FORM}, or a tokenizer.json"
        )
    content = content_of(path, MAX_FILE)
    return _of_hugging_face(text, _read(text, content), f"{path.name} {hashlib.sha256(content).hexdigest()[:8]}")


@lru_cache(maxsize=1)
def _read(text: str, content: bytes) -> Any:
    module = need("tokenizers", "tokenizers", text)
    try:
        return module.Tokenizer.from_str(content.decode("utf-8"))
    except RAISED as error:  # the package raises Exception itself
        raise ConfigError("tokenizer", text, f"is no file of tokenizers: {str(error)[:160]}") from error


def _of_hugging_face(text: str, tokenizer: Any, name: str) -> Tokenizer:
    padding = (tokenizer.padding or {}).get("pad_id", PADDING)
    first = tokenizer.id_to_token(PADDING)
    if padding != PADDING or "pad" not in str(first).lower():
        message = f"its number 0 is {first!r}, and models take 0 as padding; a function of your own can count otherwise"
        raise ConfigError("tokenizer", text, message)
    length = min((tokenizer.truncation or {}).get("max_length", WORDS), MAX_LENGTH)
    return Tokenizer(name, lambda one: tokenizer.encode(one).ids, tokenizer.get_vocab_size(), length)


def decoder(text: str) -> Callable[[Sequence[int]], str] | None:
    """Return the tokenizer's attribute ``decode``, which makes texts of its numbers, if it has one."""
    path = Path(text).expanduser()
    tokenizer = (
        user_code.find("tokenizer", text) if references.is_reference(text) else _read(text, content_of(path, MAX_FILE))
    )
    decode = getattr(tokenizer, "decode", None)
    return (lambda numbers: str(decode(list(numbers)))) if callable(decode) else None


def encoded(texts: Sequence[str], tokenizer: Tokenizer, where: Callable[[int], str]) -> tuple[np.ndarray, np.ndarray]:
    """Return texts as numbers, (texts, length), each followed by zeros, and which of them were too long and are cut."""
    x = np.full((len(texts), tokenizer.length), PADDING, np.int32)
    cut = np.zeros(len(texts), bool)
    for row, text in enumerate(texts):
        numbers = _numbers(tokenizer, text, where(row))
        cut[row] = len(numbers) > tokenizer.length
        x[row, : len(numbers)] = numbers[: tokenizer.length]
    return smallest_integers(x, tokenizer.vocabulary), cut


def cut_short(cut: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """Return a line on texts that were too long, if there are any."""
    said = f"{cut.sum()} of {len(cut)} texts have more than {tokenizer.length} tokens; the rest of these is left out"
    return [said] if cut.any() else []


def _numbers(tokenizer: Tokenizer, text: str, where: str) -> np.ndarray:
    output = tokenizer.encode(text)
    try:
        numbers = np.asarray(output, np.int64 if len(output) == 0 else None)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{where}: the tokenizer gives {references.article(output)}: {in_one_line(error)}") from error
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError(f"{where}: the tokenizer gives {references.article(output)}; it must give whole numbers")
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < tokenizer.vocabulary:
        bad = int(numbers[(numbers < 0) | (numbers >= tokenizer.vocabulary)][0])
        raise DataError(f"{where}: the tokenizer gives {bad}; it must give 0 … {tokenizer.vocabulary - 1}")
    return numbers


def of_array(x: np.ndarray, tokenizer: str, where: str, said: dict[str, None]) -> np.ndarray:
    """Make numbers of an array of texts; what there is to say becomes a key of ``said``."""
    if not isinstance(x, np.ndarray):
        return x  # texts that are read when they are needed, as numbers
    if len(x) and (x.dtype.kind != "U" or x.ndim != 1):
        raise DataError(
            f"{where} is {x.dtype}, shape {x.shape}: with a tokenizer it must be texts, one for each sample"
        )
    chosen = find(tokenizer)
    numbers, cut = encoded(x.tolist(), chosen, lambda place: f"{where}[{place}]")
    said.update(dict.fromkeys(cut_short(cut, chosen)))
    return numbers


def of_pairs(
    prompts: np.ndarray, answers: np.ndarray, tokenizer: str, where: str, said: dict[str, None]
) -> tuple[np.ndarray, np.ndarray]:
    """Make numbers of prompts and their answers: each prompt followed by its answer, and what is to be predicted.

    That is the answer: tokens of the prompt and what fills texts up are ``IGNORED_TOKEN`` there.
    """
    for each in (prompts, answers):
        if each.dtype.kind != "U" or each.ndim != 1 or len(each) != len(prompts):
            raise DataError(
                f"{where} is {each.dtype}, shape {each.shape}: with a tokenizer and loss = next-token x and y must "
                "be texts, a prompt, which may be empty, and its answer for each sample"
            )
    chosen = find(tokenizer)
    x = np.full((len(prompts), chosen.length), PADDING, np.int32)
    y, cut = np.full(x.shape, IGNORED_TOKEN, np.int32), np.zeros(len(x), bool)
    for row, texts in enumerate(zip(prompts.tolist(), answers.tolist())):
        prompt, answer = (_numbers(chosen, text, f"{where}[{row}]") for text in texts)
        numbers = np.concatenate([prompt, answer])[: chosen.length]
        cut[row] = len(prompt) + len(answer) > chosen.length
        x[row, : len(numbers)] = numbers
        y[row, len(prompt) : len(numbers)] = numbers[len(prompt) :]
    said.update(dict.fromkeys(cut_short(cut, chosen)))
    return smallest_integers(x, chosen.vocabulary), y


def feature_names(tokenizer: str) -> tuple[str, ...]:
    """Return the tokenizer's name in place of names of features, so that clients and models know it."""
    return (f"tokenizer {find(tokenizer).name}",) if tokenizer else ()
