"""Which settings a strategy's messages carry.

Flower starts a process for each message, and that process needs :mod:`.messages` alone, not the settings of a run.
"""

from __future__ import annotations

from ..core.settings import keys
from ..data.settings import DataSettings
from ..setup.all_settings import tagged

# Settings that each side has for itself: what its own code is, where its files are, and how the server runs.
NOT_SENT = tagged("place") | tagged("own")
# Where the samples of a run's clients come from: nodes have data of their own.
OF_NODES = tagged("loop").intersection(keys(DataSettings))
# Settings that would not act on one client alone or in one message, or not as the server takes it.
OF_STRATEGY = tagged("server") | tagged("whole")
