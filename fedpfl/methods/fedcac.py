"""FedCAC: parameters that matter to a client are averaged only with clients to whom the same ones matter.

Wu, Liu, Niu, Zhu, Tang: Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through
Cautiously Aggressive Collaboration, ICCV 2023, Section 3 and Algorithm 1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch import nn

from ..core.settings import setting
from ..rules.critical import Critical
from ..training.phase import Forward
from .base import Aggregation, Method


@dataclass(frozen=True)
class FedCACSettings:
    """Settings of FedCAC, the paper's for CIFAR-10 (0.4 and 170 for CIFAR-100).

    Each is the rule's option of the same name.
    """

    share: float = setting(
        0.5, "Share τ of the values of each array that are critical, if as many moved.", above=0, maximum=1
    )
    beta: float = setting(100.0, "Rounds β over which clients collaborate on critical values less and less.", above=0)


class FedCAC(Method):
    """Start of client i = M_i ⊙ custom_i + (1 − M_i) ⊙ global; local training as in FedAvg."""

    name = "fedcac"
    paper = "Wu et al., Bold but Cautious: … Personalized Federated Learning through … Collaboration, ICCV 2023"
    shares = "everything; critical parameters only with similar clients"
    equations = (
        r"c_i = |\Delta w_i \odot w_i|, \quad M_i = \text{the share } \tau \text{ of each array with the "
        r"largest } c_i"
        "\n"
        r"w_i \leftarrow M_i \odot \mathrm{custom}_i + (1 - M_i) \odot w"
    )
    Settings = FedCACSettings

    @property
    def aggregation(self) -> Aggregation:
        """Another mean for critical than for other parameters."""
        return Aggregation(Critical, asdict(self.settings))

    def global_model(self, model: nn.Module) -> Forward | None:
        """Each client receives a model of its own."""
        return None
