"""What trials came to: a line of JSON each, in a file of this folder; what is wrong in them; and the tables."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from combinations import Combination, Whole, by_column, ends
from trial import VERSION

WORKERS = 2  # processes for which a whole run's hours are worked out
LEARNT = 0.1  # of a guess's loss: what is below it in round 1 need not fall
OPEN, DONE, BROKEN, BETWEEN = "not run yet", "yes", "no", "between"


def folder() -> Path:
    """Return the folder of records: FEDPFL_PAPERS, or this one, so that whoever goes on has what others have run."""
    return Path(os.environ.get("FEDPFL_PAPERS") or Path(__file__).parent).expanduser()


def read() -> dict[str, dict[str, Any]]:
    """Return the latest record of each combination, by key, of this version."""
    path = folder() / "records.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]  # a crash may cut the last line short
    return {record["key"]: record for record in records if record["version"] == VERSION}


def keep(record: Mapping[str, Any]) -> None:
    """Add a record."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "records.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def wrong(record: Mapping[str, Any]) -> list[str]:
    """Say what is wrong with a trial: nothing if all is finite, the loss falls and accuracy is above chance."""
    if "error" in record:
        return [record["error"]]
    found = list(record["failed"])
    rounds = range(record["rounds"])
    for name in ("losses", "trained", "personalised"):
        found += [f"round {i + 1}: {name} {record[name][i]}" for i in rounds if not math.isfinite(record[name][i])]
    if found:
        return found
    first, last, guess = record["losses"][0], record["losses"][-1], math.log(record["classes"])
    if last >= first and last > LEARNT * guess:
        found.append(f"the loss does not fall: {_row(record['losses'], 3)}")
    if best(record) <= record["chance"]:
        found.append(f"accuracy {best(record):.3f} is not above chance, {record['chance']:.3f}")
    elif only_guesses(record):
        found.append(
            f"no better than without looking at the inputs: loss {min(record['losses']):.3f} (there "
            f"{record['entropy']:.3f}), accuracy {best(record):.3f} (there {record['majority']:.3f})"
        )
    return found


def best(record: Mapping[str, Any]) -> float:
    """Return the better of the last round's accuracies: of the models as trained, and as the clients get them next."""
    return max(record["trained"][-1], record["personalised"][-1])


def only_guesses(record: Mapping[str, Any]) -> bool:
    """Say whether a trial did no better than a network that ignores its inputs, neither by loss nor by accuracy."""
    return min(record["losses"]) >= record["entropy"] and best(record) <= record["majority"]


def hours(record: Mapping[str, Any], whole: Whole) -> float:
    """Return the hours that a whole run would take: measured processor time, shared by :data:`WORKERS` processes.

    A client's round is taken to be a constant and something for each sample, as far as its clients' sizes differ.
    """
    clients = record["settings"]["num-clients"]
    clients -= round(whole.new_clients * clients)
    asked = max(1, round(whole.fraction_train * clients))
    every, rounds = whole.evaluate_every, whole.rounds
    tests = 1 if every == 0 else math.ceil(rounds / every)
    sizes, means = list(zip(*record["samples"], strict=True)), record["mean_samples"]
    train = at_size(sizes[0], record["train_seconds"], means[0])
    test = at_size([sum(pair) for pair in record["samples"]], record["evaluate_seconds"], sum(means))
    server = max(0.0, record["server_seconds"]) * asked / len(record["clients"])
    return (rounds * (asked * train / WORKERS + server) + tests * clients * test / WORKERS) / 3600


def at_size(sizes: Sequence[float], seconds: Sequence[float], size: float) -> float:
    """Return the seconds of a client of some size, from those of others."""
    mean_size, mean = statistics.fmean(sizes), statistics.fmean(seconds)
    if max(sizes) > 1.2 * min(sizes):
        slope = statistics.linear_regression(sizes, seconds).slope
        constant = mean - slope * mean_size
        if slope > 0 and constant > 0:
            return constant + slope * size
    return mean * size / mean_size


def state(one: Combination, records: Mapping[str, Mapping[str, Any]]) -> str:
    """Say how far a combination is."""
    if one.key in records:
        return BROKEN if wrong(records[one.key]) else DONE
    return BETWEEN if one.between else OPEN


def tables(listed: Sequence[Combination], records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page's tables as Markdown."""
    run = [one for one in listed if one.key in records]
    parts = [_counts(listed, records), _by_file(listed, records), _by_combination(run, records)]
    faults = {one.key: (one, found) for one in run if (found := "; ".join(wrong(records[one.key])))}
    lines = [f"- `{one.key}` ({one.places[0]}): {found}" for one, found in faults.values()]
    parts.insert(1, "\n".join(["Not as they should be:", "", *lines]) if lines else "All that ran is as it should be.")
    return "\n\n".join(parts) + "\n"


def _counts(listed: Sequence[Combination], records: Mapping[str, Mapping[str, Any]]) -> str:
    states = [state(one, records) for one in listed]
    machines = sorted({records[one.key]["machine"] for one in listed if one.key in records} - {""})
    days = sorted({records[one.key]["when"] for one in listed if one.key in records})
    when = f" {days[0]} to {days[-1]}, {'; '.join(machines)}." if days else ""
    columns = by_column(listed).values()
    ran = sum(any(all(end.key in records for end in ends(one, listed)) for one in ones) for ones in columns)
    return (
        f"{ran} of {len(columns)} files of `configs/` and columns of experiments have at least one "
        "combination that ran, or that lies between others that did.\n\n"
        f"{len(listed)} combinations: {states.count(DONE)} ran and learn, {states.count(BROKEN)} ran and do not, "
        f"{states.count(OPEN)} have not run yet, {states.count(BETWEEN)} lie between others.{when}"
    )


def _by_file(listed: Sequence[Combination], records: Mapping[str, Mapping[str, Any]]) -> str:
    """Sum up each file: how much of it ran, and what all of its runs would take."""
    files: dict[str, list[Combination]] = {}
    for one in listed:
        for file in dict.fromkeys(place.file for place in one.places):
            files.setdefault(file, []).append(one)
    lines = ["| file | combinations | learn | do not | open | between | all its runs |", "|---" * 7 + "|"]
    by_key = {one.key: one for one in listed}
    for file, ones in sorted(files.items()):
        states = [state(one, records) for one in ones]
        taken = [_hours_of(one, file, by_key, records) for one in ones]
        known = sum(t for t in taken if t is not None)
        said = _hours(known) if None not in taken else f"more than {_hours(known)}" if known else ""
        counts = [states.count(kind) for kind in (DONE, BROKEN, OPEN, BETWEEN)]
        lines.append(f"| `{file}` | {len(ones)} | {' | '.join(map(str, counts))} | {said} |")
    return "\n".join(lines)


def _hours_of(
    one: Combination, file: str, by_key: Mapping[str, Combination], records: Mapping[str, Mapping[str, Any]]
) -> float | None:
    """Return the hours of a combination's runs in a file; by its neighbours' times if it did not run itself."""
    at = [records[key] for key in (one.key, *one.between) if key in records and "error" not in records[key]]
    if not at:
        return None
    wholes = [whole for found, whole in one.wholes if found == file]
    return sum(hours(at[0], whole) * whole.seeds for whole in wholes)


def _by_combination(run: Iterable[Combination], records: Mapping[str, Mapping[str, Any]]) -> str:
    heads = (
        "method", "data", "model", "clients", "division, training", "where", "loss by round", "accuracy",
        "chance, majority", "s a client", "a whole run", "MB", "",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for one in sorted(run, key=lambda one: (str(one.places[0]), one.key)):
        lines.append("| " + " | ".join(_cells(one, records[one.key])) + " |")
    return "\n".join(lines)


def _cells(one: Combination, record: Mapping[str, Any]) -> list[str]:
    s = one.settings
    data = Path(s["data"]).stem if s["dataset"] == "npz" else s["dataset"]
    others = len(one.places) - 1
    place = f"{one.places[0]}{f' and {others} more' if others else ''}"
    start = [s["method"], data + ("" if record.get("real", True) else " (made)"), s["model"]]
    if "error" in record or not record["losses"]:
        said = "; ".join(wrong(record))
        return [*start, str(s["num-clients"]), division(s), place, "", "", "", "", "", _megabytes(record), said]
    trained = f"{division(s)}{', bf16' if record.get('precision') == 'bf16' else ''}"
    longest = max((hours(record, whole) for _, whole in one.wholes), default=0.0)
    mean = at_size([n for n, _ in record["samples"]], record["train_seconds"], record["mean_samples"][0])
    return [
        *start, f"{len(record['clients'])} of {s['num-clients']}", trained, place, _row(record["losses"], 2),
        f"{record['trained'][-1]:.2f}, {record['personalised'][-1]:.2f}",
        f"{record['chance']:.2f}, {record['majority']:.2f}", f"{mean:.1f}", _hours(longest), _megabytes(record),
        "; ".join(wrong(record)),
    ]  # fmt: skip


def division(settings: Mapping[str, Any]) -> str:
    """Say in a few words how data are divided and trained on."""
    signs = {"dirichlet": "α {dirichlet-alpha:g}", "dirichlet-client": "α {dirichlet-alpha:g}, n {train-samples}",
             "pathological": "S {classes-per-client}"}  # fmt: skip
    words = [settings["partitioner"]]
    if settings["partitioner"] in signs:
        words.append(signs[settings["partitioner"]].format_map(settings))
    words.append(f"B {settings['batch-size']}, E {settings['local-epochs']}")
    words += ["permuted"] * settings["permute-labels"]
    return ", ".join(words)


def _row(values: Sequence[float], digits: int) -> str:
    return " → ".join(f"{value:.{digits}f}" for value in values)


def _hours(value: float) -> str:
    return f"{value:,.0f} h" if value >= 10 else f"{value:.1f} h" if value >= 0.1 else f"{value * 60:.1f} min"


def _megabytes(record: Mapping[str, Any]) -> str:
    return f"{record['memory'] / 1e6:,.0f}"
