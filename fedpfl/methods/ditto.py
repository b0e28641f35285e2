"""Ditto: every client also trains its own model, which is pulled towards the global one.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1. v_i
trains first; this order only changes the batches. Until a client trains, v_i is the initial model.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..layers.memory import TWIN, in_twin, twin
from ..training.penalties import Proximal
from ..training.phase import Batch, Phase
from .base import LocalRound, excluding
from .bases.kept_models import HasTwin
from .settings import DittoSettings


class Ditto(HasTwin):
    """Train a second model v, which stays, near the global one.

    client i:
        train v_i on f_i(v_i) + λ/2·‖v_i − w‖²
        train w_i, from w, on f_i
        send w_i
    server: w ← mean(w_i)
    predict: v_i
    """

    name = "ditto"
    paper = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021"
    shares = "the global model w; the personal model v stays"
    Settings = DittoSettings

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train p-epochs on v, then E epochs on w."""
        pull = Proximal(self.settings.pull, {f"{TWIN}.{name}": array for name, array in local.start.items()})
        return [
            Phase(train=in_twin, epochs=self.settings.p_epochs, loss=self._loss_of_v, penalty=pull),
            Phase(train=excluding(in_twin), epochs=self.training.local_epochs),
        ]

    def _loss_of_v(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.training.criterion(twin(model)(batch.x), batch.y)
