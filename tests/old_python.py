"""An interpreter as old as a device's may be: Python 3.8 with torch."""

import os
import shutil
import subprocess

import pytest

VARIABLE = "FEDPFL_TEST_PYTHON38"


def old_python(*more):
    """Return an interpreter of the worker's oldest Python with torch and these modules, or skip."""
    needed = ", ".join(["torch", "safetensors", "sklearn", *more])
    reasons = []
    for name in (os.environ.get(VARIABLE), shutil.which("python3.8")):
        if name:
            code = f"import sys; assert sys.version_info[:2] == (3, 8), 'it is no Python 3.8'; import {needed}"
            done = subprocess.run([name, "-c", code], capture_output=True, text=True, timeout=120)
            if done.returncode == 0:
                return name
            reasons.append(f"{name}: {done.stderr.strip().splitlines()[-1]}")
            if name == os.environ.get(VARIABLE):
                pytest.fail(f"{VARIABLE} = {reasons[0]}")
    reason = f" ({reasons[0]})" if reasons else ""
    pytest.skip(f"no Python 3.8 with {needed}: set {VARIABLE} to one{reason}")
