"""The library part and the strategies import and run where Linux's modules and calls are missing, as on Windows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HIDDEN = """
import os, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios", "ray"):
    sys.modules[name] = None
for name in ("fork", "sched_getaffinity", "sched_setaffinity", "memfd_create", "getuid", "geteuid", "chown", "fchmod",
             "mkfifo", "O_NOFOLLOW", "O_CLOEXEC"):
    if hasattr(os, name):
        delattr(os, name)
sys.path[:0] = [{tests!r}, {flower!r}]
import fedpfl
from flower_apps import AppGrid, Net, flowers_app, initial, samples
from flwr.app import ArrayRecord
from fedpfl import strategies

assert strategies.FedPer(head="fc2").start(AppGrid(flowers_app([strategies.keep()])), initial(), num_rounds=1).arrays
app = strategies.client_app(model=Net, data=lambda context: samples(context.node_config["partition-id"]))
result = strategies.Ditto(model=Net, local_epochs=1).start(AppGrid(app), ArrayRecord(), num_rounds=1)
assert result.evaluate_metrics_clientapp[1]["personalised-accuracy"] >= 0
import fedpfl.engine.worker_pool, fedpfl.engine.worker
print("done")
"""


def test_nothing_of_linux_is_needed():
    tests = Path(__file__).parents[1]
    text = HIDDEN.format(tests=str(tests), flower=str(tests / "flower"))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr[-3000:]
