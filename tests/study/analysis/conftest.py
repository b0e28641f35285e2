"""Run folders with numbers that a test chooses."""

from __future__ import annotations

import json

import pytest

from fedpfl.core.checksummed_files import to_toml
from fedpfl.results.run_folder import RunFolder
from fedpfl.setup.config import Config


@pytest.fixture
def make_run(tmp_path):
    """Return a function that writes the folder of a run: settings, and the lines of its metrics."""

    def make(method, lines, clients=4, task=None, **settings):
        path = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        options = {key.replace("_", "-"): value for key, value in settings.items()}
        (path / "config.toml").write_text(to_toml(Config.parse({"method": method, **options}).flat()))
        task = {"state_key": path.name, "clients": clients, "input_shape": [1, 8, 8], "num_classes": 10, **(task or {})}
        (path / "task.json").write_text(json.dumps(task))
        every = {"seconds_train": 1.0, "bytes_up": 0, "bytes_down": 0, "clients": list(range(clients))}
        whole = [{"round": i + 1, **every, **line} for i, line in enumerate(lines)]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in whole))
        return RunFolder(path)

    return make


@pytest.fixture
def tested():
    """Return a function that makes what a line of metrics has of a test: each client's accuracy, and the global one."""

    def line(*each, weighted=0.5, shared=None):
        made = {"personalised": {"each": {str(i): a for i, a in enumerate(each)}, "weighted": weighted}}
        return made if shared is None else {**made, "global": {"accuracy": shared}}

    return line
