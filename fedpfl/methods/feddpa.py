"""FedDPA-T: a global adapter that is shared, and a personal one next to it.

Yang, Long, Shen, Jiang, Blumenstein: Dual-Personalizing Adapter for Federated Foundation Models, NeurIPS 2024, Section
4; the order of training and its weights are those of the authors' program (Lydia-yang/FedDPA).

A test adds both adapters with weight α = 1/2, as training does. The paper computes new weights for each test sample by
its similarity to training samples, for tests of other tasks than the client's own; this is left out. In round 1 there
is no global adapter yet, and no personal adapter is trained. A trained head is shared with the global adapter.
"""

from __future__ import annotations

from functools import partial
from typing import Mapping

from torch import Tensor, nn

from ..models.adapters import ADAPTER, PERSONAL, add_personal, in_adapter, merged, weighing
from ..training.phase import Batch, Forward, Phase
from .base import LocalRound, excluding
from .bases.adapters import AdapterMethod

BOTH: Mapping[str, float] = {ADAPTER: 0.5, PERSONAL: 0.5}
ALONE: Mapping[str, float] = {ADAPTER: 1.0, PERSONAL: 0.0}


class FedDPA(AdapterMethod):
    """Share the global adapter and the head; the personal adapter stays.

    each adapted weight is W + ½·ΔG + ½·ΔP_i (W: frozen; ΔG = α/r·B·A, as ΔP_i)
    client i:
        from round 2 on: train ΔP_i on f_i with W + ½·ΔG + ½·ΔP_i for E epochs
        train ΔG_i, φ_i, from ΔG, φ, on f_i with W + ΔG_i for E epochs
        send ΔG_i, φ_i
    server: ΔG, φ ← mean(ΔG_i, φ_i)
    predict: W + ½·ΔG + ½·ΔP_i, φ
    """

    name = "feddpa"
    paper = "Yang et al., Dual-Personalizing Adapter for Federated Foundation Models, NeurIPS 2024"
    shares = "one of two adapters of each layer, and the head"

    def build(self, model: nn.Module) -> nn.Module:
        """Add the personal adapters."""
        return add_personal(super().build(model))

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share all but the personal adapter."""
        return not is_personal(name)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train the personal adapter next to the global one, then the global one alone."""
        epochs = self.training.local_epochs
        alone = Phase(train=excluding(is_personal), epochs=epochs, loss=partial(self._loss, ALONE))
        both = Phase(train=is_personal, epochs=epochs, loss=partial(self._loss, BOTH))
        return [both, alone] if local.round > 1 else [alone]

    def _loss(self, weights: Mapping[str, float], model: nn.Module, batch: Batch) -> Tensor:
        with weighing(model, weights):
            return self.training.criterion(model(batch.x), batch.y)

    def personalised(self, model: nn.Module) -> Forward:
        """Return the model with both adapters."""
        return partial(_forward, model, BOTH)

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return the model with the global adapter alone."""
        return partial(_forward, model, ALONE)

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the weights with both adapters under the plain model's names."""
        with weighing(model, BOTH):
            return merged(model)


def _forward(model: nn.Module, weights: Mapping[str, float], x: Tensor) -> Tensor:
    with weighing(model, weights):
        return model(x)


def is_personal(name: str) -> bool:
    """Tell whether an array belongs to a personal adapter."""
    return in_adapter(name, PERSONAL)
