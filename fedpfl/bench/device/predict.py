"""``fedpfl-worker predict``: what a client's model predicts for files, a line of JSON for each sample."""

from __future__ import annotations

import argparse
import json
import sys
from math import prod
from pathlib import Path
from typing import IO, Any, Dict, Iterable, Mapping, Sequence

import numpy as np

from ...client.device_model import LoadedModel, load_model
from ...core.errors import DataError, FedpflError, words_of
from ...data.datasets.categories import DAY, OTHER, SIGN, TIMES, Category, as_features, as_number, form_of, moment
from ...data.datasets.columns import lines_of
from ...data.datasets.folder import IMAGE_SUFFIXES, opened_image
from ...data.datasets.npz import read_arrays, samples_of
from ...data.datasets.places import MAX_JSON, content_of
from ...data.federation import PIXELS
from ...data.named_columns import places
from ...data.packing import fitting, given_in, inputs_in
from ...training.losses import CROSS_ENTROPY, MULTI_LABEL, SEGMENTATION

# A sample's answer, as it is written in JSON.
Answer = Dict[str, Any]


def answers(model: LoadedModel, x: np.ndarray) -> list[Answer]:
    """Return a model's answers to samples: class and probabilities, labels and probabilities, a mask, or values."""
    names, loss = model.about["class-names"], model.about["loss"]
    found: list[Answer] = []
    for row in model.predict(x).astype(np.float64):
        if not np.isfinite(row).all():
            raise DataError(f"sample {len(found)}: the model's answer is not finite; are the values as in training?")
        if loss == SEGMENTATION:
            found.append({"mask": row.argmax(0).tolist()})
            continue
        numbers = dict(zip(names, row.tolist()))
        if loss == CROSS_ENTROPY:
            at = int(row.argmax())
            found.append({"class": names[at], "number": at, "probabilities": numbers})
        elif loss == MULTI_LABEL:
            found.append({"labels": [name for name, p in numbers.items() if p > 0.5], "probabilities": numbers})
        else:
            found.append({"values": row.tolist()})
    return found


def read_samples(path: Path, about: Mapping[str, Any], ignored: Sequence[str] = (), tokenizer: str = "") -> np.ndarray:
    """Return the samples of an image, an npz file (``x`` or ``x_test``) or a CSV table, whose first line has the names.

    ``about`` is the model's JSON; ``ignored`` are columns of a table that are no features. A ``tokenizer`` makes
    numbers of texts: the lines of a text file, the other column of a table, x of an npz file. Anything else raises
    ``DataError``.
    """
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder; name the files in it' if path.is_dir() else 'no such file'}")
    if tokenizer:
        return _read_texts(path, about, ignored, tokenizer)
    suffix, inputs = path.suffix.lower(), inputs_in(about)
    if suffix in IMAGE_SUFFIXES:
        with path.open("rb") as file:
            return read_image(file, str(path), about)
    if suffix == ".npz":
        arrays = read_arrays(path, ("x",))
        if inputs is not None:
            return fitting(given_in(arrays, str(path)), inputs)
        key = _key_of_samples(path, arrays)
        return samples_of(arrays[key], f"{path}: {key}", about["vocabulary"], planes=True)
    if inputs is not None:
        raise DataError(f"{path}: must be .npz: the model takes several inputs, {inputs}")
    if suffix == ".csv":
        return _read_table(path, about, ignored)
    raise DataError(f"{path}: must be an image ({', '.join(IMAGE_SUFFIXES)}), .npz or .csv")


def _key_of_samples(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    key = next((key for key in ("x", "x_test") if key in arrays), None)
    if key is None:
        raise DataError(f"{path}: has neither an array x nor x_test")
    return key


def read_image(file: IO[bytes], where: str, about: Mapping[str, Any]) -> np.ndarray:
    """Return an image of the model's size as uint8 1×H×W×C; its size is checked before it is decoded."""
    if about["scaling"] != PIXELS:
        raise DataError(f"{where}: the model takes arrays and no images")
    channels, height, width = about["input-shape"]
    with opened_image(file, where, where) as image:
        if image.size != (width, height):
            size = "×".join(map(str, image.size))
            raise DataError(f"{where}: is {size} pixels; the model takes {width}×{height}")
        if channels == 1 and image.mode not in ("1", "L"):
            raise DataError(f"{where}: is in colour; the model takes grey images")
        if channels not in (1, 3) or image.mode.startswith(("I", "F")):
            raise DataError(f"{where}: mode {image.mode} does not give {channels} channels of 8 bits")
        pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), np.uint8)
    return pixels.reshape(1, height, width, channels)


def _of_word(cell: str, name: str, features: Sequence[str], form: str) -> list[str]:
    if form:
        if cell.strip() and not moment(cell.strip(), form):
            raise ValueError(f"{cell.strip()[:40]!r} is no time")
        parts = tuple(feature[len(name) + 1 :].partition(":")[0] for feature in features)
        return [*map(str, as_features([cell.strip()], Category(name, parts, TIMES, form))[0])]
    chosen = f"{name}{SIGN}{cell.strip()}"
    return [str(int(feature == (chosen if chosen in features else f"{name}{SIGN}{OTHER}"))) for feature in features]


def _form(cells: Iterable[str], name: str, features: Sequence[str]) -> str:
    """Return the form of a column of times: that of training if its features name it, else that of the cells."""
    return features[0][len(name) + 1 :].partition(":")[2] or form_of(cells, (DAY,))


def _read_texts(path: Path, about: Mapping[str, Any], ignored: Sequence[str], tokenizer: str) -> np.ndarray:
    from ...data.datasets.tokens import feature_names, of_array

    if about["feature-names"] != [*feature_names(tokenizer)]:
        theirs = ", ".join(about["feature-names"]) or "no tokenizer"
        raise DataError(f"{path}: the model was trained with {theirs}, not with {feature_names(tokenizer)[0]}")
    if path.suffix.lower() == ".npz":
        arrays = read_arrays(path, ("x",))
        texts = arrays[_key_of_samples(path, arrays)]
    elif path.suffix.lower() == ".csv":
        names, *rows = [cells for _, cells in lines_of(path)] or [[]]
        used = [at for at, name in enumerate(names) if name not in ignored]
        if len(used) != 1 or any(len(cells) != len(names) for cells in rows):
            raise DataError(f"{path}: must have one column of texts; --ignore-columns leaves out others")
        texts = np.array([cells[used[0]] for cells in rows])
    else:
        try:
            texts = np.array(content_of(path, MAX_JSON).decode("utf-8-sig").splitlines())
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not a text in UTF-8: {words_of(error)}") from error
    return of_array(texts, tokenizer, str(path), {})


def _read_table(path: Path, about: Mapping[str, Any], ignored: Sequence[str]) -> np.ndarray:
    if about["vocabulary"]:
        raise DataError(f"{path}: the model takes texts: name the --tokenizer, or give numbers, x in an .npz file")
    shape, lines = about["input-shape"], lines_of(path)
    names = next(lines, (1, []))[1]
    for name in ignored:
        if name not in names:
            raise DataError(f"{path}: has no column {name!r}")
    # Columns of words and times become features as in training: mode=auto, mode=off, started@days.
    begins = {name: (name + SIGN, name + TIMES) for name in names}
    words = {name: [f for f in about["feature-names"] if f.startswith(begins[name])] for name in names}
    words = {name: features for name, features in words.items() if features}
    times = {name: at for at, name in enumerate(names) if name in words and words[name][0][len(name)] == TIMES}
    whole = [*lines] if times else []  # a column of times is read as a whole
    forms = {
        name: _form((cells[at] for _, cells in whole if at < len(cells)), name, words[name])
        for name, at in times.items()
    }  # fmt: skip
    given = names
    names = [one for name in names for one in words.get(name, [name])]
    used = [at for at, name in enumerate(names) if name not in ignored]
    # A model of series has names of channels, and a table the values of each at each time.
    if about["feature-names"] and len(shape) == 1:
        columns = places([names[at] for at in used], about["feature-names"], path, "the model")
        used = [used[at] for at in columns]
    if len(used) != prod(shape):
        raise DataError(f"{path}: has {len(used)} columns of features; the model takes {prod(shape)}")
    rows = []
    for line, cells in whole or lines:
        if len(cells) != len(given):
            raise DataError(f"{path}, line {line}: has {len(cells)} values, and the first line has {len(given)}")
        try:
            if words:
                made = [_of_word(cell, name, words[name], forms.get(name, "")) if name in words else [cell]
                        for name, cell in zip(given, cells)]  # fmt: skip
                cells = [text for texts in made for text in texts]
            rows.append(np.array([as_number(cells[at]) for at in used], np.float32))
        except ValueError as error:
            raise DataError(f"{path}, line {line}: {error}") from error
    return samples_of(np.reshape(rows, (len(rows), len(used))), str(path)).reshape(len(rows), *shape)


def main(arguments: Sequence[str]) -> None:
    """Run ``fedpfl-worker predict``."""
    parser = argparse.ArgumentParser(
        prog="fedpfl-worker predict", description="Predict with the model that a client has written on this machine."
    )
    parser.add_argument("model", metavar="MODEL", help="the folder `model` of a client's state, or a file in it")
    parser.add_argument("files", metavar="FILE", nargs="+", help="images, .npz (x or x_test) or .csv")
    parser.add_argument(
        "--ignore-columns",
        metavar="NAMES",
        default="",
        help="columns of a .csv that are not features, separated by commas",
    )
    parser.add_argument(
        "--tokenizer", metavar="NAME", default="", help="that of the run, for texts: the lines of a file, or a column"
    )
    given = parser.parse_args(arguments)
    ignored = [name for name in given.ignore_columns.split(",") if name]
    try:
        model = load_model(given.model)
        for file in given.files:
            x = read_samples(Path(file), model.about, ignored, given.tokenizer)
            try:
                found = answers(model, x)
            except DataError as error:
                raise DataError(f"{file}: {error}") from error
            for number, answer in enumerate(found):
                print(json.dumps({"file": file, "sample": number, **answer}, ensure_ascii=False))
    except FedpflError as error:
        sys.exit(f"error: {error}")
