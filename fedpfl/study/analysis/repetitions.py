"""What analyses share: repetitions of a run put together, and what a run stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core import references
from ...core.errors import StateError
from ...core.metrics import ACCURACY, score_name
from ...data import FederatedData, federated_data
from ...data.npy import read_npy
from ...results.board_names import with_boards
from ...results.history import History
from ...results.identity import require_same_data
from ...results.round_line import over_whom
from ...results.run_folder import RunFolder
from ...results.tables import Cell, Spread, Table
from ...setup.all_settings import code_in, tagged
from ...setup.config import Config
from .figure import Bars
from .registry import NotRecorded

# Settings in which repetitions of a run may differ; no experiment compares them.
IGNORED_IN_GROUPS = tagged("idle") | tagged("repeat")

# Whose numbers count where all runs have validation scores.
IN_CHOSEN = "in the round with the best validation score"

# Settings in a label; with more of them a run is called by its name.
MAX_NAMED = 3


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in their seed alone, in the order of their seeds.

    ``label`` is row and, where there are several, column of the experiment. Without an experiment it is the method, and
    where there are several groups of it the settings in which they differ, or the first run's name where these are
    many.
    """

    label: str
    method: str
    runs: tuple[RunFolder, ...]
    clients: int

    def setting(self, key: str) -> Any:
        """Return a setting of these runs."""
        return self.runs[0].config()[key]

    def spread(self, number: Callable[[History], float | None]) -> Spread | None:
        """Summarise a number of each run; None where no run has it."""
        values = [value for run in self.runs if (value := number(run.history())) is not None]
        return Spread.of(values) if values else None

    def percent(self, share: Callable[[History], float | None]) -> Spread | None:
        """Summarise a share of each run, in percent."""
        return self.spread(lambda history: None if (value := share(history)) is None else 100 * value)

    def curve(self, number: str, factor: float = 1.0) -> tuple[list[int], list[float], list[float]]:
        """Return rounds, means and deviations of a number of :class:`History`, over the rounds that all runs have.

        Runs without the number do not count; one run alone has no deviations.
        """
        curves = [curve for run in self.runs if (curve := run.history().curve(number))]
        rounds = sorted(set.intersection(*map(set, curves))) if curves else []
        spreads = [Spread.of([factor * curve[round_number] for curve in curves]) for round_number in rounds]
        deviations = [spread.std for spread in spreads if spread.std is not None]
        return rounds, [spread.mean for spread in spreads], deviations


@dataclass(frozen=True)
class ScoreFormat:
    """How the number is written that every test measures: accuracies in percent, R² as it is."""

    name: str

    @property
    def factor(self) -> float:
        """What a recorded number is multiplied by."""
        return 100 if self.name == ACCURACY else 1

    @property
    def digits(self) -> int:
        """Decimal places in tables."""
        return 2 if self.name == ACCURACY else 4

    @property
    def title(self) -> str:
        """Its name as the first word of a title."""
        return self.name[0].upper() + self.name[1:]

    @property
    def axis(self) -> str:
        """Its name with the unit."""
        return "accuracy in percent" if self.name == ACCURACY else self.name

    def head(self, what: str) -> str:
        """Head a column of it."""
        return f"{what}, {'%' if self.name == ACCURACY else self.name}"

    def of(self, recorded: float | None) -> float | None:
        """Convert a recorded number."""
        return None if recorded is None else self.factor * recorded

    def summary(self, group: RunGroup, number: Callable[[History], float | None]) -> Spread | None:
        """Summarise a recorded number of each run of a group."""
        return group.spread(lambda history: self.of(number(history)))


def score_of(runs: Sequence[RunFolder]) -> ScoreFormat:
    """Find what the tests of runs measure; where it is not the same for all, it goes by both names."""
    return ScoreFormat(" or ".join(dict.fromkeys(score_name(str(run.config().get("loss", ""))) for run in runs)))


def rounds_table(title: str, run: RunFolder, lines: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate some of a run's rounds."""
    score, numbers = score_of([run]), ("personalised.accuracy", "personalised.worst-tenth", "global.accuracy")
    scores = [run.history().curve(number) for number in numbers]
    rows: list[list[Cell]] = [
        [
            line["round"], *(score.of(curve.get(line["round"])) for curve in scores), line.get("train_loss"),
            (line["bytes_up"] + line["bytes_down"]) / 1e6, line.get("seconds"), len(line.get("clients", ())),
            len(line.get("failed", ())),
        ]
        for line in lines
    ]  # fmt: skip
    heads = [*(score.head(name) for name in ("personalised", "worst tenth", "global")), "training loss", "MB",
             "seconds", "trained", "failed"]  # fmt: skip
    digits = [0, *[score.digits] * 3, 3, 2, 2, 0, 0]
    return Table(title, ["round", *heads], rows, digits, optional=("trained", "seconds"))


def grouped(runs: Sequence[RunFolder], axis: str = "") -> list[RunGroup]:
    """Put repetitions together, in the order in which the first of each group is given."""
    settings: list[dict[str, Any]] = []
    for run, files in zip(runs, named_files(runs), strict=True):
        identifying = {key: value for key, value in {**run.config(), **files}.items() if key not in IGNORED_IN_GROUPS}
        settings.append({**identifying, "method": run.method, "clients": run.described()["clients"]})
    if _is_named(runs, settings, axis):
        with_columns = not axis and len({run.column for run in runs}) > 1
        cells: dict[tuple[str, str], list[int]] = {}
        for place, run in enumerate(runs):
            cells.setdefault((run.row, run.column), []).append(place)
        return [
            RunGroup(
                f"{row}, {column}" if with_columns else row, settings[places[0]]["method"],
                _by_seed(runs[place] for place in places), settings[places[0]]["clients"],
            )
            for (row, column), places in cells.items()
        ]  # fmt: skip
    differing = {method: _differing([s for s in settings if s["method"] == method]) - {axis, "method"}
                 for method in {s["method"] for s in settings}}  # fmt: skip
    equal_runs: dict[tuple[tuple[str, Any], ...], list[RunFolder]] = {}
    for run, values in zip(runs, settings, strict=True):
        equal_runs.setdefault(tuple(sorted(values.items())), []).append(run)
    return [
        RunGroup(
            _label(dict(key), differing, same[0], bool(axis)), dict(key)["method"], _by_seed(same), dict(key)["clients"]
        )
        for key, same in equal_runs.items()
    ]


def named_files(runs: Sequence[RunFolder]) -> list[dict[str, str]]:
    """Return, for each run, the settings that name files, data or code, as what they held: equal where that is equal.

    The words are names without folders, and where one name held several things with the beginning of a hash.
    """
    each = [{key: (name, held) for key, name, held in _held(run)} for run in runs]
    all_held: dict[tuple[str, str], dict[str, None]] = {}
    first: dict[tuple[str, str], str] = {}
    for key, (name, held) in (item for files in each for item in files.items()):
        name = first.setdefault((key, held), name) if held else name
        all_held.setdefault((key, name), {})[held] = None
    names: list[dict[str, str]] = []
    for files in each:
        names.append({})
        for key, (name, held) in files.items():
            name = first[key, held] if held else name
            several = len(all_held[key, name]) > 1
            names[-1][key] = f"{name} ({held[:6]})".strip() if several and held else name
    return names


def _held(run: RunFolder) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that name files, data or code, each with a name for it and a hash of what it held."""
    config, task = run.config(), run.task()
    by = task.get("written_by", {})
    files, modules = by.get("files", {}), by.get("modules", {})
    # Of samples that were drawn from the seed, those of another seed are others.
    data = "" if task.get("data_drawn") else task.get("data", "")
    for key in tagged("file"):
        yield key, Path(str(config.get(key, ""))).name, files.get(key, "")
    is_from_file = bool(config["data"])
    yield "dataset", references.short_name(str(config["dataset"])), "" if is_from_file else data
    yield "data", Path(str(config["data"])).name, data if is_from_file else ""
    hashes = {name.partition(" (")[0]: digest for name, digest in by.get("objects", {}).items()}
    handed = [(key, text) for key, text in code_in(config, "idle") if text.startswith(f"{references.PYTHON}:")]
    for key in dict.fromkeys(key for key, _ in handed if key not in ("dataset", "method")):
        names = [references.short_name(text) for other, text in handed if other == key]
        # What is not counted of an object may be another one, and not of the same text.
        yield key, ",".join(names), _hash([config[key], *(hashes.get(name, "") for name in names)])
    of_method = [hashes.get(references.short_name(text), "") for key, text in handed if key == "method"]
    read = {Path(path).name: digest for path, digest in by.get("opened", {}).items()} | by.get("environment", {})
    code = [f"{name} {digest}" for name, digest in {**modules, **read}.items()] + of_method
    yield "own code", "", _hash(code) if code else ""


def _hash(parts: Sequence[Any]) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _by_seed(runs: Iterable[RunFolder]) -> tuple[RunFolder, ...]:
    return tuple(sorted(runs, key=lambda run: int(run.config()["seed"])))


def name_of(run: RunFolder) -> str:
    """Return how a run is called: by its row and column in a table and its seed, or by its folder."""
    cell = ", ".join(filter(None, (run.row, run.column)))
    return f"{cell}, seed {run.config()['seed']}" if run.row else run.path.name


def other_threads(runs: Sequence[RunFolder]) -> Iterator[str]:
    """Yield a note if clients of some runs computed with other numbers of threads, on which the last bits depend."""
    counts_of = ((run, {*run.task().get("threads", [])} - {0}) for run in runs)
    threads = [(name_of(run), ", ".join(map(str, sorted(counts)))) for run, counts in counts_of if counts]
    if len({numbers for _, numbers in threads}) > 1:
        listed = "; ".join(f"{name}: {numbers}" for name, numbers in threads)
        yield f"Clients of these runs computed with different numbers of threads, so their bits may differ. {listed}."


def other_code(runs: Sequence[RunFolder]) -> Iterator[str]:
    """Yield a note if runs were made by several versions of fedpfl's code."""
    by: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        written = run.task().get("written_by", {})
        by.setdefault((written.get("fedpfl", ""), written.get("code", "")), []).append(name_of(run))
    if len(by) > 1:
        listed = ". ".join(f"{version} ({code[:6]}): {'; '.join(names)}" for (version, code), names in by.items())
        yield f"Different versions of fedpfl's code made these runs, so their numbers may differ. {listed}."


def counted(runs: Sequence[RunFolder]) -> tuple[Callable[[RunFolder], dict[str, float]], str]:
    """Return the function of each client's accuracy in the round that counts, and the round's name.

    It is the round with the best validation score, or the last test unless all runs have such scores: in an analysis
    as in the table of the same runs.
    """
    if has_validation(runs):
        return lambda run: run.history().chosen_test(), IN_CHOSEN
    return lambda run: run.history().last_test(), "at the last test"


def untested(runs: Sequence[RunFolder]) -> Iterator[str]:
    """Yield of which runs the last test lacks clients."""
    for run in runs:
        tested = [line for line in run.history().lines if line.get("personalised")]
        if tested and (whom := over_whom(tested[-1])):
            others = with_boards(tested[-1]["untested"], run.task().get("boards", {}))
            of_whom = f"{name_of(run)}: the accuracies of the last round are over {whom}"
            yield f"{of_whom}; no test of the others counts: {others}."


def has_validation(runs: Sequence[RunFolder]) -> bool:
    """Return whether each run has validation scores, by which its round is chosen."""
    return all(run.history().best_validated() for run in runs)


def data_of(run: RunFolder) -> tuple[Config, FederatedData]:
    """Return the settings of a run and its clients' data, which must be on this machine."""
    config, task = run.parsed(), run.described()
    data = federated_data(config.data, int(task["clients"]), config.run.seed)
    require_same_data(task, data, run.path.name)
    return config, data


def array(run: RunFolder, name: str) -> dict[int, np.ndarray]:
    """Return the arrays that a run stored under ``arrays/NAME``, by round."""
    paths = sorted((run.path / "arrays" / name).glob("round-*.npy"))
    try:
        return {int(path.stem.removeprefix("round-")): read_npy(path) for path in paths}
    except (OSError, ValueError) as error:
        raise StateError(f"{run.path / 'arrays' / name}: cannot be read ({error})") from error


def bars(title: str, y_label: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Bars:
    """Draw a table whose first column has names and whose next ones, headed ``heads``, have spreads: their means."""
    cells = {head: [row[1 + i] for row in rows] for i, head in enumerate(heads)}
    means = {
        head: [cell.mean if isinstance(cell, Spread) else None for cell in column] for head, column in cells.items()
    }
    return Bars(title, y_label, [str(row[0]) for row in rows], means)


def require(results: Collection[object], what: str, how: str) -> None:
    """Raise :class:`NotRecorded` if nothing was found: what the analysis needs, and how it is recorded."""
    if not results:
        raise NotRecorded(f"none of the runs has {what}: {how}")


def _is_named(runs: Sequence[RunFolder], settings: Sequence[dict[str, Any]], axis: str) -> bool:
    """Return whether an experiment names all runs, and its rows alone tell apart those at one place of the axis."""
    places: dict[tuple[str, Any], set[str]] = {}
    for run, values in zip(runs, settings, strict=True):
        places.setdefault((run.row, values[axis] if axis else run.column), set()).add(run.column)
    return all(run.row for run in runs) and all(len(columns) == 1 for columns in places.values())


def _differing(settings: Sequence[dict[str, Any]]) -> set[str]:
    keys = {key for values in settings for key in values}
    return {key for key in keys if len({repr(values.get(key)) for values in settings}) > 1}


def _label(values: dict[str, Any], differing: dict[str, set[str]], first: RunFolder, in_full: bool) -> str:
    keys = sorted(differing[values["method"]])
    # Along an axis a label has to be that of all runs on one curve, which the name of a run is not.
    if len(keys) > MAX_NAMED and not in_full:
        return f"{values['method']}, {first.path.name}"
    return ", ".join([values["method"], *(f"{key} {values.get(key)}" for key in keys)])
