"""What a report of runs consists of: words, tables and figures, as plain data.

Which sections there are follows from what the runs have recorded. Curves, clients and the division of the data are made
here; everything else comes from the analyses (:mod:`fedpfl.study.analysis`) that find what they need.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...core.errors import FedpflError, StateError
from ...core.settings import parse
from ...data import federated_data, partition_counts
from ...data.datasets.places import no_downloads
from ...data.settings import DataSettings, in_words
from ...results.earlier_run import EarlierRun
from ...results.identity import require_data
from ...results.line import over_whom
from ...results.run_folder import RunFolder
from ...results.summary import outcome
from ...results.tables import Cell, Spread, Table
from ...results.views import elapsed, traffic
from ...setup.all_settings import tagged
from ..analysis import ANALYSES, NotRecorded, Result
from ..analysis.figure import Distributions, Division, Figure, Heatmap, Lines
from ..analysis.repetitions import RunGroup, grouped, name_of, named_files, other_code, other_threads

# Traffic that differs by more than this factor between runs is drawn on a logarithmic axis.
WIDE = 20.0
# More columns of a heat map would be thinner than a pixel of a telephone.
MAX_COLUMNS = 60
# So many groups of runs have a heat map of their clients.
MAX_MAPS = 12
MAX_FAILURES = 20
# Columns of the overview that are there where a run has recorded the number.
OPTIONAL = ("virtual time, s", "energy, J", "ε")


@dataclass(frozen=True)
class Section:
    """A part of a report: a heading, paragraphs, numbers and the plain data of figures.

    Sections with the same ``part`` stand under a common heading: a column of an experiment.
    """

    title: str
    notes: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    part: str = ""


def sections(runs: Sequence[RunFolder], more: Sequence[Section] = ()) -> tuple[list[Section], list[str]]:
    """Return the sections of a report, and the labels of the runs in it, repetitions put together.

    The columns of an experiment are parts of the report, because different data are not drawn in the same axes.
    ``more`` are further sections, which stand after the overview, or before the parts.
    """
    columns = list(dict.fromkeys(run.column for run in runs))
    if len(columns) < 2:
        first, rest, labels = _sections(runs)
        return [*first, *more, *rest, *([_further()] if rest else [])], labels
    made, names = [*more], []
    for column in columns:
        first, rest, labels = _sections([run for run in runs if run.column == column])
        made += [replace(section, part=column or "Other runs") for section in (*first, *rest)]
        names += labels
    return [*made, _further()], list(dict.fromkeys(names))


def comparison(runs: Sequence[RunFolder]) -> tuple[Table, list[Figure], list[str], list[str]]:
    """Return the overview of runs as a table, the figures of their accuracies, their labels, and notes."""
    for run in runs:
        run.described()
    groups = grouped(runs)
    section = _overview(runs, groups)
    if not section.tables:
        raise StateError(f"{runs[0].path}: no round was finished")
    own = _over_rounds("Personalised accuracy over rounds", groups, "personalised.accuracy")
    figures = [*own, *_over_bytes("Accuracy over traffic", groups), *_over_virtual_time(groups)]
    return section.tables[0], figures, [group.label for group in groups], section.notes


def _sections(runs: Sequence[RunFolder]) -> tuple[list[Section], list[Section], list[str]]:
    """Return the overview, the other sections and the labels of runs that are compared with each other."""
    started = [run for run in runs if "clients" in run.task()]
    groups = grouped(started) if started else []
    made = []
    if groups:
        made = [*_curves(groups), *_clients(groups), *_divisions(groups)]
        shown = {figure.title for section in made for figure in section.figures}
        made += [*_analyses(started, shown), _settings(groups)]
    return [_overview(runs, groups)] if runs else [], made, [group.label for group in groups]


def _overview(runs: Sequence[RunFolder], groups: Sequence[RunGroup]) -> Section:
    warnings = [*_other_data(groups), *_untested(runs), *other_threads(runs), *other_code(runs)]
    section = Section("Overview", [*warnings, *(note for run in runs for note in _state(run))])
    rows = [_row(group) for group in groups if any(run.history().lines for run in group.runs)]
    if rows:
        columns = ["run", "seeds", "rounds", "personalised, last, %", "best, %", "worst tenth of clients, %",
                   "global, last, %", "traffic, MB", "s a round", *OPTIONAL]  # fmt: skip
        shown = [
            at for at, name in enumerate(columns) if name not in OPTIONAL or any(row[at] is not None for row in rows)
        ]
        columns, rows = [columns[at] for at in shown], [[row[at] for at in shown] for row in rows]
        note = ("Personalised: mean over clients of the accuracy on their own test samples; global: the shared model "
                "on all clients' test samples. Traffic: both directions, all clients and rounds. "
                "With several seeds: mean ± standard deviation over them.")  # fmt: skip
        section.tables.append(Table("Runs", columns, rows, note=note))
    failures: list[list[Cell]] = [[name_of(run), *failure] for run in runs for failure in run.history().failures()]
    if failures:
        note = f"The first {MAX_FAILURES} of {len(failures)}." if len(failures) > MAX_FAILURES else ""
        columns = ["run", "round", "client", "reason"]
        section.tables.append(Table("Clients that failed", columns, failures[:MAX_FAILURES], note=note))
    return section


def _other_data(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield in which settings of the data runs differ: a warning above everything that compares them."""
    files = named_files([group.runs[0] for group in groups])
    settings: list[dict[str, Any]] = []
    for group, held in zip(groups, files, strict=True):
        divided = parse(DataSettings, group.runs[0].config()).division()
        settings.append({**divided, **{key: held[key] for key in ("dataset", "data")}, "clients": group.clients})
    keys = list(dict.fromkeys(key for values in settings for key in values))
    differing = [key for key in keys if len({repr(values.get(key)) for values in settings}) > 1]
    if differing:
        of = "; ".join(
            f"{group.label}: {', '.join(f'{key} {values[key]}' for key in differing if key in values)}"
            for group, values in zip(groups, settings, strict=True)
        )
        yield f"These runs are not of the same data, so that their accuracies cannot be compared directly. {of}."


def _untested(runs: Sequence[RunFolder]) -> Iterator[str]:
    """Yield of which runs the last means are not over all clients that were asked for a test."""
    for run in runs:
        tested = [line for line in run.history().lines if line.get("personalised")]
        if tested and (of := over_whom(tested[-1])):
            yield f"{name_of(run)}: the accuracies of the last round are over {of}; no test of the others counts."


def _row(group: RunGroup) -> list[Cell]:
    rounds = sorted({run.history().last_round for run in group.runs})
    return [
        group.label, ", ".join(str(run.config()["seed"]) for run in group.runs),
        "–".join(map(str, dict.fromkeys((rounds[0], rounds[-1])))),
        group.percent(lambda history: history.last("personalised.accuracy")),
        group.percent(lambda history: history.best("personalised.accuracy")),
        group.percent(lambda history: history.last("personalised.worst-tenth")),
        group.percent(lambda history: history.last("global.accuracy")),
        group.spread(lambda history: (history.total("bytes_up") + history.total("bytes_down")) / 1e6),
        group.spread(lambda history: statistics.median(history.curve("seconds").values()) if history.lines else None),
        group.spread(lambda history: history.total("seconds_virtual") or None),
        group.spread(lambda history: history.total("joules") or None),
        group.spread(lambda history: history.last("privacy.epsilon")),
    ]  # fmt: skip


def _state(run: RunFolder) -> Iterator[str]:
    name, history, wanted = name_of(run), run.history(), run.config().get("num-server-rounds")
    if not run.finished:
        done = history.last_round
        yield f"{name} is not finished: {done} of {wanted} rounds are recorded. It is still running, or was stopped."
    if history.lines and not history.tests():
        yield f"{name} has no evaluated round so far, hence no accuracies."
    for remark in [*run.task().get("remarks", []), *EarlierRun(run.path).changes()]:
        yield f"{name}: {remark}"


# -- curves ----------------------------------------------------------------------------------------------------------


def _curves(groups: Sequence[RunGroup]) -> Iterator[Section]:
    own = _over_rounds("Personalised accuracy over rounds", groups, "personalised.accuracy")
    shared = _over_rounds("Global accuracy over rounds", groups, "global.accuracy")
    held = _over_rounds("Accuracy on validation samples", groups, "validation.accuracy")
    traffic = [*_over_bytes("Accuracy over traffic", groups), *_over_virtual_time(groups)]
    loss = _over_rounds("Training loss", groups, "train_loss", "training loss", 1)
    measured: list[Figure] = []
    for name in dict.fromkeys(name for group in groups for name in _metrics(group)):
        measured += _over_rounds(f"{name} over rounds", groups, f"personalised.{name}", name, 1)
    seeds = " Bands: one standard deviation over seeds." if any(len(group.runs) > 1 for group in groups) else ""
    if own or shared or traffic:
        words = "Traffic is the content of all messages so far, in both directions and of all clients." + seeds
        yield Section("Accuracy", [words], figures=[*own, *traffic, *shared, *held])
    if measured:
        words = "Mean over the clients, each on its own test samples, of what the setting metrics asked for." + seeds
        yield Section("Metrics", [words], figures=measured)
    if loss:
        words = "Mean over the clients of the loss in the last epoch they trained; methods differ in what it includes."
        yield Section("Training", [words + seeds], figures=list(loss))


def _metrics(group: RunGroup) -> list[str]:
    return [*outcome(group.runs[0])["metrics"]]


def _over_rounds(
    title: str, groups: Sequence[RunGroup], number: str, y: str = "accuracy in percent", factor: float = 100
) -> list[Figure]:
    """Draw a number, times a factor, over the rounds."""
    return _lines(title, "round", y, {group: _mean(group, number, factor) for group in groups})


def _over_bytes(title: str, groups: Sequence[RunGroup]) -> list[Figure]:
    """Draw the personalised accuracy over the mean traffic of the runs."""
    curves = {group: _over(group, [traffic(run.history()) for run in group.runs], 1e6) for group in groups}
    ends = [(xs[0], xs[-1]) for xs, _, _ in curves.values() if xs]
    lasts = [last for _, last in ends]
    log = bool(ends) and min(ends)[0] > 0 and max(lasts) > WIDE * min(lasts)
    return _lines(title, "MB, up and down", "accuracy in percent", curves, log)


def _over_virtual_time(groups: Sequence[RunGroup]) -> list[Figure]:
    """Draw the personalised accuracy over the mean virtual time of the runs that have one."""
    times = {group: [elapsed(run.history()) for run in group.runs] for group in groups}
    curves = {group: _over(group, of, 3600) for group, of in times.items() if all(of)}
    return _lines("Accuracy over virtual time", "hours on the devices of devices-model", "accuracy in percent", curves)


def _over(group: RunGroup, totals: Sequence[Mapping[int, float]], unit: float) -> Curve:
    """Return the personalised accuracy over a number of the runs that grows with the rounds."""
    rounds, means, stds = _mean(group, "personalised.accuracy", 100)
    # A run that has not been tested yet may lack a round.
    return [statistics.fmean(total[n] / unit for total in totals if n in total) for n in rounds], means, stds


# xs and means of a group and, for several runs, standard deviations.
Curve = tuple[list[Any], list[float], list[float]]


def _lines(title: str, x: str, y: str, curves: Mapping[RunGroup, Curve], log: bool = False) -> list[Figure]:
    series = {group.label: (xs, means) for group, (xs, means, _) in curves.items() if xs}
    bands = {group.label: stds for group, (_, _, stds) in curves.items() if stds}
    return [Lines(title, x, y, series, bands, log)] if series else []


def _mean(group: RunGroup, number: str, factor: float) -> Curve:
    """Return rounds, means and standard deviations of a number times a factor, over the rounds that all runs have.

    Runs without the number do not count; one run alone has no deviations.
    """
    curves = [curve for run in group.runs if (curve := run.history().curve(number))]
    rounds = sorted(set.intersection(*map(set, curves))) if curves else []
    spreads = [Spread.of([factor * curve[n] for curve in curves]) for n in rounds]
    stds = [spread.std for spread in spreads if spread.std is not None]
    return rounds, [spread.mean for spread in spreads], stds


# -- clients ---------------------------------------------------------------------------------------------------------


def _clients(groups: Sequence[RunGroup]) -> Iterator[Section]:
    last = {group.label: [100 * accuracy for run in group.runs for accuracy in run.history().last_test().values()]
            for group in groups}  # fmt: skip
    last = {label: accuracies for label, accuracies in last.items() if accuracies}
    if not last:
        return
    words = (
        "Each point is a client's accuracy on its own test samples at the last test, of all seeds; the line is the "
        "median, the bar holds the middle half. Heat maps: the first seed's clients over the rounds"
        + (f", of the first {MAX_MAPS} kinds of runs." if len(groups) > MAX_MAPS else ".")
    )
    figures: list[Figure] = [Distributions("Accuracy of the clients", "accuracy in percent", last)]
    figures += _over_time(groups[:MAX_MAPS])
    yield Section("Clients", [words], figures=figures)


def _over_time(groups: Sequence[RunGroup]) -> list[Heatmap]:
    """Return a matrix of clients and rounds for each group's first run, with one scale for all."""
    each = {group.label: group.runs[0].history().tests() for group in groups}
    every = [100 * accuracy for of in each.values() for test in of.values() for accuracy in test.values()]
    maps = []
    names = {group.label: group.runs[0].task().get("client_names") for group in groups}
    for label, of in each.items():
        rounds = sorted(of)[:: -(-len(of) // MAX_COLUMNS) or 1]
        clients = sorted({client for test in of.values() for client in test}, key=int)
        if len(rounds) > 1:
            values = 100 * np.array([[of[n].get(client, np.nan) for n in rounds] for client in clients])
            title = f"{label}: accuracy of each client in percent"
            rows, columns = _called(clients, names[label]), [*map(str, rounds)]
            maps.append(Heatmap(title, "round", "client", values, rows, columns, (min(every), max(every))))
    return maps


def _called(clients: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """Return the names of clients, where the data have any, else their numbers."""
    return [names[int(client)] for client in clients] if names else [*clients]


# -- data ------------------------------------------------------------------------------------------------------------


def _divisions(groups: Sequence[RunGroup]) -> Iterator[Section]:
    """Show each division of data once, of the groups' first runs."""
    section = Section("Data")
    seen = set()
    for run in (group.runs[0] for group in groups):
        task = run.task()
        if task.get("division", 0) is None:
            note = f"{name_of(run)}: the clients hold their own data, whose classes never reach the server."
            section.notes.append(note)
            continue
        try:
            config = run.parsed()
            key = config.data, task["clients"], config.run.seed
            if key in seen:
                continue
            seen.add(key)
            with no_downloads():
                data = federated_data(*key)
            require_data(task, data, run.path.name)
        except FedpflError as error:
            section.notes.append(f"{name_of(run)}: its division cannot be shown on this machine: {error}")
            continue
        title = f"{config.data.dataset}, {in_words(config.data)}, {task['clients']} clients, seed {config.run.seed}"
        section.figures.append(Division(title, partition_counts(data)))
        if "class_names" in task:
            section.notes.append(
                f"Classes: {', '.join(f'{at} {name}' for at, name in enumerate(task['class_names']))}."
            )
    if section.figures:
        section.notes.insert(0, "Training samples by client and class; the area of a bubble is their number.")
    if section.figures or section.notes:
        yield section


# -- analyses and settings -------------------------------------------------------------------------------------------


def _analyses(runs: Sequence[RunFolder], shown: Set[str]) -> Iterator[Section]:
    """Yield what the analyses find, without figures of a title that is shown already: curves over traffic."""
    for analysis in ANALYSES.values():
        if analysis.computes:
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
    for group, of in zip(groups, values, strict=True):
        of["seed"] = ", ".join(str(run.config()["seed"]) for run in group.runs)
    keys = list(dict.fromkeys(key for of in values for key in of))
    texts = {key: [str(of.get(key, "–")) for of in values] for key in keys}
    differing = [[key, *of] for key, of in texts.items() if len(set(of)) > 1]
    same = [[key, of[0]] for key, of in texts.items() if len(set(of)) == 1]
    tables = []
    if differing:
        tables.append(Table("Where the runs differ", ["setting", *(group.label for group in groups)], differing))
    if same:
        tables.append(Table("The same in all runs" if len(groups) > 1 else "Settings", ["setting", "value"], same))
    return Section("Settings", tables=tables)
