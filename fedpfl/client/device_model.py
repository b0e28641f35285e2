"""The personalised model that a client keeps on its own machine: what is written after a run, and what loads it.

``state-dir/KEY/client-00003/model/`` holds two files a round. ``round-000012.json`` is one line that carries its own
checksum: method, model, classes, shape and scaling of the input, and size and SHA-256 of the other file. That one is
``round-000012.safetensors``. If the method predicts with more than a plain model, it is ``round-000012.pt``, the
forward pass as TorchScript. ``best/`` holds the same of the round that was best on the client's validation samples.
Nothing of it leaves the machine. `fedpfl export` writes two such files for each client of a run.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from math import isfinite, prod
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import models
from ..core.checksummed_files import Stored, from_json_line, json_line, packed_arrays, read_arrays
from ..core.errors import DamagedFile, DataError, NoPlainModel, StateError, words_of
from ..core.files import open_regular, private_folder, read_regular, write_atomically
from ..core.metrics import CLASSES, LABELS, MASKS, NEXT_TOKEN
from ..core.name_lists import shape_of
from ..core.pixels import NORMALIZATIONS, fits_channels, scale
from ..core.samples import MAX_CLASSES, MAX_TOKENS
from ..core.user_code import global_state_kept
from ..data.federation import AS_IT_IS, PIXELS, TOKENS
from ..data.scaling import FILL, Scaling
from ..training.loop import predict
from ..training.losses import KINDS
from ..training.phase import Forward
from ..version import __version__
from .policy import guard

_jit: Any = torch.jit  # whose functions have no types

FOLDER, BEST = "model", "best"
# What the second file holds, and how its name ends; without one there is no model.
WEIGHTS, TORCHSCRIPT, NONE = "weights", "torchscript", "none"
_ENDINGS = {WEIGHTS: ".safetensors", TORCHSCRIPT: ".pt", NONE: ""}
ONNX = ".onnx"

_FORMAT = 1
_ROUND = re.compile(r"round-(\d{6,12})\.json")
_HASH = re.compile(r"[0-9a-f]{64}")
MAX_JSON_BYTES = 2**24
MAX_INPUT = 2**24
MAX_TEXT = 1000
# TorchScript of a batch of two has to give what the model gives for batches of these sizes.
_TRACED, _TRIED = 2, (1, 5)


class LoadedModel(NamedTuple):
    """A client's model in evaluation mode, and what is known of it.

    Attributes
    ----------
    module : nn.Module
        Maps a batch as the model takes it to logits or values; on the CPU.
    about : dict
        What the JSON file says: ``method``, ``model``, ``round``, ``class-names``, ``input-shape``, ``tested``, more.

    Examples
    --------
    >>> import fedpfl
    >>> import numpy as np
    >>> from pathlib import Path
    >>> run = fedpfl.run(
    ...     method="fedper", dataset="digits", model="mlp", num_clients=4, num_server_rounds=1, local_epochs=1,
    ...     device_models="always", state_dir="models-of-clients", quiet=True,
    ... )
    >>> (folder,) = Path("models-of-clients").glob("*/client-00003")
    >>> model = fedpfl.load_model(folder)
    >>> model.predict(np.zeros((2, 8, 8, 1), np.uint8)).shape
    (2, 10)
    """

    module: nn.Module
    about: dict[str, Any]

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes or labels, or the values of targets, shape (n, k).

        For segmentation they are the probabilities of the classes of each pixel, shape (n, k, height, width). For texts
        they are the probabilities of the token that follows each token, shape (n, length, k).

        Parameters
        ----------
        x : ndarray
            Samples as a data set has them: images uint8 n×H×W×C, tokens n×length, other data floats.

        Raises
        ------
        DataError
            The samples are not of the shape that the model takes.
        """
        outputs = predict(self.module, self._inputs(x)).float()
        if self.about["loss"] in (CLASSES, MASKS):
            outputs = outputs.softmax(1)
        elif self.about["loss"] == NEXT_TOKEN:
            outputs = outputs.softmax(-1)
        elif self.about["loss"] == LABELS:
            outputs = outputs.sigmoid()
        return outputs.numpy()

    def _inputs(self, x: np.ndarray) -> Tensor:
        shape, scaling = shape_of(self.about["input-shape"]), self.about["scaling"]
        wanted = (*shape[1:], shape[0]) if scaling == PIXELS else shape
        if not scaling:
            raise DataError(
                "the run has not recorded how inputs are scaled; a client's own model, on its device, says it"
            )
        kind = {PIXELS: "uint8", TOKENS: "whole numbers", AS_IT_IS: "floats"}[scaling]
        fits = {PIXELS: x.dtype == np.uint8, TOKENS: x.dtype.kind in "iu", AS_IT_IS: x.dtype.kind == "f"}[scaling]
        if not x.size or x.shape[1:] != wanted or not fits:
            raise DataError(f"samples are {_show(x.dtype, x.shape)}; the model takes {_show(kind, ('n', *wanted))}")
        if scaling == TOKENS:
            if x.min() < 0 or x.max() >= self.about["vocabulary"]:
                raise DataError(f"tokens must be 0 … {self.about['vocabulary'] - 1}")
            return torch.from_numpy(x.astype(np.int64))
        if scaling == PIXELS:
            pixels = torch.from_numpy(np.array(x, order="C")).permute(0, 3, 1, 2)
            return scale(pixels, self.about["normalize"])
        return torch.from_numpy(self._scaled(x.astype(np.float32)))

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        if FILL in self.about:
            fill = np.array(self.about[FILL], np.float32)
            x = Scaling(fill, fill).filled(x)
        if "mean" not in self.about:  # of the samples that the client trained on, by which it standardised all
            return x
        return Scaling(*(np.array(self.about[key], np.float32) for key in Scaling._fields)).applied(x)


def load_model(path: str | Path) -> LoadedModel:
    """Return a model that a client has written on this machine.

    Parameters
    ----------
    path : str or Path
        One of its two files; or the folder ``model``, or ``client-…`` above it, for the latest one; or ``best``.

    Raises
    ------
    StateError
        There is no model, or a file of it is damaged.
    NoPlainModel
        The method left nothing that predicts; the error tells why.
    ConfigError
        The model is a custom function that cannot be imported here.

    Examples
    --------
    A simulation writes the clients' models below ``state-dir`` if it is asked to; a device does so unasked:

    >>> from pathlib import Path
    >>> import fedpfl
    >>> run = fedpfl.run(
    ...     method="fedper", dataset="digits", model="mlp", num_clients=4, num_server_rounds=1, local_epochs=1,
    ...     device_models="always", state_dir="models", quiet=True,
    ... )
    >>> (folder,) = Path("models").glob("*/client-00003")
    >>> fedpfl.load_model(folder).about["round"]
    1
    """
    file = newest(Path(path).expanduser())
    about, content = _read(file)
    if about["kind"] == NONE:
        raise NoPlainModel(f"{file}: there is no model: {about['why']}")
    if about["kind"] == TORCHSCRIPT:
        try:
            return LoadedModel(_jit.load(str(content), map_location="cpu").eval(), about)
        except (RuntimeError, ValueError) as error:
            raise DamagedFile(content, str(error).partition("\n")[0]) from error
    arrays = _weights(content)
    # Every class and every token has at least one value of the model.
    values = sum(array.numel() for array in arrays.values())
    for key in ("num-classes", "vocabulary"):
        if about[key] > values:
            raise DamagedFile(file, f"{key} is {about[key]}, and the model has {values} values")
    try:
        return LoadedModel(plain_module(about, arrays), about)
    except RuntimeError as error:
        reason = words_of(error, MAX_TEXT)
        raise StateError(f"{content}: does not fit model {about['model']}: {reason}") from error


def kept_model(state: Path, server_round: int) -> dict[str, Tensor] | None:
    """Return the state dict that a client tested after a round; None without one, ``NoPlainModel`` if not plain."""
    file = state / FOLDER / f"round-{server_round:06d}.json"
    if not file.is_file():
        return None
    return read_model(file)[1]


def _read(file: Path) -> tuple[Stored, Path]:
    """Return the line of a model, and the other file, which is as it was written if there is one."""
    about = _read_about(file)
    content = file.with_suffix(_ENDINGS[about["kind"]])
    if about["kind"] != NONE:
        _require_written(content, about)
    return about, content


def _weights(content: Path) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in read_arrays(content).items()}


def plain_module(about: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> nn.Module:
    """Build the model without the method's changes, and load its arrays; ``RuntimeError`` if they do not fit."""
    with global_state_kept():  # builders draw initial weights
        plain = models.build(
            about["model"], shape_of(about["input-shape"]), about["num-classes"], about["vocabulary"],
            tokens=about["loss"] == NEXT_TOKEN,
        )  # fmt: skip
    plain.load_state_dict(arrays)
    return models.original_module(plain).eval()


def newest(path: Path) -> Path:
    """Return the JSON file of a model, the latest one in a folder; without one raise ``StateError``."""
    if path.is_dir():
        for folder in (path, path / FOLDER):
            rounds = sorted(_rounds(folder)) if folder.is_dir() else []
            if rounds:
                return rounds[-1][1]
        raise StateError(f"{path}: holds no model of a client (round-….json)")
    file = path.with_suffix(".json")
    if not file.is_file():
        raise StateError(f"{path}: no such model")
    return file


def read_model(file: Path) -> tuple[Stored, dict[str, Tensor]]:
    """Return the content of a plain model's JSON file, and its state dict."""
    about, content = _read(file)
    if about["kind"] != WEIGHTS:
        raise NoPlainModel(about["why"])
    return about, _weights(content)


def _rounds(folder: Path) -> Iterator[tuple[int, Path]]:
    matches = ((_ROUND.fullmatch(path.name), path) for path in folder.iterdir())
    return ((int(match[1]), path) for match, path in matches if match)


def best_score(state: Path) -> float | None:
    """Return the validation score of the model in ``best/`` of a client's state; None if none can be read there."""
    try:
        score = _read_about(newest(state / BEST)).get("validation")
    except StateError:
        return None
    return float(score) if isinstance(score, (int, float)) else None


def write_model(
    folder: Path, about: Mapping[str, Any], content: Mapping[str, Tensor] | bytes | None, kept: int
) -> Path:
    """Write a model to a folder, and remove all but the latest ``kept`` there; return the JSON's path.

    ``content`` is the state dict of the plain model, or TorchScript, or None where nothing predicts. Raises
    ``PolicyError`` if the device's policy has no room for it, ``OSError`` if it cannot be written.
    """
    file = write_files(folder / f"round-{about['round']:06d}.json", about, content)
    for _, old in sorted(_rounds(folder))[:-kept]:
        _remove(old)
    return file


def write_files(file: Path, about: Mapping[str, Any], content: Mapping[str, Tensor] | bytes | None) -> Path:
    """Write a model's JSON file and the one beside it, as :func:`write_model` does."""
    kind = NONE if content is None else TORCHSCRIPT if isinstance(content, bytes) else WEIGHTS
    data = b""
    if isinstance(content, bytes):
        data = content
    elif content is not None:
        data = packed_arrays({name: array.numpy() for name, array in content.items()})
    written = {"bytes": len(data), "file-sha256": hashlib.sha256(data).hexdigest()}
    line = json_line({"format": _FORMAT, **about, "kind": kind, **written}).encode()
    if (owner := guard()) is not None:
        owner.require_room(len(data) + len(line))
    private_folder(file.parent)
    beside = file.with_suffix(_ENDINGS[kind])
    same = file.is_file() and file.read_bytes() == line
    if not same or (kind != NONE and not (beside.is_file() and beside.read_bytes() == data)):
        # The line makes the others count: no reader may take an old line for a new file, or a program of another model.
        _remove(file)
        if kind != NONE:
            write_atomically(beside, data, private=True)
        write_atomically(file, line, private=True)
    return file


def _remove(file: Path) -> None:
    for path in (file, *(file.with_suffix(ending) for ending in (*_ENDINGS.values(), ONNX) if ending)):
        path.unlink(missing_ok=True)


def traced(forward: Forward, model: nn.Module, x: Tensor) -> tuple[bytes | None, str]:
    """Return a forward pass as TorchScript, traced and compared on a batch ``x``; or None, and why it cannot be."""
    x = x.repeat(_TRACED + max(_TRIED), *[1] * (x.dim() - 1))
    buffer = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script = _jit.trace(_ForwardModule(model, forward).eval(), x[:_TRACED], check_trace=False)
            _jit.save(script, buffer)
            buffer.seek(0)
            again = _jit.load(buffer, map_location="cpu")
            if not all(is_alike(forward(x[-size:]), again(x[-size:].cpu())) for size in _TRIED):
                return None, "its TorchScript export predicts something else"
    except (RuntimeError, TypeError, ValueError) as error:
        return None, f"TorchScript cannot hold it ({str(error).strip().partition(chr(10))[0][:200]})"
    return buffer.getvalue(), ""


def is_alike(expected: Tensor, outputs: Tensor) -> bool:
    """Return whether two models' outputs for the same samples differ by no more than rounding."""
    expected, outputs = expected.cpu(), outputs.cpu()
    largest = float(torch.nan_to_num(expected, 0.0, 0.0, 0.0).abs().max())
    same = expected.shape == outputs.shape
    return same and torch.allclose(expected, outputs, rtol=0.0, atol=1e-3 * max(0.1, largest), equal_nan=True)


class _ForwardModule(nn.Module):
    """A forward pass as a module."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._pass = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._pass(x)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _is_count(value: Any, most: float, least: int = 1) -> bool:
    return type(value) is int and least <= value <= most


def _is_shape(value: Any) -> bool:
    sizes = isinstance(value, list) and 1 <= len(value) <= 4 and all(_is_count(size, MAX_INPUT) for size in value)
    return sizes and prod(value) <= MAX_INPUT


def _are_numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(
        type(one) in (int, float) and isfinite(one) for one in value
    )  # fmt: skip


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_CLASSES and all(map(_is_text, value))


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "run": _is_text,
    "round": lambda value: _is_count(value, 10**12),
    "client": lambda value: value is None or _is_count(value, 10**9, 0),  # None: all clients have this model
    "client-name": _is_text,
    "method": _is_text,
    "model": _is_text,
    "input-shape": _is_shape,
    "num-classes": lambda value: _is_count(value, MAX_CLASSES),
    "class-names": _are_names,
    "vocabulary": lambda value: _is_count(value, MAX_TOKENS, 0),
    "scaling": lambda value: value in (PIXELS, TOKENS, AS_IT_IS, ""),
    "loss": lambda value: isinstance(value, str) and value in KINDS,
    "why": _is_text,
    "kind": lambda value: isinstance(value, str) and value in _ENDINGS,
    "bytes": lambda value: _is_count(value, 2**50, 0),
    "file-sha256": lambda value: isinstance(value, str) and _HASH.fullmatch(value) is not None,
    "tested": lambda value: isinstance(value, dict),
}


def _read_about(file: Path) -> Stored:
    try:
        line = read_regular(file, MAX_JSON_BYTES)
    except OSError as error:
        raise StateError(f"{file}: cannot be read ({error.strerror or error})") from error
    about = from_json_line(line, file, "format")
    if (written := about["format"]) != _FORMAT:
        problem = f"is a model in format {str(written)[:20]!r}, and fedpfl {__version__} reads format {_FORMAT}"
        raise StateError(f"{file}: {problem}: install the fedpfl that wrote it on this device")
    for key, fits in _FIELDS.items():
        if not fits(about[key]):
            raise DamagedFile(file, f"{key} is {str(about[key])[:60]!r}")
    shape, scaling = shape_of(about["input-shape"]), about["scaling"]
    if (scaling == PIXELS and len(shape) != 3) or (scaling == TOKENS) != (about["vocabulary"] > 0):
        raise DamagedFile(file, f"scaling is {scaling!r}")
    normalize = about["normalize"]
    if not isinstance(normalize, str) or normalize not in NORMALIZATIONS or not fits_channels(normalize, shape[0]):
        raise DamagedFile(file, f"normalize is {str(normalize)[:60]!r}")
    names = about["feature-names"]
    if not _are_names(names) or len(names) not in (0, shape[0]):
        raise DamagedFile(file, f"feature-names is {str(names)[:60]!r}")
    for key in (FILL, *Scaling._fields):
        if key in about and not _are_numbers(about[key], shape[0]):
            raise DamagedFile(file, f"{key} is {str(about[key])[:60]!r}")
    if (Scaling._fields[0] in about) != (Scaling._fields[1] in about):
        raise DamagedFile(file, "it has only one of mean and deviation")
    if len(about["class-names"]) != about["num-classes"]:
        raise DamagedFile(file, f"class-names has {len(about['class-names'])} names")
    return about


def _require_written(content: Path, about: Mapping[str, Any]) -> None:
    """Raise unless a file has the size and the SHA-256 that the line says."""
    try:
        if content.stat().st_size != about["bytes"]:
            raise DamagedFile(content, f"it has {content.stat().st_size} bytes, and {about['bytes']} were written")
        digest = hashlib.sha256()
        with open_regular(content) as stream:
            for block in iter(lambda: stream.read(2**20), b""):
                digest.update(block)
    except OSError as error:
        raise StateError(f"{content}: cannot be read ({error.strerror or error})") from error
    if digest.hexdigest() != about["file-sha256"]:
        raise DamagedFile(content)


def _show(kind: Any, shape: tuple[Any, ...]) -> str:
    return f"{kind} {'×'.join(map(str, shape))}"
