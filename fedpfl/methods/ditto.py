"""Ditto: every client also trains its own model, which is pulled towards the global one.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1. v_i
trains first; this order only changes the batches. Until a client trains, v_i is the initial model.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..layers.memory import TWIN, add_twin, in_twin, twin
from ..training.penalties import Proximal
from ..training.phase import Batch, Forward, Phase
from .base import LocalRound, Method, excluding
from .settings import DittoSettings


class Ditto(Method):
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

    def build(self, model: nn.Module) -> nn.Module:
        """Add v, which starts as a copy of w."""
        return add_twin(model)

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share all of w, nothing of v."""
        return not in_twin(name)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train p-epochs on v, then E epochs on w."""
        pull = Proximal(self.settings.pull, {f"{TWIN}.{name}": array for name, array in local.start.items()})
        return [
            Phase(train=in_twin, epochs=self.settings.p_epochs, loss=self._loss_of_v, penalty=pull),
            Phase(train=excluding(in_twin), epochs=self.training.local_epochs),
        ]

    def personalised(self, model: nn.Module) -> Forward:
        """Return v."""
        return twin(model)

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return v under the plain model's names."""
        return dict(twin(model).state_dict())

    def _loss_of_v(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.training.criterion(twin(model)(batch.x), batch.y)
