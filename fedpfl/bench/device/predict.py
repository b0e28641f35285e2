"""``fedpfl-worker predict``: what a client's model predicts for files, a line of JSON for each sample."""

from __future__ import annotations

import argparse
import json
import re
import sys
from math import prod
from pathlib import Path
from typing import IO, Any, Dict, Mapping, Sequence

import numpy as np

from ...client.device_model import LoadedModel, load_model
from ...core.errors import DataError, FedpflError, words_of
from ...core.metrics import CLASSES, LABELS, MASKS, NEXT_TOKEN
from ...data.datasets.categories import OTHER, SIGN
from ...data.datasets.columns import SUFFIXES, Roles, finished, lines_of, source_of, typed
from ...data.datasets.folder import IMAGE_SUFFIXES, opened_image, pixels_of
from ...data.datasets.npz import read_arrays, samples_of
from ...data.datasets.reading_helpers import MAX_JSON, coloured, content_of
from ...data.federation import PIXELS
from ...data.named_columns import places
from ...data.scaling import FILL
from ...data.settings import DataSettings

# A sample's answer, as it is written in JSON.
Answer = Dict[str, Any]


def answers(model: LoadedModel, x: np.ndarray) -> list[Answer]:
    """Return a model's answers to samples: class or labels and their probabilities, a mask, next tokens, or values."""
    names, loss = model.about["class-names"], model.about["loss"]
    predictions: list[Answer] = []
    for row in model.predict(x).astype(np.float64):
        if not np.isfinite(row).all():
            raise DataError(
                f"sample {len(predictions)}: the model's answer is not finite; are the values as in training?"
            )
        if loss == MASKS:
            predictions.append({"mask": row.argmax(0).tolist()})
            continue
        if loss == NEXT_TOKEN:
            predictions.append({"tokens": row.argmax(-1).tolist()})
            continue
        numbers = dict(zip(names, row.tolist()))
        if loss == CLASSES:
            best = int(row.argmax())
            predictions.append({"class": names[best], "number": best, "probabilities": numbers})
        elif loss == LABELS:
            predictions.append({"labels": [name for name, p in numbers.items() if p > 0.5], "probabilities": numbers})
        else:
            predictions.append({"values": row.tolist()})
    return predictions


def read_samples(path: Path, about: Mapping[str, Any], ignored: Sequence[str] = (), tokenizer: str = "") -> np.ndarray:
    """Return the samples of an image, an npz file (``x`` or ``x_test``) or a table.

    ``about`` is the model's JSON; ``ignored`` are columns of a table that are no features. A ``tokenizer`` makes
    numbers of texts: the lines of a text file, the other column of a table, x of an npz file. Anything else raises
    ``DataError``.
    """
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder; name the files in it' if path.is_dir() else 'no such file'}")
    if tokenizer:
        return _read_texts(path, about, ignored, tokenizer)
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        with path.open("rb") as file:
            return read_image(file, str(path), about)
    if suffix == ".npz":
        arrays = read_arrays(path, ("x",))
        key = _key_of_samples(path, arrays)
        return samples_of(arrays[key], f"{path}: {key}", about["vocabulary"], planes=True)
    if suffix in SUFFIXES:
        return _read_table(path, about, ignored)
    raise DataError(f"{path}: must be an image ({', '.join(IMAGE_SUFFIXES)}), .npz, .csv or .parquet")


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
        pixels = pixels_of(image, where, where, {})[None]
    if channels == 1 and pixels.shape[3] != 1:
        raise DataError(f"{where}: is in colour; the model takes grey images")
    if channels not in (1, 3):
        raise DataError(f"{where}: is an image of 1 or 3 channels; the model takes {channels}")
    return pixels if channels == 1 else coloured(pixels)


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
        used = [number for number, name in enumerate(names) if name not in ignored]
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
    shape, feature_names, gaps = about["input-shape"], about["feature-names"], FILL in about
    made = _category_columns(feature_names)
    settings = DataSettings(impute="mean" if gaps else "refuse", category_columns=",".join(made.values()))
    source = source_of(path, settings)
    for name in ignored:
        if name not in source.names:
            raise DataError(f"{path}: has no column {name!r}")
    place = {name: number for number, name in enumerate(source.names) if name not in ignored}
    if missing := [name for name in made if name not in place]:
        raise DataError(f"{path}: has no column {missing[0]!r}")
    features = [number for name, number in place.items() if name not in made]
    roles, x = Roles(features, {SIGN + name: place[name] for name in made}), None
    try:
        table = finished(typed(path, source, roles, settings), settings)
    except DataError as error:  # without the settings of a run that may help
        raise DataError(str(error).partition(";")[0]) from error
    # A model of series has names of channels, and a table the values of each at each time.
    if feature_names and len(shape) == 1:
        x = table.x[:, places(table.features, feature_names, path, "the model")]
    elif len(table.features) != prod(shape):
        raise DataError(f"{path}: has {len(table.features)} columns of features; the model takes {prod(shape)}")
    return samples_of(table.x if x is None else x, str(path), gaps=gaps).reshape(len(table.x), *shape)


def _category_columns(features: Sequence[str]) -> dict[str, str]:
    """Return the columns of words that features are made of, as ``category-columns`` has each.

    As in mode=auto, mode=other of the column mode.
    """
    columns: dict[str, list[str]] = {}
    for feature in features:
        if match := re.fullmatch(f"(.*?){SIGN}(.*)", feature):
            columns.setdefault(match[1], []).append(match[2])
    return {column: f"{column}{SIGN}{'|'.join(each[:-1])}" for column, each in columns.items() if each[-1] == OTHER}


def main(arguments: Sequence[str]) -> None:
    """Run ``fedpfl-worker predict``."""
    parser = argparse.ArgumentParser(
        prog="fedpfl-worker predict", description="Predict with the model that a client has written on this machine."
    )
    parser.add_argument("model", metavar="MODEL", help="the folder `model` of a client's state, or a file in it")
    parser.add_argument("files", metavar="FILE", nargs="+", help="images, .npz (x or x_test), .csv or .parquet")
    parser.add_argument(
        "--ignore-columns",
        metavar="NAMES",
        default="",
        help="columns of a table that are not features, separated by commas",
    )
    parser.add_argument(
        "--tokenizer", metavar="NAME", default="", help="that of the run, for texts: the lines of a file, or a column"
    )
    options = parser.parse_args(arguments)
    ignored = [name for name in options.ignore_columns.split(",") if name]
    try:
        model = load_model(options.model)
        for file in options.files:
            x = read_samples(Path(file), model.about, ignored, options.tokenizer)
            try:
                predictions = answers(model, x)
            except DataError as error:
                raise DataError(f"{file}: {error}") from error
            for number, answer in enumerate(predictions):
                print(json.dumps({"file": file, "sample": number, **answer}, ensure_ascii=False))
    except FedpflError as error:
        sys.exit(f"error: {error}")
