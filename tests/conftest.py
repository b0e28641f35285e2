"""What holds for all tests."""

from __future__ import annotations

import os
import signal

import pytest

from fedpfl.options import own_code

# Equalities to the bit need one number of threads on both sides; set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test takes the power away: what they write need not wait for the disk, which is a third of a small run's time.
os.fsync = lambda handle: None

# A shell that starts the tests in the background has them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Run in an empty folder that is the home as well, so that no default path leads outside."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    own_code.set_folder(None)
