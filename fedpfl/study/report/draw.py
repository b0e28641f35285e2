"""Draws figures that are plain data, as SVG, PDF or PNG, as matplotlib's styles say where any are given.

A name has one colour, marker and dash pattern in all drawings of one :class:`Pen`. The colours keep a contrast of at
least 3 to white and to the dark page, and stay apart under the common kinds of colour blindness.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, NullFormatter

from ...core.errors import ConfigError, uncontrolled
from ...data.plot import AXIS, GRID, bubbles
from ..analysis.figure import Bars, Distributions, Division, Figure, Heatmap, Images, Lines, Points

COLOURS = ("#197cd4", "#d07d0e", "#329b83", "#8e592d", "#4b5cf9", "#1b9ab7")
MARKERS = "osD^vPX"
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (9, 1.5, 1.2, 1.5, 1.2, 1.5)))
# For bars and lines that stand for no run: their colours must not be taken for those of runs.
NEUTRAL = ("#5f6b7a", "#8592a3", "#3f6d8f", "#7f6a8f", "#6f7f5a", "#8f7a5f")
TEXT = "#1f2328"

INCHES = (4.4, 3.0)
# Cells of a heat map up to which each is drawn as a separate shape with its number.
MAX_SHAPES, MAX_NUMBERS = 4000, 144
MAX_MARKERS = 25
# More series than these have their names next to the axes.
MAX_IN_LEGEND = 8
# Values along an axis that differ by a smaller part of the largest are shown from 0, since they are nearly the same.
NARROW = 0.1
MAX_NAME = 44
# A drawing in a page takes the colours of the page, which may be dark.
IN_PAGE = {TEXT: "currentColor", GRID: "var(--grid)", AXIS: "var(--axis)"}

_NO_DATE = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}
# Sizes of words are for this size of the font, and change with it.
FONT = 9.0
_SIZES: dict[Any, float] = {
    "axes.titlesize": 9.0, "axes.labelsize": 9.0, "legend.fontsize": 8.5, "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0, "figure.titlesize": 10.0,
}  # fmt: skip
_SETTINGS: Any = {  # matplotlib's own type lists each of its keys
    "svg.hashsalt": "fedpfl", "svg.fonttype": "none", "pdf.fonttype": 42, "text.parse_math": False,
    "font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans"], "font.size": FONT, "text.color": TEXT,
    "axes.labelcolor": TEXT, "xtick.color": AXIS, "ytick.color": AXIS, "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT, "axes.edgecolor": AXIS, "grid.color": GRID, "axes.titlecolor": TEXT,
    "figure.figsize": INCHES, "lines.linewidth": 1.6, "grid.linewidth": 0.6, "savefig.dpi": 200,
    "savefig.bbox": "tight", "savefig.pad_inches": 0.05,
}  # fmt: skip

# What matplotlib takes as a style: the name or the file of a style sheet, or settings of it.
Style = str | Path | Mapping[str, Any]


class Pen:
    """Draws figures in which a name always looks the same: labels of runs, the most important first.

    ``styles`` are matplotlib's, the last wins. With a ``figure.figsize`` among them all but a division's file have
    exactly that size.
    A style that matplotlib does not know raises ``ConfigError``.
    """

    def __init__(self, names: Sequence[str] = (), styles: Sequence[Style] = ()) -> None:
        self._place = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self._styles = list(styles)
        with self._style():  # what is wrong with it is said before anything is drawn
            pass

    def svg(self, figure: Figure, page: bool = False) -> str:
        """Return a figure as SVG, the same text each time; as part of a page it takes the colours of the page."""
        content = self._saved(figure, "svg", page).decode()
        if not page:
            return content
        for colour, of_page in IN_PAGE.items():
            content = content.replace(colour, of_page)
        return content

    def file(self, figure: Figure, form: str, title: str = "") -> bytes:
        """Return a figure as a file, ``svg``, ``pdf`` or ``png`` (200 dots to the inch), always with the same bytes."""
        return self._saved(figure, form, page=False, title=title)

    def canvas(self, figure: Figure, title: str = "") -> Canvas:
        """Return a figure as matplotlib's own."""
        with self._style():
            return self._drawn(figure, title)

    @contextmanager
    def _style(self) -> Iterator[None]:
        with mpl.rc_context(_SETTINGS):
            self._use_styles()
            factor = _relative(1.0)
            mpl.rcParams.update({key: size * factor for key, size in _SIZES.items()})
            self._use_styles()  # which may set one of these, too
            yield

    def _use_styles(self) -> None:
        for style in self._styles:
            try:
                mpl.style.use(style if isinstance(style, (str, Path)) else dict(style))
            except (KeyError, OSError, ValueError) as error:
                pairs = style.items() if isinstance(style, Mapping) else ()
                listed = ", ".join(f"{key}={value}" for key, value in pairs) or str(style)
                what = str(error.args[0]).partition("\n")[0].partition(" (see rcParams")[0]
                raise ConfigError("style", listed, f"matplotlib refuses it: {what}") from error

    def _saved(self, figure: Figure, form: str, page: bool, title: str = "") -> bytes:
        with self._style(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # a name in another script is a box
            canvas = self._drawn(figure, title)
            content = io.BytesIO()
            canvas.savefig(content, format=form, transparent=page, metadata=_NO_DATE.get(form))
        return uncontrolled(content.getvalue().decode()).encode() if form == "svg" else content.getvalue()

    def _drawn(self, figure: Figure, title: str = "") -> Canvas:
        draw: dict[type, Callable[[Any], Canvas]] = {
            Lines: self._lines, Points: self._points, Bars: self._bars, Distributions: self._distributions,
            Heatmap: _heatmap, Division: lambda division: bubbles(division.counts), Images: _images,
        }  # fmt: skip
        canvas = draw[type(figure)](figure)
        if title:
            canvas.suptitle(title)
        if _has_own_size() and not isinstance(figure, Division):  # whose bubbles are drawn for its own size
            mpl.rcParams["savefig.bbox"] = None
            canvas.set_size_inches(*mpl.rcParams["figure.figsize"])
        return canvas

    def _looks(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return colour, marker and dashes for the series of a figure."""
        places = [self._of_run(name) for name in names]
        if all(place is None for place in places):
            return [_look(place, NEUTRAL) for place in range(len(names))]
        spare = iter(range(len(self._place), len(self._place) + len(names)))
        return [_look(next(spare) if place is None else place, COLOURS) for place in places]

    def _of_run(self, name: str) -> int | None:
        """Return the place of the run that a series belongs to: of its label, or of one that the name starts with."""
        labels = [label for label in self._place if name == label or name.startswith((f"{label}:", f"{label}, "))]
        return self._place[max(labels, key=len)] if labels else None

    def _lines(self, figure: Lines) -> Canvas:
        many = len(figure.series) > MAX_IN_LEGEND
        canvas, axes = _axes(figure, *_size(len(figure.series)))
        looks = self._looks(list(figure.series))
        for (name, (xs, ys)), look in zip(figure.series.items(), looks, strict=True):
            markers = {"marker": look["marker"], "markersize": 4} if len(xs) <= MAX_MARKERS and not many else {}
            axes.plot(xs, ys, color=look["color"], linestyle=look["dashes"], label=name, **markers)
            if name in figure.bands:
                band = np.asarray(figure.bands[name])
                axes.fill_between(xs, ys - band, ys + band, color=look["color"], alpha=0.18, linewidth=0)
        if figure.log_x:
            _log_x(axes)
        elif all(float(x).is_integer() for xs, _ in figure.series.values() for x in xs):
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        _legend(canvas, axes)
        return canvas

    def _points(self, figure: Points) -> Canvas:
        canvas, axes = _axes(figure, *_size(len(figure.series)))
        largest = max((size for sizes in figure.sizes.values() for size in sizes), default=1.0) or 1.0
        for (name, (xs, ys)), look in zip(figure.series.items(), self._looks(list(figure.series)), strict=True):
            sizes = figure.sizes.get(name)
            area: Any = 22 if sizes is None else [max(300 * size / largest, 12) for size in sizes]
            axes.scatter(
                xs, ys, s=area, color=look["color"], marker=look["marker"], alpha=0.7, linewidths=0, label=name
            )
        axes.margins(0.12)  # room for the bubbles, of which a part would be cut off
        places = [float(x) for xs, _ in figure.series.values() for x in xs]
        if figure.log_x:
            _log_x(axes)
        elif figure.diagonal:
            _diagonal(axes)
        elif places and min(places) > 0 and max(places) - min(places) < NARROW * max(places):
            axes.set_xlim(0, 1.3 * max(places))
        handles = _legend(canvas, axes)
        for handle in handles:
            handle.set_sizes([22])
        if figure.sizes:
            axes.set_title(f"area: {figure.size_label}", loc="right", fontsize=_relative(8))
        return canvas

    def _bars(self, figure: Bars) -> Canvas:
        count, series = len(figure.groups), len(figure.values)
        canvas, axes = _axes(figure, width=min(max(_size(0)[0], 0.09 * count * (series + 1), 0.21 * count), 14.0))
        thick = 0.8 / max(series, 1)
        looks = self._looks(list(figure.values))
        for place, ((name, heights), look) in enumerate(zip(figure.values.items(), looks, strict=True)):
            drawn = [(i, height) for i, height in enumerate(heights) if height is not None]
            middles = [i + (place - (series - 1) / 2) * thick for i, _ in drawn]
            axes.bar(middles, [height for _, height in drawn], width=thick * 0.92, color=look["color"], label=name)
        _name_ticks(axes, "x", figure.groups, canvas.get_figwidth())
        axes.grid(False, axis="x")
        _legend(canvas, axes)
        return canvas

    def _distributions(self, figure: Distributions) -> Canvas:
        names = list(figure.groups)
        canvas, axes = _axes(figure, height=max(1.6, 0.42 * len(names) + 0.9))
        for row, (name, look) in enumerate(zip(names, self._looks(names), strict=True)):
            values = np.asarray(figure.groups[name], np.float64)
            # Points of a row are spread in a fixed pattern: next to each other in order of size, so that few overlap.
            across = row + 0.22 * np.array([(0, 1, -1, 0.5, -0.5)[i % 5] for i in range(len(values))])
            axes.scatter(np.sort(values), across, s=14, color=look["color"], marker=look["marker"], alpha=0.6,
                         linewidths=0)  # fmt: skip
            low, middle, high = np.percentile(values, (25, 50, 75))
            axes.plot([low, high], [row, row], color=look["color"], linewidth=7, alpha=0.3, solid_capstyle="butt")
            axes.plot([middle, middle], [row - 0.34, row + 0.34], color=look["color"], linewidth=2.2)
        axes.set_ylim(len(names) - 0.45, -0.55)
        axes.set_yticks(range(len(names)), [_short(name) for name in names])
        axes.grid(False, axis="y")
        return canvas


def _heatmap(figure: Heatmap) -> Canvas:
    rows, columns = figure.values.shape
    cell = min(0.42, 12.0 / max(columns, 1), 9.0 / max(rows, 1))
    width, height = max(cell * columns, 2.4), max(cell * rows, 1.2)
    canvas, axes = _axes(figure, width=width + 1.4, height=height + 0.9)
    low, high = figure.limits or (None, None)
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(figure.values), cmap="viridis", vmin=low, vmax=high, linewidth=0, antialiased=False,
        rasterized=figure.values.size > MAX_SHAPES,
    )  # fmt: skip
    axes.invert_yaxis()
    axes.grid(False)
    _name_ticks(axes, "x", figure.columns, width, middle=0.5)
    _name_ticks(axes, "y", figure.rows, height, middle=0.5)
    bar = canvas.colorbar(mesh, ax=axes, pad=0.02, fraction=0.06)
    bar.outline.set_visible(False)
    if figure.values.size <= MAX_NUMBERS and cell >= 0.36:
        for (row, column), value in np.ndenumerate(figure.values):
            if math.isfinite(value):
                light = np.asarray(mesh.norm(value)).item() > 0.6
                axes.text(column + 0.5, row + 0.5, f"{value:.2f}" if 0 < abs(value) < 1 else f"{value:.3g}",
                          ha="center", va="center", fontsize=_relative(6.5),
                          color="#000000" if light else "#ffffff")  # fmt: skip
    return canvas


def _images(figure: Images) -> Canvas:
    most = max(len(row) for row in figure.rows.values())
    canvas = Canvas(figsize=(min(1.0 * most + 1.2, 12.0), 1.1 * len(figure.rows) + 0.2), layout="constrained")
    grid = canvas.subplots(len(figure.rows), most, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for (name, images), line in zip(figure.rows.items(), grid, strict=True):
        captions = figure.captions.get(name, [""] * len(images))
        for image, caption, axes in zip(images, captions, line, strict=False):
            axes.imshow(np.clip(image, 0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(caption, fontsize=_relative(7))
        place = {"ha": "right", "va": "center", "transform": line[0].transAxes}
        line[0].text(-0.1, 0.5, _short(name), fontsize=_relative(8), **place)
    return canvas


def _axes(figure: Any, width: float | None = None, height: float | None = None) -> tuple[Canvas, Axes]:
    usual = _size(0)
    canvas = Canvas(figsize=(width or usual[0], height or usual[1]), layout="constrained")
    axes = canvas.subplots()
    axes.set_xlabel(_short(getattr(figure, "x_label", "")))
    axes.set_ylabel(_short(getattr(figure, "y_label", "")))
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return canvas, axes


def _log_x(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _diagonal(axes: Axes) -> None:
    """Give both axes the same range, and draw the line of equal values."""
    ends = [*axes.get_xlim(), *axes.get_ylim()]
    ends = [min(ends), max(ends)]
    axes.plot(ends, ends, color=TEXT, linewidth=0.8, alpha=0.6, zorder=0)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    axes.text(0.03, 0.94, "line: equal", transform=axes.transAxes, fontsize=_relative(8))


def _legend(canvas: Canvas, axes: Axes) -> list[Any]:
    handles, names = axes.get_legend_handles_labels()
    if not handles:
        return []
    names, below = [_short(name) for name in names], len(names) <= MAX_IN_LEGEND
    letters = 62 * canvas.get_figwidth() / INCHES[0] / _relative(1.0)
    columns = max(1, min(len(names), 4, int(letters / (max(map(len, names)) + 6)))) if below else 1
    legend = canvas.legend(handles, names, loc="outside lower center" if below else "outside right center",
                           ncols=columns, frameon=False, handlelength=2.4)  # fmt: skip
    return list(legend.legend_handles)


def _size(series: int) -> tuple[float, float]:
    """Return width and height of axes with that many names next to them."""
    width, height = mpl.rcParams["figure.figsize"]
    if series <= MAX_IN_LEGEND or _has_own_size():
        return width, height
    return width + 1.8, max(height, 0.155 * series + 0.7)


def _has_own_size() -> bool:
    """Return whether a style says how large a figure is."""
    return tuple(mpl.rcParams["figure.figsize"]) != INCHES


def _relative(points: float) -> float:
    """Return a size of words that is right for the usual font as that for the style's."""
    return points * float(mpl.rcParams["font.size"]) / FONT


def _look(place: int, colours: Sequence[str]) -> dict[str, Any]:
    turn, colour = divmod(place, len(colours))
    return {"color": colours[colour], "marker": MARKERS[place % len(MARKERS)], "dashes": DASHES[turn % len(DASHES)]}


def _name_ticks(axes: Axes, axis: str, names: Sequence[str], inches: float, middle: float = 0.0) -> None:
    """Write names along an axis, every 2nd, 5th, 10th … where all would touch."""
    room = inches / max(len(names), 1)
    longest = _relative(0.075) * max((len(name) for name in names), default=1)
    turned = axis == "x" and longest > room and len(names) <= 30
    needed = _relative(0.2) if turned or axis == "y" else longest + 0.06
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if room * s >= needed), 1000)
    places = list(range(0, len(names), step))
    labels = [_short(names[i]) for i in places]
    if axis == "x":
        axes.set_xticks(
            [i + middle for i in places], labels, rotation=30 if turned else 0, ha="right" if turned else "center"
        )
    else:
        axes.set_yticks([i + middle for i in places], labels)


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 2].rstrip() + " …"
