"""Figures as plain data: what an analysis shows, without anything that draws it.

Every class says what it holds and can be written for other programs: numbers as CSV, images as NumPy's ``.npz``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..results.tables import Cell, Table

XY = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Lines:
    """Curves in one pair of axes.

    Parameters
    ----------
    title, x_label, y_label : str
        Words, with units.
    series : dict of str to (xs, ys)
        By the name in the legend; as many x as y.
    bands : dict of str to sequence of float
        For the series that have them: half the width of a band around the curve at each x, a standard deviation.
    log_x : bool
        Whether the x axis is logarithmic; all x are above 0 then.
    """

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, XY]
    bands: Mapping[str, Sequence[float]] = field(default_factory=dict)
    log_x: bool = False

    def __post_init__(self) -> None:
        _same_length(self.title, self.series)
        for name, widths in self.bands.items():
            if name not in self.series or len(widths) != len(self.series[name][0]):
                raise ValueError(f"{self.title}: the band of {name} has {len(widths)} widths, not one for each x")

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the numbers."""
        columns, rows = ["series", self.x_label, self.y_label], _long(self.series)
        if self.bands:
            widths = [w for name, (xs, _) in self.series.items() for w in self.bands.get(name, [None] * len(xs))]
            columns = [*columns, "std"]
            rows = [[*row, width] for row, width in zip(rows, widths, strict=True)]
        return _csv(self.title, columns, rows)


@dataclass(frozen=True)
class Points:
    """Points, or bubbles where they have sizes.

    Parameters
    ----------
    title, x_label, y_label : str
        Words, with units.
    series : dict of str to (xs, ys)
        By the name in the legend.
    sizes : dict of str to sequence of float
        Areas of the bubbles of each series, relative to each other; none for plain points.
    size_label : str
        What they mean.
    log_x : bool
        Whether the x axis is logarithmic; all x are above 0 then.
    """

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, XY]
    sizes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    size_label: str = ""
    log_x: bool = False

    def __post_init__(self) -> None:
        _same_length(self.title, self.series)
        for name, sizes in self.sizes.items():
            if name not in self.series or len(sizes) != len(self.series[name][0]):
                raise ValueError(f"{self.title}: {name} has {len(sizes)} sizes, not one for each of its points")

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the numbers."""
        columns, rows = ["series", self.x_label, self.y_label], _long(self.series)
        if self.sizes:
            sizes = [size for name, (xs, _) in self.series.items() for size in self.sizes.get(name, [None] * len(xs))]
            columns = [*columns, self.size_label]
            rows = [[*row, size] for row, size in zip(rows, sizes, strict=True)]
        return _csv(self.title, columns, rows)


@dataclass(frozen=True)
class Bars:
    """Bars in groups.

    Parameters
    ----------
    title, y_label : str
        Words, with units.
    groups : sequence of str
        Names along the axis.
    values : dict of str to sequence
        By the name in the legend, one height for each group; None where there is no bar.
    """

    title: str
    y_label: str
    groups: Sequence[str]
    values: Mapping[str, Sequence[float | None]]

    def __post_init__(self) -> None:
        for name, heights in self.values.items():
            if len(heights) != len(self.groups):
                raise ValueError(f"{self.title}: {name} has {len(heights)} bars for {len(self.groups)} groups")

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the numbers."""
        rows = [[group, *(heights[i] for heights in self.values.values())] for i, group in enumerate(self.groups)]
        return _csv(f"{self.title}: {self.y_label}", ["group", *self.values], rows)


@dataclass(frozen=True)
class Distributions:
    """Groups of values of which each value is shown.

    Parameters
    ----------
    title, x_label : str
        Words, with units.
    groups : dict of str to sequence of float
        By name; at least one value in each.
    """

    title: str
    x_label: str
    groups: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        for name, values in self.groups.items():
            if not len(values):
                raise ValueError(f"{self.title}: {name} has no values")

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the numbers."""
        return _csv(self.title, ["group", self.x_label], [[n, value] for n, of in self.groups.items() for value in of])


@dataclass(frozen=True)
class Heatmap:
    """A matrix.

    Parameters
    ----------
    title, x_label, y_label : str
        Words, with units.
    values : ndarray
        Shape (len(rows), len(columns)); NaN where there is no value.
    rows, columns : sequence of str
        Names along the axes.
    limits : (float, float), optional
        Values at the ends of the scale of colours, where matrices are to be compared; by default the matrix's own.
    """

    title: str
    x_label: str
    y_label: str
    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.rows), len(self.columns)):
            raise ValueError(f"{self.title}: values of shape {self.values.shape} for {len(self.rows)} rows and "
                             f"{len(self.columns)} columns")  # fmt: skip

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the numbers."""
        rows: list[list[Cell]] = [[name, *values] for name, values in zip(self.rows, self.values.tolist(), strict=True)]
        return _csv(self.title, [self.y_label, *self.columns], rows)


@dataclass(frozen=True)
class Division:
    """Who has how many samples of which class.

    Parameters
    ----------
    title : str
        Words.
    counts : ndarray of int, shape (clients, classes)
        Training samples.
    """

    title: str
    counts: np.ndarray

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the numbers."""
        classes = [f"class {c}" for c in range(self.counts.shape[1])]
        rows = [[client, *map(int, row)] for client, row in enumerate(self.counts)]
        return _csv(self.title, ["client", *classes], rows)


@dataclass(frozen=True)
class Images:
    """Images in rows.

    Parameters
    ----------
    title : str
        Words.
    rows : dict of str to sequence of ndarray
        By the row's name; each image (height, width) in grey or (height, width, 3) in colour, from 0 to 1.
    captions : dict of str to sequence of str
        For the rows that have them, one for each image.
    """

    title: str
    rows: Mapping[str, Sequence[np.ndarray]]
    captions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, captions in self.captions.items():
            if name not in self.rows or len(captions) != len(self.rows[name]):
                raise ValueError(f"{self.title}: {name} has {len(captions)} captions, not one for each of its images")

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the images: arrays called ``ROW/NUMBER``, in order."""
        content = io.BytesIO()
        images = {f"{name}/{i:03d}": image for name, row in self.rows.items() for i, image in enumerate(row)}
        np.savez_compressed(content, allow_pickle=False, **images)
        return "npz", content.getvalue()


Figure = Lines | Points | Bars | Distributions | Heatmap | Division | Images


def file_name(title: str) -> str:
    """Return a title as the name of a file: small Latin letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _long(series: Mapping[str, XY]) -> list[list[Cell]]:
    return [[name, x, y] for name, (xs, ys) in series.items() for x, y in zip(xs, ys, strict=True)]


def _csv(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[str, bytes]:
    return "csv", Table(title, columns, rows).csv().encode()


def _same_length(title: str, series: Mapping[str, XY]) -> None:
    for name, (xs, ys) in series.items():
        if len(xs) != len(ys):
            raise ValueError(f"{title}: {name} has {len(xs)} x for {len(ys)} y")
