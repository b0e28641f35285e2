"""FedDyn: each client adapts its regulariser, so that local and global optima agree in the end.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization, ICLR 2021,
Equation 1 and Algorithm 1.

The paper's models have no BatchNorm; here its running statistics are only averaged.
"""

from __future__ import annotations

from typing import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.layout import rounded
from ..core.payload import Payload
from ..core.server_view import Federation
from ..core.sharing import is_parameter
from ..rules.mean import Mean
from ..training.penalties import Proximal
from ..training.phase import Phase
from .base import Aggregation, LocalRound, everything
from .bases.kept_arrays import KeepsArrays
from .settings import FedDynSettings


class DynamicRegulariser(Proximal):
    """α/2·‖w − w^t‖² − ⟨h, w⟩, where w^t is the anchor."""

    def __init__(self, alpha: float, anchor: Mapping[str, Tensor], h: Mapping[str, Tensor]) -> None:
        super().__init__(alpha, anchor)
        self.h = h

    @torch.no_grad()
    def add_gradient(self, names: Sequence[str], params: Sequence[Tensor], grads: list[Tensor]) -> None:
        """Add α·(w − w^t) − h."""
        super().add_gradient(names, params, grads)
        torch._foreach_sub_(grads, [self.h[name] for name in names])


class FedDynMean(Mean):
    """h ← h − α/N·Σ_S (w_i − w^t); w ← mean_S(w_i) − h/α (Acar et al. 2021, Algorithm 1).

    N counts all clients, S those that answered; with α = 0 the uniform mean is left. h, in float64, is the mean of all
    clients' h_i. BatchNorm's running statistics, which the paper's models do not have, are averaged only: no loss pulls
    at them, and a corrected variance could become negative.
    """

    name = "feddyn"
    only_a_sum = True  # h follows from the mean
    no_server_step = "moves on from the mean by h"
    no_robust_mean = ""
    remembers = ("h",)

    def __init__(self, federation: Federation, shared: np.ndarray, alpha: float) -> None:
        super().__init__(federation, shared, weights="uniform")
        self.alpha = alpha
        self.h = np.zeros(self.layout.size, np.float64)
        self._corrected = is_parameter(self.layout)

    def finish(self) -> None:
        """Update h and correct the mean by it."""
        # What the clients started from: `wire-dtype` may have rounded it.
        before = rounded(self.shared, self.federation.wire_dtype).astype(np.float64)
        super().finish()
        moved = len(self.answered) * (self.shared - before)
        self.h -= self.alpha / len(self.participants) * self._corrected * moved
        if self.alpha:
            self.shared = (self.shared - self.h / self.alpha).astype(np.float32)


class FedDyn(KeepsArrays):
    """Add a linear and a quadratic term to a client's loss, and renew both each round.

    client i:
        train w_i, from w, on f_i − ⟨h_i, w_i⟩ + α/2·‖w_i − w‖²
        h_i ← h_i − α·(w_i − w)
        send w_i
    server: h ← h − α/N·Σ (w_i − w);  w ← plain mean(w_i) − h/α
    predict: w
    """

    name = "feddyn"
    paper = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"
    shares = "everything but the client's h_i"
    memory = "h"
    Settings = FedDynSettings

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs with the regulariser."""
        regulariser = DynamicRegulariser(self.settings.alpha, local.start, self.kept(local.model))
        return [Phase(train=everything, epochs=self.training.local_epochs, penalty=regulariser)]

    @torch.no_grad()
    def conclude(self, local: LocalRound) -> Payload:
        """Update h_i; it stays 0 for a parameter that did not arrive, which nothing holds to a common optimum."""
        h = self.kept(local.model)
        for name, parameter in local.model.named_parameters():
            if name in local.start:
                h[name].sub_(parameter - local.start[name], alpha=self.settings.alpha)
        return Payload()

    @property
    def aggregation(self) -> Aggregation:
        """The uniform mean, corrected by the server's h."""
        return Aggregation(FedDynMean, {"alpha": self.settings.alpha})
