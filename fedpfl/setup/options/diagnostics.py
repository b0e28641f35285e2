"""How far shared and personal arrays move."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.option import Option
from ...core.settings import setting


@dataclass(frozen=True)
class DiagnosticsSettings:
    """Whether movements are recorded."""

    diagnostics: bool = setting(
        False,
        "Record how far shared and personal arrays move (drift, shared-change, personal-change in metrics.jsonl), and "
        "how many gradients a client computes in a round; takes memory on the server and disk space on clients.",
        tags="repeat",
    )


class DiagnosticsOption(Option):
    """Measures movements on the server and on the clients."""

    title = "Diagnostics"
    Settings = DiagnosticsSettings
    at_server = True
