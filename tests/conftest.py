"""What holds for all tests."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from fedpfl.core import user_code

# Equalities to the bit need one number of threads on both sides; set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Compiled modules are kept, or each process that a test starts would compile torch again: half of its time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No test takes the power away: what they write need not wait for the disk, which is a third of a small run's time.
os.fsync = lambda handle: None

# A list of fonts takes half a second to make, and each test or process with another home would make its own.
os.environ.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))

# A shell that starts the tests in the background has them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A busy machine takes its time.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    """Keep the tests that use what their file makes once, a run or a server, in one process, or each would make it."""
    for item in items:
        scopes = {fixtures[-1].scope for fixtures in item._fixtureinfo.name2fixturedefs.values() if fixtures[-1].baseid}
        if scopes & {"module", "session"} and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture
def small_bn(monkeypatch):
    """The name of a small convolutional network with BatchNorm for the digits, a model while the test runs."""
    from support import add_small_bn

    return add_small_bn(monkeypatch)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Run in an empty folder that is the home as well, so that no default path leads outside."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    user_code.set_folder(None)
