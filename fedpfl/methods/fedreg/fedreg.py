"""FedReG: a shared head learns from rebalanced data, a personal one from the client's own.

Liu, Yang, Wang: FedReG: Recouping the Global Model in Personalized Federated Learning, Section 3 and Algorithms 1 to 3.

p_i starts as a copy of φ; in Algorithm 1 it starts at random (``fedreg-personal-start``: one draw for all clients).
Variant b weights its only head by r_i. Where the paper is silent: each of the two steps has all E epochs; a head is the
last linear layer; t/C_i is rounded, at least 1; samples to augment are drawn with replacement; the rebalanced set is
drawn once; each step has a new optimiser. A client bounds t to 20 times its own samples, or to 20,000.
"""

from __future__ import annotations

import copy
import math
from logging import WARNING, getLogger
from typing import Any, Callable

from torch import Tensor, nn

from ...core.errors import ConfigError, NoPlainModel
from ...core.payload import Payload
from ...core.rng import generator
from ...core.samples import Samples, SamplesCache
from ...models.parts import cut
from ...training.phase import Batch, Forward, Phase
from ..base import Aggregation, LocalRound, Method, everything, excluding
from ..bases.prototypes import class_by_width
from ..settings import FedReGSettings
from .by_part import MeanOfRebalanced
from .rebalance import effective_samples, max_rebalanced, quota, rebalance

logger = getLogger("flwr")

HEAD_P = "head_p"
# Samples of a client's rebalanced set, at most, as a multiple of its own training samples.
MAX_GROWTH = 20.0
# Of the ablations of Section 4.7.
ONE_HEAD = ("one-head", "rebalanced-only")


class FedReG(Method):
    """Share the base and a head that learns from rebalanced data; a personal head p_i stays.

    client i:
        train θ_i, from θ, and p_i on CE(φ(z) + p_i(z), y)
        train θ_i, and φ_i from φ, on CE(φ_i(z), y) over t/C_i samples of each of its C_i classes
        send θ_i, φ_i and r_i = Σ_c min(n_ic, t/C_i)
    server: θ ← mean(θ_i);  φ ← Σ r_i·φ_i / Σ r_i
    predict: φ(z) + p_i(z)
    """

    name = "fedreg"
    paper = "Liu et al., FedReG: Recouping the Global Model in Personalized Federated Learning"
    shares = "base and head_G; a second head stays"
    refuses = {
        "personal-head": "has a personal head already, and its other one learns what is common to all",
        "loss": "draws a set with equally many samples of each class",
    }
    Settings = FedReGSettings

    _in_head_g: Callable[[str], bool]
    _rebalanced_sets: SamplesCache
    _bounded: set[int]

    def build(self, model: nn.Module) -> nn.Module:
        """Add head_P."""
        parts = cut(model, self.settings.head_layers)
        self._in_head_g, self._rebalanced_sets, self._bounded = parts.in_head, SamplesCache(), set()
        if self.settings.variant not in ONE_HEAD:
            class_by_width(model)  # which refuses heads that are not linear: their sum is no layer
            head_p = copy.deepcopy(parts.head)
            if self.settings.personal_start == "random":
                for layer in (layer for layer in head_p.modules() if isinstance(layer, nn.Linear)):
                    layer.reset_parameters()
            model.add_module(HEAD_P, head_p)
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share everything but head_P."""
        return not in_head_p(name)

    def remarks(self, model: Any, clients: int, rounds: int) -> list[str]:
        """Warn where the data cannot be augmented."""
        repeated = len(model.input_shape) != 3 and self.settings.augmentation != "none"
        if not repeated or self.settings.variant == "original-only":
            return []
        return ["fedreg: these data are not images: classes are filled up with plain copies (fedreg-augmentation)"]

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Step 1: base and head_P on the original data, through both heads; step 2: base and head_G, rebalanced."""
        variant, epochs = self.settings.variant, self.training.local_epochs
        both_heads = self.personalised(local.model)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return self.training.criterion(both_heads(batch.x), batch.y)

        original = Phase(everything if variant in ONE_HEAD else excluding(self._in_head_g), epochs, loss)
        rebalanced = Phase(excluding(in_head_p), epochs, data=self._rebalanced(local))
        steps = [rebalanced] if variant == "rebalanced-only" else [original, rebalanced]
        return steps

    def conclude(self, local: LocalRound) -> Payload:
        """Send n^r, the weight of head_G (Equation 6)."""
        if self.settings.variant == "original-only":
            return Payload(metrics={"effective-samples": int(local.class_counts.sum())})
        return Payload(metrics={"effective-samples": effective_samples(local.class_counts, self._quota(local))})

    @property
    def aggregation(self) -> Aggregation:
        """The base with weights n^o, head_G with n^r (Equations 4 and 5)."""

        def weight_of(name: str) -> str:
            effective = self._in_head_g(name) and self.settings.variant != "same-weights"
            return "effective-samples" if effective else "train-samples"

        return Aggregation(MeanOfRebalanced, {"weight_of": weight_of, "threshold": self.settings.threshold})

    def personalised(self, model: nn.Module) -> Forward:
        """Return head_G + head_P on the features of the base."""
        if self.settings.variant in ONE_HEAD:
            return model
        base, head_g, _ = cut(model, self.settings.head_layers)
        head_p = model.get_submodule(HEAD_P)

        def forward(x: Tensor) -> Tensor:
            features = base(x)
            return head_g(features) + head_p(features)

        return forward

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return head_G + head_P as one layer, whose weights and biases are the sums."""
        arrays = model.state_dict()
        if self.settings.variant in ONE_HEAD:
            return arrays
        if self.settings.head_layers > 1:
            raise NoPlainModel("two heads of several layers each are no single one (head-layers > 1)")
        for name, array in model.get_submodule(HEAD_P).state_dict().items():
            arrays[f"head.{name}"] = arrays[f"head.{name}"] + array
        return {name: array for name, array in arrays.items() if not in_head_p(name)}

    def _rebalanced(self, local: LocalRound) -> Samples | None:
        if self.settings.variant == "original-only":
            return None
        size = self._quota(local)

        def draw() -> Samples:
            rng = generator(local.seed, "rebalanced set", local.client, 0)
            return rebalance(local.samples, size, self.settings.augmentation, rng, local.normalize)

        return self._rebalanced_sets.get((local.client, size), draw)

    def _quota(self, local: LocalRound) -> int:
        threshold, growth = _threshold(local), MAX_GROWTH
        most = max_rebalanced(local.class_counts, growth)
        if threshold > most and local.client not in self._bounded:
            self._bounded.add(local.client)
            warning = "fedreg: client %d: the rebalanced set has %d instead of %.0f samples (at most %g times its own)"
            logger.log(WARNING, warning, local.client, most, threshold, growth)
        return quota(local.class_counts, threshold, growth)


def in_head_p(name: str) -> bool:
    """Tell whether an array belongs to the personal head."""
    return name.startswith(HEAD_P + ".")


def _threshold(local: LocalRound) -> float:
    """Return t of the message, which comes from the network."""
    threshold = local.message.config.get("rebalance-threshold")
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold < math.inf:
        raise ConfigError("rebalance-threshold", threshold, "must be a number of samples, at least 0")
    return float(threshold)
