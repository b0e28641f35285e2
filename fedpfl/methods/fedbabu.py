"""FedBABU: only the base is trained and shared; clients tune one common random head for use.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022, Algorithm 1.

Each test tunes a copy, so rounds start from the untuned head; an exported model is the tuned copy. Tuning the head for
ten epochs is a choice of FedReG's authors.
"""

from __future__ import annotations

from torch import nn

from ..training.phase import Forward, Phase
from .base import LocalRound, everything, excluding
from .bases.head import HeadMethod
from .settings import FedBABUSettings


class FedBABU(HeadMethod):
    """Share the base; the head never changes but for a client's tests.

    client i:
        train θ_i, from θ, on f_i(θ_i, φ)        # φ: random, common
        send θ_i
    server: θ ← mean(θ_i)
    predict: (θ, φ_i), φ_i fine-tuned from φ on f_i
    """

    name = "fedbabu"
    paper = "Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022"
    shares = "the base"
    Settings = FedBABUSettings

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the base; the head needs no sharing, as all have it from the seed."""
        return not self.in_head(model)(name)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs on the base."""
        return [Phase(train=excluding(self.in_head(local.model)), epochs=self.training.local_epochs)]

    def adaptation(self, local: LocalRound) -> list[Phase]:
        """Tune the head over a fixed base, or everything."""
        epochs = self.settings.tuning_epochs
        if self.settings.tune == "everything":
            return [Phase(train=everything, epochs=epochs)]
        return [Phase(train=self.in_head(local.model), epochs=epochs, move_statistics=False)]

    def global_model(self, model: nn.Module) -> Forward:
        """Predict with the base under the common head, before any tuning."""
        return self.personalised(model)
