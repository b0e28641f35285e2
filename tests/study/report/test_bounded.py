"""A page of very many clients stays small, and says what it leaves out."""

import numpy as np
import pytest

from fedpfl.results.tables import Table
from fedpfl.study.analysis.figure import Bars, Distributions, Division, Heatmap, Points
from fedpfl.study.report import Section, write_page
from fedpfl.study.report.page import MAX_CLIENTS, MAX_POINTS, MAX_ROWS, bounded

MANY = 100_000


def of_many_clients() -> Section:
    values = np.random.default_rng(1).normal(size=MANY).tolist()
    names = [str(i) for i in range(500)]
    return Section(
        "Clients",
        tables=[
            Table("Accuracies", ["client", "accuracy"], [[i, value] for i, value in enumerate(values)], note="Own.")
        ],
        figures=[
            Distributions("Spread", "accuracy", {"a": values, "b": values[:5]}),
            Points("Gains", "one", "other", {"a": (values, values[::-1])}, sizes={"a": [1.0] * MANY}),
            Division("Data", np.ones((MANY, 3), np.int64)),
            Heatmap("Similar", "client", "client", np.arange(250_000.0).reshape(500, 500), names, names),
        ],
    )


def test_tables_and_figures_are_bounded_and_say_so(tmp_path):
    whole = of_many_clients()
    section = bounded(whole)
    (table,) = section.tables
    spread, gains, data, similar = section.figures
    assert len(table.rows) == MAX_ROWS
    assert (table.rows[0][0], table.rows[-1][0]) == (0, MANY - 1)
    assert table.note == "1,000 of 100,000 rows, evenly spaced; `fedpfl analyse … --format csv` writes all. Own."
    assert [len(values) for values in spread.groups.values()] == [MAX_POINTS, 5]
    assert len(gains.series["a"][0]) == len(gains.sizes["a"]) == MAX_POINTS
    assert len(data.counts) == MAX_CLIENTS
    assert similar.values.shape == (MAX_CLIENTS, MAX_CLIENTS)
    assert similar.rows[-1] == similar.columns[-1] == "499"
    assert similar.values[-1, 0] == 499 * 500
    assert section.notes == [
        "Spread: shown are 1,000 of 100,000 points of a row, evenly spaced.",
        "Gains: shown are 1,000 of 100,000 points of a name, evenly spaced.",
        "Data: shown are 200 of 100,000 clients, the first.",
        "Similar: shown are 200 of 500 rows, evenly spaced.",
    ]
    shown, values = spread.groups["a"], whole.figures[0].groups["a"]
    assert np.percentile(shown, (25, 50, 75)) == pytest.approx(np.percentile(values, (25, 50, 75)), abs=0.01)
    write_page(tmp_path / "report.html", "Many", [whole], ["a"])
    assert (tmp_path / "report.html").stat().st_size < 4e6
    assert "1,000 of 100,000 rows" in (tmp_path / "report.html").read_text()


def test_what_is_small_stays_as_it_is():
    small = Section(
        "Clients", ["A note."], [Table("T", ["a"], [[1]])],
        [Distributions("D", "x", {"a": [2.0, 1.0]}), Bars("B", "y", ["g"], {"a": [1.0]})],
    )  # fmt: skip
    assert bounded(small).notes == small.notes
    assert bounded(small).tables == small.tables
    assert sorted(bounded(small).figures[0].groups["a"]) == [1.0, 2.0]
