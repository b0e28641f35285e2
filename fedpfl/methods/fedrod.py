"""FedRoD: two heads on one base: a generic one for balanced classes, a personal one for the actual mix.

Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022, with linear
personal heads. The balanced softmax is from Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition,
NeurIPS 2020.

Both heads are one layer, so that a client's model can be exported. p_i starts as a copy of φ; from zero it ended lower
in all comparisons (docs/results/pfllib-fashion-mnist.md).
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..models.parts import cut
from ..training.phase import Batch, Forward, Loss, Phase
from .base import LocalRound, Method, everything
from .settings import FedRoDSettings

PERSONAL_HEAD = "personal_head"


class FedRoD(Method):
    """Share the base and a generic head; a personal head p_i stays.

    client i:
        train θ_i, φ_i, from θ, φ, on CE(φ_i(z) + log n_ic, y)
        train p_i, in the same steps, on CE(φ_i(z) + p_i(z), y) with z and φ_i fixed
        send θ_i, φ_i
    server: θ, φ ← mean(θ_i, φ_i)
    predict: φ(z) + p_i(z);  global model: φ(z)

    The first softmax leaves out classes that a client lacks.
    """

    name = "fedrod"
    paper = "Chen and Chao, On Bridging Generic and Personalized Federated Learning …, ICLR 2022"
    shares = "the base and the generic head"
    refuses = {
        "personal-head": "has a personal head already, and its other one learns what is common to all",
        "loss": "balances classes",
    }
    Settings = FedRoDSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Add the personal head."""
        head = copy.deepcopy(cut(model).head)
        if self.settings.personal_start == "zero":
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
        model.add_module(PERSONAL_HEAD, head)
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share all but the personal head."""
        return not name.startswith(PERSONAL_HEAD + ".")

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs on both losses at once."""
        return [Phase(train=everything, epochs=self.training.local_epochs, loss=self._loss(local))]

    def personalised(self, model: nn.Module) -> Forward:
        """Add both heads' logits."""
        return lambda x: torch.add(*both_logits(model, x))

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Add the two heads into one, which is what their sum of logits is."""
        arrays = dict(model.state_dict())
        for name, array in model.get_submodule(PERSONAL_HEAD).state_dict().items():
            arrays[f"head.{name}"] = arrays[f"head.{name}"] + array
        return arrays

    def _loss(self, local: LocalRound) -> Loss:
        counts = torch.from_numpy(local.class_counts).to(next(local.model.parameters()).device)
        absent, log_counts = counts == 0, counts.clamp(min=1).log()

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            generic, personal = both_logits(model, batch.x)
            personal = generic.detach() + personal
            # The lowest finite number: a class with probability 0 and, being overwritten, without a gradient.
            generic = (generic + log_counts).masked_fill(absent, torch.finfo(generic.dtype).min)
            return self.training.criterion(generic, batch.y) + self.training.criterion(personal, batch.y)

        return loss


def both_logits(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return g(z) and p(stop(z)), each of shape (n, classes)."""
    base, head, _ = cut(model)
    features = base(x)
    return head(features), model.get_submodule(PERSONAL_HEAD)(features.detach())
