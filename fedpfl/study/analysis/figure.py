"""Figures as plain data: what an analysis shows, without anything that draws it.

Every class checks that its parts fit together (``ValueError``), and can be written for other programs: numbers as CSV,
images as NumPy's ``.npz``. Titles and labels are texts with units.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...core.files import write_atomically
from ...results.tables import Cell, Table

XY = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class _Series:
    """Series of (xs, ys) by the name in the legend, in one pair of axes."""

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, XY]

    def _check(self, third: Mapping[str, Sequence[float]], what: str) -> None:
        for name, (xs, ys) in self.series.items():
            if len(xs) != len(ys):
                raise ValueError(f"{self.title}: {name} has {len(xs)} x for {len(ys)} y")
        for name, values in third.items():
            if name not in self.series or len(values) != len(self.series[name][0]):
                raise ValueError(f"{self.title}: {name} has {len(values)} {what}, not one for each of its points")

    def _file(self, third: Mapping[str, Sequence[float]], head: str) -> tuple[str, bytes]:
        rows: list[list[Cell]] = []
        for name, (xs, ys) in self.series.items():
            for x, y, value in zip(xs, ys, third.get(name, [None] * len(xs)), strict=True):
                rows.append([name, x, y, *([value] if third else [])])
        return _csv(self.title, ["series", self.x_label, self.y_label, *([head] if third else [])], rows)


@dataclass(frozen=True)
class Lines(_Series):
    """Curves.

    ``bands`` has half the width of a band around a curve at each x, a standard deviation. With ``log_x`` all x are
    above 0.
    """

    bands: Mapping[str, Sequence[float]] = field(default_factory=dict)
    log_x: bool = False

    def __post_init__(self) -> None:
        self._check(self.bands, "widths")

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the numbers."""
        return self._file(self.bands, "std")


@dataclass(frozen=True)
class Points(_Series):
    """Points, or bubbles whose areas are relative to each other (``sizes``).

    With ``log_x`` all x are above 0. With ``diagonal`` x and y are the same number of two things: their axes are the
    same, and a line shows where both are equal.
    """

    sizes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    size_label: str = ""
    log_x: bool = False
    diagonal: bool = False

    def __post_init__(self) -> None:
        self._check(self.sizes, "sizes")

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the numbers."""
        return self._file(self.sizes, self.size_label)


@dataclass(frozen=True)
class Bars:
    """Bars in groups: by the name in the legend, one height for each group; None where there is no bar."""

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
    """Groups of at least one value, each value of which is shown."""

    title: str
    x_label: str
    groups: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        for name, values in self.groups.items():
            if not len(values):
                raise ValueError(f"{self.title}: {name} has no values")

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the numbers."""
        return _csv(
            self.title,
            ["group", self.x_label],
            [[name, value] for name, group in self.groups.items() for value in group],
        )


@dataclass(frozen=True)
class Heatmap:
    """A matrix with names of its rows and columns; NaN where there is no value.

    ``limits`` are the values at the ends of the scale of colours, by default the matrix's own.
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
    """The number of training samples by client and class, shape (clients, classes)."""

    title: str
    counts: np.ndarray

    def file(self) -> tuple[str, bytes]:
        """Return (ending, content) of a file with the numbers."""
        classes = [f"class {c}" for c in range(self.counts.shape[1])]
        rows = [[client, *map(int, row)] for client, row in enumerate(self.counts)]
        return _csv(self.title, ["client", *classes], rows)


@dataclass(frozen=True)
class Images:
    """Rows of images, (height, width) in grey or (height, width, 3) in colour, from 0 to 1; some rows have captions."""

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


def another_name(name: str, names: Sequence[str]) -> str:
    """Return a name of a file that is none of ``names``: titles may differ only in what no file's name has."""
    same = sum(other == name or other.startswith(f"{name}--") for other in names)
    return f"{name}--{same + 1}" if same else name


def _csv(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[str, bytes]:
    return "csv", Table(title, columns, rows).csv().encode()


def write_data(figures: Iterable[Figure], folder: Path, prefix: str = "") -> None:
    """Write the data of figures into a folder that is there, each into a file named after its title."""
    names = list[str]()
    for figure in figures:
        ending, content = figure.file()
        names.append(another_name(f"{prefix}{file_name(figure.title)}", names))
        write_atomically(folder / f"{names[-1]}.{ending}", content)
