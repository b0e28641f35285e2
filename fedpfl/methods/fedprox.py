"""FedProx: FedAvg whose clients are pulled back to the model that they received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020, Equation 2.
"""

from __future__ import annotations

from ..training.phase import Phase, Proximal
from .base import LocalRound, Method, everything
from .settings import FedProxSettings


class FedProx(Method):
    """A client minimises CE(w) + µ/2·‖w − w^t‖² with the received w^t; w ← Σ n_i·w_i / Σ n_i."""

    name = "fedprox"
    paper = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    shares = "everything"
    equations = (
        r"w_i \leftarrow \arg\min_w f_i(w) + \frac{\mu}{2} \|w - w^t\|^2"
        "\n"
        r"w \leftarrow \frac{\sum_i n_i w_i}{\sum_i n_i}"
    )
    Settings = FedProxSettings

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs with the proximal term."""
        pull = Proximal(self.settings.mu, local.start)
        return [Phase(train=everything, epochs=self.training.local_epochs, penalty=pull)]
