"""Late, absent and slow clients: who is asked in a round, and who is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.option import Option, TaskFacts
from ...core.settings import setting
from .virtual_time import VirtualTimeSettings


@dataclass(frozen=True)
class ParticipationSettings:
    """Who is asked in a round besides what ``fraction-train`` says, and who is waited for."""

    over_selection: float = setting(
        0.0,
        "Extra clients to ask, as a share of those that fraction-train asks. As many of the first replies count as "
        "without it.",
        minimum=0,
        maximum=10,
    )
    round_deadline: float = setting(
        0.0,
        "Over Flower, seconds after which a round's training ends with the replies received, if at least "
        "min-replies. 0: wait for all.",
        minimum=0,
        tags="free repeat",
    )
    available_clients: str = setting(
        "",
        "Clients that can be asked in a round; fraction-train draws among them.",
        tags="place file server code",
        form="a CSV file with a row client,first,last for each stretch of rounds, or MODULE:NAME, a function of round, "
        "clients and rng that returns clients' numbers",
    )
    new_nodes: str = setting(
        "ignore",
        "Over Flower, what a client does that was missing at the start and connects later: take part from the next "
        "round (join), or not.",
        choices=("ignore", "join"),
    )


class ParticipationOption(Option):
    """Asks more clients than are needed, waits less long, or lets absent ones join."""

    title = "Who takes part"
    Settings = ParticipationSettings
    at_server = True

    def remarks(self, config: Any, task: TaskFacts) -> list[str]:
        """Name settings that change nothing in a simulation."""
        who, found = self.settings, []
        if who.new_nodes != ParticipationSettings.new_nodes and not task.real:
            why = "all clients of a simulation are there from the start"
            found.append(f"new-nodes = {who.new_nodes} does nothing: {why}")
        if who.round_deadline and not (task.real or config.of(VirtualTimeSettings).devices_model):
            found.append("round-deadline does nothing: a simulation measures no time without devices-model")
        return found
