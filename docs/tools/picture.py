"""Draw the README's picture from a column of the leaderboard: ``python docs/tools/picture.py``.

It has every method of the column, Local and FedAvg as lines across.
"""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.figure import Figure
from run_records import DOCS, leaderboard

from fedpfl.study.report.draw import COLOURS, TEXT

COLUMN = "CIFAR-10, Dir(0.5)"
BASELINES = ("Local", "FedAvg")
PICTURE = DOCS / "pictures" / "methods.png"
# Where the picture is 700 pixels wide, names of 8 points are nearly as large as the text around it.
INCHES, DOTS = (7.0, 3.6), 200


def accuracies(column: str) -> dict[str, tuple[float, float]]:
    """Return each row's mean over the seeds and its deviation, the best first, in percent."""
    _, *rows = leaderboard()[column]["table"]
    return {
        name: (float(mean), float(spread)) for name, (mean, _, spread) in ((row[0], row[1].split()) for row in rows)
    }


def main() -> None:
    """Write the picture."""
    found = accuracies(COLUMN)
    with mpl.rc_context({"font.size": 8.0, "text.color": TEXT, "axes.labelcolor": TEXT}):
        figure = Figure(figsize=INCHES, layout="constrained")
        axes = figure.subplots()
        for place, (name, (mean, spread)) in enumerate(found.items()):
            colour = COLOURS[1 + BASELINES.index(name)] if name in BASELINES else COLOURS[0]
            axes.errorbar(place, mean, spread, color=colour, marker="o", markersize=4, linewidth=1.2)
            if name in BASELINES:
                axes.axhline(mean, color=colour, linewidth=1.0, linestyle="--")
                axes.text(len(found) - 0.4, mean, f"{name} {mean:.0f} %", color=colour, va="center", fontsize=9)
        axes.set_xticks(range(len(found)), found, rotation=90)
        for label in axes.get_xticklabels():
            if label.get_text() in BASELINES:
                label.set(color=COLOURS[1 + BASELINES.index(label.get_text())], fontweight="bold")
        axes.set(ylabel="mean over clients, %", xlim=(-0.6, len(found) - 0.6))
        axes.grid(True, axis="y", linewidth=0.5, alpha=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(PICTURE, dpi=DOTS, metadata={"Software": None})
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
