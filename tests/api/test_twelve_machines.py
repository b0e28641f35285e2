"""Twelve machines from their CSV files to a decision, to models for them, and on with the data of the next month."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedpfl

pytestmark = pytest.mark.usefixtures("elsewhere")

SETTINGS = {
    "dataset": "clients", "model": "mlp", "loss": "cross-entropy", "label_column": "fault", "time_column": "time",
    "category_columns": "mode=auto|manual", "split": "time", "impute": "mean", "standardize": "client",
    "class_weights": "balanced", "metrics": "auroc,f1-macro", "min_samples": 8, "num_server_rounds": 3,
    "local_epochs": 2, "quiet": True, "workers": 0,
}  # fmt: skip


def month(folder, number, machines=range(12)):
    """Write a file for each machine: three sensors with gaps, a mode in words, 3 to 12 % faults."""
    folder.mkdir()
    for machine in machines:
        rng = np.random.default_rng([number, machine])
        rows = 8 if machine == 11 else 300
        fault = np.zeros(rows, int) if machine == 10 else (rng.random(rows) < 0.03 + 0.008 * machine).astype(int)
        sensors = rng.normal(size=(rows, 3)) + machine * 0.3
        sensors[:, machine % 3] += 3 * fault
        frame = pd.DataFrame(sensors, columns=["temperature", "current", "vibration"])
        frame = frame.mask(rng.random(frame.shape) < 0.05)
        frame.insert(0, "time", pd.date_range(f"2026-0{number}-01", periods=rows, freq="h").astype(str))
        frame["mode"] = rng.choice(["auto", "manual", "service"], rows)
        frame["fault"] = fault
        # Each machine's program writes its columns in another order.
        frame[rng.permutation(frame.columns)].to_csv(folder / f"machine-{machine:02}.csv", index=False)
    return folder


def test_from_files_to_a_decision_to_models_and_on(tmp_path):
    first = month(tmp_path / "july", 7)
    found = fedpfl.compare(
        ["local", "fedavg", "ditto"], seeds=2, data=first, choose_by="auroc",
        **{key: value for key, value in SETTINGS.items() if key != "workers"},
    )  # fmt: skip
    table = found.table.set_index("method")
    # Few samples are faults: the accuracy says nothing of them.
    assert table["auroc"].between(0.4, 1).all() and set(table.index) == {"local", "fedavg", "ditto"}

    run = fedpfl.run(method="ditto", data=first, **SETTINGS)
    assert len(run._folder.task()["client_names"]) == 12
    features = run._folder.task()["input_shape"][0]
    assert features == 6  # three sensors, and auto, manual and other of the mode
    paths = run.export("torchscript", client="machine-03")
    assert len(paths) == 1 and paths[0].stat().st_size > 0

    later = fedpfl.run(data=month(tmp_path / "august", 8), continue_from=run, method="ditto", **SETTINGS)
    assert later._folder.task()["continued"]["round"] == 3
    assert later.rounds["personalised_auroc"].iloc[-1] > 0.6
