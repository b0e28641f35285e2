"""pFedPara: every weight is a Hadamard product of a shared and a personal low-rank factor.

Hyeon-Woo, Ye-Bin, Oh: FedPara: Low-Rank Hadamard Product for Communication-Efficient Federated Learning, ICLR 2022,
Sections 2.2 and 2.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ..core.settings import setting
from ..layers.hadamard import dense, factorise, in_second_pair, shared_only
from ..training.phase import Forward
from .base import Method


@dataclass(frozen=True)
class PFedParaSettings:
    """Settings of pFedPara."""

    gamma: float = setting(
        0.5,
        "γ: the inner rank between the smallest that allows a weight of full rank (0) and the largest that holds no "
        "more values than the weight (1).",
        minimum=0, maximum=1,
    )  # fmt: skip


class PFedPara(Method):
    """W = W1 ⊙ (W2 + 1): W1 is averaged, W2 stays (Section 2.3)."""

    name = "pfedpara"
    paper = "Hyeon-Woo et al., FedPara: Low-Rank Hadamard Product for Communication-Efficient FL, ICLR 2022"
    shares = "the first factor W1 of every weight, biases, BatchNorm"
    refuses = {"trainable": "factorises whole weights"}
    equations = r"W_i = W_1 \odot (W_{2,i} + 1), \quad W_1 = X_1 Y_1^\top, \quad W_{2,i} = X_{2,i} Y_{2,i}^\top"
    Settings = PFedParaSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Replace every weight by its factors."""
        return factorise(model, self.settings.gamma)

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """X1 and Y1 travel (and T1 of convolutions); X2 and Y2 stay."""
        return not in_second_pair(name)

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return W1 alone: what is left where the personal factor is zero."""
        return shared_only(model)

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the products under the plain model's names."""
        return dense(model)
