"""Tables of numbers in three formats."""

from __future__ import annotations

import csv
import io
import re
import statistics

import pytest

from fedpfl.cli.common import print_tables
from fedpfl.results.tables import FORMATS, Spread, Table, read_markdown

TABLE = Table(
    "Accuracy & bytes, α 0.5",
    ["method", "accuracy / %", "rounds"],
    [["fed_avg", Spread.of([50.0, 51.0, 53.0]), 3], ["a|b", Spread.of([1.5]), None]],
    1,
    note="100 % of clients.",
)


def test_on_a_terminal_a_table_is_drawn(monkeypatch, capsys):
    table = Table("Two methods", ["method", "accuracy, %"], [["fedper", Spread(91.5, 0.25, 3)]], note="Three seeds.")
    print_tables([table], "")
    assert capsys.readouterr().out == table.markdown()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_tables([table], "")
    drawn = capsys.readouterr().out
    assert "Two methods" in drawn and "91.50 ± 0.25" in drawn and "Three seeds." in drawn and "|" not in drawn
    print_tables([table], "csv")
    assert capsys.readouterr().out == table.csv()


@pytest.fixture
def draw(monkeypatch, capsys):
    """Return a function that returns a table as a terminal of this width shows it, without its colours."""

    def drawn(table, width):
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))
        print_tables([table], "")
        text = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
        assert max(map(len, text.splitlines())) <= width
        return text

    return drawn


def test_a_narrow_terminal_has_whole_names_and_numbers_and_says_what_it_leaves_out(draw):
    columns = ["method", "chosen", "accuracy, mean over clients", "95 % interval from", "to", "worst tenth", "seconds"]
    chosen, wide = "learning-rate 0.01, local-epochs 5, fedprox-mu 0.1", Spread(98.4, 0.5, 3)
    row = ["factorized-fl-plus", chosen, wide, 91.25, 100.0, wide, wide]
    drawn = draw(Table("Methods", columns, [row], note="Last round.", optional=["seconds", "worst tenth"]), 80)
    assert {"factorized-fl-plus", "learning-rate", "local-epochs", "98.40", "91.25", "100.00"} <= set(drawn.split())
    assert "Last round. Not shown here: seconds, worst tenth (--format csv)." in " ".join(drawn.split())


def test_columns_for_which_there_is_no_room_are_named_and_no_word_is_broken(draw):
    heads = "round; personalised, %; worst tenth, %; global, %; training loss; seconds; trained; failed"
    columns, digits = heads.split("; "), [0, 2, 2, 2, 3, 2, 0, 0]
    row = [1, 80.89, 60.47, None, 0.25, 2.24, 10, 0]
    drawn = draw(Table("rounds", columns, [row], digits, optional=["trained"]), 60)
    assert {"round", "personalised,", "training", "loss", "80.89", "60.47", "0.250"} <= set(drawn.split())
    assert "Not shown here: trained, failed, seconds (--format csv)." in " ".join(drawn.split())
    text = " ".join(draw(Table("rounds", columns, [row], digits), 30).split())
    assert "Not shown here: failed; trained; seconds; training loss; global, %; worst tenth, % (--format csv)." in text


def test_a_text_between_numbers_is_not_broken_within_a_word_and_gets_the_room_that_is_left(draw):
    columns = ["method", "chosen", "mean over clients, %", "worst tenth, %", "training loss", "runs done"]
    wide = Spread(98.4, 0.5, 3)
    row = ["feddecomp", "learning-rate 0.1", wide, wide, wide, "5/5"]
    for width in range(70, 130, 7):
        drawn = draw(Table("Methods", columns, [row], optional=["training loss"]), width)
        assert {"feddecomp", "learning-rate", "98.40"} <= set(drawn.split()), width
    assert "learning-rate 0.1" in drawn and "mean over clients, %" in drawn


def test_a_difference_of_almost_nothing_has_no_sign():
    table = Table("Differences", ["a", "b"], [[-0.001, Spread(-0.001, 0.2, 3)]])
    assert table.texts(table.rows[0]) == ["0.00", "0.00 ± 0.20"]


def test_an_error_in_a_small_unit_is_not_written_as_0() -> None:
    table = Table(
        "", ["mae", "none", "percent"], [[3.21e-5, 1e-17, 0.001], [Spread(1e-6, 2e-6, 2), 0.0, 0.0]], [4, 4, 2]
    )
    assert [table.texts(row) for row in table.rows] == [
        ["0.000032", "0.0000", "0.00"], ["0.000001 ± 0.000002", "0.0000", "0.00"]
    ]  # fmt: skip
    assert Table("", ["mae"], [[0.51], [3e-5]], 4).texts([3e-5]) == ["0.0000"]


def test_a_spread_has_the_sample_standard_deviation() -> None:
    spread = Spread.of([50.0, 51.0, 53.0])
    assert (spread.mean, spread.std, spread.n) == (pytest.approx(154 / 3), statistics.stdev([50, 51, 53]), 3)
    assert Spread.of([1.5]) == Spread(1.5, None, 1)
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_markdown_aligns_numbers_and_escapes_bars() -> None:
    assert TABLE.markdown().splitlines() == [
        "**Accuracy & bytes, α 0.5**",
        "",
        "| method | accuracy / % | rounds |",
        "| --- | ---: | ---: |",
        "| fed_avg | 51.3 ± 1.5 | 3 |",
        r"| a\|b | 1.5 | – |",
        "",
        "100 % of clients.",
    ]


def test_written_tables_are_read_as_they_were() -> None:
    other = Table("Two **bold** words", ["note"], [["a < b, <b>"], ["-"]])
    text = f"Made today.\n\n{TABLE.markdown()}\n{other.markdown()}"
    first, second = read_markdown(text)
    assert f"Made today.\n\n{first.markdown()}\n{second.markdown()}" == text
    assert [first.is_number(column) for column in range(3)] == [False, True, True]
    assert first.rows[1] == ["a|b", "1.5", "–"] and second.rows[0] == ["a < b, <b>"]
    names = Table("One\nline", ["a|b", "<b>", "two\nlines"], [[1, 2, 3]]).markdown()
    (read,) = read_markdown(names)
    assert (read.title, read.columns, read.rows) == ("One line", ["a|b", "<b>", "two lines"], [["1", "2", "3"]])
    assert "| a\\|b | &lt;b> | two lines |" in names
    assert read_markdown("no table\n") == []
    with pytest.raises(ValueError, match="a row has 2 cells for 3 columns"):
        read_markdown(text.replace(" | 3 |", " |"))


def test_csv_keeps_precision_and_spreads_apart() -> None:
    rows = list(csv.DictReader(io.StringIO(TABLE.csv())))
    assert float(rows[0]["accuracy / %"]) == 154 / 3
    assert float(rows[0]["accuracy / % std"]) == statistics.stdev([50, 51, 53])
    assert [row["accuracy / % n"] for row in rows] == ["3", "1"]
    assert rows[1]["accuracy / % std"] == "" and rows[1]["rounds"] == ""


def test_latex_escapes_what_latex_reads() -> None:
    text = TABLE.latex()
    assert r"\caption{Accuracy \& bytes, $\alpha$ 0.5}" in text
    assert r"fed\_avg & 51.3 $\pm$ 1.5 & 3 \\" in text
    assert r"\begin{tabular}{lrr}" in text and r"\label{tab:accuracy-bytes-0-5}" in text


def test_latex_keeps_options_and_tells_tables_of_one_long_title_apart() -> None:
    note = "see --select (`fedpfl report` lists them)"
    one, other = (Table(f"{'word ' * 30}{last}", ["a"], [[1]], note=note).latex() for last in ("run", "point"))
    assert r"\par see -{}-select (``fedpfl report'' lists them)" in one
    assert one.split("label{")[1].split("}")[0].endswith("-word-run") and "-word-point}" in other


def test_latex_has_all_columns_of_a_wide_table() -> None:
    wide = Table("Wide", list("abcdefgh"), [range(8)], [1] * 8, optional=("g", "b", "c")).latex()
    assert "a & b & c & d & e & f & g & h" in wide and "0 & 1 & 2 & 3 & 4 & 5 & 6 & 7" in wide
    assert r"\begin{table*}" in wide and r"\resizebox{\textwidth}{!}{%" in wide and r"\end{tabular}}" in wide


def test_latex_marks_the_best_and_the_second_of_a_column() -> None:
    rows = [["a", Spread(2.04, 0.1, 2), 3.0], ["b", Spread(2.01, 0.1, 2), 1.0], ["c", Spread(1.0, None, 1), None]]
    text = Table("t", ["method", "high", "low"], rows, 1, marked={1: 1, 2: -1}).latex()
    assert (
        r"a & \textbf{2.0 $\pm$ 0.1} & \underline{3.0} \\" in text
        and r"b & \textbf{2.0 $\pm$ 0.1} & \textbf{1.0}" in text
    )
    assert r"c & \underline{1.0} & -- \\" in text


def test_every_format_is_written() -> None:
    assert [TABLE.write(form) for form in FORMATS] == [TABLE.markdown(), TABLE.csv(), TABLE.latex()]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells for 3 columns"):
        Table("t", ["a", "b", "c"], [[1, 2]])
