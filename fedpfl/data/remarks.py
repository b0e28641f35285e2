"""Remarks on the data, for users to read before round 1."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

import numpy as np

from ..core.errors import ConfigError, DataError
from ..core.metrics import MASKS, NEXT_TOKEN
from ..core.name_lists import in_short
from ..core.rng import generator
from ..core.samples import IGNORED, IGNORED_TOKEN
from .dataset import Dataset
from .partitioners import Share, left_out, natural_clients, overlap_remark
from .registry import is_own
from .settings import DataSettings

# Labels that a remark names.
MAX_NAMED = 10
# Features that are larger than this have not been brought to one scale. With ages in years, whose mean is five times
# their deviation, a network stays at chance.
LARGE = 20.0
# uint8 images of 0 or 1, or of 17 grey levels, are darker than this; photographs are not.
DARK = 32
# A feature with fewer different values than this, because float32 has no more there, has lost what it said.
FEW_STEPS = 100
# Images of a user's that have fewer pixels a side are rather series, or have their channels first.
SMALL = 5
# A share of test samples that equal a training sample which is no accident, and rows that are compared at a time.
LEAKED, ROWS = 0.01, 2**12
# A share of texts that end alike which is none by chance.
FILLED = 0.25
# Squared errors of larger targets need another learning rate than the default.
LARGE_TARGET = 10.0


def remarks(data: Dataset, settings: DataSettings, shares: list[Share]) -> list[str]:
    """Return a line for each thing that the division, or the samples, may hide; errors where tests mean nothing."""
    _refuse(data, settings, shares)
    lines = []
    if data.num_classes < 2 and not data.has_targets:
        lines.append(f"{data.name}: there is one class, so every model is right: num-classes sets the number")
    if data.unnamed and data.missing and not settings.num_classes:
        lacking = ", ".join(map(str, data.missing[:MAX_NAMED])) + (", …" if len(data.missing) > MAX_NAMED else "")
        lines.append(f"{data.name}: no sample has label {lacking}: the models tell {data.num_classes} classes apart")
    if settings.partitioner == "natural" and data.client_train is not None and not settings.division_file:
        there = natural_clients(data.client_train, data.client_test, data.overlap, settings)
        if len(shares) < there:
            lines.append(f"{data.name}: {len(shares)} of {there} natural clients take part (num-clients)")
        lines += left_out(data, settings)
        if data.y_test is not None and data.client_test is None and settings.split != "given":
            lines.append(
                f"{data.name}: nobody owns the {len(data.y_test)} samples of the test set, and they are left out: name "
                'their owners (client_test), or use split = "given"'
            )
    lines += [*_unmatched(data, settings, shares), *_unused(data, settings, shares)]
    counts = data.countable
    if settings.test_on == "own" and (untested := sum(not counts[share.test].any() for share in shares)):
        lines.append(f"{data.name}: {untested} of {len(shares)} clients have no test samples, and count in no accuracy")
    if idle := int((~counts).sum()):
        what = "texts have no token to predict" if data.vocabulary else "masks have no pixel that counts"
        lines.append(f"{data.name}: {idle} of {len(counts)} {what}: they train and test nothing")
    if data.label_kind == NEXT_TOKEN:
        lines += _filled_up(data)
    if is_own(settings.dataset):
        lines += [*_alike(data), *_leaked(data, shares)]
    if not isinstance(data.x_train, np.ndarray):
        from fedpfl.data.datasets.lazy import HASHED

        hashed = data.x_train.digest and min(HASHED, len(data.x_train))
        inputs = f"{hashed} of their inputs" if hashed else "no input, since each reading gives another one"
        lines.append(
            f"{data.name}: samples are read when they are needed: a run knows by a hash their number, their labels and "
            f"{inputs}; it does not notice where others change"
        )
    channels, height, width = data.input_shape if data.is_image else (0, 0, 0)
    if height != width and min(height, width) < SMALL:
        lines.append(
            f"{data.name}: samples of uint8 are images, here of {height}×{width} pixels and {channels} channels: "
            "series are floats, and channels of uint8 come last"
        )
    if settings.split == "time" and not settings.time_column and not settings.division_file:
        lines.append(f"{data.name}: the last samples of each client, in the order of the data, are those of its tests")
    if settings.split in ("mixed", "stratified") and data.overlap and not settings.division_file:
        lines.append(overlap_remark(data))
    if settings.standardize == "all":
        lines.append(
            f"{data.name}: each feature is scaled by the mean and deviation of all clients' training samples "
            "(standardize = all); in a real federation these numbers would leave the clients"
        )
    numbers = not data.is_image and not data.vocabulary and isinstance(data.x_train, np.ndarray)
    lines += _coarse(data) if numbers else []
    if (
        numbers
        and settings.standardize == "none"
        and (largest := max(float(np.nanmax(data.x_train)), -float(np.nanmin(data.x_train)))) > LARGE
    ):
        what, how = "features", 'standardize = "client" brings them to one scale'
        if data.x_train.ndim == 4:
            what, how = "pixels", "divide them by 255, or give images of uint8"
        lines.append(f"{data.name}: {what} reach {largest:,.0f} and are not scaled: {how}")
    if data.is_image and isinstance(data.x_train, np.ndarray) and (brightest := int(data.x_train.max())) < DARK:
        lines.append(
            f"{data.name}: pixels of uint8 reach {brightest} of 255, and are divided by 255: spread them over 0 … 255"
        )
    if settings.targets and data.has_targets and (largest := float(np.abs(data.y_train).max())) > LARGE_TARGET:
        lines.append(
            f"{data.name}: targets reach {largest:,.0f}: training may diverge; write them in a larger unit, or use a "
            "smaller learning-rate"
        )
    return lines


def _unmatched(data: Dataset, settings: DataSettings, shares: list[Share]) -> list[str]:
    """Tell of test samples that no client is tested with, because no client trains on their classes."""
    owned = settings.partitioner == "natural" and data.client_test is not None
    if settings.split != "given" or settings.division_file or data.y_test is None or data.has_targets or owned:
        return []
    trained = np.unique(np.concatenate([data.y_train[share.train] for share in shares]))
    if not (lost := ~np.isin(data.y_test, trained)).any():
        return []
    classes = in_short([data.class_names[number] for number in np.unique(data.y_test[lost])])
    return [
        f"{data.name}: {int(lost.sum())} of {len(lost)} test samples are left out: no client trains on their classes, "
        f"{classes}"
    ]


def _unused(data: Dataset, settings: DataSettings, shares: list[Share]) -> list[str]:
    """Tell of the user's samples that the partitioner gives to nobody, or a file; of owners' other lines tell."""
    if not settings.division_file and (settings.partitioner == "natural" or not is_own(settings.dataset)):
        return []
    y_test = data.y_test if settings.division_file or settings.split != "given" else None
    count = len(data.y_train) + (0 if y_test is None else len(y_test))
    dealt = np.unique(np.concatenate([positions for share in shares for positions in share]))
    unused = count - int((dealt < count).sum())
    return [f"{data.name}: {unused} of {count} samples belong to no client"] if unused else []


def _filled_up(data: Dataset) -> list[str]:
    """Tell of texts that seem to be filled up where this is not to be seen: at their begin, or where it counts."""
    x, y, lines = data.x_train, data.y_train, []
    if x.shape[1] <= SMALL:
        return []
    for first, second, values, what in (
        (-1, -2, y, "end in token {}, which is to be predicted: if it fills texts up, y has -100 there"),
        (0, 1, x, "begin with token {}: if it fills texts up, move it to their end, since nothing is masked"),
    ):
        twice = values[(values[:, first] == values[:, second]) & (values[:, first] != IGNORED_TOKEN), first]
        tokens, numbers = np.unique(twice, return_counts=True)
        if len(twice) and (most := int(numbers.max())) > FILLED * len(x):
            token = tokens[numbers.argmax()]
            lines.append(f"{data.name}: {most} of {len(x)} texts {what.format(f'{token} twice or more')}")
    return lines


def _alike(data: Dataset) -> list[str]:
    """Tell of names that differ only in case, spaces, zeros or signs that look alike, and of words among numbers."""
    lines = []
    every = {"classes": data.class_names, "features": data.feature_names, "clients": data.client_names}
    for what, names in every.items():
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(_spelt_usually(name), []).append(name)
        shown = [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
        if shown:
            lines.append(f"{data.name}: {what} differ only in spelling: {in_short(shown)}; write alike what is one")
        none = [repr(name) for name in names if what != "features" and _in_usual_form(name) in NOTHING]
        if none:
            told = f"{in_short(none)} among the {what} is taken for one of them"
            lines.append(f"{data.name}: {told}; if it stands for an unknown one, leave its samples out")
        others = [repr(name) for name in names if not _is_number(name) and repr(name) not in none]
        if what != "features" and others and len(names) > 2 * len(others):
            lines.append(f"{data.name}: {what} are numbers, but for {in_short(others)}, which counts as one of them")
    return lines


# What R, SQL and Python write for a missing value.
NOTHING = ("?", "-", "n/a", "na", "nan", "none", "null")
# A number, however it is written; the exponent is none with which a name would grow.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?")


def _spelt_usually(name: str) -> str:
    """Return the common form of names that a reader takes for one name, or one number (01, 1, 1.0, 1e0)."""
    usual = _in_usual_form(name)
    return repr(Decimal(usual).normalize()) if _NUMBER.fullmatch(usual) else usual


def _is_number(name: str) -> bool:
    return _NUMBER.fullmatch(_in_usual_form(name)) is not None


def _in_usual_form(name: str) -> str:
    shown = "".join(letter for letter in unicodedata.normalize("NFKC", name) if unicodedata.category(letter) != "Cf")
    return " ".join(shown.casefold().split())


def _leaked(data: Dataset, shares: list[Share]) -> list[str]:
    """Tell how many test samples some client trains on, where these are more than a few."""
    if not isinstance(data.x_train, np.ndarray):
        return []  # read when they are needed
    marks = np.concatenate([_marks(x, y) for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))
                            if x is not None and y is not None])  # fmt: skip
    train, test = (np.unique(np.concatenate([share[part] for share in shares])) for part in (0, 1))
    count = int(np.isin(marks[test], marks[train]).sum())
    if not count or count < len(test) * LEAKED:
        return []
    return [f"{data.name}: {count} of {len(test)} test samples equal a training sample, label included; the "
            "accuracy on them tells nothing about new samples"]  # fmt: skip


def _marks(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a number for each sample and label, the same for equal ones."""
    marks = np.zeros(len(x), np.uint64)
    for values in (x, y):
        values = np.asarray(values).reshape(len(x), -1)
        values = values.view(f"u{values.dtype.itemsize}")
        factors = generator(0, "marks of samples").integers(2**63, size=values.shape[1], dtype=np.uint64) * 2 + 1
        for begin in range(0, len(x), ROWS):
            marks[begin : begin + ROWS] += (values[begin : begin + ROWS] * factors).sum(1)
        marks *= np.uint64(0x9E3779B97F4A7C15)
    return marks


def _coarse(data: Dataset) -> list[str]:
    """Return a line for the first feature of large numbers, such as seconds since 1970, that float32 makes alike."""
    others = (0, *range(2, data.x_train.ndim))
    low, high = np.fmin.reduce(data.x_train, axis=others), np.fmax.reduce(data.x_train, axis=others)
    steps = np.spacing(np.fmax(np.abs(low), np.abs(high)))
    coarse = np.flatnonzero((steps > 1) & (high > low) & (high - low < FEW_STEPS * steps))
    if not len(coarse):
        return []
    feature, names = int(coarse[0]), data.feature_names
    shown = repr(names[feature]) if feature < len(names) else f"{feature} (counted from 0)"
    span, step = f"{low[feature]:.0f} … {high[feature]:.0f}", f"{steps[feature]:.0f}"
    return [
        f"{data.name}: feature {shown} is {span}, where float32 has steps of {step}: smaller differences are lost; "
        "subtract a number before"
    ]


def _refuse(data: Dataset, settings: DataSettings, shares: list[Share]) -> None:
    """Raise an error for data or a division of which a test would say nothing."""
    if data.num_classes < 2 and data.label_kind == MASKS:
        hint = "num-classes sets the number, if these data lack some"
        if any((y == IGNORED).any() for y in (data.y_train, data.y_test) if y is not None):
            hint = f"{IGNORED} marks pixels that do not count; of masks of 0 and {IGNORED} take mask // {IGNORED}"
        raise DataError(f"{data.name}: number of classes: is {data.num_classes}, must be at least 2; {hint}")
    owned = data.client_train is not None and not settings.division_file
    if settings.split == "time" and settings.time_column and owned and settings.partitioner != "natural":
        message = (
            'must be natural with split = "time" and time-column where samples have owners: their order is that of '
            "the owners, and that of time for each owner alone"
        )
        raise ConfigError("partitioner", settings.partitioner, message)
    if settings.standardize == "client" and (without := sum(not len(share.train) for share in shares)):
        message = (
            f"needs training samples of each client, and {without} of {len(shares)} have only tests: use all or none"
        )
        raise ConfigError("standardize", "client", message)
