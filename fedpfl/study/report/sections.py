"""What a report of runs consists of: words, tables and figures, as plain data.

Which sections there are follows from what the runs have recorded. Curves, heat maps and the division of the data are
made here; everything else comes from the analyses (:mod:`fedpfl.study.analysis`) that find what they need.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...bench.mqtt.board_record import boards
from ...bench.mqtt.events import state_of
from ...core.checksummed_files import Stored
from ...core.errors import DamagedFile, FedpflError, StateError
from ...core.name_lists import in_short
from ...core.settings import parse
from ...data.settings import DataSettings, in_words
from ...results.history import History, traffic
from ...results.identity import clients_key
from ...results.resumed_run import ResumedRun
from ...results.run_folder import RunFolder
from ...results.summary import outcome
from ...results.tables import Cell, Spread, Table
from ...setup.all_settings import tagged
from ..analysis.figure import Division, Figure, Heatmap, Lines
from ..analysis.per_client import per_client
from ..analysis.registry import ANALYSES, NoOptions, NotRecorded, Result
from ..analysis.repetitions import (
    RunGroup,
    ScoreFormat,
    grouped,
    name_of,
    named_files,
    other_code,
    other_threads,
    rounds_table,
    score_of,
    untested,
)

# Traffic that differs by more than this factor between runs is drawn on a logarithmic axis.
WIDE = 20.0
# More columns of a heat map would be thinner than a pixel of a telephone.
MAX_COLUMNS = 60
# So many groups of runs have a heat map of their clients.
MAX_MAPS = 12
MAX_FAILURES = 200
# Of each run, the last ones are a table.
LAST_ROUNDS = 10
# The rest of a run takes so long as these rounds did, each.
PACE = 10
# Of a client, the largest classes are named.
MAX_CLASSES = 6
# Columns of the overview that are there where a run has recorded the number.
OPTIONAL = ("ε",)


@dataclass(frozen=True)
class Section:
    """A part of a report: a heading, paragraphs, numbers and the plain data of figures.

    ``warnings`` stand above the paragraphs. Sections with the same ``part`` stand under a common heading: a column of
    an experiment.
    """

    title: str
    notes: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    part: str = ""
    warnings: list[str] = field(default_factory=list)


class Snapshot(RunFolder):
    """A run whose files are read once, as they are now: it may go on."""

    @classmethod
    def of(cls, run: RunFolder) -> Snapshot:
        """Return the snapshot of a run, which may be one already."""
        return run if isinstance(run, cls) else cls(run.path, run.row, run.column, run.cache)

    def config(self) -> Stored:
        """Return the stored settings."""
        return self._config

    def task(self) -> Stored:
        """Return the stored description of the run and its data."""
        return self._task

    def history(self) -> History:
        """Return the recorded rounds."""
        return self._history

    @cached_property
    def _config(self) -> Stored:
        return super().config()

    @cached_property
    def _task(self) -> Stored:
        return super().task()

    @cached_property
    def _history(self) -> History:
        return super().history()

    @cached_property
    def state(self) -> dict[str, str]:
        """Whether it is running, finished, stopped or failed, and why."""
        return state_of(self.path)


def sections(
    runs: Sequence[RunFolder], more: Sequence[Section] = (), analysed: bool = True
) -> tuple[list[Section], list[str]]:
    """Return the sections of a report, and the labels of the runs in it, repetitions put together.

    The columns of an experiment are parts of the report, because different data are not drawn in the same axes.
    ``more`` are further sections, which stand after the overview, or before the parts. Unless the runs are ``analysed``
    there is only what follows from their records within a moment.
    """
    read = [*map(Snapshot.of, runs)]
    columns = list(dict.fromkeys(run.column for run in read))
    further = [_further()] if analysed else []
    if len(columns) < 2:
        first, rest, labels = _sections(read, analysed)
        return [*first, *more, *rest, *(further if rest else [])], labels
    sections, names = [*more], []
    for column in columns:
        first, rest, labels = _sections([run for run in read if run.column == column], analysed)
        sections += [replace(section, part=column or "Other runs") for section in (*first, *rest)]
        names += labels
    return [*sections, *further], list(dict.fromkeys(names))


def progress(runs: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """Return how far runs are, and how long the rest takes at the pace of the last rounds."""
    lines = []
    for run in runs:
        seconds, done = [*run.history().curve("seconds").values()], run.history().last_round
        rounds = int(run.config()["num-server-rounds"])
        pace = statistics.fmean(seconds[-PACE:]) if seconds and run.state["state"] == "running" else None
        left = None if pace is None else pace * (rounds - done)
        lines.append(
            {"name": run.path.name, **run.state, "round": done, "rounds": rounds, "seconds": sum(seconds), "left": left}
        )
    return lines


def comparison(runs: Sequence[RunFolder]) -> tuple[Table, list[Figure], list[str], list[str]]:
    """Return the overview of runs as a table, the figures of their accuracies, their labels, and notes."""
    for run in runs:
        run.described()
    read = [*map(Snapshot.of, runs)]
    groups = grouped(read)
    section = _overview(read, groups)
    if not section.tables:
        raise StateError(f"{runs[0].path}: no round was finished")
    figures = [*_personalised(groups), *_over_bytes(groups)]
    return section.tables[0], figures, [group.label for group in groups], [*section.warnings, *section.notes]


def _sections(runs: Sequence[Snapshot], analysed: bool) -> tuple[list[Section], list[Section], list[str]]:
    """Return the overview, the other sections and the labels of runs that are compared with each other."""
    started = [run for run in runs if "clients" in run.task()]
    groups = grouped(started) if started else []
    sections: list[Section] = []
    if groups:
        first = [*_analyses(started, ["significance"])] if analysed else []
        sections = [
            *first,
            *_curves(groups),
            *_clients(groups),
            *_boards(groups),
            *_rounds(groups),
            *_divisions(groups),
        ]
        shown = {figure.title for section in sections for figure in section.figures}
        if analysed:
            sections += _analyses(started, ANALYSES.keys() - {"significance", "per-client"}, shown)
        sections.append(_settings(groups))
    return [_overview(runs, groups, analysed)] if runs else [], sections, [group.label for group in groups]


def _overview(runs: Sequence[Snapshot], groups: Sequence[RunGroup], analysed: bool = True) -> Section:
    section = Section("Overview", [*_remarks(runs, analysed)], warnings=_warnings(runs, groups))
    score = score_of(runs)
    rows = [_row(group, score) for group in groups if any(run.history().lines for run in group.runs)]
    if rows:
        columns = ["run", "seeds", "rounds", score.head("personalised, last"), score.head("best"),
                   score.head("worst tenth of clients"), score.head("global, last"), "traffic, MB", "s a round",
                   *OPTIONAL]  # fmt: skip
        shown = [
            place
            for place, name in enumerate(columns)
            if name not in OPTIONAL or any(row[place] is not None for row in rows)
        ]
        columns, rows = [columns[place] for place in shown], [[row[place] for place in shown] for row in rows]
        note = (f"Personalised: mean over clients of the {score.name} on their own test samples; global: the shared "
                "model on all clients' test samples. Traffic: both directions, all clients and rounds. "
                "With several seeds: mean ± standard deviation over them.")  # fmt: skip
        section.tables.append(Table("Runs", columns, rows, score.digits, note=note))
    failures: list[list[Cell]] = [[name_of(run), *failure] for run in runs for failure in run.history().failures()]
    if failures:
        note = f"The last {MAX_FAILURES} of {len(failures)}." if len(failures) > MAX_FAILURES else ""
        columns = ["run", "round", "client", "reason"]
        section.tables.append(Table("Clients that failed", columns, failures[: -MAX_FAILURES - 1 : -1], note=note))
    return section


def warnings(runs: Sequence[RunFolder]) -> list[str]:
    """Return warnings to read before the runs' numbers are compared, such as a seed that counts twice."""
    read = [*map(Snapshot.of, runs)]
    return _warnings(read, grouped(read))


def _warnings(runs: Sequence[Snapshot], groups: Sequence[RunGroup]) -> list[str]:
    return [
        *_other_data(groups),
        *_seeds_twice(groups),
        *_untested(runs),
        *other_threads(runs),
        *other_code(runs),
        *_unfinished(runs),
    ]


def _other_data(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield in which settings of the data, or in which clients, runs differ: a warning above all that compares them."""
    files = named_files([group.runs[0] for group in groups])
    settings: list[dict[str, Any]] = []
    for group, held in zip(groups, files, strict=True):
        divided_by = parse(DataSettings, group.runs[0].config()).division()
        settings.append({**divided_by, **{key: held[key] for key in ("dataset", "data")}, "clients": group.clients})
    keys = list(dict.fromkeys(key for values in settings for key in values))
    differing = [key for key in keys if len({repr(values.get(key)) for values in settings}) > 1]
    if differing:
        listed = "; ".join(
            f"{group.label}: {', '.join(f'{key} {values[key]}' for key in differing if key in values)}"
            for group, values in zip(groups, settings, strict=True)
        )
        yield f"These runs are not of the same data, so that their accuracies cannot be compared directly. {listed}."
        return
    divided = [{key for run in group.runs if (key := _division(run)) is not None} for group in groups]
    other_seeds = len({frozenset(_seeds(group).split(", ")) for group in groups}) > 1
    if other_seeds and any(keys != divided[0] for keys in divided if keys and divided[0]):
        listed = "; ".join(f"{group.label}: {_seeds(group)}" for group in groups)
        yield f"These runs have other clients, because a seed divides the data (partition-seed). Seeds: {listed}."


def _division(run: RunFolder) -> str | None:
    """Return the key of a run's clients, which runs share whose clients are the same; None for data of their own."""
    task = run.task()
    return None if task.get("division") is None else clients_key(task, run.config())


def _seeds(group: RunGroup) -> str:
    return ", ".join(str(run.config()["seed"]) for run in group.runs)


def _seeds_twice(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield of which groups the deviation is not that of so many seeds: a run is given again, or a copy of it."""
    for group in groups:
        counts = Counter(str(run.config()["seed"]) for run in group.runs)
        if twice := [seed for seed, count in counts.items() if count > 1]:
            of_seeds = f"{len(group.runs)} runs of {len(counts)} seed{'s' * (len(counts) > 1)}"
            yield f"{group.label}: mean and deviation are over {of_seeds}; more than one has seed {in_short(twice)}."


def _untested(runs: Sequence[RunFolder]) -> Iterator[str]:
    """Yield of which runs the last means lack clients that were asked for a test, or have earlier models of some."""
    yield from untested(runs)
    for run in runs:
        if untrained := run.history().untrained():
            which = f"client{'s' * (len(untrained) > 1)} {in_short([str(client) for client in untrained])}"
            yield f"{name_of(run)}: the training of {which} failed: in the last round an earlier model counts there."


def _row(group: RunGroup, score: ScoreFormat) -> list[Cell]:
    rounds = sorted({run.history().last_round for run in group.runs})
    return [
        group.label, _seeds(group),
        "–".join(map(str, dict.fromkeys((rounds[0], rounds[-1])))),
        score.summary(group, lambda history: history.last("personalised.accuracy")),
        score.summary(group, lambda history: history.best("personalised.accuracy")),
        score.summary(group, lambda history: history.last("personalised.worst-tenth")),
        score.summary(group, lambda history: history.last("global.accuracy")),
        group.spread(lambda history: (history.total("bytes_up") + history.total("bytes_down")) / 1e6),
        group.spread(lambda history: statistics.median(history.curve("seconds").values()) if history.lines else None),
        group.spread(lambda history: history.last("privacy.epsilon")),
    ]  # fmt: skip


def _unfinished(runs: Sequence[Snapshot]) -> Iterator[str]:
    for run in runs:
        done = f"{run.history().last_round} of {run.config().get('num-server-rounds')} rounds are recorded"
        if run.state["state"] == "failed":
            yield f"{name_of(run)} has failed: {done}. {run.state['error']}"
        elif run.state["state"] != "finished":
            how = "is running" if run.state["state"] == "running" else "was stopped"
            yield f"{name_of(run)} {how}: {done}."


def _remarks(runs: Sequence[Snapshot], analysed: bool) -> Iterator[str]:
    """Yield what runs noted and, if they are analysed, what has changed since, once for all of which it is true."""
    runs_by_remark: dict[str, list[str]] = {}
    for run in runs:
        name, history = name_of(run), run.history()
        if history.lines and not history.tests():
            yield f"{name} has no evaluated round so far, hence no accuracies."
        changes = ResumedRun(run.path).changes() if analysed else []
        for remark in [*run.task().get("remarks", []), *changes]:
            runs_by_remark.setdefault(remark, []).append(name)
    for remark, names in runs_by_remark.items():
        yield f"{', '.join(names)}: {remark}"


# -- curves ----------------------------------------------------------------------------------------------------------


def _curves(groups: Sequence[RunGroup]) -> Iterator[Section]:
    score = _score(groups)
    scores = [*_personalised(groups), *_over_rounds(f"{score.title} of the worst tenth of clients over rounds", groups,
                                                 "personalised.worst-tenth")]  # fmt: skip
    shared = _over_rounds(f"Global {score.name} over rounds", groups, "global.accuracy")
    held = _over_rounds(f"{score.title} on validation samples", groups, "validation.accuracy")
    traffic = _over_bytes(groups)
    loss = _over_rounds("Training loss", groups, "train_loss", "training loss", 1)
    seconds = _over_rounds("Seconds of a round", groups, "seconds", "seconds", 1)
    measured: list[Figure] = []
    for name in dict.fromkeys(name for group in groups for name in _metrics(group)):
        measured += _over_rounds(f"{name} over rounds", groups, f"personalised.{name}", name, 1)
    seeds = " Bands: one standard deviation over seeds." if any(len(group.runs) > 1 for group in groups) else ""
    if scores or shared or traffic:
        note = "Traffic is the content of all messages so far, in both directions and of all clients." + seeds
        yield Section(score.title, [note], figures=[*scores, *traffic, *shared, *held])
    if measured:
        note = "Mean over the clients, each on its own test samples, of what the setting metrics asked for." + seeds
        yield Section("Metrics", [note], figures=measured)
    if loss or seconds:
        note = "Mean over the clients of the loss in the last epoch they trained; methods differ in what it includes."
        yield Section("Training", [note + seeds], figures=[*loss, *seconds])


def _score(groups: Sequence[RunGroup]) -> ScoreFormat:
    return score_of([group.runs[0] for group in groups])


def _personalised(groups: Sequence[RunGroup]) -> list[Figure]:
    return _over_rounds(f"Personalised {_score(groups).name} over rounds", groups, "personalised.accuracy")


def _metrics(group: RunGroup) -> list[str]:
    return [*outcome(group.runs[0])["metrics"]]


def _over_rounds(title: str, groups: Sequence[RunGroup], number: str, y: str = "", factor: float = 0) -> list[Figure]:
    """Draw a number, times a factor, over the rounds; without either it is the score of a test."""
    score = _score(groups)
    curves = {group: group.curve(number, factor or score.factor) for group in groups}
    return _lines(title, "round", y or score.axis, curves)


def _over_bytes(groups: Sequence[RunGroup]) -> list[Figure]:
    """Draw the personalised accuracy over the mean traffic of the runs."""
    score = _score(groups)
    curves = {group: _over(group, [traffic(run.history()) for run in group.runs], 1e6, score) for group in groups}
    ends = [(xs[0], xs[-1]) for xs, _, _ in curves.values() if xs]
    lasts = [last for _, last in ends]
    log = bool(ends) and min(ends)[0] > 0 and max(lasts) > WIDE * min(lasts)
    return _lines(f"{score.title} over traffic", "MB, up and down", score.axis, curves, log)


def _over(group: RunGroup, totals: Sequence[Mapping[int, float]], unit: float, score: ScoreFormat) -> Curve:
    """Return the personalised accuracy over a number of the runs that grows with the rounds."""
    rounds, means, stds = group.curve("personalised.accuracy", score.factor)
    # A run that has not been tested yet may lack a round.
    return [statistics.fmean(total[n] / unit for total in totals if n in total) for n in rounds], means, stds


# xs and means of a group and, for several runs, standard deviations.
Curve = tuple[list[Any], list[float], list[float]]


def _lines(title: str, x: str, y: str, curves: Mapping[RunGroup, Curve], log: bool = False) -> list[Figure]:
    series = {group.label: (xs, means) for group, (xs, means, _) in curves.items() if xs}
    bands = {group.label: stds for group, (_, _, stds) in curves.items() if stds}
    return [Lines(title, x, y, series, bands, log)] if series else []


# -- clients ---------------------------------------------------------------------------------------------------------


def _clients(groups: Sequence[RunGroup]) -> Iterator[Section]:
    runs = [run for group in groups for run in group.runs]
    try:
        result = per_client(runs, NoOptions())
    except NotRecorded:
        return
    note = (
        "Each point is a client's result on its own test samples, of all seeds; the line is the median, the bar holds "
        "the middle half. Heat maps: the first seed's clients over the rounds"
        + (f", of the first {MAX_MAPS} kinds of runs." if len(groups) > MAX_MAPS else ".")
    )
    figures = [*result.figures, *_over_time(groups[:MAX_MAPS])]
    yield Section("Clients", [note], list(result.tables), figures)


def _over_time(groups: Sequence[RunGroup]) -> list[Heatmap]:
    """Return a matrix of clients and rounds for each group's first run, with one scale for all."""
    each = {group.label: group.runs[0].history().tests() for group in groups}
    score = _score(groups)
    every = [
        score.factor * accuracy for tests in each.values() for test in tests.values() for accuracy in test.values()
    ]
    maps = []
    names = {group.label: group.runs[0].task().get("client_names") for group in groups}
    for label, tests in each.items():
        rounds = sorted(tests)[:: -(-len(tests) // MAX_COLUMNS) or 1]
        clients = sorted({client for test in tests.values() for client in test}, key=int)
        if len(rounds) > 1:
            values = score.factor * np.array([[tests[n].get(client, np.nan) for n in rounds] for client in clients])
            title = f"{label}: {score.axis} of each client"
            rows, columns = _called(clients, names[label]), [*map(str, rounds)]
            maps.append(Heatmap(title, "round", "client", values, rows, columns, (min(every), max(every))))
    return maps


def _called(clients: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """Return the names of clients, where the data have any, else their numbers."""
    return [names[int(client)] for client in clients] if names else [*clients]


def _boards(groups: Sequence[RunGroup]) -> Iterator[Section]:
    """Tabulate the energy and time of runs, and what each board of theirs needed."""
    of_runs: list[list[Cell]] = []
    of_boards: list[list[Cell]] = []
    warnings: list[str] = []
    for group in groups:
        energies, watts, hours = list[float](), list[float](), list[float]()
        for run in group.runs:
            try:
                totals = boards(run.path)
            except DamagedFile as error:
                warnings.append(str(error))
                continue
            name = name_of(run)
            of_boards += [
                [name, board.name, board.rounds, board.seconds, board.joules, board.mean_watts, board.highest_celsius,
                 None if board.cpu_share is None else 100 * board.cpu_share, board.least_free_mib,
                 *(None if count is None else count / 1e6 for count in (board.bytes_in, board.bytes_out))]
                for board in totals
            ]  # fmt: skip
            if energy := [board.joules for board in totals if board.joules is not None]:
                energies.append(sum(energy) / 1000)
            if power := [board.mean_watts for board in totals if board.mean_watts is not None]:
                watts.append(statistics.fmean(power))
            if totals:
                hours.append(max(board.seconds for board in totals) / 3600)
        if hours:
            spreads = [Spread.of(numbers) if numbers else None for numbers in (hours, energies, watts)]
            of_runs.append([group.label, *spreads])
    if of_boards:
        sentence = (
            "What boards have reported of themselves over MQTT (boards.csv); a cell without a number was not measured. "
            "Energy is that of the whole boards, also while they waited."
        )
        columns = ["run", "board", "rounds", "seconds", "energy, J", "mean W", "highest °C", "processor, %",
                   "least free MiB", "MB in", "MB out"]  # fmt: skip
        tables = [
            Table("Energy and time", ["run", "hours", "energy of all boards, kJ", "mean W of a board"], of_runs, 2),
            Table("Boards", columns, of_boards, [0, 0, 0, 0, 0, 2, 1, 0, 0, 1, 1]),
        ]
        yield Section("Boards", [sentence], tables, warnings=warnings)
    elif warnings:
        yield Section("Boards", warnings=warnings)


def _rounds(groups: Sequence[RunGroup]) -> Iterator[Section]:
    """Tabulate the last rounds of each group's first run."""
    tables = []
    for group in groups:
        if last := group.runs[0].history().lines[: -LAST_ROUNDS - 1 : -1]:
            tables.append(rounds_table(f"Last rounds of {name_of(group.runs[0])}", group.runs[0], last))
    if tables:
        yield Section("Rounds", tables=tables)


# -- data ------------------------------------------------------------------------------------------------------------


def _divisions(groups: Sequence[RunGroup]) -> Iterator[Section]:
    """Show each division of data once, of the groups' first runs."""
    section = Section("Data")
    seen = set()
    for run in (group.runs[0] for group in groups):
        task, config = run.task(), run.config()
        key = clients_key(task, config)
        if key in seen:
            continue
        seen.add(key)
        data = parse(DataSettings, config)
        title = f"{data.dataset}, {in_words(data)}, {task['clients']} clients, seed {config['seed']}"
        if counts := task.get("class_counts"):
            section.figures.append(Division(title, np.array(counts)))
        elif task.get("division", 0) is None:
            note = f"{name_of(run)}: the clients hold their own data, whose classes never reach the server."
            section.notes.append(note)
        if "samples" in task:
            section.tables.append(_samples(f"Samples of each client: {title}", run, counts))
    if section.figures:
        section.notes.insert(0, "Training samples by client and class; the area of a bubble is their number.")
    if section.tables or section.notes:
        yield section


def _samples(title: str, run: RunFolder, counts: Sequence[Sequence[int]] | None) -> Table:
    """Tabulate what each client has, and in how many rounds it has trained."""
    task = run.task()
    # Clients that number their classes themselves have other names for them.
    unnamed = "classes_of_clients" in task or run.config().get("permute-labels")
    names, classes = task.get("client_names"), () if unnamed else task.get("class_names", ())
    trained = Counter(client for line in run.history().lines for client in line["clients"])
    rows: list[list[Cell]] = []
    for client, (train, test) in enumerate(task["samples"]):
        row: list[Cell] = [client, *([names[client]] if names else []), train, test, trained[client]]
        rows.append([*row, *([_largest(counts[client], classes)] if counts else [])])
    heads = ["client", *(["name"] if names else []), "training samples", "test samples", "rounds trained",
             *(["classes, the largest first"] if counts else [])]  # fmt: skip
    return Table(title, heads, rows)


def _largest(counts: Sequence[int], names: Sequence[str]) -> str:
    """Name the classes of a client, the largest first."""
    ordered = sorted(
        ((count, place) for place, count in enumerate(counts) if count), key=lambda pair: (-pair[0], pair[1])
    )
    shown = [f"{names[place] if place < len(names) else place}: {count}" for count, place in ordered[:MAX_CLASSES]]
    more = len(ordered) - len(shown)
    return ", ".join([*shown, *([f"{more} more"] if more else [])])


# -- analyses and settings -------------------------------------------------------------------------------------------


def _analyses(runs: Sequence[RunFolder], names: Collection[str], shown: Set[str] = frozenset()) -> Iterator[Section]:
    """Yield what analyses find, without figures of a title that is shown already: curves over traffic."""
    for analysis in ANALYSES.values():
        if analysis.computes or analysis.name not in names:
            continue
        title = analysis.name.replace("-", " ").capitalize()
        try:
            result = analysis.make(runs)
        except NotRecorded:
            continue
        except FedpflError as error:  # a file that lies on another machine, for example: the rest can be shown
            yield Section(title, [f"{analysis.shows}.", f"Not possible here: {error}"])
            continue
        if not _is_one_point(result):
            figures = [figure for figure in result.figures if figure.title not in shown]
            yield Section(title, [f"{analysis.shows}."], list(result.tables), figures)


def _further() -> Section:
    """Name the analyses that compute with models and data, for minutes, instead of making them."""
    others = ", ".join(name for name, analysis in ANALYSES.items() if analysis.computes)
    return Section("Further analyses", [f"By `fedpfl analyse NAME RUN…`, from the clients' models and data: {others}."])


def _is_one_point(result: Result) -> bool:
    """Return whether an analysis along an axis found no curve with more than one place on it."""
    curves = [figure for figure in result.figures if isinstance(figure, Lines)]
    places = [set(xs) for figure in curves for xs, _ in figure.series.values()]
    return len(curves) == len(result.figures) > 0 and all(len(xs) < 2 for xs in places)


def _settings(groups: Sequence[RunGroup]) -> Section:
    """Tabulate settings: those in which groups differ with a column for each, then those that are the same."""
    values = [
        {key: value for key, value in group.runs[0].config().items() if key not in tagged("idle")} for group in groups
    ]
    for group, settings in zip(groups, values, strict=True):
        settings["seed"] = ", ".join(str(run.config()["seed"]) for run in group.runs)
    keys = list(dict.fromkeys(key for settings in values for key in settings))
    texts = {key: [str(settings.get(key, "–")) for settings in values] for key in keys}
    differing = [[key, *each] for key, each in texts.items() if len(set(each)) > 1]
    changed = {key for group in groups for key in group.runs[0].task().get("changed", ())}
    same: list[list[Cell]] = [[key, each[0], "no" if key in changed else "yes"] for key, each in texts.items()
                              if len(set(each)) == 1]  # fmt: skip
    same.sort(key=lambda row: row[0] not in changed)
    tables = []
    if differing:
        tables.append(Table("Where the runs differ", ["setting", *(group.label for group in groups)], differing))
    if same:
        tables.append(
            Table("The same in all runs" if len(groups) > 1 else "Settings", ["setting", "value", "default"], same)
        )
    return Section("Settings", tables=tables)
