"""Tables of numbers, which experiments and analyses make, for people, spreadsheets and papers."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..core.errors import uncontrolled

FORMATS = ("markdown", "csv", "latex")
# A wider table goes over both columns of a paper, as wide as the page.
MAX_LATEX = 6
MAX_LABEL = 40
# Columns with so many decimal places have numbers of any size: as many more as show so many digits of the largest one,
# unless it is what rounding leaves of 0.
ANY_SIZE, SIGNIFICANT, NOISE = 4, 2, 1e-12

# Where HTML, which Markdown may hold, would begin.
_TAG = re.compile(r"<(?=[a-zA-Z/!?])")
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?")
# What ends a cell in Markdown.
_BAR = re.compile(r"(?<!\\)\|")
_RIGHT, _LEFT = "---:", "---"

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "–": "--",
    "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$", "×": r"$\times$", "Δ": r"$\Delta$", "α": r"$\alpha$",
    "β": r"$\beta$", "δ": r"$\delta$", "ε": r"$\varepsilon$", "η": r"$\eta$", "κ": r"$\kappa$", "µ": r"$\mu$",
    "σ": r"$\sigma$", "τ": r"$\tau$", "\u2060": "{}",
})  # fmt: skip


def in_cell(text: str) -> str:
    """Return a text for a cell of a table in Markdown: it neither ends the cell nor begins HTML."""
    return _TAG.sub("&lt;", text.replace("|", r"\|"))


def _in_latex(text: str) -> str:
    """Return a text as LaTeX shows it: two hyphens, as of an option, stay two, and code is in quotation marks."""
    return re.sub("`([^`]*)`", r"``\1''", text.replace("--", "-\u2060-")).translate(_LATEX)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n − 1 in the denominator; None for a single one) of n measurements."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise measurements; ``ValueError`` if there are none."""
        if not values:
            raise ValueError("no values to summarise")
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def decimals(digits: int, numbers: Collection[object]) -> int:
    """Return the decimal places of numbers: more than ``digits`` where an error in a user's unit would be 0.0000."""
    if digits < ANY_SIZE:
        return digits
    largest = max((abs(x) for x in numbers if isinstance(x, float) and math.isfinite(x)), default=0.0)
    return digits if largest < NOISE else max(digits, SIGNIFICANT - 1 - math.floor(math.log10(largest)))


Cell = str | int | float | Spread | None


@dataclass(frozen=True)
class Table:
    """A table: a title, headings with units, rows with as many cells, and a note.

    ``digits`` are the decimal places of floats and spreads, of all columns or of each. ``optional`` are columns that a
    narrow terminal leaves out, in this order, until the others fit. ``marked`` has 1 for a column in which the highest
    number is the best one and -1 for the lowest: LaTeX has the best in bold and the second underlined.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int | Sequence[int] = 2
    note: str = field(default="", kw_only=True)
    optional: Sequence[str] = field(default=(), kw_only=True)
    marked: Mapping[int, int] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row has {len(row)} cells for {len(self.columns)} columns: {row}")

    def text(self, cell: Cell, column: int) -> str:
        """Return a cell of a column as text for people."""
        digits = self.decimals[column]
        if cell is None:
            return "–"
        if isinstance(cell, Spread):
            mean = self.text(cell.mean, column)
            return mean if cell.std is None else f"{mean} ± {cell.std:.{digits}f}"
        if isinstance(cell, float):
            return f"{cell:z.{digits}f}" if math.isfinite(cell) else str(cell)
        return _in_line(cell) if isinstance(cell, str) else str(cell)

    @cached_property
    def decimals(self) -> list[int]:
        """The decimal places of each column."""
        columns = range(len(self.columns))
        digits = [self.digits] * len(columns) if isinstance(self.digits, int) else self.digits
        return [decimals(digits[column], self._numbers(column)) for column in columns]

    def _numbers(self, column: int) -> list[str | int | float | None]:
        return [cell.mean if isinstance(cell, Spread) else cell for cell in (row[column] for row in self.rows)]

    def texts(self, row: Sequence[Cell]) -> list[str]:
        """Return the cells of a row as texts for people."""
        return [self.text(cell, column) for column, cell in enumerate(row)]

    def write(self, form: str) -> str:
        """Return the table in one of ``FORMATS``, with a line feed at its end."""
        return {"markdown": self.markdown, "csv": self.csv, "latex": self.latex}[form]()

    def markdown(self) -> str:
        """Return the table as Markdown, with title and note."""
        heads, *body = ([*map(in_cell, map(_in_line, cells))] for cells in (self.columns, *map(self.texts, self.rows)))
        kinds = [_RIGHT if self.is_number(column) else _LEFT for column in range(len(self.columns))]
        lines = [f"**{_in_line(self.title)}**", "", *(f"| {' | '.join(cells)} |" for cells in [heads, kinds, *body])]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"

    def csv(self) -> str:
        """Return the table as CSV with full precision; a spread becomes a column for its mean, std and n each.

        A text that a spreadsheet would take for a formula has an apostrophe before it.
        """
        spread = [any(isinstance(row[i], Spread) for row in self.rows) for i in range(len(self.columns))]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads = (
            [name, f"{name} std", f"{name} n"] if wide else [name]
            for name, wide in zip(self.columns, spread, strict=True)
        )
        writer.writerow([_no_formula(name) for names in heads for name in names])
        for row in self.rows:
            writer.writerow([value for cell, wide in zip(row, spread, strict=True) for value in _values(cell, wide)])
        return out.getvalue()

    def latex(self) -> str:
        """Return the table as LaTeX, for the packages booktabs and, if it is wide, graphicx."""
        words = re.findall(r"[a-z0-9]+", self.title.lower())
        label = "-".join(words)
        if len(label) > MAX_LABEL:  # tables of one sweep differ in the last word alone
            label = f"{label[:MAX_LABEL].rpartition('-')[0]}-{words[-1]}"
        kinds = "".join("r" if self.is_number(column) else "l" for column in range(len(self.columns)))
        body = [[*map(_in_latex, self.texts(row))] for row in self.rows]
        for column, sign in self.marked.items():
            for rank, how in enumerate(("textbf", "underline")):
                for row in self._places(column, sign, rank):
                    body[row][column] = rf"\{how}{{{body[row][column]}}}"
        head, *rows = (" & ".join(cells) + r" \\" for cells in ([*map(_in_latex, self.columns)], *body))
        caption = _in_latex(self.title)
        wide = len(self.columns) > MAX_LATEX
        kind = "table*" if wide else "table"
        return "\n".join([
            rf"\begin{{{kind}}}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{tab:{label}}}",
            *([r"\resizebox{\textwidth}{!}{%"] if wide else []),
            rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", head, r"\midrule", *rows,
            r"\bottomrule", r"\end{tabular}" + "}" * wide,
            *([rf"\par {_in_latex(self.note)}"] if self.note else []), rf"\end{{{kind}}}",
        ]) + "\n"  # fmt: skip

    def _places(self, column: int, sign: int, rank: int) -> list[int]:
        """Return the rows whose number in a column, as it is written, is the best (rank 0) or the next one."""
        digits = self.decimals[column]
        numbers = self._numbers(column)
        rounded = {row: sign * round(x, digits) for row, x in enumerate(numbers) if isinstance(x, (int, float))}
        ranked = sorted(set(rounded.values()), reverse=True)
        return [row for row, value in rounded.items() if rank < len(ranked) and value == ranked[rank]]

    def is_number(self, column: int) -> bool:
        """Tell whether a column has numbers alone."""
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and not any(isinstance(cell, str) for cell in cells)


@dataclass(frozen=True)
class WrittenTable(Table):
    """A table read from Markdown: its cells are texts, and ``numbers`` are the columns that had numbers alone."""

    numbers: Collection[int] = field(default=(), kw_only=True)

    def is_number(self, column: int) -> bool:
        """Tell whether a column had numbers alone."""
        return column in self.numbers


def read_markdown(text: str) -> list[WrittenTable]:
    """Return the tables that :meth:`Table.markdown` has written; ``ValueError`` if a row lacks a cell."""
    tables = []
    for part in re.split(r"^(?=\*\*.*\*\*\n\n\| )", text, flags=re.MULTILINE)[1:]:
        title, *lines = part.splitlines()
        rows = [_BAR.split(line)[1:-1] for line in lines if line.startswith("| ")]
        cells = [[cell.strip().replace(r"\|", "|").replace("&lt;", "<") for cell in row] for row in rows]
        note = "\n".join(line for line in lines if line and not line.startswith("| "))
        columns, kinds, *body = cells
        numbers = [column for column, kind in enumerate(kinds) if kind == _RIGHT]
        tables.append(WrittenTable(title[2:-2], columns, body, note=note, numbers=numbers))
    return tables


def _values(cell: Cell, wide: bool) -> list[str | int | float]:
    if isinstance(cell, Spread):
        return [cell.mean, "" if cell.std is None else cell.std, cell.n]
    value = "" if cell is None else _no_formula(cell) if isinstance(cell, str) else cell
    return [value, "", "" if cell is None else 1] if wide else [value]


def _in_line(text: str) -> str:
    return " ".join(uncontrolled(text).splitlines())


def _no_formula(text: str) -> str:
    text = uncontrolled(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) and not _NUMBER.fullmatch(text) else text
