"""FedProx: FedAvg whose clients are pulled back to the model that they received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020, Equation 2.

The mean is weighted by samples, as in FedAvg. The paper's Algorithm 2 draws clients in proportion to their samples and
takes a plain mean.
"""

from __future__ import annotations

from ..training.penalties import Proximal
from ..training.phase import Phase
from .base import LocalRound, Method, everything
from .settings import FedProxSettings


class FedProx(Method):
    """Pull each client back to the model that it received.

    client i:
        train w_i, from w, on f_i + µ/2·‖w_i − w‖²
        send w_i
    server: w ← mean(w_i)
    predict: w
    """

    name = "fedprox"
    paper = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    shares = "everything"
    Settings = FedProxSettings

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs with the proximal term."""
        pull = Proximal(self.settings.mu, local.start)
        return [Phase(train=everything, epochs=self.training.local_epochs, penalty=pull)]
