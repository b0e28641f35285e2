"""Arrays in an npz file."""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from pathlib import Path
from typing import Any, Iterator

import numpy as np

from ...core.errors import DataError
from ...core.samples import IGNORED, IGNORED_TOKEN, MAX_TOKENS
from ..arrays import smallest_integers
from ..dataset import Dataset
from ..npy import UNREADABLE, header
from ..registry import dataset
from ..settings import DataSettings
from .reading_helpers import NO_NAMES, of_parts, own_path
from .tokens import feature_names, find, of_array, of_pairs

try:
    from lzma import LZMAError
except ImportError:  # such a Python refuses the files by itself
    LZMAError = OSError  # type: ignore[assignment, misc]


def read_npz(
    path: Path,
    settings: DataSettings | None = None,
    num_classes: int | None = None,
    alone: bool = False,
    name: str = "",
) -> Dataset:
    """Read a data set from an ``.npz`` file; raise ``DataError`` if it is missing, damaged or in another layout.

    Nothing in the file is ever unpickled. ``num_classes`` counts where the file does not name the classes: a device may
    lack the highest ones. ``alone``: others number the same classes without seeing this file, so names as labels need
    ``classes``. Of the ``settings`` the loss, ``impute`` and ``tokenizer`` count.
    """
    settings = settings or DataSettings()
    arrays, said = read_arrays(path), dict[str, None]()
    if "x" in arrays and "x_train" in arrays:
        raise DataError(f"{path}: has both x and x_train; keep x, y or x_train, y_train, x_test, y_test")
    parts: tuple[str, ...] = ("",) if "x" in arrays else ("_train", "_test")
    if "x_val" in arrays and "x" not in arrays:
        parts = ("_train", "_test", "_val")
    for key in [f"{letter}{part}" for part in parts for letter in "xy"]:
        if key not in arrays:
            raise DataError(
                f"{path}: no array {key}; needs x, y or x_train, y_train, x_test, y_test, {_names_of_arrays(path)}"
            )
    tokenizer = settings.tokenizer if "vocabulary" not in arrays else ""
    if tokenizer:
        for of_x, of_y in ((f"x{part}", f"y{part}") for part in parts):
            if settings.tokens:
                pair = arrays[of_x], arrays[of_y]
                arrays[of_x], arrays[of_y] = of_pairs(*pair, tokenizer, f"{path}: {of_x}, {of_y}", said)
            else:
                arrays[of_x] = of_array(arrays[of_x], tokenizer, f"{path}: {of_x}", said)
        arrays["vocabulary"] = np.array(find(tokenizer).vocabulary)
    vocabulary = _vocabulary(arrays, path)
    xs = [samples_of(arrays[f"x{part}"], f"{path}: x{part}", vocabulary, gaps=settings.fills_gaps) for part in parts]
    ys = [labels_beside(x, arrays[f"y{part}"], f"{path}: y{part}", settings) for part, x in zip(parts, xs)]
    _require_known(path, {f"{word}{part}" for part in parts for word in ("x", "y", "client")}, {len(x) for x in xs})
    if alone and ys[0].dtype.kind in "US" and "classes" not in arrays:
        raise DataError(f"{path}: has names as labels; devices number them alike only with an array classes")
    named = "classes" in arrays and ys[0].dtype.kind != "f"
    class_names = _names_in_file(arrays["classes"], path, num_classes) if named else ()
    owners = owners_of(arrays, parts, ys, path)
    return of_parts(
        name or path.stem, xs, ys, owners, path, class_names=class_names,
        num_classes=0 if class_names else num_classes or 0, vocabulary=vocabulary, client_names=owner_names(arrays),
        remarks=tuple(said),
        feature_names=feature_names(tokenizer) if tokenizer else (),
    )  # fmt: skip


def _names_of_arrays(path: Path) -> str:
    """Name the arrays of a file, and the benchmark if it is one of PFLlib's."""
    with _opened(path) as archive:
        names = sorted(archive.files)
    hint = '; is it PFLlib\'s? dataset = "clients" reads the folder that has its train and test'
    return f"found {', '.join(names) or 'nothing'}{hint if names == ['data'] else ''}"


def _require_known(path: Path, used: set[str], lengths: set[int]) -> None:
    """Refuse an array that seems to say more of the samples, above all whose they are; its values are not read."""
    with _opened(path) as archive:
        for key in archive.files:
            if key in used or key in ("classes", "vocabulary") or f"{key}.npy" not in archive.zip.namelist():
                continue
            with archive.zip.open(f"{key}.npy") as file:
                shape = header(file)[0]
            if key.split("_")[0] in ("x", "y", "client") or (shape and shape[0] in lengths):
                names = ", ".join([*sorted(used), "classes", "vocabulary"])
                raise DataError(
                    f"{path}: array {key} ({'×'.join(map(str, shape))}) is not used: leave it out, or call it client "
                    f"if it has the owner of each sample (there may be {names})"
                )


_SPARSE = {"data", "format", "shape"}
ARRAYS = ("x", "y", "client", "classes", "vocabulary")


def read_arrays(path: Path, names: tuple[str, ...] = ARRAYS) -> dict[str, np.ndarray]:
    """Return the arrays of a file whose names begin with one of these; a ``DataError`` explains what is wrong."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: not an npz file (write it with numpy.savez)")
    with _opened(path) as archive:
        if {*archive.files} >= _SPARSE:
            raise DataError(f"{path}: holds a sparse matrix of SciPy; save its toarray() as x, with y")
        wanted = [key for key in archive.files if key.split("_")[0] in names]
        _require_room(archive.zip, {f"{key}.npy" for key in wanted} | {*wanted}, path)
        arrays = {key: archive[key] for key in wanted}
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path}: {key} is no array of NumPy (write the file with numpy.savez)")
    return arrays


def _require_room(archive: zipfile.ZipFile, names: set[str], path: Path) -> None:
    """Refuse arrays whose headers contradict their sizes, or that all together need more than the machine's memory."""
    members = [member for member in archive.infolist() if member.filename in names]
    for member in members:
        if not member.filename.endswith(".npy"):
            continue
        with archive.open(member) as file:
            shape, _, kind = header(file)
            if not kind.hasobject and file.tell() + math.prod(shape) * kind.itemsize != member.file_size:
                raise DataError(f"{path}: {member.filename[:-4]} has another size than its header says")
    needed, memory = sum(member.file_size for member in members), _memory()
    if needed > memory:
        raise DataError(f"{path}: its arrays have {needed:,} bytes, and this machine's memory {memory:,}")


def _memory() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows does not tell
        return math.inf


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file of arrays; whatever cannot be read of it until it is closed is a ``DataError``."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            yield archive
    except UNREADABLE as error:
        reason = "it holds Python objects" if "allow_pickle" in str(error) else str(error) or type(error).__name__
        raise DataError(f"{path}: cannot be read: {' '.join(reason.split())[:160]}") from error


def _show(x: np.ndarray) -> str:
    return f"{x.dtype} {'×'.join(str(n) for n in x.shape)}"


def _vocabulary(arrays: dict[str, np.ndarray], path: Path) -> int:
    if "vocabulary" not in arrays:
        return 0
    vocabulary = arrays["vocabulary"]
    if vocabulary.size != 1 or vocabulary.dtype.kind not in "iu" or not 1 <= vocabulary.item() <= MAX_TOKENS:
        raise DataError(f"{path}: vocabulary must be the number of different tokens, 1 … {MAX_TOKENS}")
    return int(vocabulary.item())


def vocabulary_of(x: Any, settings: DataSettings) -> int:
    """Return the number of tokens of an array of texts of which the next token is predicted; 0 for other samples."""
    if not settings.tokens or not isinstance(x, np.ndarray) or x.dtype.kind not in "iu":
        return 0
    return settings.num_classes or 1 + int(x.max(initial=0))


def _tokens(x: np.ndarray, where: str, vocabulary: int) -> np.ndarray:
    if x.dtype.kind not in "iu" or x.ndim != 2:
        raise DataError(f"{where} is {_show(x)}: with a vocabulary it must be whole numbers n×length")
    outside = np.argwhere((x < 0) | (x >= vocabulary))
    if len(outside):
        row, place = outside[0]
        raise DataError(f"{where}[{row}, {place}] is {x[row, place]}: tokens must be 0 … {vocabulary - 1}")
    return smallest_integers(x, vocabulary)


_NOT_FINITE, _FILLED = "holds a value that is not finite (NaN or infinity)", '; impute = "mean" fills NaN'


def samples_of(
    x: np.ndarray, where: str, vocabulary: int = 0, planes: bool = False, empty: bool = False, gaps: bool = False
) -> np.ndarray:
    """Check an array of samples and bring it into the inner layout.

    ``where`` is what errors call it. ``vocabulary`` is 0 unless it holds texts. With ``planes``, images may also be
    float32 n×C×H×W, as PyTorch has them; in files channels come last. With ``empty`` there may be no samples,
    with ``gaps`` NaN among the numbers.
    """
    expected = (
        f"must be uint8 n×H×W or n×H×W×C (images), float32 n×features{', n×C×H×W' * planes} or n×channels×length, or, "
        f"with {'fedpfl.Dataset.of(…, vocabulary=N)' if planes else 'an array vocabulary'}, whole numbers n×length"
    )
    if vocabulary:
        x = _tokens(x, where, vocabulary)
    elif x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 4 and x.shape[3] > 4 >= x.shape[1]:
            raise DataError(f"{where} is {_show(x)}: channels must come last (n×H×W×C)")
        x = x.reshape(*x.shape, 1) if x.ndim == 3 else x
    elif x.dtype.kind == "f" and x.ndim in (2, 3, *([4] if planes else [])):
        if x.ndim == 4 and x.shape[3] <= 4 and (min(x.shape[1:3]) > 4 or x.shape[1] == x.shape[2] > x.shape[3]):
            raise DataError(
                f"{where} is {_show(x)}: channels of float images must come first (n×C×H×W), as of .transpose(0, 3, 1, "
                "2); those of uint8 come last"
            )
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        if not np.isfinite(x).all() and not (gaps and not np.isinf(x).any()):
            raise DataError(f"{where} {_NOT_FINITE}{'' if np.isinf(x).any() else _FILLED}")
    else:
        raise DataError(f"{where} is {_show(x)}: {expected}")
    if 0 in x.shape[empty:]:
        raise DataError(f"{where} is {_show(x)}: no samples")
    return np.require(x, requirements="C")


def labels_beside(x: Any, y: np.ndarray, where: str, settings: DataSettings, names: bool = True) -> np.ndarray:
    """Return the labels of samples ``x`` as the loss of the settings takes them; see :func:`labels_of`."""
    return labels_of(y, len(x), where, names, settings.targets, x if settings.tokens else None)


def labels_of(
    y: np.ndarray, n: int, where: str, names: bool = False, targets: bool = False, texts: Any = None
) -> np.ndarray:
    """Return the labels of n samples as int64, or targets as float32 n×k; a ``DataError`` explains what is wrong.

    With ``names``, labels may be names of classes, which stay as they are; with ``targets`` whole numbers are targets.
    Masks, n×H×W, become uint8. Whole numbers n×length are the tokens of ``texts``, and become int32.
    """
    if texts is not None:
        return _tokens_to_predict(y, texts, where)
    if y.ndim in (3, 4):
        return _masks_of(y, n, where)
    if y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind != "f":
        y = y.reshape(-1)
    if y.dtype.kind in ("fiub" if targets else "f") and y.ndim in (1, 2):
        if len(y) != n or not (y.size or n == 0):
            raise DataError(f"{where} has {len(y)} targets for {n} samples")
        with np.errstate(over="ignore"):
            y = np.ascontiguousarray(y.reshape(n, -1) if n else y, np.float32)
        if not np.isfinite(y).all():
            raise DataError(f"{where} holds a value that is not finite (NaN or infinity)")
        return y
    if y.dtype.kind not in ("iubUS" if names else "iub") or y.ndim != 1:
        hint = "; targets of more numbers must be floats, and of one-hot rows .argmax(1) are the labels" * (y.ndim == 2)
        raise DataError(f"{where} is {_show(y)}: must be whole numbers, one for each sample{hint}")
    if len(y) != n:
        raise DataError(f"{where} has {len(y)} labels for {n} samples")
    if y.dtype.kind in "US":
        require_words(y, where, "class")
        return y
    for place in (int(y.argmin()), int(y.argmax())) if y.size else ():
        if not 0 <= int(y[place]) < 2**63:
            raise DataError(f"{where}[{place}] is {y[place]}: labels must be 0 … C−1")
    return y.astype(np.int64)


def require_words(words: np.ndarray, where: str, kind: str) -> None:
    """Refuse names of which one is missing: an empty one, or NaN that became a word."""
    missing = np.isin(np.char.strip(words), np.array(NO_NAMES, words.dtype.kind))
    if missing.any():
        place = int(missing.argmax())
        raise DataError(f"{where}[{place}] is {as_text(words[place])!r}, which names no {kind}: leave this row out")


def _tokens_to_predict(y: np.ndarray, x: Any, where: str) -> np.ndarray:
    """Return the tokens of texts again, of which ``IGNORED_TOKEN`` takes the place of those that do not count."""
    allowed = f"must be the tokens of x, whole numbers n×length, or {IGNORED_TOKEN} for each that is not predicted"
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "iu" or x.ndim != 2:
        kind = _show(x) if isinstance(x, np.ndarray) else "read when it is needed"
        raise DataError(f"{where}: x is {kind}: with loss = next-token x must be tokens, whole numbers n×length")
    if y.dtype.kind not in "iu" or y.shape != x.shape:
        raise DataError(f"{where} is {_show(y)}, and x {'×'.join(map(str, x.shape))}: {allowed}")
    as_read, y = y, np.ascontiguousarray(y.clip(-MAX_TOKENS, MAX_TOKENS), np.int32)
    wrong = np.argwhere((y != x) & (y != IGNORED_TOKEN))
    if len(wrong):
        row, place = wrong[0]
        token = as_read[row, place]
        shifted = (y[:, :-1] == x[:, 1:]).mean() > 0.5 if x.shape[1] > 1 else False
        hint = "; here y is x shifted by one: fedpfl shifts it, so give the whole text as both" * bool(shifted)
        raise DataError(f"{where}[{row}, {place}] is {token}, and x {x[row, place]} there: {allowed}{hint}")
    return y


def _masks_of(y: np.ndarray, n: int, where: str) -> np.ndarray:
    if y.ndim == 4 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 3 or y.dtype.kind not in "iub" or len(y) != n:
        raise DataError(f"{where} is {_show(y)}: must be whole numbers, one for each sample, or for each pixel")
    low, high = int(y.min(initial=0)), int(y.max(initial=0))
    if low < 0 or high > IGNORED:
        raise DataError(
            f"{where} holds {low if low < 0 else high}: the labels of masks are 0 … C−1, of at most {IGNORED} classes, "
            f"and {IGNORED} for pixels that do not count"
        )
    return np.ascontiguousarray(y, np.uint8)


def _names_in_file(names: np.ndarray, path: Path, num_classes: int | None) -> tuple[str, ...]:
    if names.ndim != 1 or names.dtype.kind not in "USiu":
        raise DataError(f"{path}: classes is {_show(names)}: must be a list of names")
    if num_classes not in (None, len(names)):
        raise DataError(f"{path}: has {len(names)} classes, the federation has {num_classes}")
    return tuple(c.decode("utf-8", "replace") if isinstance(c, bytes) else str(c) for c in names.tolist())


def owners_of(
    arrays: dict[str, np.ndarray], parts: tuple[str, ...], ys: list[np.ndarray], path: Path
) -> list[np.ndarray | None]:
    """Give the natural clients numbers from 0, in the order of their sorted names."""
    owners = [arrays.get(f"client{part}") for part in parts]
    for part, owner, y in zip(parts, owners, ys):
        if owner is not None and (owner.ndim != 1 or owner.dtype.kind not in "iuUS" or len(owner) != len(y)):
            raise DataError(f"{path}: client{part} is {_show(owner)}: must be one number or name for each sample")
        if owner is not None and owner.dtype.kind in "US":
            require_words(owner, f"{path}: client{part}", "client")
        if owner is not None and owner.dtype.kind == "u" and int(owner.max(initial=0)) >= 2**63:
            raise DataError(f"{path}: client{part} has owner {owner.max()}: numbers of owners must be below 2**63")
    if owners[0] is None:
        if len(owners) > 1 and owners[1] is not None:
            raise DataError(f"{path}: has client_test without client_train")
        return [None] * len(parts)
    present = [_in_one_type(owner) for owner in owners if owner is not None]
    if len({owner.dtype.kind in "iu" for owner in present}) > 1:
        raise DataError(f"{path}: client_train and client_test must both be numbers or both be names")
    _, number = np.unique(np.concatenate(present), return_inverse=True)
    pieces = np.split(number.reshape(-1).astype(np.int64), np.cumsum([len(owner) for owner in present])[:-1])
    return [pieces.pop(0) if owner is not None else None for owner in owners]


def _in_one_type(owners: np.ndarray) -> np.ndarray:
    """Return numbers of owners as int64, since uint64 and int64 together become floats; names as they are."""
    return owners.astype(np.int64) if owners.dtype.kind in "iu" else owners


def owner_names(arrays: dict[str, np.ndarray]) -> tuple[str, ...]:
    """Return the names that :func:`owners_of` numbers; none where the file says nobody's."""
    columns = [_in_one_type(owners) for key, owners in arrays.items() if key.split("_")[0] == "client"]
    return tuple(as_text(name) for name in np.unique(np.concatenate(columns)).tolist()) if columns else ()


def as_text(name: object) -> str:
    """Return the name of a client, of any type."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


@dataset(
    "npz",
    description="your own arrays",
    shape="images, features, series or tokens",
    source="the file named by `data`: x, y or x_train, y_train, x_test, y_test; optionally client, classes, vocabulary",
    owned=True,
    from_path=True,
)
def _npz(settings: DataSettings) -> Dataset:
    return read_npz(own_path(settings, "an npz file"), settings, settings.num_classes or None)
