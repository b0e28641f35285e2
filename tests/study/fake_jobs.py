"""What jobs do in the tests of clusters, in processes of their own: runs that end at once, or when they are told to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from grids import Fake, leave

from fedpfl.study.grid import Resources
from fedpfl.study.store import PlannedRun, Store

SECONDS = 120  # after which a job ends by itself, whatever became of its test


def quick(run: PlannedRun, store: Store, share: Resources) -> Fake.Job:
    """Start a run that is over at once, and note how many workers it was given."""
    job = Fake()(run, store, share)
    (store.cell(run) / "workers").write_text(str(share.workers))
    return job


class Waiting:
    """A run that does a round and the others once there is a file ``go`` in the folder of all runs."""

    def __init__(self, run: PlannedRun, store: Store, share: Resources) -> None:
        self._run, self._store, self._since = run, store, time.monotonic()
        store.prepare(run)
        leave(store.folder(run).path, run, 1)

    def outcome(self) -> dict[str, Any] | None:
        folder = self._store.folder(self._run).path
        if not (self._store.root / "go").exists():
            late = time.monotonic() - self._since > SECONDS
            return {"status": "failed", "error": "nobody told it to go on"} if late else None
        leave(folder, self._run, self._run.rounds)
        Path(folder / "summary.md").touch()
        return {"status": "finished:completed", "error": None}

    def interrupt(self) -> bool:
        raise AssertionError("a job is left alone")
