"""The outcome of a run: in numbers, and as a page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial
from typing import TypedDict

from ..core.metrics import ACCURACY, TARGETS, labels_of, score_in_words, score_name
from ..core.references import short_name
from .board_names import with_boards
from .history import History
from .round_line import metric_names, over_whom
from .run_folder import RunFolder
from .tables import decimals, in_cell


class Summary(TypedDict):
    """The outcome of a run: the keys of ``run.summary`` and of ``fedpfl run --json``.

    A number is ``None`` if the run has not measured it.

    Attributes
    ----------
    folder : str
        The run's folder.
    rounds : int
        Rounds that are finished.
    personalised_accuracy, global_accuracy : float or None
        Of the last round with tests, at most 1: the mean over clients of each client's accuracy with its own
        model on its own test samples; the shared model's accuracy on the test samples of all.
        With ``loss = "mse"`` both are R², the shared model's the mean of the clients' weighted by their test samples.
    best_personalised_accuracy, best_global_accuracy : float or None
        The highest of any round.
    untested : list of int
        The clients of which the last test has none that counts, and that are absent: the means are without them.
    untrained : list of int
        The clients in the last test that failed when they last had to train: the means have their earlier models.
    metrics : dict of str to float or None
        The other ``metrics`` by name, in the last round with tests: means over the clients' own models.
    seconds_per_round : float or None
        The median.
    bytes_up, bytes_down : float
        Sent by and to all clients in all rounds.
    epsilon, delta : float or None
        ε and δ of differential privacy after the last round.
    """

    folder: str
    rounds: int
    personalised_accuracy: float | None
    global_accuracy: float | None
    best_personalised_accuracy: float | None
    best_global_accuracy: float | None
    untested: list[int]
    untrained: list[int]
    metrics: dict[str, float | None]
    seconds_per_round: float | None
    bytes_up: float
    bytes_down: float
    epsilon: float | None
    delta: float | None


OUTCOME_KEYS = tuple(Summary.__annotations__)


def outcome(folder: RunFolder) -> Summary:
    """Return the outcome of a run as ``fedpfl run --json`` prints it, without ``run`` and ``status``."""
    return _outcome(folder, folder.history())


def _outcome(folder: RunFolder, history: History) -> Summary:
    tested = [line for line in history.lines if line.get("personalised")]
    seconds = history.curve("seconds").values()
    spent = _spent(history)
    return {
        "folder": str(folder.path),
        "rounds": history.last_round,
        "personalised_accuracy": history.last("personalised.accuracy"),
        "global_accuracy": history.last("global.accuracy"),
        "best_personalised_accuracy": history.best("personalised.accuracy"),
        "best_global_accuracy": history.best("global.accuracy"),
        "untested": tested[-1].get("untested", []) if tested else [],
        "untrained": history.untrained(),
        "metrics": {name: history.last(f"personalised.{name}") for name in _metrics(history)},
        "seconds_per_round": statistics.median(seconds) if seconds else None,
        "bytes_up": history.total("bytes_up"),
        "bytes_down": history.total("bytes_down"),
        "epsilon": spent.get("epsilon"),
        "delta": spent.get("delta"),
    }


def outcome_rows(folder: RunFolder, history: History | None = None) -> list[tuple[str, str, str]]:
    """Return the outcome of a run in words: what it is, of the last round, and of the best one where there is one."""
    values, history = folder.config(), history or folder.history()
    result = _outcome(folder, history)
    called, seconds = score_name(values["loss"]), result["seconds_per_round"]
    shown = partial(score_in_words, loss=values["loss"])
    tested = [line for line in history.lines if line.get("personalised")]
    boards = folder.task().get("boards", {})
    tested_on = f" ({over_whom(tested[-1])})" if tested and over_whom(tested[-1]) else ""
    models = [
        (f"personalised {called}{tested_on}", shown(result["personalised_accuracy"]),
         shown(result["best_personalised_accuracy"])),
        (f"global {called}", shown(result["global_accuracy"]), shown(result["best_global_accuracy"])),
    ]  # fmt: skip
    rows = [
        ("rounds", str(result["rounds"])),
        ("seconds a round", "–" if seconds is None else f"{seconds:.2f}"),
        ("moved up / down", f"{result['bytes_up'] / 1e6:.2f} MB / {result['bytes_down'] / 1e6:.2f} MB"),
    ]
    rows += [(f"{name}, personalised", _number(value)) for name, value in result["metrics"].items()]
    if chosen := history.best_validated():
        accuracy, by = shown(chosen["personalised"]["accuracy"]), chosen["validation"][history.by]
        validation = shown(by) if history.by == ACCURACY else f"{history.by} {_number(by)}"
        rows.insert(0, (f"best on validation samples: round {chosen['round']}", validation))
        rows.insert(1, (f"personalised {called} in that round", accuracy))
    if result["untrained"]:
        which = with_boards(result["untrained"], boards)
        rows.append(("clients whose training failed, in the means with an earlier model", which))
    if lacking := [line for line in tested if line.get("untested")]:
        without = with_boards(lacking[0]["untested"], boards)
        least = f"{len(lacking)}, first round {lacking[0]['round']} with {over_whom(lacking[0])}, without {without}"
        rows.append(("rounds in which tests are missing", f"{least}; a best round is one of those that miss fewest"))
    if unwritten := (tested[-1].get("unwritten") if tested else None):
        why = "; ".join(f"client {with_boards([int(one)], boards)}: {reason}" for one, reason in unwritten.items())
        rows.append(("device models that could not be written", f"{len(unwritten)}: {why}"))
    if history.stalled(values.get("early-stop", 0)):
        rows.append(("ended early", f"no better validation for {values['early-stop']} rounds"))
    if (std := history.last("personalised.std")) is not None:
        rows.append(("std / worst tenth of clients", f"{shown(std)} / "
                     f"{shown(history.last('personalised.worst-tenth'))}"))  # fmt: skip
    if spent := _spent(history):
        rows.append((f"privacy spent (noise at the {values['dp-where']})",
                     f"ε = {spent['epsilon']:.2f} at δ = {spent['delta']:g}"))  # fmt: skip
        rows.append(("against other updates in their place", f"ε = {spent['epsilon-replaced']:.2f}"))
    return [*models, *((what, value, "") for what, value in rows)]


def summary(folder: RunFolder) -> str:
    """Return the outcome of a run as Markdown."""
    values, history, called = folder.config(), folder.history(), score_name(folder.config()["loss"])
    method, dataset, model_name = (
        short_name(text) for text in (values["method"], values["dataset"], folder.model_name)
    )
    mean_model = bool(history.curve("bytes_evaluation_only"))
    model = "the mean of the clients' whole models" if mean_model else "the shared model"
    on = " on the\nunion of all test samples"
    if values.get("test-on") == "server":
        on = " on the\nserver's test set"
    elif labels_of(values["loss"]) == TARGETS:  # R² of several clients' samples is no mean of theirs
        on = ": the\nmean of R² over the clients, weighted by their test samples"
    table = "\n".join(f"| {' | '.join(map(in_cell, row))} |" for row in outcome_rows(folder, history))
    return (
        f"# {folder.path.name}\n\n"
        f"{method} on {dataset} ({values['partitioner']}), model {model_name}, "
        f"{history.last_round} rounds, seed {values['seed']}.\n\n"
        f"| | last round | best round |\n|---|---|---|\n{table}\n\n"
        f"Personalised: mean over clients of the {called} on their own test samples. Global: {model}{on}. "
        "The test samples themselves choose a best round, so its number is optimistic; validation-fraction keeps "
        "others for that. All settings: `config.toml`; every round: `metrics.jsonl`.\n"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.{decimals(4, [value])}f}"


def _metrics(history: History) -> list[str]:
    """Return the names of the metrics that the run's tests have measured."""
    return list(dict.fromkeys(name for line in history.lines for name in metric_names(line.get("personalised") or {})))


def _spent(history: History) -> Mapping[str, float]:
    """Return the cost of differential privacy, ε and δ; empty without it."""
    return history.lines[-1].get("privacy", {}) if history.lines else {}
