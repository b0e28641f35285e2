"""What a model starts with: weights from a file, which of its arrays train, and adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.option import Option, TaskFacts
from ...core.settings import setting

ALL, HEAD, LORA, ADAPTERS = "all", "head", "lora", "adapters"


@dataclass(frozen=True)
class TrainableSettings:
    """What of the model trains."""

    trainable: str = setting(
        ALL,
        "Parameters to train; the others are frozen: neither sent nor stored.",
        form="all; head; lora: adapters and the head; adapters: these alone; or a list of patterns, such as "
        "base.blocks.block6.*: the head, and base arrays whose names match one",
        tags="refusable built",
    )
    lora_rank: int = setting(
        4, "Rank r of an adapter B·A.", minimum=1, maximum=4096, only={"trainable": (LORA, ADAPTERS)}
    )
    lora_alpha: float = setting(
        8.0,
        "Scale α of an adapter, which adds (α/r)·B·A to a weight.",
        above=0,
        only={"trainable": (LORA, ADAPTERS)},
    )
    lora_targets: str = setting(
        "",
        "Layers with adapters. Empty: all linear layers and 2-D convolutions of the base.",
        only={"trainable": (LORA, ADAPTERS)},
        form="a list of patterns, such as *attention*",
    )


class InitialWeightsOption(Option):
    """Has the model start from the weights in a file."""

    title = "Initial weights"

    def wanted(self, config: Any) -> bool:
        """Return whether there is a file."""
        return bool(config.run.initial_weights)


class TrainableOption(Option):
    """Freezes a part of the model, or adds adapters; always, because a user's model may have frozen parameters."""

    title = "What trains"
    Settings = TrainableSettings

    def wanted(self, config: Any) -> bool:
        """Return True."""
        return True

    def remarks(self, config: Any, task: TaskFacts) -> list[str]:
        """Tell which parameters the model itself has frozen."""
        still = getattr(task.model, "still", ())
        more = f" and {len(still) - 3} more" if len(still) > 3 else ""
        frozen = f"frozen by the model (requires_grad=False), so neither trained nor sent: {', '.join(still[:3])}{more}"
        return [frozen] if still else []
