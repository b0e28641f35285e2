"""The file of an experiment: one table or figure of a paper as a grid of runs, and the paper's values.

``docs/how-to/experiments.md`` has an example with all keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from ..core.errors import ConfigError
from ..launch.shipped import read_toml
from ..setup.all_settings import owners, require_used
from . import run_numbers
from .grid import Cell, method_of

SCALES = ("smoke", "small", "paper")
DASH = "–"
AS_PUBLISHED = "As published, except for what the remarks here and in the files of configs/ list."
ALL, BY_COLUMN = "all", "column"
METHOD = "method"

# Python's names of the types that pydantic finds missing.
_TYPES = {"string": "str", "int": "int", "bool": "bool", "dict": "dict", "model": "dict", "list": "list"}

Words = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
Settings = dict[str, Any]
Choose = dict[str, Annotated[list[Any], Field(min_length=1)]]


class _Part(BaseModel):
    """A part of the file; its keys have dashes."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=lambda name: name.replace("_", "-")
    )

    @model_validator(mode="before")
    @classmethod
    def _know_keys(cls, values: Any) -> Any:
        keys = [field.alias or name for name, field in cls.model_fields.items()]
        if isinstance(values, dict) and cls.model_config["extra"] == "forbid":
            for key in values:
                if key not in keys:
                    raise PydanticCustomError("unknown_key", f"must be one of the keys {', '.join(keys)}",
                                              {"key": key, "value": values[key]})  # fmt: skip
        return values


class _Line(_Part, extra="allow"):
    """A row or a column; its other keys are settings."""

    choose: Choose | None = None

    @property
    def settings(self) -> Settings:
        """The settings of its cells."""
        return self.model_extra or {}


class TableRow(_Line):
    """A row of the table."""

    metric: str = ""


class TableColumn(_Line):
    """A column of the table."""

    base: str = ""
    clients: list[int] = []
    generate: list[str] = []
    pool: list[str] = []


class Scale(_Part):
    """How large an experiment is run.

    Without ``rows`` and ``columns`` in the file, all are run. A ``choose`` that is empty means that nothing is chosen.
    """

    remarks: Words = ""
    seeds: Annotated[int, Field(ge=1)] = 1
    rows: list[str] = []
    columns: list[str] = []
    settings: Settings = {}
    row: dict[str, Settings] = {}
    column: dict[str, Settings] = {}
    generate: dict[str, list[str]] = {}
    analyses: dict[str, Settings] = {}
    choose: Choose | None = None
    like: str = ""


class _Shared(_Part):
    """A file that several scales are like."""

    remarks: Words = ""
    settings: Settings = {}


class _NotCovered(_Part):
    rows: list[str] | None = None
    columns: list[str] | None = None
    reason: str = ""


class _NoNumber(_NotCovered):
    metrics: list[str] | None = None


class Ranking(_Part):
    """How the rows are compared: with a baseline, and the first metric drawn over another one."""

    baseline: str
    over: str


class _PaperValues(_Part, extra="allow"):
    __pydantic_extra__: dict[str, dict[str, list[Any]]]
    missing: str = ""


class ExperimentFile(_Part):
    """A table or figure of a paper; :func:`load` reads it."""

    title: Words
    paper: Words
    base: str = ""
    metrics: Annotated[list[str], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1)]
    remarks: Words = ""
    x: str = ""
    analyses: Settings = {}
    curves: list[str] = []
    relative_to: str = ""
    fractions: bool = False
    settings: Settings = {}
    rows: Annotated[dict[str, TableRow], Field(min_length=1)]
    columns: Annotated[dict[str, TableColumn], Field(min_length=1)]
    of_cells: dict[str, dict[str, Settings]] = Field({}, alias="cells")
    uncovered: list[_NotCovered] = Field([], alias="not-covered")
    unmeasured: list[_NoNumber] = Field([], alias="no-number")
    scales: dict[str, Scale] = Field(alias="scale")
    published: _PaperValues = Field({}, alias="paper-values", validate_default=True)
    choose: Choose | None = None
    ranking: Ranking | None = None

    _path: Path
    _bases: dict[str, Settings]

    def model_post_init(self, context: Any) -> None:
        """Note where the file is, and read the files that it is based on."""
        self._path = context
        self._bases = {
            name: read_toml(context.parent / base, "base")
            for name, column in self.columns.items()
            if (base := column.base or self.base)
        }

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def name(self) -> str:
        """The file's name without ``.toml``."""
        return self._path.stem

    @cached_property
    def not_covered(self) -> dict[tuple[str, str], str]:
        """Why a cell is not run, by row and column."""
        return {cell: part.reason for part in self.uncovered for cell in self._places(part)}

    @cached_property
    def no_number(self) -> dict[tuple[str, str, str], str]:
        """Why a cell that is run has no number, by metric, row and column."""
        return {
            (metric, *cell): part.reason
            for part in self.unmeasured
            for metric in (self.metrics if part.metrics is None else part.metrics)
            for cell in self._places(part)
        }

    def _places(self, part: _NotCovered) -> Iterable[tuple[str, str]]:
        rows, columns = part.rows, part.columns
        return product(self.rows if rows is None else rows, self.columns if columns is None else columns)

    @cached_property
    def paper_values(self) -> dict[str, dict[str, tuple[str | float | None, ...]]]:
        """The paper's values by metric and row, in the order of all columns; None where the paper has none."""
        return {
            metric: {row: tuple(None if v == DASH else v for v in values) for row, values in lines.items()}
            for metric, lines in (self.published.model_extra or {}).items()
        }

    def paper_value(self, metric: str, row: str, column: str) -> str | None:
        """Return the paper's value of a cell as a text."""
        value = self.paper_values[metric][row][[*self.columns].index(column)]
        return None if value is None else str(value)

    def scale(self, name: str) -> Scale:
        """Return a scale by name."""
        if name not in self.scales:
            raise ConfigError("scale", name, "must be one of " + ", ".join(SCALES))
        return self.scales[name]

    def only(self, scale: str, rows: Sequence[str], columns: Sequence[str]) -> ExperimentFile:
        """Return the experiment with some of a scale's rows and columns alone; none given: all."""
        extent, chosen = self.scale(scale), dict[str, list[str]]()
        for key, names, all_names in (("row", rows, extent.rows), ("column", columns, extent.columns)):
            for name in names:
                if name not in all_names:
                    raise ConfigError(key, name, f"must be one of {', '.join(all_names)} (scale {scale})")
            chosen[f"{key}s"] = [name for name in all_names if name in (names or all_names)]
        return self.model_copy(update={"scales": {**self.scales, scale: extent.model_copy(update=chosen)}})

    def cells(self, scale: str, more: Mapping[str, Any] | None = None) -> list[Cell]:
        """Return the cells that are run at a scale, by columns; settings in ``more`` win over all others."""
        extent, more = self.scale(scale), more or {}
        self._require_used(scale, more)
        return [
            self._cell(row, column, scale, more)
            for column in extent.columns
            for row in extent.rows
            if self._is_run(row, column)
        ]

    def _is_run(self, row: str, column: str) -> bool:
        return not self.pooled(column) and (row, column) not in self.not_covered

    def _settings(self, row: str, column: str, scale: str, more: Mapping[str, Any]) -> Settings:
        extent = self.scale(scale)
        return {
            **self._bases.get(column, {}), **self.settings, **self.columns[column].settings, **self.rows[row].settings,
            **self.of_cells.get(row, {}).get(column, {}), **extent.settings, **extent.column.get(column, {}),
            **extent.row.get(row, {}), **more,
        }  # fmt: skip

    def _require_used(self, scale: str, more: Mapping[str, Any]) -> None:
        """Refuse a setting of a row, a column or a scale that none of its methods has, as it would change no run."""
        methods = {
            (row, column): self._methods(row, column, scale, more)
            for row in self.rows for column in self.columns if self._is_run(row, column)
        }  # fmt: skip
        extent = self.scale(scale)
        lines: list[tuple[str, Settings | None, str, str]] = [
            ("settings", self.settings, "", ""), ("choose", self.choose, "", ""),
            (f"scale.{scale}.settings", extent.settings, "", ""), (f"scale.{scale}.choose", extent.choose, "", ""),
        ]  # fmt: skip
        for row, of_row in self.rows.items():
            lines += [(f"rows.{row}", of_row.settings, row, ""), (f"rows.{row}.choose", of_row.choose, row, ""),
                      (f"scale.{scale}.row.{row}", extent.row.get(row), row, "")]  # fmt: skip
            of_cells = self.of_cells.get(row, {})
            lines += [(f"cells.{row}.{column}", of_cell, row, column) for column, of_cell in of_cells.items()]
        for column, of_column in self.columns.items():
            lines += [(f"columns.{column}", of_column.settings, "", column),
                      (f"columns.{column}.choose", of_column.choose, "", column),
                      (f"scale.{scale}.column.{column}", extent.column.get(column), "", column)]  # fmt: skip
        for place, values, row, column in lines:
            of_place = [names for cell, names in methods.items() if row in ("", cell[0]) and column in ("", cell[1])]
            if not values or not of_place:
                continue
            try:
                require_used(values, sorted({name for names in of_place for name in names}))
            except ConfigError as error:
                raise ConfigError(error.key, error.value, f"{place}: {error.message}") from error

    def _methods(self, row: str, column: str, scale: str, more: Mapping[str, Any]) -> list[str]:
        """Return the methods with which a cell is run: several where the method is chosen."""
        settings = self._settings(row, column, scale, more)
        tried = self._candidates(scale, row, column, more).get(METHOD)
        return [method_of({**settings, METHOD: name}) for name in tried] if tried else [method_of(settings)]

    def _cell(self, row: str, column: str, scale: str, more: Mapping[str, Any]) -> Cell:
        extent, of_column = self.scale(scale), self.columns[column]
        settings = self._settings(row, column, scale, more)
        script, *arguments = extent.generate.get(column) or of_column.generate or [""]
        generate = (str(self._path.parent / script), *arguments) if script else ()
        candidates = self._candidates(scale, row, column, more)
        lines = {
            f"rows.{row}": self.rows[row].settings, f"cells.{row}.{column}": self.of_cells.get(row, {}).get(column, {}),
            f"columns.{column}": of_column.settings, f"scale.{scale}.row.{row}": extent.row.get(row, {}),
            f"scale.{scale}.column.{column}": extent.column.get(column, {}),
        }  # fmt: skip
        for place, key, value in ((place, *item) for place, values in lines.items() for item in values.items()):
            if key in candidates:
                allowed = "is also in the row's choose; remove it there or here"
                raise ConfigError(key, value, f"{place}: {allowed}")
        if METHOD not in candidates:  # a setting of one method is chosen for it alone
            method = method_of(settings)
            candidates = {key: tried for key, tried in candidates.items() if method in owners().get(key, (method,))}
        combined = product(*candidates.values()) if candidates else ()
        choices = tuple(dict(zip(candidates, choice, strict=True)) for choice in combined)
        metrics = frozenset(self.needs(row, column))
        return Cell(row, column, settings, tuple(of_column.clients), generate, choices, metrics)

    def pooled(self, column: str) -> list[str]:
        """Return the columns whose cells a column puts together; none for a column that is run."""
        return self.columns[column].pool

    def metric(self, row: str, metric: str) -> str:
        """Return the metric that is measured in a row, in the table of a metric."""
        return self.rows[row].metric or metric

    def needs(self, row: str, column: str) -> set[str]:
        """Return the names of all that is measured in a cell."""
        return {self.metric(row, metric) for metric in self.metrics if (metric, row, column) not in self.no_number}

    def _candidates(self, scale: str, row: str, column: str, fixed: Collection[str]) -> Choose:
        """Return the values to choose from for each setting of a cell, without the settings that are ``fixed``."""
        levels = (self.scale(scale).choose, self.columns[column].choose, self.choose)
        choose, of_row = next((level for level in levels if level is not None), None), self.rows[row].choose
        candidates = choose or {} if of_row is None or choose == {} else of_row
        return {key: tried for key, tried in candidates.items() if key not in fixed}


def load(path: Path) -> ExperimentFile:
    """Read the file of an experiment and check its form; the settings are checked when they are planned."""
    experiment = _validated(ExperimentFile, path.absolute(), path.name, "experiment")
    _check_names(experiment, path.name)
    _check_paper_values(experiment, f"{path.name}: paper-values")
    scales = {name: _scale(experiment, name, scale, path) for name, scale in experiment.scales.items()}
    scales["paper"] = Scale(remarks=AS_PUBLISHED, seeds=experiment.seeds)
    for name in SCALES:
        if name not in scales:
            raise ConfigError("scale", None, f"{path.name}: must have a table [scale.{name}]")
    everything = {"rows": [*experiment.rows], "columns": [*experiment.columns]}
    filled = {
        name: scale.model_copy(update={key: getattr(scale, key) or names for key, names in everything.items()})
        for name, scale in scales.items()
    }
    return experiment.model_copy(update={"scales": filled})


def _scale(experiment: ExperimentFile, name: str, scale: Scale, path: Path) -> Scale:
    """Check a scale, and return it with what it shares with those of other files."""
    if name not in SCALES[:-1]:
        raise ConfigError("scale", name, f"{path.name}: must be one of " + ", ".join(SCALES[:-1]))
    where = f"{path.name}: scale.{name}"
    if scale.like:
        shared = _validated(_Shared, path.parent / scale.like, scale.like, "like")
        remarks = f"{shared.remarks} {scale.remarks}".strip()
        scale = scale.model_copy(update={"remarks": remarks, "settings": {**shared.settings, **scale.settings}})
    if not scale.remarks:
        raise ConfigError("remarks", None, f"{where}: must list what differs from the paper")
    for key, names in (
        ("rows", experiment.rows), ("row", experiment.rows), ("columns", experiment.columns),
        ("column", experiment.columns), ("generate", experiment.columns), ("analyses", experiment.analyses),
    ):  # fmt: skip
        _check_known(f"{where}.{key}", getattr(scale, key), names)
    for column, command in scale.generate.items():
        _check_script(f"{where}.generate.{column}", command, path)
    return scale


def _check_names(experiment: ExperimentFile, file: str) -> None:
    """Check that everything exists that the file names."""
    rows, columns = experiment.rows, experiment.columns
    if both := sorted(rows.keys() & columns.keys()):
        raise ConfigError("rows", both, f"{file}: rows and columns need different names")
    for metric in (*experiment.metrics, *(row.metric for row in rows.values() if row.metric)):
        run_numbers.find(metric)
    for curve in experiment.curves:
        run_numbers.find_curve(curve)
    _check_known(f"{file}: relative-to", [experiment.relative_to] if experiment.relative_to else [], rows)
    _check_known(f"{file}: cells", experiment.of_cells, rows)
    for row, cells in experiment.of_cells.items():
        _check_known(f"{file}: cells.{row}", cells, columns)
    for name, column in columns.items():
        run = [other for other in columns if not columns[other].pool]
        _check_known(f"{file}: columns.{name}.pool", column.pool, run)
        _check_script(f"{file}: columns.{name}.generate", column.generate, experiment.path)
    named: dict[str, Collection[str]] = {"rows": rows, "columns": columns, "metrics": experiment.metrics}
    for key, parts in (("not-covered", experiment.uncovered), ("no-number", experiment.unmeasured)):
        for part in parts:
            if not part.reason:
                raise ConfigError("reason", None, f"{file}: {key}: must be given")
            for axis, names in named.items():
                _check_known(f"{file}: {key}: {axis}", getattr(part, axis, None) or [], names)
    for name, options in experiment.analyses.items():
        scope = options.get("of") if isinstance(options, dict) else None
        if scope not in (ALL, BY_COLUMN):
            raise ConfigError(name, scope, f"{file}: analyses: needs of = {ALL!r} or {BY_COLUMN!r}")
    if experiment.ranking:
        _check_known(f"{file}: ranking.baseline", [experiment.ranking.baseline], rows)
        _check_known(f"{file}: ranking.over", [experiment.ranking.over], experiment.metrics)


def _check_paper_values(experiment: ExperimentFile, where: str) -> None:
    published = experiment.paper_values
    _check_known(where, published, experiment.metrics)
    for metric, lines in published.items():
        _check_known(f"{where}.{metric}", lines, experiment.rows)
        _check_known(f"{where}.{metric}", experiment.rows, lines)
        for row, values in lines.items():
            if len(values) != len(experiment.columns):
                allowed = f"{where}.{metric}: needs a value for each of the {len(experiment.columns)} columns"
                raise ConfigError(row, [*values], allowed)
            for value in values:
                if value is not None and type(value) not in (str, int, float):
                    raise ConfigError(row, value, f"{where}.{metric}: must be a text or a number")
    dashes = any(None in values for lines in published.values() for values in lines.values())
    if (dashes or published.keys() != {*experiment.metrics}) and not experiment.published.missing:
        raise ConfigError("missing", None, f"{where} must give the reason why the paper has no value")


def _check_script(where: str, command: Sequence[str], path: Path) -> None:
    """Check a script that makes data, given with its arguments; it lies next to the experiment's file."""
    if command and not (script := path.absolute().parent / command[0]).is_file():
        raise ConfigError(where, command[0], f"there is no such script: {script}")


def _check_known(where: str, names: Iterable[str], allowed_names: Collection[str]) -> None:
    for name in names:
        if name not in allowed_names:
            raise ConfigError("name", name, f"{where}: must be one of {', '.join(allowed_names)}")


P = TypeVar("P", bound=_Part)


def _validated(part: type[P], path: Path, where: str, key: str) -> P:
    """Read a file; what pydantic finds first is the error."""
    try:
        return part.model_validate(read_toml(path, key), context=path)
    except ValidationError as error:
        raise _translated(error.errors()[0], where) from None


def _translated(error: ErrorDetails, where: str) -> ConfigError:
    """Return pydantic's error as this program's: the last of the names that lead to a value, and where it is."""
    kind, place, context = error["type"], [*error["loc"]], error.get("ctx", {})
    name, value = (context["key"], context["value"]) if kind == "unknown_key" else (place.pop(), error["input"])
    separator = ": "
    for part in place:
        where, separator = (where, ": ") if isinstance(part, int) else (f"{where}{separator}{part}", ".")
    if kind == "missing":
        return ConfigError(str(name), None, f"{where}: must be given")
    message = {"too_short": "needs at least one value"}.get(kind, error["msg"])
    if (type_name := _TYPES.get(kind.removesuffix("_type"))) is not None:
        message = f"must be of type {type_name}"
    return ConfigError(str(name + 1 if isinstance(name, int) else name), value, f"{where}: {message}")
