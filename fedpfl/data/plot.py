"""Charts of which client has which classes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from ..core.errors import ConfigError, printable
from ..core.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUBBLE = "#2f6f9f"
GRID, AXIS = "#e6e6e6", "#c8c8c8"


def require_chart(path: Path) -> None:
    """Raise ``ConfigError`` for a file that is none of the kinds of charts."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError("path", str(path), "must end in .png, .svg or .pdf")


def bubble_chart(counts: np.ndarray, path: str | Path, title: str = "") -> Path:
    """Draw :func:`bubbles` into a ``.png``, ``.svg`` or ``.pdf`` file and return its path; else ``ConfigError``."""
    path = Path(path)
    require_chart(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    bubbles(counts, title).savefig(content, format=path.suffix[1:].lower(), bbox_inches="tight", pad_inches=0.12)
    write_atomically(path, content.getvalue())
    return path


def bubbles(counts: np.ndarray, title: str = "") -> Figure:
    """Draw classes against clients from counts, shape (clients, classes); a bubble's area is the number of samples."""
    from matplotlib.figure import Figure  # not pyplot, whose global state would keep the figure and pick a window

    clients, classes = counts.shape
    # Inches between two clients and between two classes: small federations get room, large ones still fit a screen.
    across, down = min(0.42, 14.0 / clients), min(0.42, 0.3 if clients > 30 else 1.0, 11.0 / classes)
    width, height = max(across * clients, 2.4), max(down * classes, 1.6)
    figure = Figure(figsize=(width + 2, height + 1), dpi=150, facecolor="white")
    axes = figure.add_axes((0.75 / (width + 2), 0.55 / (height + 1), width / (width + 2), height / (height + 1)))
    most = max(int(counts.max(initial=0)), 1)
    # In points. Where one direction is tight, bubbles may overlap in it rather than become dots.
    narrow, far = sorted((width / clients, height / classes))
    diameter = max(72 * min(0.94 * far, 1.9 * narrow if far > narrow * 1.01 else 0.94 * narrow), 8.0)
    style: dict[str, Any] = {"color": BUBBLE, "alpha": 0.75, "linewidths": 0.4, "edgecolors": "white"}

    def area(samples: np.ndarray) -> np.ndarray:
        points: np.ndarray = np.maximum(diameter**2 * samples / most, 1.5)  # a single sample stays visible
        return points

    client, label = np.nonzero(counts)
    order = np.argsort(-counts[client, label], kind="stable")  # small bubbles on top of large ones
    client, label = client[order], label[order]
    axes.scatter(client, label, s=area(counts[client, label]), zorder=2, clip_on=False, **style)
    axes.set_xlim(-0.6, clients - 0.4)
    axes.set_ylim(-0.6, classes - 0.4)
    axes.set_xticks(_ticks(clients, width))
    axes.set_yticks(_ticks(classes, height))
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.tick_params(length=0, labelsize=8)
    axes.grid(color=GRID, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_color(AXIS)
    if title:
        axes.set_title(title, loc="left", fontsize=10)
    sizes = sorted({most, _round(most / 2), _round(most / 8)} - {0}, reverse=True)
    handles = [axes.scatter([], [], s=float(area(np.array(n))), label=f"{n:,}", **style) for n in sizes]
    font = 8.0  # the legend's lengths are in units of its font size
    axes.legend(
        handles=handles,
        title="samples",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0,
        frameon=False,
        fontsize=font,
        title_fontsize=font,
        alignment="left",
        handlelength=max(1.2, diameter / font),
        labelspacing=max(0.5, diameter / font - 0.6),
    )
    return figure


def _ticks(n: int, inches: float) -> np.ndarray:
    """Return the numbers to write on an axis of this length: every 2nd, 5th, 10th … where all would touch."""
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if inches * s / n >= 0.24), 1000)
    return np.arange(0, n, step)


def _round(value: float) -> int:
    """Round to one leading digit, for the legend."""
    digits: int = 10 ** (len(str(int(value))) - 1)
    return round(value / digits) * digits


def as_text(counts: np.ndarray, client_names: Sequence[str] = (), class_names: Sequence[str] = ()) -> str:
    """Return the counts, shape (clients, classes), as a plain table for terminals: one line for each client.

    With more than 20 classes it names each client's three largest instead.
    """
    clients, classes = counts.shape
    wide = classes > 20
    header = ["client", "training", "classes"] + (["largest classes"] if wide else [str(c) for c in range(classes)])
    rows = [header]
    for i in range(clients):
        row = counts[i]
        if wide:
            largest = np.argsort(-row, kind="stable")[:3]
            cells = [", ".join(f"{c}: {row[c]}" for c in largest if row[c])]
        else:
            cells = [str(n) if n else "." for n in row]
        name = printable(f"{i} {client_names[i]}") if client_names else str(i)
        rows.append([name, str(int(row.sum())), str(int((row > 0).sum())), *cells])
    widths = [max(len(row[k]) for row in rows) for k in range(len(header))]
    lines = ["  ".join(text.rjust(w) for text, w in zip(row, widths)).rstrip() for row in rows]
    if class_names and not wide:
        lines.append(printable("classes: " + ", ".join(f"{c} {name}" for c, name in enumerate(class_names))))
    return "\n".join(lines)
