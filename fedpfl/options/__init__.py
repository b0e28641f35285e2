"""The options, each in a file of its own: settings, their checks, and the names of what it brings.

To add one, write a subclass of :class:`~fedpfl.core.option.Option` in a new file and name it here.
"""

from __future__ import annotations

from .after_the_end import Missed, Personalise
from .buffered import Buffered
from .diagnostics import Diagnostics
from .evaluate_global import EvaluateGlobal
from .listeners import Listeners
from .norm_limit import NormLimit
from .participation import Participation
from .privacy import Privacy
from .robust import Robust
from .server_step import ServerStep
from .tracker import Tracker
from .trainable import Trainable
from .virtual_time import VirtualTime

# In the order in which they are called.
OPTIONS = (
    Trainable, ServerStep, NormLimit, Robust, Privacy, EvaluateGlobal, Diagnostics, Buffered, Participation,
    VirtualTime, Personalise, Missed, Tracker, Listeners,
)  # fmt: skip
