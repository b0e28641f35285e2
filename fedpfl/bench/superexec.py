"""Flower's SuperExec of a device's SuperNode, which looks for tasks the more rarely, the longer there was none.

Rounds of seconds begin as soon as before, and between rounds of minutes a board has more of its processor for training.
"""

from __future__ import annotations

import importlib.metadata

from ..flower_private import stretch_task_polls

COMMAND = "flower-superexec"


def main() -> None:
    """Run Flower's command in this process."""
    stretch_task_polls()
    # Several installed packages may declare it, as on a board whose bundle has Flower in more than one wheel.
    command, *_ = importlib.metadata.entry_points(group="console_scripts", name=COMMAND)
    command.load()()
