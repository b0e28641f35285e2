"""FedDecomp: every weight is a shared σ plus a personal low-rank product τ = B·A.

Wu, Liu, Niu, Wang, Tang, Zhu, Su: Decoupling General and Personalized Knowledge in Federated Learning via Additive and
Low-Rank Decomposition, ACM Multimedia 2024, Section 3 and Algorithm 1 (its earlier version is called FedLoRA).

Convolutions and linear layers have a τ; in models with self-attention only its projections and the classifier do
(Appendix B).
``initial-weights`` gives a pre-trained σ. With ``trainable = "lora"`` a weight is W + ΔW_σ + ΔW_τ: a frozen
matrix, a shared adapter and a personal one.

In the paper A starts Gaussian and B at zero, but the paper does not give A's deviation. It decides how far τ moves in
comparison with σ (``tau-per-sigma`` in the metrics). Here it is PyTorch's default for a layer, and τ is
``feddecomp-scale`` times B·A: with the factor 1, τ soon runs away from σ. ``feddecomp-init = "code"`` is the start of
the authors' program: A is Kaiming uniform, τ is divided by the rank, and the inner size of convolutions is larger than
in Equation 4 (in linear layers it is Equation 3's), so half of ``resnet8``'s layers can have a τ of full rank. With
this start τ hardly moves for tens of rounds, and the model is little more than a fine-tuned FedAvg. ``reverse`` and
``all-shared`` average B and A separately; ``reverse`` trains the shared τ first.
"""

from __future__ import annotations

from typing import Mapping, Sequence

import torch
from torch import Tensor, nn

from ...core.errors import ConfigError
from ...core.payload import Payload
from ...models.adapters import ADAPTER, PERSONAL, add_personal, deltas, has_adapters, in_adapter, merged, with_adapters
from ...models.transformer import SelfAttention
from ...rules.mean import Mean
from ...training.phase import Forward, Phase
from ..base import Aggregation, LocalRound, Method, everything, excluding
from ..settings import SCALE, FedDecompSettings
from .low_rank import decompose, first_steps, frozen_tau, full_rank_only, is_low_rank, merge, taus

# The variants that train τ and σ in separate epochs, and those that train both at once.
IN_TURN = ("alternating", "reverse")
TOGETHER = ("simultaneous", "all-shared", "all-local")
# E_lora = 2 of E = 5 in the authors' code.
SHARE_OF_TAU = 2 / 5
# A layer's τ is said to sleep if its first step is a smaller share of σ's.
ASLEEP = 0.01


class FedDecomp(Method):
    """Share the full-rank part σ of each weight; the low-rank part τ stays.

    each weight is σ + τ_i, τ_i = B_i·A_i
    client i:
        train B_i, A_i on f_i for E_lora epochs, σ fixed
        train σ_i, from σ, on f_i for E − E_lora epochs, τ_i fixed
        send σ_i
    server: σ ← plain mean(σ_i)
    predict: σ + τ_i
    """

    name = "feddecomp"
    aliases = ("fedlora",)
    paper = (
        "Wu et al., Decoupling General and Personalized Knowledge … via Additive and Low-Rank Decomposition, MM 2024"
    )
    shares = "the full-rank part σ of every weight, biases, BatchNorm"
    Settings = FedDecompSettings

    def check(self) -> None:
        """Refuse epochs that leave none for σ, or none for τ without saying so."""
        epochs, lora_epochs = self.training.local_epochs, self.settings.lora_epochs
        if self.settings.init == "code" and self.settings.scale != SCALE:
            raise ConfigError("feddecomp-scale", self.settings.scale, 'must be left out with feddecomp-init = "code"')
        if self.settings.variant not in IN_TURN:
            return
        if lora_epochs >= epochs:
            message = f'must be below local-epochs = {epochs}, or σ never trains (feddecomp-variant = "tau-only")'
            raise ConfigError("feddecomp-lora-epochs", lora_epochs, message)

    @property
    def _one_epoch(self) -> bool:
        """Tell whether τ and σ share the only epoch of a round instead of taking turns."""
        return self.settings.variant in IN_TURN and self.settings.lora_epochs < 0 and self.training.local_epochs == 1

    @property
    def lora_epochs(self) -> int:
        """E_lora, worked out where the setting leaves it open."""
        epochs, chosen = self.training.local_epochs, self.settings.lora_epochs
        return chosen if chosen >= 0 else max(1, round(SHARE_OF_TAU * epochs))

    def build(self, model: nn.Module) -> nn.Module:
        """Add τ = B·A to every convolution and linear layer (Equations 2 to 4).

        In a model with self-attention only to its projections and to the classifier (Appendix B); where a model has
        adapters, a personal one next to each.
        """
        settings = self.settings
        how = settings.rank_conv, settings.rank_linear, settings.init, settings.scale
        if has_adapters(model):
            return decompose(add_personal(model), *how, lambda name: name == "head")
        attention = [f"{name}." for name, module in model.named_modules() if isinstance(module, SelfAttention)]
        chosen = (*attention, "head") if attention else ("",)
        return decompose(model, *how, lambda name: name.startswith(chosen))

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Name the layers whose weights are wholly shared; say so where τ never trains."""
        decomposed = taus(model)
        names = [name for name, param in model.named_parameters() if param.dim() > 1 and not _low_rank(name)]
        layers = dict.fromkeys(name.rpartition(".")[0] for name in names if name not in decomposed)
        lines = [f"feddecomp: no low-rank part in {', '.join(layers)}: these weights are σ alone"] if layers else []
        if self.settings.variant in IN_TURN and self.lora_epochs == 0:
            lines.append("feddecomp: feddecomp-lora-epochs = 0: τ never trains and stays 0")
        steps = first_steps(model)
        asleep = [name for name, step in steps.items() if step < ASLEEP]
        if 2 * len(asleep) > len(steps):
            lines.append(
                f"feddecomp: τ sleeps in {', '.join(asleep)}: a first step moves it less than {ASLEEP:g} times as far "
                "as σ; the model is nearly FedAvg's until it wakes (tau-per-sigma in the metrics tells)"
            )
        if self._one_epoch:
            lines.append(
                "feddecomp: local-epochs = 1: τ and σ train together; the paper's alternation needs at least 2 epochs"
            )
        return lines

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share σ; with ``reverse`` τ, with ``all-shared`` both, with ``all-local`` neither."""
        low_rank = is_tau(name)
        return {"reverse": low_rank, "all-shared": True, "all-local": False}.get(self.settings.variant, not low_rank)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E_lora epochs on τ, then E − E_lora on σ (Section 3.4); with ``tau-only`` all E on τ."""
        epochs = self.training.local_epochs
        local.notes["taus"] = taus(local.model)
        if self.settings.variant in TOGETHER or self._one_epoch:
            return [Phase(train=everything, epochs=epochs)]
        tau, sigma = is_tau, excluding(is_tau)
        alone = self.settings.variant == "tau-only"
        lora_epochs = epochs if alone else self.lora_epochs
        # If σ never trains, no other phase would move BatchNorm's statistics from 0 and 1.
        return [
            Phase(train=tau, epochs=lora_epochs, move_statistics=alone),
            Phase(train=sigma, epochs=epochs - lora_epochs, during=frozen_tau),
        ]

    def conclude(self, local: LocalRound) -> Payload:
        """Tell how far τ moved in this round, as a share of how far σ did in the same layers."""
        weights = local.model.state_dict()
        before: Mapping[str, Tensor] = local.notes["taus"]
        moved = [(tau - before[name], weights[name] - local.start[name])
                 for name, tau in taus(local.model).items() if name in local.start]  # fmt: skip
        lengths = [_length(changes) for changes in zip(*moved)]
        return Payload(metrics={"tau-per-sigma": lengths[0] / lengths[1]} if moved and lengths[1] else {})

    @property
    def aggregation(self) -> Aggregation:
        """σ ← the plain mean (Equation 7)."""
        return Aggregation(Mean, {"weights": "uniform", "absent": self.settings.absent_clients})

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return σ alone, or what else is shared: τ alone makes no model."""
        if self.settings.variant == "all-shared":
            return model
        if self.settings.variant in ("reverse", "all-local"):
            return None
        sigma = full_rank_only(model)
        return with_adapters(sigma, model, [ADAPTER]) if has_adapters(model) else sigma

    def personal_part(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return every τ = B·A, whatever its factors (Section 4.5), where τ alone is personal."""
        alone = self.settings.variant in ("alternating", "simultaneous", "tau-only") and not self.personal_head
        return {**taus(model), **deltas(model, PERSONAL)} if alone else super().personal_part(model)

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return σ + τ under the plain model's names."""
        return merged(model, merge(model)) if has_adapters(model) else merge(model)


def _length(arrays: Sequence[Tensor]) -> float:
    return float(torch.stack([array.double().square().sum() for array in arrays]).sum().sqrt()) if arrays else 0.0


def is_tau(name: str) -> bool:
    """Tell whether an array belongs to a τ: a layer's, or a personal adapter."""
    return is_low_rank(name) or in_adapter(name, PERSONAL)


def _low_rank(name: str) -> bool:
    return is_low_rank(name) or in_adapter(name)
