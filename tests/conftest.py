"""What holds for all tests."""

from __future__ import annotations

import os
import signal

# Equalities to the bit need one number of threads on both sides; set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background has them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
