"""Absent clients, and those that can be asked in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.option import Option, TaskFacts
from ...core.settings import setting


@dataclass(frozen=True)
class AvailabilitySettings:
    """Who is asked in a round besides what ``fraction-train`` says."""

    available_clients: str = setting(
        "",
        "Clients that can be asked in a round; fraction-train draws among them.",
        tags="server code",
        form="MODULE:NAME, a function of round, clients, trained and rng that returns clients' numbers",
    )
    new_nodes: str = setting(
        "ignore",
        "Over Flower, what a client does that was missing at the start and connects later: take part from the next "
        "round (join), or not.",
        choices=("ignore", "join"),
        tags="server",
    )


class AvailabilityOption(Option):
    """Asks those that the user names, or lets absent ones join."""

    title = "Who takes part"
    Settings = AvailabilitySettings
    at_server = True

    def remarks(self, config: Any, task: TaskFacts) -> list[str]:
        """Name a setting that changes nothing in a simulation."""
        if self.settings.new_nodes == AvailabilitySettings.new_nodes or task.real:
            return []
        why = "all clients of a simulation are there from the start"
        return [f"new-nodes = {self.settings.new_nodes} does nothing: {why}"]
