"""Which differences between runs are statistically significant.

Wilcoxon's signed-rank test over the clients, with Holm's correction for several pairs. Over several data sets: average
ranks, Friedman's test and Nemenyi's critical difference. Demšar: Statistical Comparisons of Classifiers over Multiple
Data Sets, JMLR 2006.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ...core.metrics import ACCURACY, LOSS, is_share, lower_is_better
from ...results.identity import clients_key, data_key, has_same_clients
from ...results.run_folder import RunFolder
from ...results.tables import Cell, Table
from .registry import NoOptions, Result, analysis
from .repetitions import IN_CHOSEN, RunGroup, grouped, has_validation, require

LEVEL = 0.05
# With more kinds of runs only the best one is compared with all others: so many pairs would say little.
MAX_KINDS = 12
# Said of a pair in which a few clients with large differences decide the mean.
MIXED = "mean and ranks disagree"


class ClientOfSeed(NamedTuple):
    """A client in the run of a seed; where all seeds have the same clients, its mean over the seeds counts once."""

    client: object
    seed: int


# The accuracies in percent, or another metric, of one kind of runs, by client; where seeds have other clients, by seed
# and client. Where lower is better they are negative.
Accuracies = Mapping[object, float]


class Pair(NamedTuple):
    """Two kinds of runs: the mean difference in points, over how many clients, and how likely chance makes one.

    For ``better`` clients the first kind is better; for ``equal`` ones there is no difference. ``mixed``: the first has
    the higher mean, the second the higher ranks.
    """

    first: str
    second: str
    difference: float
    clients: int
    better: int
    equal: int
    p: float
    corrected: float
    mixed: bool = False

    @property
    def is_significant(self) -> bool:
        """Whether p is below the level after Holm's correction, and mean and ranks say the same."""
        return self.corrected < LEVEL and not self.mixed

    @property
    def is_by_rank_alone(self) -> bool:
        """Whether p is below the level, but the mean says the opposite of the ranks."""
        return self.corrected < LEVEL and self.mixed


@analysis(
    "significance", "Which differences between runs are statistically significant (Wilcoxon, Holm; Demšar, JMLR 2006)"
)
def significance(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Compare each kind of runs with each other one, client by client, by the metric ``choose-by``.

    A client's value is that of the round with the best validation score, or of the last test unless all runs have such
    scores. Clients for which the metric is not defined do not count.
    If seeds have other clients, a client counts once for each seed; otherwise its mean over the seeds counts once.
    Seeds that one kind lacks do not count.
    """
    by_data: dict[tuple[object, str | None], list[RunGroup]] = {}
    for group in grouped(runs):
        by_data.setdefault((_data(group), group.runs[0].column), []).append(group)
    result = Result()
    by, validated = metric_of(run.config() for run in runs), has_validation(runs)
    loss = str(runs[0].config()["loss"])
    for groups in by_data.values():
        named = {group.runs[0].row or group.label: accuracies_of(group.runs, by, validated) for group in groups}
        kinds = {label: accuracies for label, accuracies in named.items() if accuracies}
        if pairs := compared(kinds):
            where = groups[0].runs[0].column
            title = f"Differences{'' if by == ACCURACY else f' in {by}'}{where and f', {where}'}"
            when = f", {IN_CHOSEN}" if validated else ""
            result.tables.append(_table(pairs, title, len(kinds), by, is_share(by, loss), when))
    require(result.tables, "others to be compared with", "at least two kinds of runs need the same data and seeds")
    data_sets = len({data for data, _ in by_data})  # two columns with the same data are not two
    if data_sets == len(by_data) > 1 and (ranks := _ranks(list(by_data.values()), by, validated)):
        result.tables.append(ranks)
    return result


def metric_of(settings: Iterable[Mapping[str, Any]]) -> str:
    """Return the metric that all runs are chosen by, or accuracy; of the loss there are no values of clients."""
    asked = {str(values.get("choose-by", ACCURACY)) for values in settings}
    return ACCURACY if len(asked) > 1 or asked == {LOSS} else asked.pop()


def accuracies_of(runs: Sequence[RunFolder], by: str = ACCURACY, validated: bool = True) -> Accuracies:
    """Return the accuracies of runs that differ in their seed alone, or another metric, by client and seed.

    They are of the last test if no round is to be chosen by ``validated`` scores, or none can be.
    """
    accuracies: dict[object, float] = {}
    for run in runs:
        factor = (-1 if lower_is_better(by) else 1) * (100 if is_share(by, str(run.config()["loss"])) else 1)
        history = run.history()
        each = history.chosen_test(by) if validated and history.best_validated() else history.last_test(by)
        if has_same_clients(run.config()):
            seed = run.config()["seed"]
            accuracies |= {ClientOfSeed(client, seed): factor * accuracy for client, accuracy in each.items()}
        else:
            of_seed = clients_key(run.described(), run.config())
            accuracies |= {(of_seed, client): factor * accuracy for client, accuracy in each.items()}
    return accuracies


def _data(group: RunGroup) -> object:
    """Return all that the data of runs follow from, seeds excepted."""
    return data_key(group.runs[0].task(), group.runs[0].config())


def compared(kinds: Mapping[str, Accuracies], base: str = "", in_advance: bool = True) -> list[Pair]:
    """Compare kinds of runs over the clients and seeds that both have, in each pair the better one first.

    With ``base`` each other kind is compared with that one alone, and of very many only the best one with the others.
    ``Pair`` has p without and with Holm's correction, for all pairs unless ``base`` was named ``in_advance``.
    """
    order = sorted(kinds, key=lambda kind: -statistics.fmean(kinds[kind].values()))
    if not base and len(order) > MAX_KINDS:
        base, in_advance = order[0], False
    samples = []
    for first, second in combinations(order, 2):
        if in_advance and base and base not in (first, second):
            continue
        if differences := _differences(kinds[first], kinds[second]):
            samples.append((first, second, differences, wilcoxon(differences)))
    corrected = holm([p for *_, p in samples])
    pairs = [_pair(*pair, adjusted) for pair, adjusted in zip(samples, corrected, strict=True)]
    return [pair for pair in pairs if not base or base in pair[:2]]


def _differences(first: Accuracies, second: Accuracies) -> list[float]:
    """Return each client's difference, of the mean over the seeds that both have where these have the same clients."""
    by_client: dict[object, list[float]] = {}
    for key in sorted(first.keys() & second.keys(), key=str):
        by_client.setdefault(key.client if isinstance(key, ClientOfSeed) else key, []).append(first[key] - second[key])
    return [statistics.fmean(differences) for differences in by_client.values()]


def _pair(first: str, second: str, differences: Sequence[float], p: float, corrected: float) -> Pair:
    """Return a pair with the one first that has the higher mean."""
    from scipy.stats import rankdata

    mean = statistics.fmean(differences)
    if mean < 0:
        return _pair(second, first, [-difference for difference in differences], p, corrected)
    unequal = _ranked(differences)
    ranks = rankdata([abs(difference) for difference in unequal])
    mixed = sum(math.copysign(rank, difference) for rank, difference in zip(ranks, unequal, strict=True)) < 0
    better, clients = sum(difference > 0 for difference in unequal), len(differences)
    return Pair(first, second, mean, clients, better, clients - len(unequal), p, corrected, mixed)


def wilcoxon(differences: Sequence[float]) -> float:
    """Return the two-sided p of Wilcoxon's signed-rank test without differences of 0; 1 if there are no others."""
    from scipy.stats import wilcoxon as test

    unequal = _ranked(differences)
    return float(test(unequal).pvalue) if unequal else 1.0


def _ranked(differences: Sequence[float]) -> list[float]:
    """Return the differences that have ranks: those other than 0, beyond the last bits.

    So 0.3 − 0.2 and 0.2 − 0.1 are one rank.
    """
    return [rounded for difference in differences if (rounded := round(difference, 9))]


def holm(values: Sequence[float]) -> list[float]:
    """Return p values with Holm's correction for their number."""
    corrected, so_far = [0.0] * len(values), 0.0
    for place, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(values) - place) * values[index]))
        corrected[index] = so_far
    return corrected


def interval(values: Sequence[float], least: float = -math.inf, most: float = math.inf) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of measurements, by Student's t; None for a single one.

    It is cut at ``least`` and ``most``, beyond which there are no means.
    """
    from scipy.stats import t

    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = float(t.ppf(1 - LEVEL / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return max(float(least), mean - half), min(float(most), mean + half)


def conclusion(pairs: Sequence[Pair], by: str = ACCURACY, tests: int = 0) -> str:
    """Return in a sentence or two which differences are statistically significant.

    p is corrected for as many ``tests``, by default one for each pair.
    """
    above_word = "lower" if lower_is_better(by) else "higher"
    sure: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.is_significant:
            sure.setdefault(pair.first, []).append(pair.second)
    open_pairs = [_open(pair) for pair in pairs if not pair.is_significant]
    above = "; ".join(f"{first} is {above_word} than {_listed(others)}" for first, others in sure.items())
    sentence = f"Statistically significant (p < {LEVEL} after Holm's correction): {above}." if above else (
        f"No difference is statistically significant (p < {LEVEL} after Holm's correction)."
    )  # fmt: skip
    # The least p is 2 / 2^clients, where one kind is higher for each client.
    tests = tests or len(pairs)
    wanted = math.floor(math.log2(2 * tests / LEVEL)) + 1
    if not above and (most := max(pair.clients for pair in pairs)) < wanted:
        pairs_need = f"{tests} pairs need" if tests > 1 else "1 pair needs"
        sentence += f" {most} clients are too few for a significant difference: {pairs_need} at least {wanted}."
    # If no pair is significant, only those are named that ranks alone would tell apart.
    named = open_pairs if above else [_open(pair) for pair in pairs if pair.is_by_rank_alone]
    return f"{sentence} Not significant: {'; '.join(named)}." if named else sentence


def _open(pair: Pair) -> str:
    return f"{pair.first} and {pair.second}{f' ({MIXED})' if pair.is_by_rank_alone else ''}"


def against(kinds: Mapping[str, Accuracies], base: str, in_advance: bool = True) -> str:
    """Return in a sentence which kinds of runs differ significantly from one of them.

    If that was not named ``in_advance``, p is corrected for the pairs of all kinds.
    """
    pairs = compared(kinds, base, in_advance)
    sure = [pair for pair in pairs if pair.is_significant]
    higher = [pair.first for pair in sure if pair.second == base]
    lower = [pair.second for pair in sure if pair.first == base]
    parts = [f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {word}"
             for names, word in ((higher, "higher"), (lower, "lower")) if names]  # fmt: skip
    if rest := len(pairs) - len(sure):
        mixed = sum(pair.is_by_rank_alone for pair in pairs)
        of_these = f" (of {mixed} {MIXED})" if mixed else ""
        parts.append(f"{rest} {'other does' if rest == 1 else 'others do'} not differ significantly{of_these}")
    return f"Compared with {base} (Wilcoxon over clients, p < {LEVEL} after Holm's correction): {'; '.join(parts)}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _table(pairs: Sequence[Pair], title: str, kinds: int, by: str, share: bool, when: str) -> Table:
    better, worse, sign = ("lower", "higher", -1) if lower_is_better(by) else ("higher", "lower", 1)
    points = ", points" if share else ""
    rows: list[list[Cell]] = [
        [pair.first, pair.second, sign * pair.difference, pair.clients, pair.better, pair.equal, f"{pair.p:.3g}",
         f"{pair.corrected:.3g}", "yes" if pair.is_significant else "no"] for pair in pairs
    ]  # fmt: skip
    columns = [better, worse, f"mean difference{points}", "clients", f"of them {better}", "equal", "p", "p, Holm",
               "significant"]  # fmt: skip
    rest = " Only the best one is compared with the others; p is corrected for all pairs." if kinds > MAX_KINDS else ""
    note = f"{conclusion(pairs, by, math.comb(kinds, 2))}{rest} Wilcoxon's signed-rank test over the clients{when}."
    digits = 2 if points else 4
    return Table(title, columns, rows, digits, note=note, optional=("equal", f"of them {better}", "p", "clients"))


def _ranks(data_sets: Sequence[Sequence[RunGroup]], by: str, validated: bool) -> Table | None:
    """Return the average ranks of the methods that ran on all data sets; None for fewer than two of them."""
    values = [
        {group.runs[0].row or group.method: accuracies
         for group in groups if (accuracies := accuracies_of(group.runs, by, validated))} for groups in data_sets
    ]  # fmt: skip
    # A method that has several kinds of runs on one data set has no rank of its own.
    if any(len(by_name) < len(groups) for by_name, groups in zip(values, data_sets, strict=True)):
        return None
    names = [name for name in values[0] if all(name in by_name for by_name in values)]
    # Clients and seeds that one method lacks do not count.
    common = [set.intersection(*(set(by_name[name]) for name in names)) if names else set() for by_name in values]
    if len(names) < 2 or not all(common):
        return None
    means = [
        {name: statistics.fmean(by_name[name][key] for key in sorted(keys, key=str)) for name in names}
        for by_name, keys in zip(values, common, strict=True)
    ]
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    ranks = [rankdata([-of_data[name] for name in names]) for of_data in means]
    average = {name: float(statistics.fmean(of_data[index] for of_data in ranks)) for index, name in enumerate(names)}
    order = sorted(names, key=average.__getitem__)
    note = f"Rank 1 is the {'lowest' if lower_is_better(by) else 'highest'} {by}; {len(means)} data sets."
    if len(names) > 2:
        p = float(friedmanchisquare(*([of_data[name] for of_data in means] for name in names)).pvalue)
        q = float(studentized_range.ppf(1 - LEVEL, len(names), math.inf)) / math.sqrt(2)
        critical = q * math.sqrt(len(names) * (len(names) + 1) / (6 * len(means)))
        apart = [f"{a} and {b}" for a, b in combinations(order, 2) if average[b] - average[a] > critical]
        which = "; ".join(apart) if p < LEVEL and apart else "none"
        note += (
            f" Friedman's test: p = {p:.3g}. Nemenyi's critical difference at {LEVEL} is {critical:.2f}; ranks that "
            f"differ by more: {which}."
        )
    rows: list[list[Cell]] = [[name, average[name]] for name in order]
    return Table("Average ranks over the data sets", ["run", "average rank"], rows, note=note)
