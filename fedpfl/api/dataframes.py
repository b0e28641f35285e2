"""What runs have recorded, as pandas' DataFrames."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import FedpflError
from ..results.round_line import metric_names
from ..results.tables import Table

if TYPE_CHECKING:
    from pandas import DataFrame

# Reasons by client, of which a line has none where no client has one.
NOT_IN_ALL_LINES = ("failed", "unwritten")


def pandas(why: str) -> Any:
    """Import pandas, which is needed for tables alone."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise FedpflError(f"{why} needs pandas: pip install 'fedpfl[notebook]'") from error


def rounds(lines: Sequence[dict[str, Any]]) -> DataFrame:
    """Return a row for each round of ``metrics.jsonl``; what a round has not recorded is missing there.

    Shares are between 0 and 1, sizes in bytes, times in seconds.
    """
    frame = pandas("run.rounds").DataFrame([_round(line) for line in lines], columns=None if lines else ["round"])
    return frame.set_index("round")


def clients(lines: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> DataFrame:
    """Return a row for each round and client of ``metrics.jsonl``, indexed by both; ``names`` are those of clients."""
    columns = ["round", "client", *["name"] * bool(names), "trained", "accuracy", "samples"]
    rows = [row for line in lines for row in _clients(line)]
    if names:
        rows = [{**row, "name": names[row["client"]]} for row in rows]
    frame = pandas("run.clients").DataFrame(rows)
    others = [name for name in frame.columns if name not in (*columns, *NOT_IN_ALL_LINES)]
    return frame.reindex(columns=[*columns, *others, *NOT_IN_ALL_LINES]).set_index(["round", "client"])


def from_table(table: Table) -> DataFrame:
    """Return a table; a spread has a column for its mean, its standard deviation and its number of runs each."""
    return pandas("this table").read_csv(io.StringIO(table.csv()))


def _round(line: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in line.items():
        if key == "clients":
            row["clients_trained"] = len(value)
            row.update({f"clients_{key}": len(line.get(key, ())) for key in NOT_IN_ALL_LINES})
        elif key in NOT_IN_ALL_LINES:
            continue
        elif key in ("details", "privacy"):
            prefix = "privacy_" * (key == "privacy")
            row.update({prefix + name.replace("-", "_"): number for name, number in value.items()})
        elif isinstance(value, dict):
            scores = {score: number for score, number in value.items() if not isinstance(number, dict)}
            row.update({f"{key}_{score.replace('-', '_')}": number for score, number in scores.items()})
        else:
            row[key] = value
    return row


def _clients(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    tests = {key: value for key, value in line.items() if isinstance(value, dict) and "each" in value}
    numbers = {str(client) for client in line["clients"]}
    for by_client in (line.get("failed", {}), *(test["each"] for test in tests.values())):
        numbers.update(by_client)
    for client in sorted(numbers, key=int):
        row: dict[str, Any] = {"round": line["round"], "client": int(client), "trained": int(client) in line["clients"]}
        for name, test in tests.items():
            prefix = "" if name == "personalised" else f"{name}_"
            row[f"{prefix}accuracy"] = test["each"].get(client)
            row[f"{prefix}samples"] = test["samples"].get(client)
            for metric in metric_names(test):
                if f"each-{metric}" in test:
                    row[f"{prefix}{metric.replace('-', '_')}"] = test[f"each-{metric}"].get(client)
        for key in NOT_IN_ALL_LINES:
            if client in line.get(key, {}):
                row[key] = line[key][client]
        yield row
