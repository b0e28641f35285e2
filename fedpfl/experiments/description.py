"""The file of an experiment: one table or figure of a paper as a grid of runs, and what the paper says.

::

    title = "FedDecomp, table 3: …"
    paper = "Wu et al., …, MM 2024"
    base = "../configs/feddecomp-cifar10.toml"     # relative to this file; its settings come first
    metrics = ["personalised-best"]                # one table each (`metrics.py`)
    seeds = 3                                      # as published: seeds 1, 2, 3
    x = "α"                                        # rows or columns called "…, α 0.4" are places on an axis
    remarks = "…"                                  # what a reader of the table has to know
    [analyses]                                     # of `fedpfl analyse`
    per-client = { of = "column" }                 # of the runs of each column, or of "all"
    attack = { of = "all", clients = 5 }           # with options

    [settings]                                     # of all cells
    [rows]
    "FedAvg" = { method = "fedavg" }
    [columns]
    "CIFAR-100" = { base = "../configs/feddecomp-cifar100.toml" }
    [cells."FedAvg"."CIFAR-100"]                   # of one cell
    [[not-covered]]
    rows = ["FedAvg"]                              # all without; likewise columns
    reason = "why these cells are not run"
    [[no-number]]
    metrics = ["global-best"]                      # all without; likewise rows, columns
    rows = ["FedAMP"]
    reason = "why these cells are run and yet have no such number"

    [choose]                                       # for each cell the best of these, see below
    learning-rate = [0.01, 0.1]
    [ranking]                                      # a table for each column instead of one for each metric
    baseline = "Local"                             # a row that the others are compared with
    over = "megabytes"                             # the first metric is drawn over this one

    [scale.smoke]                                  # smoke and small; the scale paper is what stands above
    like = "scales/feddecomp-smoke.toml"           # remarks and settings that several files share; come first
    remarks = "what it leaves out"
    columns = ["CIFAR-10"]                         # only these; likewise rows
    settings = { num-server-rounds = 3 }
    column."CIFAR-10" = { num-clients = 4 }        # likewise row
    choose = { learning-rate = [0.01] }            # instead of the file's
    analyses = { attack = { clients = 2 } }        # other options

    [paper-values]
    missing = "why a value is a dash"
    [paper-values.personalised-best]
    "FedAvg" = ["60.39 ± 1.46", "–"]               # by column

Of two settings the later wins: base, settings, column, row, cell, then the scale's settings, column and row.
A column can also have ``clients``, the clients over which accuracies are averaged, and ``generate``, a script beside
the file with its arguments: it is run with ``--seed SEED --write FOLDER`` first, and ``{generated}`` in a text of the
settings is that folder. A column with ``pool = ["COLUMN", …]`` is not run: it has the mean, or the maximum where the
metric is one, of the cells beside it. A row can have ``metric``, measured instead of the experiment's only one.
With ``choose`` each cell is first run with every combination of the values and seed 1. The best of them, by its best
round's accuracy on the samples that ``validation-fraction`` sets aside, is run with the other seeds, and its runs are
the cell's. Of equally good ones it is the first. A row, a column or a scale can have a ``choose`` of its own.
If several have one, it is the row's, else the scale's; an empty one of the scale says that nothing is chosen.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from . import metrics

SCALES = ("smoke", "small", "paper")
DASH = "–"
AS_PUBLISHED = "As published, but for what the remarks here and those in the files of configs/ list."
ALL, BY_COLUMN = "all", "column"

_TOP = {
    "title": str, "paper": str, "base": str, "metrics": list, "seeds": int, "remarks": str, "x": str, "analyses": dict,
    "curves": list, "relative-to": str, "fractions": bool, "settings": dict, "rows": dict, "columns": dict,
    "cells": dict, "not-covered": list, "no-number": list, "scale": dict, "paper-values": dict, "choose": dict,
    "ranking": dict,
}  # fmt: skip
_NEEDED = ("title", "paper", "metrics", "seeds", "rows", "columns", "scale")
_SCALE = {
    "remarks": str, "seeds": int, "rows": list, "columns": list, "settings": dict, "row": dict, "column": dict,
    "like": str, "generate": dict, "analyses": dict, "choose": dict,
}  # fmt: skip
_OF_COLUMN = {"base": str, "clients": list, "generate": list, "pool": list, "choose": dict}
_NOT_COVERED = {"rows": list, "columns": list, "reason": str}
_NO_NUMBER = {"metrics": list, **_NOT_COVERED}
_LIKE = {"remarks": str, "settings": dict}
_RANKING = {"baseline": str, "over": str}
_OF_ROW = {"metric": str, "choose": dict}


@dataclass(frozen=True)
class Scale:
    """How large an experiment is run.

    Attributes
    ----------
    seeds : int
        Seeds 1 … n.
    remarks : str
        What differs from the paper.
    rows, columns : tuple of str
        Those that are run.
    settings : dict
        Of all cells.
    row, column : dict
        Further settings by row and column.
    generate : dict
        Other scripts than the columns', by column.
    analyses : dict
        Other options of the analyses.
    choose : dict of str to list, or None
        The values among which each cell's are chosen, by setting, if the scale has its own; none: nothing is chosen.
    """

    seeds: int
    remarks: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    row: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    column: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    generate: Mapping[str, Sequence[str]] = field(default_factory=dict)
    analyses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    choose: Mapping[str, Sequence[Any]] | None = None


@dataclass(frozen=True)
class Ranking:
    """How methods are compared, a table for each column.

    Attributes
    ----------
    baseline : str
        The row that the others are compared with.
    over : str
        The metric on the x axis of the figure, in which the first metric is drawn.
    """

    baseline: str
    over: str


@dataclass(frozen=True)
class Cell:
    """One place in the grid.

    Attributes
    ----------
    row, column : str
        Their names.
    settings : dict
        Of its runs, without the seed; only keys that the file or its base sets.
    clients : tuple of int
        The clients over which personalised accuracies are averaged; empty means all.
    generate : tuple of str
        Script, with its arguments, that makes the cell's data; empty: none.
    """

    row: str
    column: str
    settings: Mapping[str, Any]
    clients: tuple[int, ...] = ()
    generate: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper; :func:`load` reads it.

    Attributes
    ----------
    name : str
        The file's name without ``.toml``.
    title, paper, remarks : str
        Whatever a reader has to know.
    metrics : tuple of str
        What is measured: a table each.
    relative_to : str
        Row by whose value the values of its column are divided; empty: none.
    fractions : bool
        Whether accuracies are written as fractions, as in the paper, instead of percentages.
    analyses : dict of str to dict
        Options of the analyses that are made of the runs as well, and ``of``: "all" runs, or those of each "column".
    curves : tuple of str
        What is shown by round.
    x : str
        Word before the numbers in the names of rows or columns over which values are drawn; empty: none are.
    scales : dict of str to Scale
        By the names of ``SCALES``.
    not_covered : dict of (str, str) to str
        Why a cell is not run, by row and column.
    no_number : dict of (str, str, str) to str
        Why a cell that is run has no number, by metric, row and column.
    paper_values : dict of str to dict of str to tuple
        The paper's values by metric and row, in the order of all columns; None where the paper has none.
    missing : str
        Why the paper has no value there.
    ranking : Ranking or None
        How the rows are ranked; None: there is a table for each metric.
    """

    name: str
    title: str
    paper: str
    remarks: str
    metrics: tuple[str, ...]
    relative_to: str
    fractions: bool
    analyses: Mapping[str, Mapping[str, Any]]
    curves: tuple[str, ...]
    x: str
    rows: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, Mapping[str, Any]]
    scales: Mapping[str, Scale]
    not_covered: Mapping[tuple[str, str], str]
    no_number: Mapping[tuple[str, str, str], str]
    paper_values: Mapping[str, Mapping[str, tuple[str | float | None, ...]]]
    missing: str
    ranking: Ranking | None
    _folder: Path
    _settings: Mapping[str, Any]
    _choose: Mapping[str, Sequence[Any]]
    _base: Mapping[str, Any]
    _bases: Mapping[str, Mapping[str, Any]]
    _cells: Mapping[str, Mapping[str, Mapping[str, Any]]]

    def scale(self, name: str) -> Scale:
        """Return a scale by name.

        Raises
        ------
        ConfigError
            There is none of that name.
        """
        if name not in self.scales:
            raise ConfigError("scale", name, "must be one of " + ", ".join(SCALES))
        return self.scales[name]

    def only(self, rows: Sequence[str], columns: Sequence[str]) -> Experiment:
        """Return the experiment with some of its rows and columns alone; none given: all.

        Raises
        ------
        ConfigError
            There is no row or column of that name.
        """
        for key, names, known in (("row", rows, self.rows), ("column", columns, self.columns)):
            for name in names:
                if name not in known:
                    raise ConfigError(key, name, "must be one of " + ", ".join(known))
        scales = {
            name: replace(
                scale,
                rows=tuple(row for row in scale.rows if row in (rows or scale.rows)),
                columns=tuple(column for column in scale.columns if column in (columns or scale.columns)),
            )
            for name, scale in self.scales.items()
        }
        return replace(self, scales=scales)

    def cells(self, scale: str, more: Mapping[str, Any] | None = None) -> list[Cell]:
        """Return the cells that are run at a scale, by columns.

        Parameters
        ----------
        scale : str
            One of ``SCALES``.
        more : mapping, optional
            Settings that win over all others.
        """
        at = self.scale(scale)
        return [
            self._cell(row, column, at, more or {})
            for column in at.columns
            for row in at.rows
            if not self.pooled(column) and (row, column) not in self.not_covered
        ]

    def pooled(self, column: str) -> tuple[str, ...]:
        """Return the columns whose cells a column puts together; none for a column that is run."""
        return tuple(self.columns[column].get("pool", ()))

    def metric(self, row: str, metric: str) -> str:
        """Return what is measured in a row, in the table of a metric."""
        return str(self.rows[row].get("metric", metric))

    def choices(self, scale: str, row: str, column: str, given: Collection[str] = ()) -> list[dict[str, Any]]:
        """Return the combinations of values among which those of a cell are chosen; none: nothing is chosen.

        Parameters
        ----------
        scale : str
            One of ``SCALES``; nothing is chosen if it has an empty ``choose``.
        row, column : str
            The cell. Of row, scale, column and file the first that has a ``choose`` gives it.
        given : collection of str
            Settings that are given otherwise.
        """
        of_scale = self.scale(scale).choose
        if of_scale is None:
            of_scale = self.columns[column].get("choose", self._choose)
        candidates = self.rows[row].get("choose", of_scale) if of_scale else {}
        values = {key: of for key, of in candidates.items() if key not in given}
        return [dict(zip(values, one, strict=True)) for one in product(*values.values())] if values else []

    def needs(self, row: str) -> set[str]:
        """Return the names of all that is measured in a row."""
        return {self.metric(row, metric) for metric in self.metrics}

    def _cell(self, row: str, column: str, at: Scale, more: Mapping[str, Any]) -> Cell:
        base = self._bases.get(column, self._base)
        own = {key: value for key, value in self.columns[column].items() if key not in _OF_COLUMN}
        line = {key: value for key, value in self.rows[row].items() if key not in _OF_ROW}
        one = self._cells.get(row, {}).get(column, {})
        scaled = {**at.settings, **at.column.get(column, {}), **at.row.get(row, {})}
        settings = {**base, **self._settings, **own, **line, **one, **scaled, **more}
        script, *arguments = at.generate.get(column) or self.columns[column].get("generate") or [""]
        generate = (str(self._folder / script), *arguments) if script else ()
        return Cell(row, column, settings, tuple(self.columns[column].get("clients", ())), generate)


def load(path: Path) -> Experiment:
    """Read the file of an experiment and check its form; the settings are checked when they are planned.

    Raises
    ------
    ConfigError
        In one line, what is wrong in the file.
    """
    values = _read(path, "experiment")
    name = path.stem
    _typed(f"{name}", values, _TOP)
    for key in _NEEDED:
        if key not in values:
            raise ConfigError(key, None, f"{path.name} has to have it")
    rows, columns = values["rows"], values["columns"]
    _check_parts(path, values)
    if set(rows) & set(columns):
        raise ConfigError("rows", sorted(set(rows) & set(columns)), f"{path.name}: rows and columns need other names")
    for known in values["metrics"]:
        metrics.find(known)
    for row in rows.values():
        metrics.find(row.get("metric", values["metrics"][0]))
    for curve in values.get("curves", []):
        metrics.find_curve(curve)
    if values.get("relative-to", next(iter(rows))) not in rows:
        raise ConfigError("relative-to", values["relative-to"], "must be a row: one of " + ", ".join(rows))
    for row, cells in values.get("cells", {}).items():
        _known(f"{path.name}: cells", [row], rows)
        _each(f"{path.name}: cells.{row}", cells, dict)
        _known(f"{path.name}: cells.{row}", cells, columns)
    lacking = {
        (metric, *cell): reason
        for part in values.get("no-number", [])
        for metric in _metrics_of(path.name, part, values["metrics"])
        for cell, reason in _cells_of(path.name, "no-number", _NO_NUMBER, [part], rows, columns)
    }
    published = dict(values.get("paper-values", {}))
    missing = str(published.pop("missing", ""))
    return Experiment(
        name=name,
        title=values["title"],
        paper=values["paper"],
        remarks=" ".join(values.get("remarks", "").split()),
        metrics=tuple(values["metrics"]),
        relative_to=values.get("relative-to", ""),
        fractions=values.get("fractions", False),
        analyses=_analyses(path.name, values.get("analyses", {})),
        curves=tuple(values.get("curves", ())),
        x=values.get("x", ""),
        rows=rows,
        columns=columns,
        scales=_scales(path, values),
        not_covered=dict(
            _cells_of(path.name, "not-covered", _NOT_COVERED, values.get("not-covered", []), rows, columns)
        ),
        no_number=lacking,
        paper_values=_published(path.name, published, missing, values["metrics"], rows, columns),
        missing=missing,
        ranking=_ranking(path.name, values.get("ranking"), rows, values["metrics"]),
        _folder=path.resolve().parent,
        _settings=values.get("settings", {}),
        _choose=values.get("choose", {}),
        _base=_base(path, values.get("base")),
        _bases={name: _base(path, column["base"]) for name, column in columns.items() if "base" in column},
        _cells=values.get("cells", {}),
    )


def _check_parts(path: Path, values: Mapping[str, Any]) -> None:
    """Check the parts of a file that have names or a number of their own."""
    file = path.name
    _check_choose(file, values.get("choose", {}))
    for key in ("metrics", "rows", "columns"):
        if not values[key]:
            raise ConfigError(key, values[key], f"{file}: needs at least one")
    for key in ("metrics", "curves"):
        _each(f"{file}: {key}", values.get(key, []), str)
    for key in ("rows", "columns", "cells", "not-covered", "no-number", "scale"):
        _each(f"{file}: {key}", values.get(key, {}), dict)
    for name, row in values["rows"].items():
        _typed(f"{file}: rows.{name}", {key: row[key] for key in row if key in _OF_ROW}, _OF_ROW)
        _check_choose(f"{file}: rows.{name}", row.get("choose", {}))
    for name, column in values["columns"].items():
        where = f"{file}: columns.{name}"
        _typed(where, {key: column[key] for key in column if key in _OF_COLUMN}, _OF_COLUMN)
        _each(f"{where}.clients", column.get("clients", []), int)
        _check_choose(where, column.get("choose", {}))
        _check_script(f"{where}.generate", column.get("generate", []), path)
        _each(f"{where}.pool", column.get("pool", []), str)
        run = [other for other, given in values["columns"].items() if "pool" not in given]
        _known(f"{where}.pool", column.get("pool", []), dict.fromkeys(run))


def _scales(path: Path, values: Mapping[str, Any]) -> dict[str, Scale]:
    found, file = {}, path.name
    for name, given in {**values["scale"], "paper": {}}.items():
        where = f"{file}: scale.{name}"
        if name not in SCALES[:-1] and given:
            raise ConfigError("scale", name, f"{file}: must be one of " + ", ".join(SCALES[:-1]))
        _typed(where, given, _SCALE)
        given = _like(path, given)
        _check_choose(where, given.get("choose", {}))
        for axis in ("row", "column"):
            _each(f"{where}.{axis}s", given.get(f"{axis}s", []), str)
            _each(f"{where}.{axis}", given.get(axis, {}), dict)
            _known(f"{where}.{axis}s", given.get(f"{axis}s", []), values[f"{axis}s"])
            _known(f"{where}.{axis}", given.get(axis, {}), values[f"{axis}s"])
        _each(f"{where}.analyses", given.get("analyses", {}), dict)
        _each(f"{where}.generate", given.get("generate", {}), list)
        for column, words in given.get("generate", {}).items():
            _check_script(f"{where}.generate.{column}", words, path)
        _known(f"{where}.analyses", given.get("analyses", {}), values.get("analyses", {}))
        _known(f"{where}.generate", given.get("generate", {}), values["columns"])
        if name != "paper" and not given.get("remarks", "").strip():
            raise ConfigError("remarks", None, f"{where}: has to say what differs from the paper")
        found[name] = Scale(
            seeds=given.get("seeds", values["seeds"] if name == "paper" else 1),
            remarks=" ".join(given.get("remarks", AS_PUBLISHED).split()),
            rows=tuple(given.get("rows", values["rows"])),
            columns=tuple(given.get("columns", values["columns"])),
            settings=given.get("settings", {}),
            row=given.get("row", {}),
            column=given.get("column", {}),
            generate=given.get("generate", {}),
            analyses=given.get("analyses", {}),
            choose=given.get("choose"),
        )
    for name in SCALES:
        if name not in found:
            raise ConfigError("scale", None, f"{file} has no [scale.{name}]")
    return found


def _like(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    if "like" not in given:
        return dict(given)
    shared = _read(path.parent / given["like"], "like")
    _typed(given["like"], shared, _LIKE)
    remarks = f"{shared.get('remarks', '')} {given.get('remarks', '')}"
    return {**given, "remarks": remarks, "settings": {**shared.get("settings", {}), **given.get("settings", {})}}


def _metrics_of(file: str, part: Mapping[str, Any], measured: Sequence[str]) -> Sequence[str]:
    chosen: Sequence[str] = part.get("metrics", measured)
    _each(f"{file}: no-number: metrics", chosen, str)
    _known(f"{file}: no-number: metrics", chosen, dict.fromkeys(measured))
    return chosen


def _cells_of(
    file: str,
    key: str,
    kinds: Mapping[str, type],
    given: Sequence[Mapping[str, Any]],
    rows: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the cells that parts of a file name, each with its reason."""
    where = f"{file}: {key}"
    for part in given:
        _typed(where, part, kinds)
        if not part.get("reason"):
            raise ConfigError("reason", None, f"{where}: has to be given")
        for axis in ("rows", "columns"):
            _each(f"{where}: {axis}", part.get(axis, []), str)
        _known(f"{where}: rows", part.get("rows", []), rows)
        _known(f"{where}: columns", part.get("columns", []), columns)
        for row in part.get("rows", rows):
            for column in part.get("columns", columns):
                yield (row, column), part["reason"]


def _published(
    file: str,
    given: Mapping[str, Any],
    missing: str,
    measured: Sequence[str],
    rows: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> dict[str, dict[str, tuple[str | float | None, ...]]]:
    _known(f"{file}: paper-values", given, dict.fromkeys(measured))
    _each(f"{file}: paper-values", given, dict)
    out: dict[str, dict[str, tuple[str | float | None, ...]]] = {}
    for metric, lines in given.items():
        where = f"{file}: paper-values.{metric}"
        _each(where, lines, list)
        _known(where, lines, rows)
        _known(where, rows, lines)
        for row, cells in lines.items():
            if len(cells) != len(columns):
                raise ConfigError(row, cells, f"{where}: needs a value for each of the {len(columns)} columns")
        out[metric] = {row: tuple(None if v == DASH else v for v in cells) for row, cells in lines.items()}
    dashes = any(value is None for lines in out.values() for cells in lines.values() for value in cells)
    if (dashes or set(out) != set(measured)) and not missing:
        raise ConfigError("missing", None, f"{file}: paper-values has to say why the paper has no value")
    return out


def _analyses(file: str, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    for name, options in given.items():
        of = options.get("of") if isinstance(options, dict) else None
        if of not in (ALL, BY_COLUMN):
            raise ConfigError(name, of, f"{file}: analyses: needs of = {ALL!r} or {BY_COLUMN!r}")
    return dict(given)


def _check_script(where: str, words: Sequence[Any], path: Path) -> None:
    """Check a script that makes data, with its arguments; it lies beside the experiment's file."""
    _each(where, words, str)
    if words and not (script := path.resolve().parent / words[0]).is_file():
        raise ConfigError(where, words[0], f"there is no such script: {script}")


def _check_choose(where: str, choose: Mapping[str, Any]) -> None:
    _each(f"{where}.choose", choose, list)
    for key, candidates in choose.items():
        if not candidates:
            raise ConfigError(key, candidates, f"{where}.choose: needs at least one value")


def _ranking(
    file: str, given: Mapping[str, Any] | None, rows: Mapping[str, Any], measured: Sequence[str]
) -> Ranking | None:
    if given is None:
        return None
    where = f"{file}: ranking"
    _typed(where, given, _RANKING)
    for key, known in (("baseline", rows), ("over", dict.fromkeys(measured))):
        if key not in given:
            raise ConfigError(key, None, f"{where} has to have it")
        _known(f"{where}.{key}", [given[key]], known)
    return Ranking(given["baseline"], given["over"])


def _base(path: Path, base: str | None) -> Mapping[str, Any]:
    return {} if base is None else _read(path.parent / base, "base")


def _read(path: Path, key: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(key, str(path), f"cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(key, str(path), f"is not valid TOML ({error})") from error


def _typed(where: str, values: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    for key, value in values.items():
        if key not in kinds:
            raise ConfigError(key, value, f"{where}: there is no such key; known are {', '.join(kinds)}")
        if type(value) is not kinds[key]:
            raise ConfigError(key, value, f"{where}: must be of type {kinds[key].__name__}")


def _each(where: str, values: Sequence[Any] | Mapping[str, Any], kind: type) -> None:
    for key, value in values.items() if isinstance(values, Mapping) else enumerate(values, 1):
        if type(value) is not kind:
            raise ConfigError(str(key), value, f"{where}: must be of type {kind.__name__}")


def _known(where: str, names: Sequence[str] | Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError("name", name, f"{where}: must be one of {', '.join(known)}")
