"""What runs on devices, in a Python and a torch as old as theirs may be; skipped where there are none."""

import os
import subprocess
from pathlib import Path

from old_python import old_python

TESTS = Path(__file__).parent
FOLDERS = ("layers", "methods", "training", "models", "data")
SECONDS = 600


def test_the_tests_of_what_runs_on_devices_pass():
    python = old_python("pytest", "hypothesis")
    files = [path for folder in FOLDERS for path in sorted((TESTS / folder).glob("test_*.py"))]
    # Those with `support` play the server too, which needs more; test_worker.py has each method's clients there.
    chosen = [str(path) for path in files if "from support import" not in path.read_text()]
    assert {Path(path).parent.name for path in chosen} == set(FOLDERS)
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(TESTS), "-p", "no:cacheprovider", *chosen],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
