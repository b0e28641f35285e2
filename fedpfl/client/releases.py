"""How often a device has answered with arrays, in all runs together, and what that has spent of its privacy."""

from __future__ import annotations

import math
from pathlib import Path

from ..core.accounting import epsilon
from ..core.files import locked, private_folder, write_atomically
from ..core.stored import from_json_line, json_line

LEDGER = "releases.json"


def count(folder: Path, noise: float, most: float, most_epsilon: float, delta: float) -> str:
    """Count an answer of this device, unless that would be more than it may give: then return why.

    A file in ``folder`` has the number of all answers and the µ² that those with noise have spent together.
    """
    private_folder(folder)
    path = folder / LEDGER
    with locked(folder / f".{LEDGER}.lock"):
        before = from_json_line(path.read_bytes(), path, "releases") if path.is_file() else {}
        number = before.get("releases", 0) + 1
        spent = before.get("mu-squared", 0.0) + (1 / noise**2 if noise else 0.0)
        if number > most:
            return f"it has answered {number - 1} times, and most-releases is {most:g}"
        if (total := epsilon(math.sqrt(spent), delta)) > most_epsilon:
            return f"its answers would spend ε = {total:.2f} together, and most-epsilon is {most_epsilon:g}"
        write_atomically(path, json_line({"releases": number, "mu-squared": spent}).encode(), private=True)
    return ""
