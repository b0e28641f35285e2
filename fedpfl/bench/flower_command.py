"""Two of Flower's commands that look for work when there may be some: ``flower-superexec`` and ``flower-supernode``.

``python -m fedpfl.bench.flower_command flower-supernode …`` is as ``flower-supernode …``. Flower's own look at fixed
times: a SuperNode every 3 s, for which small rounds wait, and its SuperExec every second, also on a board that trains
for minutes.
"""

from __future__ import annotations

import importlib.metadata
import sys

from ..flower_private import shorten_message_polls, stretch_task_polls

SUPEREXEC, SUPERNODE = "flower-superexec", "flower-supernode"


def supernode_command() -> list[str]:
    """Return the command of a SuperNode, without its arguments."""
    return [sys.executable, "-P", "-m", "fedpfl.bench.flower_command", SUPERNODE]


def main() -> None:
    """Run the command that the first argument names in this process."""
    del sys.argv[0]
    {SUPEREXEC: stretch_task_polls, SUPERNODE: shorten_message_polls}[sys.argv[0]]()
    # Several installed packages may declare it, as on a board whose bundle has Flower in more than one wheel.
    command, *_ = importlib.metadata.entry_points(group="console_scripts", name=sys.argv[0])
    command.load()()


if __name__ == "__main__":
    main()
