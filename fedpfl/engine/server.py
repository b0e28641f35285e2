"""What the server of a run has once the task is agreed: what listeners are made of."""

from __future__ import annotations

from typing import NamedTuple

from ..core.extras import Extras
from ..results.run_folder import RunFolder
from ..rules import Rule
from ..setup.config import Config
from .agreement import Agreement


class Server(NamedTuple):
    """A run before round 1."""

    config: Config
    folder: RunFolder
    agreed: Agreement
    rule: Rule
    extras: Extras
