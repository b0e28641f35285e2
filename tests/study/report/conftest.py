"""Small runs to report on, made once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest
from support import simulate

from fedpfl.core.checksummed_files import to_toml
from fedpfl.results.run_folder import RunFolder


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, RunFolder]:
    """Runs of three clients by name: two seeds of fedavg, and factorized-fl, which records similarities."""
    quick = {"num_server_rounds": 2, "local_epochs": 1}
    wanted = {"fedavg-1": ("fedavg", 1), "fedavg-2": ("fedavg", 2), "factorized-1": ("factorized-fl", 1)}
    return {
        name: simulate(tmp_path_factory.mktemp(name), 3, method=method, seed=seed, run_name=name, **quick)
        for name, (method, seed) in wanted.items()
    }


@pytest.fixture
def changed(folders, tmp_path) -> Callable[..., RunFolder]:
    """Return a function that copies a run and changes what it left: settings, task, rounds; and whether it ended."""

    def change(name, to, settings=None, task=None, rounds=None, finished=True) -> RunFolder:
        run = RunFolder(tmp_path / to)
        shutil.copytree(folders[name].path, run.path)
        (run.path / "config.toml").write_text(to_toml({**run.config(), **(settings or {})}))
        (run.path / "task.json").write_text(json.dumps({**run.task(), **(task or {})}))
        if rounds is not None:
            (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
        if not finished:
            (run.path / "summary.md").unlink()
        return run

    return change
