"""Draw the README's picture from a column of the leaderboard: ``python docs/tools/picture.py``.

It has the best methods of the column, Local and FedAvg, with names that can be read on a telephone.
"""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.figure import Figure
from run_records import DOCS, leaderboard

from fedpfl.study.report.draw import COLOURS, TEXT

COLUMN = "CIFAR-10, Dir(0.5)"
BASELINES = ("Local", "FedAvg")
BEST = 10
PICTURE = DOCS / "pictures" / "methods.png"
# At a width of 400 pixels a letter of 10 points is 11 pixels high.
INCHES, DOTS = (5.0, 3.3), 240


def accuracies(column: str) -> dict[str, tuple[float, float]]:
    """Return each row's mean over the seeds and its deviation, the best first, in percent."""
    _, *rows = leaderboard()[column]["table"]
    return {
        name: (float(mean), float(spread)) for name, (mean, _, spread) in ((row[0], row[1].split()) for row in rows)
    }


def main() -> None:
    """Write the picture."""
    every = accuracies(COLUMN)
    shown = [*[name for name in every if name not in BASELINES][:BEST], *BASELINES]
    with mpl.rc_context({"font.size": 10.0, "text.color": TEXT, "axes.labelcolor": TEXT}):
        figure = Figure(figsize=INCHES, layout="constrained")
        axes = figure.subplots()
        for place, name in enumerate(shown):
            mean, spread = every[name]
            colour = COLOURS[1 + BASELINES.index(name)] if name in BASELINES else COLOURS[0]
            axes.barh(place, mean, xerr=spread, color=colour, height=0.65, error_kw={"linewidth": 1.0})
            axes.text(1.0, place, f"{mean:.1f}", color="white", va="center", fontweight="bold")
        axes.axvline(every["Local"][0], color=COLOURS[1], linewidth=1.0, linestyle="--")
        axes.set_yticks(range(len(shown)), shown)
        axes.invert_yaxis()
        axes.set_xlabel("accuracy on CIFAR-10, mean over 20 clients, %")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(PICTURE, dpi=DOTS, metadata={"Software": None})
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
