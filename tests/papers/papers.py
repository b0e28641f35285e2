"""Run the papers' settings at their own size, a few rounds of a few clients each, and write down what came of it.

::

    python tests/papers/papers.py list               # one for each file and column, the cheapest first
    python tests/papers/papers.py run                # those that have no record yet, one after the other
    python tests/papers/papers.py run 'fedreg-*'     # of those, some (by key or by the file they are in)
    python tests/papers/papers.py run --cells        # also all other cells of the experiments
    python tests/papers/papers.py table              # writes tests/papers/README.md

``make test-papers`` does the same with a test for each. Each trial is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for real_data, where this is no test

import records
from combinations import ROOT, Combination, combinations, counted, one_for_each_column

PAGE = ROOT / "tests" / "papers" / "README.md"
BEGIN = "<!-- tables: written by tests/papers/papers.py -->\n"
# More rounds for those that learn, but not yet more than the labels say.
ROUNDS, MORE_ROUNDS = 3, 9
PRECISIONS = ("float32", "bf16")  # of training steps; the second for networks that would take hours with the first


def main() -> None:
    """Read the command line and do as it says."""
    parser = argparse.ArgumentParser(description="The papers' settings at their own size, a few rounds each.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("list", "run"):
        command = commands.add_parser(name)
        command.add_argument("which", nargs="*", help="keys or files, with * and ?; all without")
        command.add_argument("--cells", action="store_true", help="every cell, not only one for each column")
        command.add_argument("--all", action="store_true", help="every cell, also those that lie between others")
        command.add_argument("--again", action="store_true", help="also those that have a record")
        command.add_argument("--hours", type=float, default=float("inf"), help="begin nothing new after so many")
        command.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0], help="that of training steps")
    commands.add_parser("one", help="a trial in this process; for the other commands")
    commands.add_parser("table", help=f"write the tables into {PAGE.name}")
    given = parser.parse_args()
    if given.command == "table":
        return write_page()
    if given.command == "one":
        return _one()
    listed = wanted(combinations(), given.which, given.cells, given.all, given.again)
    if given.command == "list":
        known = records.read()
        for found in listed:
            print(f"{found.key:60} {records.state(found, known):12} {found.places[0]}")
        return None
    begun, failed = time.monotonic(), 0
    for found in listed:
        if time.monotonic() - begun > given.hours * 3600:
            break
        said = carry_out(found, given.precision)
        failed += bool(said)
        print(said or f"{found.key}: learns", flush=True)
    sys.exit(bool(failed))


def wanted(
    listed: Sequence[Combination],
    which: Sequence[str] = (),
    cells: bool = False,
    everything: bool = False,
    again: bool = False,
) -> list[Combination]:
    """Return the combinations that are to be run, in their order.

    Parameters
    ----------
    listed : sequence of Combination
        All of them.
    which : sequence of str
        Patterns, of which one has to match the key or a file; none: all.
    cells : bool
        Every cell of the experiments, not only one for each column.
    everything : bool
        Every cell, also those that lie between others.
    again : bool
        Also those that have a record.
    """
    known = {} if again else records.read()
    if not everything:
        listed = [one for one in listed if not one.between] if cells else one_for_each_column(listed)
    return [one for one in listed if one.key not in known and (not which or _matches(one, which))]


def _matches(one: Combination, which: Sequence[str]) -> bool:
    files = {place.file for place in one.places}
    names = {one.key, *files, *(Path(file).stem for file in files)}
    return any(fnmatch(name, pattern) for name in names for pattern in which)


def carry_out(one: Combination, precision: str = PRECISIONS[0]) -> str:
    """Run a combination in a process of its own and keep its record; return in a line what is wrong, or nothing."""
    record = _ask(one, ROUNDS, precision)
    if "error" not in record and records.only_guesses(record):
        record = _ask(one, MORE_ROUNDS, precision)
    records.keep(record)
    return complaint(one, record)


def complaint(one: Combination, record: Mapping[str, Any]) -> str:
    """Say in a line where a trial's settings stand and what is wrong with it; nothing if it is as it should be."""
    found = records.wrong(record)
    return f"{one.places[0]} ({one.key}): {'; '.join(found)}" if found else ""


def _ask(one: Combination, rounds: int, precision: str) -> dict[str, Any]:
    asked = {"settings": one.settings, "generate": one.generate, "rounds": rounds, "precision": precision}
    said = subprocess.run(
        [sys.executable, __file__, "one"], input=json.dumps(asked), capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if said.returncode == 0:
        return dict(json.loads(said.stdout.splitlines()[-1]))
    last = (said.stderr.strip().splitlines() or [""])[-1]
    reason = f"the process ended with {said.returncode}{': ' * bool(last)}{last}"
    return {
        "key": one.key, "version": records.VERSION, "when": time.strftime("%Y-%m-%d"), "machine": "", "rounds": rounds,
        "precision": precision, "settings": counted(one.settings), "error": reason, "memory": 0, "seconds": 0.0,
    }  # fmt: skip


def _one() -> None:
    """Carry out what comes on standard input, and write its record as the last line of standard output."""
    import trial

    asked = json.load(sys.stdin)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    one = Combination(asked["settings"], generate=tuple(asked["generate"]))
    print(json.dumps(trial.attempt(one, asked["rounds"], asked["precision"])))


def write_page() -> None:
    """Put the tables into the page, below what stands there."""
    above = PAGE.read_text(encoding="utf-8").split(BEGIN)[0]
    PAGE.write_text(f"{above}{BEGIN}\n{records.tables(combinations(), records.read())}", encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
