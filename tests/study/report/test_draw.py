"""Plots: every kind is drawn, the same each time, and names keep their colours."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from fedpfl.core.errors import ConfigError
from fedpfl.study.analysis.figure import Bars, Distributions, Division, Heatmap, Images, Lines, Points
from fedpfl.study.report.draw import COLOURS, NEUTRAL, Pen

AWKWARD = "a<b & $x^{2$ \\frac"
FIGURES = [
    Lines("t", "round", "y", {AWKWARD: ([1, 2, 3], [1.0, 2.0, 1.5]), "b": ([1], [2.0])}, {AWKWARD: [0.1, 0.2, 0.0]}),
    Lines("t", "MB", "y", {AWKWARD: ([0.01, 200], [1.0, 2.0])}, log_x=True),
    Points("t", "x", "y", {AWKWARD: ([1, 2], [3, 4])}, {AWKWARD: [5, 0]}, "MB"),
    Points("t", "x", "y", {AWKWARD: ([1, 2], [3, 4])}),
    Points("t", "x", "y", {AWKWARD: ([1, 2], [3, 4])}, diagonal=True),
    Bars("t", "y", ["g", AWKWARD], {AWKWARD: [1.0, None], "c": [2.0, 3.0]}),
    Bars("t", "y", [str(i) for i in range(40)], {"a": list(range(40))}),
    Distributions("t", "x", {AWKWARD: [1.0, 2.0, 5.0], "b": [3.0]}),
    Heatmap("t", "x", "y", np.array([[1.0, np.nan], [0.0, -0.5]]), [AWKWARD, "s"], ["c", "d"]),
    Heatmap("t", "x", "y", np.full((3, 3), np.nan), list("abc"), list("abc")),
    Heatmap("t", "x", "y", np.arange(4900.0).reshape(70, 70), [*map(str, range(70))], [*map(str, range(70))]),
    Division("t", np.array([[3, 0], [1, 200]])),
    Images("t", {AWKWARD: [np.zeros((4, 4)), np.ones((4, 4, 3))], "b": [np.ones((4, 4))]}, {"b": [AWKWARD]}),
]  # fmt: skip


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: type(figure).__name__)
def test_every_kind_is_drawn(figure):
    in_page = Pen([AWKWARD]).svg(figure, page=True)
    assert ET.fromstring(in_page).tag == "{http://www.w3.org/2000/svg}svg"
    assert "currentColor" in in_page or isinstance(figure, Images)
    assert "#1f2328" not in in_page


@pytest.mark.parametrize(
    ("figure", "form", "start"),
    [(FIGURES[0], "svg", b"<?xml"), (FIGURES[8], "pdf", b"%PDF"), (FIGURES[5], "png", b"\x89PNG")],
)
def test_drawings_are_the_same_each_time(figure, form, start):
    drawing = Pen().file(figure, form)
    assert drawing.startswith(start) and drawing == Pen().file(figure, form)


@pytest.mark.parametrize("figure", [FIGURES[0], FIGURES[2], FIGURES[-2], FIGURES[-1]])
def test_a_style_gives_size_font_and_title(figure, tmp_path):
    sheet = tmp_path / "paper.mplstyle"
    sheet.write_text("font.family: serif\nfont.serif: DejaVu Serif\nlines.linewidth: 3\n")
    pen = Pen([AWKWARD], [{"figure.figsize": (3.3, 2.4), "font.size": 6}, sheet])
    svg = pen.file(figure, "svg", "A title").decode()
    assert "A title" in svg and "DejaVu Serif" in svg
    if not isinstance(figure, Division):
        assert 'width="237.6pt" height="172.8pt"' in svg
    if isinstance(figure, Lines):
        assert "stroke-width: 3;" in svg.replace('"', ";")
        sizes = {float(size) for size in re.findall(r"font-size: ([0-9.]+)px", svg)}
        assert sorted(sizes)[-1] == pytest.approx(20 / 3), "all words become smaller"


def test_a_style_of_fedpfl_s_own_values_changes_nothing():
    assert Pen([AWKWARD], [{"font.size": 9.0}]).file(FIGURES[0], "svg") == Pen([AWKWARD]).svg(FIGURES[0]).encode()


@pytest.mark.parametrize(
    ("style", "message"),
    [
        ({"font.sice": 7}, "style = 'font.sice=7': matplotlib refuses it: 'font.sice' is not a valid value"),
        ({"figure.figsize": "3"}, "Expected 2 values, but there are 1 values in 3"),
        ("no-such-style", "style = 'no-such-style': matplotlib refuses it: 'no-such-style' is not a valid package"),
    ],
)
def test_a_style_that_matplotlib_does_not_know_is_one_line(style, message):
    with pytest.raises(ConfigError) as caught:
        Pen(styles=[style])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_run_has_one_colour_in_all_plots():
    pen = Pen(["fedavg", "local"])
    alone = pen.svg(Lines("t", "x", "y", {"local": ([1, 2], [1.0, 2.0])}))
    bars = pen.svg(Bars("t", "y", ["g"], {"other": [1.0], "local": [2.0]}))
    part = pen.svg(Lines("t", "x", "y", {"local: drift": ([1, 2], [1.0, 2.0])}))
    for svg in (alone, bars, part):
        assert COLOURS[1] in svg
        assert COLOURS[0] not in svg
    no_run = pen.svg(Bars("t", "y", ["fedavg", "local"], {"mean": [1.0, 2.0], "worst": [0.5, 1.0]}))
    assert not set(COLOURS) & set(re.findall(r"#[0-9a-f]{6}", no_run))
    assert NEUTRAL[0] in no_run


def test_thirty_lines_are_told_apart():
    names = [f"run {i:02d}" for i in range(30)]
    looks = Pen(names)._looks(names)
    assert len({(look["color"], str(look["dashes"])) for look in looks}) == 30
    assert len({(look["color"], look["marker"]) for look in looks}) == 30


def test_models_of_nearly_one_size_are_shown_from_zero():
    sizes = {"a": ([13.7], [95.1]), "b": ([13.8], [95.9])}
    axes = Pen().canvas(Points("t", "thousand values", "y", sizes, {"a": [4.0], "b": [1.0]}, "MB")).axes[0]
    assert axes.get_xlim()[0] == 0 < 13.8 < axes.get_xlim()[1]
    low, high = axes.get_ylim()
    assert low < 95.1 - 0.08 and high > 95.9 + 0.08  # the bubbles are whole
    spread = Pen().canvas(Points("t", "x", "y", {"a": ([10.0, 14.0], [1.0, 2.0])})).axes[0]
    assert spread.get_xlim()[0] > 9


def test_two_accuracies_of_a_client_have_the_same_axes():
    axes = Pen().canvas(Points("t", "x", "y", {"a": ([90, 100], [70, 95])}, diagonal=True)).axes[0]
    assert axes.get_xlim() == axes.get_ylim() and axes.get_xlim()[0] < 70 and axes.get_xlim()[1] > 100
    (line,) = axes.lines
    assert list(line.get_xdata()) == list(line.get_ydata()) == list(axes.get_xlim())


def test_names_that_start_alike_are_told_apart():
    pen = Pen(["fedfac", "fedfac, kappa 0.5"])
    svg = pen.svg(Lines("t", "x", "y", {"fedfac, kappa 0.5": ([1, 2], [1.0, 2.0])}))
    assert COLOURS[1] in svg
    assert COLOURS[0] not in svg
