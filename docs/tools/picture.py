"""Draw the README's picture from recorded runs: ``python docs/tools/picture.py``.

It has the first 50 rounds of five methods of docs/records/pfllib-fashion-mnist. Each line has its name at its end, so
that the picture needs no legend.
"""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from run_records import DOCS, Record, read

from fedpfl.report.draw import COLOURS, MARKERS, TEXT

GROUP, COLUMN = "pfllib-fashion-mnist", "Dir(0.1)"
METHODS, ROUNDS = ("Ditto", "FedAvg", "FedPer", "FedRep", "FedRoD"), 50
PICTURE = DOCS / "pictures" / "methods.png"
# Titles by the name of a record's curve.
PANELS = {"weighted": "All test samples", "worst tenth": "The worst tenth of the clients"}
# Where the picture is 700 pixels wide, names of 9 points are as large as the text around it.
INCHES, DOTS = (7.0, 3.2), 200
# Between two names, in percent of the axis.
APART = 6.0


def spread(ends: list[float]) -> list[float]:
    """Return heights near the ascending ends, each at least ``APART`` below the next; the highest stays."""
    heights = ends[:]
    for i in range(len(heights) - 2, -1, -1):
        heights[i] = min(heights[i], heights[i + 1] - APART)
    return heights


def panel(axes: Axes, records: list[Record], curve: str, title: str) -> None:
    """Draw a curve of each record, with its name and its last value at its end."""
    xs = [at for at in records[0]["curves"]["round"] if at <= ROUNDS]
    curves = [(place, record["row"], record["curves"][curve][: len(xs)]) for place, record in enumerate(records)]
    curves.sort(key=lambda line: line[2][-1])
    for (place, name, ys), height in zip(curves, spread([ys[-1] for *_, ys in curves]), strict=True):
        axes.plot(xs, ys, color=COLOURS[place], marker=MARKERS[place], markersize=3.5, linewidth=1.6)
        axes.text(xs[-1] + 1.5, height, f"{name} {ys[-1]:.0f} %", color=COLOURS[place], va="center")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlabel="round", xlim=(0, xs[-1] + 1), ylim=(0, 100))
    axes.grid(True, linewidth=0.5, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Write the picture."""
    of = {record["row"]: record for record in read(GROUP) if record["column"] == COLUMN}
    records = [of[name] for name in METHODS]
    with mpl.rc_context({"font.size": 9.0, "text.color": TEXT, "axes.labelcolor": TEXT}):
        figure = Figure(figsize=INCHES, layout="constrained")
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (curve, title) in zip(panels, PANELS.items(), strict=True):
            panel(axes, records, curve, title)
        panels[0].set_ylabel("accuracy, %")
        figure.savefig(PICTURE, dpi=DOTS, metadata={"Software": None})
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
