"""FedDyn's rule: the uniform mean, corrected by what the clients' regularisers have accumulated."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.layout import rounded
from ..core.sharing import is_parameter
from .mean import Mean


class FedDynMean(Mean):
    """h ← h − α/N·Σ_S (w_i − w^t); w ← mean_S(w_i) − h/α (Acar et al. 2021, Algorithm 1).

    N counts all clients, S those that answered. BatchNorm's running statistics, which the paper's models do not have,
    are averaged only: no loss pulls at them, and a corrected variance could become negative.

    Parameters
    ----------
    alpha : float
        Weight of the clients' regulariser; 0 leaves the uniform mean.

    Attributes
    ----------
    h : ndarray of float64, shape (layout.size,)
        The mean of all clients' h_i.
    """

    rule = "feddyn"
    only_a_sum = True  # h follows from the mean

    def __init__(self, *args: Any, alpha: float = 0.01, **kwargs: Any) -> None:
        super().__init__(*args, weights="uniform", **kwargs)
        self.alpha = alpha
        self.h = np.zeros(self.layout.size, np.float64)
        self._corrected = is_parameter(self.layout)

    def finish(self) -> None:
        """Update h and correct the mean by it."""
        # What the clients started from: `wire-dtype` may have rounded it.
        before = rounded(self.shared, self.settings.wire_dtype).astype(np.float64)
        super().finish()
        moved = len(self._answered) * (self.shared - before)
        self.h -= self.alpha / len(self.participants) * self._corrected * moved
        if self.alpha:
            self.shared = (self.shared - self.h / self.alpha).astype(np.float32)

    def state(self) -> dict[str, np.ndarray]:
        """Add h."""
        return {**super().state(), "h": self.h}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Take it back."""
        super().load_state(state)
        self.h = state["h"].copy()  # what safetensors loads is read-only
