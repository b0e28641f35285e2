"""What users should know of their data before round 1."""

from __future__ import annotations

import numpy as np

from ..core.errors import ConfigError, DataError
from ..core.samples import IGNORED
from .dataset import Dataset
from .partitioners import Share
from .settings import DataSettings

# Labels that a remark names.
MAX_NAMED = 10
# Features that are larger than this have not been brought to one scale.
LARGE = 100.0
# uint8 images of 0 or 1, or of 17 grey levels, are darker than this; photographs are not.
DARK = 32
# A feature with fewer different values than this, because float32 has no more there, has lost what it said.
FEW_STEPS = 100
# Squared errors of larger targets need another learning rate than the default.
LARGE_TARGET = 10.0


def remarks(data: Dataset, settings: DataSettings, shares: list[Share]) -> list[str]:
    """Return a line for each thing that the division, or the samples, may hide; errors where tests mean nothing."""
    _refuse(data, settings, shares)
    said = []
    if data.num_classes < 2 and not data.has_targets:
        said.append(f"{data.name}: there is one class, so every model is right: num-classes sets the number")
    if data.unnamed and data.missing and not settings.num_classes:
        lacking = ", ".join(map(str, data.missing[:MAX_NAMED])) + (", …" if len(data.missing) > MAX_NAMED else "")
        said.append(f"{data.name}: no sample has label {lacking}: the models tell {data.num_classes} classes apart")
    if settings.partitioner == "natural" and data.client_train is not None and not settings.division_file:
        from .natural import left_out, natural_clients

        there = natural_clients(data.client_train, data.client_test, data.overlap, settings)
        if len(shares) < there:
            said.append(f"{data.name}: {len(shares)} of {there} natural clients take part (num-clients)")
        said += left_out(data, settings)
        if data.y_test is not None and data.client_test is None and settings.split != "given":
            said.append(
                f"{data.name}: nobody owns the {len(data.y_test)} samples of the test set, and they are left out: name "
                'their owners (client_test), or use split = "given"'
            )
    if settings.split == "time" and not settings.time_column:
        said.append(f"{data.name}: the last samples of each client, in the order of the data, are those of its tests")
    if settings.split in ("mixed", "stratified") and data.overlap:
        from .overlap import remark

        said.append(remark(data))
    if settings.standardize == "all":
        said.append(
            f"{data.name}: each feature is scaled by the mean and deviation of all clients' training samples "
            "(standardize = all); in a real federation these numbers would leave the clients"
        )
    numbers = not data.is_image and isinstance(data.x_train, np.ndarray) and not data.inputs
    numbers = numbers and not data.vocabulary
    said += _coarse(data) if numbers else []
    if (
        numbers
        and settings.standardize == "none"
        and (largest := max(float(np.nanmax(data.x_train)), -float(np.nanmin(data.x_train)))) > LARGE
    ):
        what, how = "features", 'standardize = "client" brings them to one scale'
        if data.x_train.ndim == 4:
            what, how = "pixels", "divide them by 255, or give images of uint8"
        said.append(f"{data.name}: {what} reach {largest:,.0f} and are not scaled: {how}")
    if data.is_image and isinstance(data.x_train, np.ndarray) and (brightest := int(data.x_train.max())) < DARK:
        said.append(
            f"{data.name}: pixels of uint8 reach {brightest} of 255, and are divided by 255: spread them over 0 … 255"
        )
    if settings.targets and data.has_targets and (largest := float(np.abs(data.y_train).max())) > LARGE_TARGET:
        said.append(
            f"{data.name}: targets reach {largest:,.0f}: training may diverge; write them in a larger unit, or use a "
            "smaller learning-rate"
        )
    return said


def _coarse(data: Dataset) -> list[str]:
    """Return a line for the first feature of large numbers, such as seconds since 1970, that float32 makes alike."""
    others = (0, *range(2, data.x_train.ndim))
    low, high = np.fmin.reduce(data.x_train, axis=others), np.fmax.reduce(data.x_train, axis=others)
    steps = np.spacing(np.fmax(np.abs(low), np.abs(high)))
    found = np.flatnonzero((steps > 1) & (high > low) & (high - low < FEW_STEPS * steps))
    if not len(found):
        return []
    at, names = int(found[0]), data.feature_names
    shown = repr(names[at]) if at < len(names) else f"{at} (counted from 0)"
    return [
        f"{data.name}: feature {shown} is {low[at]:.0f} … {high[at]:.0f}, where float32 has steps of {steps[at]:.0f}: "
        "smaller differences are lost; subtract a number before"
    ]


def _refuse(data: Dataset, settings: DataSettings, shares: list[Share]) -> None:
    """Raise an error for data or a division of which a test would say nothing."""
    if data.num_classes < 2 and data.has_masks:
        hint = "num-classes sets the number, if these data lack some"
        if any((y == IGNORED).any() for y in (data.y_train, data.y_test) if y is not None):
            hint = f"{IGNORED} marks pixels that do not count; of masks of 0 and {IGNORED} take mask // {IGNORED}"
        raise DataError(f"{data.name}: number of classes: is {data.num_classes}, must be at least 2; {hint}")
    owned = data.client_train is not None and not settings.division_file
    if settings.split == "time" and settings.time_column and owned and settings.partitioner != "natural":
        allowed = (
            'must be natural with split = "time" and time-column where samples have owners: their order is that of '
            "the owners, and that of time for each owner alone"
        )
        raise ConfigError("partitioner", settings.partitioner, allowed)
    if settings.standardize == "client" and (without := sum(not len(share.train) for share in shares)):
        allowed = (
            f"needs training samples of each client, and {without} of {len(shares)} have only tests: use all or none"
        )
        raise ConfigError("standardize", "client", allowed)
