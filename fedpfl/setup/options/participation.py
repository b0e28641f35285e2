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
        tags="free",
    )
    round_deadline_pace: float = setting(
        0.0,
        "Like round-deadline, as a multiple of the median duration of the clients' last trainings. 0: none.",
        minimum=0,
        tags="free",
    )
    drop_rate: float = setting(
        0.0,
        "Probability that an asked client drops out of the round; at least min-replies stay.",
        minimum=0,
        maximum=0.99,
    )
    available_clients: str = setting(
        "",
        "Clients that can be asked in a round; fraction-train draws among them.",
        tags="place file server",
    )
    replay: str = setting(
        "",
        "Run whose participation to repeat: each round asks the clients whose replies counted there.",
    )
    new_nodes: str = setting(
        "ignore",
        "Over Flower, what a client does that was missing at the start and connects later: take part from the next "
        "round (join), or not.",
        choices=("ignore", "join"),
    )
    forget_after: int = setting(
        0,
        "Consecutive rounds without an answer after which a client is no longer asked, over Flower until it answers "
        "a check. 0: it is asked in every round.",
        minimum=0,
    )


class ParticipationOption(Option):
    """Asks more clients than are needed, waits less long, forgets silent ones, lets absent ones join, or replays."""

    title = "Who takes part"
    Settings = ParticipationSettings
    at_server = True

    def remarks(self, config: Any, task: TaskFacts) -> list[str]:
        """Name settings that change nothing in a simulation."""
        who, found = self.settings, []
        if who.new_nodes != ParticipationSettings.new_nodes and not task.real:
            why = "all clients of a simulation are there from the start"
            found.append(f"new-nodes = {who.new_nodes} does nothing: {why}")
        if not (task.real or who.replay or config.of(VirtualTimeSettings).devices_model):
            timed = {"round-deadline": who.round_deadline, "round-deadline-pace": who.round_deadline_pace}
            why = "does nothing: a simulation measures no time without devices-model"
            found += [f"{key} {why}" for key, value in timed.items() if value]
        return found
