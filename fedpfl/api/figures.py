"""Figures that a notebook shows and a file holds."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ConfigError, FedpflError
from ..core.files import write_atomically
from ..study.analysis.figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from ..study.report.draw import Pen, Style


def require_drawing(what: str) -> None:
    """Raise :class:`FedpflError` if matplotlib is not installed."""
    if not can_draw():
        raise FedpflError(f"{what} needs matplotlib: pip install matplotlib")


def can_draw() -> bool:
    """Return whether matplotlib is installed, which draws figures."""
    return importlib.util.find_spec("matplotlib") is not None


class Plot:
    """A figure that a notebook shows as it is, or that is saved; runs look the same in all drawings, by their names.

    Parameters
    ----------
    title : str
        What stands above it.
    style : str, Path, Mapping or Sequence of these, optional
        matplotlib's settings such as ``{"figure.figsize": (3.3, 2.4), "font.size": 8}``, or name or file of a style
        sheet; several in a list. With a ``figure.figsize`` a file has exactly that size.

    Raises
    ------
    ConfigError
        If matplotlib does not know the style.
    """

    def __init__(
        self, figure: Figure, names: Sequence[str] = (), title: str = "", style: Style | Sequence[Style] = ()
    ) -> None:
        require_drawing("a plot")
        from ..study.report.draw import Pen

        self.data, self._title = figure, title
        self._pen: Pen = Pen(names, [style] if isinstance(style, (str, Path, Mapping)) else style)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a file, SVG, PDF or PNG by its name's ending; another ending raises ``ConfigError``."""
        place = Path(path).expanduser()
        if place.suffix not in (".svg", ".pdf", ".png"):
            raise ConfigError("path", str(place), "must end with .svg, .pdf or .png")
        try:
            write_atomically(place, self._pen.file(self.data, place.suffix[1:], self._title))
        except OSError as error:
            raise ConfigError("path", str(place), f"cannot be written ({error.strerror})") from error
        return place

    def figure(self) -> Canvas:
        """Return the figure as matplotlib's, to be changed."""
        return self._pen.canvas(self.data, self._title)

    def _repr_png_(self) -> bytes:
        return self._pen.file(self.data, "png", self._title)
