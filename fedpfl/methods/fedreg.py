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
import statistics
from logging import WARNING, getLogger
from typing import Any, Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import ConfigError, LayoutError, NoPlainModel
from ..core.layout import rounded
from ..core.payload import Payload
from ..core.pixels import HALF
from ..core.rng import generator
from ..core.samples import Samples, SamplesCache
from ..core.server_view import Client, Federation
from ..models.parts import cut
from ..rules import Rule
from ..training.augment import require_grey_or_colour, transformed, transforms
from ..training.phase import Batch, Forward, Phase
from .base import Aggregation, LocalRound, Method, everything, excluding
from .bases.prototypes import class_by_width
from .settings import FedReGSettings

THRESHOLDS: Mapping[str, Callable[[Sequence[int]], float]] = {
    "average": statistics.mean,
    "median": statistics.median,
    "max": lambda sizes: max(sizes),
    "second-min": lambda sizes: sorted(sizes)[:2][-1],
}
# A client with fewer training samples may be filled up as far as one with this many: the smallest grow by the largest
# factors (654 with 7 samples), and a set of that size is still cheap. Counted so, the paper's tables need a growth of
# at most 9.6 (all thresholds, seeds 1 to 5; table 1, max), or 2.3 with the threshold average.
MIN_COUNTED = 1000


def max_rebalanced(class_counts: np.ndarray, max_growth: float) -> int:
    """Return the largest size of a rebalanced set; at least :data:`MIN_COUNTED` of its own samples are counted."""
    return int(max_growth * max(int(class_counts.sum()), MIN_COUNTED))


def quota(class_counts: np.ndarray, threshold: float, max_growth: float) -> int:
    """Return Q = t / C, the samples of each class in a client's rebalanced set (Equation 7), at least 1; ½ goes up.

    C is the number of classes of which the client has samples. t follows from what other clients say of themselves; so
    :func:`max_rebalanced` bounds Q·C.
    """
    present = max(1, int(np.count_nonzero(class_counts)))
    most = max_rebalanced(class_counts, max_growth)
    return max(1, min(int(min(threshold, most) / present + 0.5), most // present))


def effective_samples(class_counts: np.ndarray, quota: int) -> int:
    """Return n^r = Σ_c min(n_c, Q), the samples of a rebalanced set that are not copies (Equation 6)."""
    return int(np.minimum(class_counts, quota).sum())


def rebalance(
    samples: Samples, quota: int, augmentation: str, rng: np.random.Generator, normalize: str = HALF
) -> Samples:
    """Return ``quota`` samples of each class that ``samples`` has, the kept ones in their order, then copies.

    Of a class with more samples as many are drawn; one with fewer is kept whole, and copies of samples drawn from it
    with replacement are added. Copies of images are augmented: ``simple`` is flip, crop, rotation, colour jitter (not
    of grey images) and affine map, each slight and at random; ``auto`` is AutoAugment's policy for CIFAR-10.
    """
    labels = samples.y.cpu().numpy()
    chosen: list[np.ndarray] = [np.empty(0, np.int64)]
    copied: list[np.ndarray] = [np.empty(0, np.int64)]
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        chosen.append(rng.choice(places, quota, replace=False) if len(places) > quota else places)
        copied.append(rng.choice(places, max(0, quota - len(places))))
    originals, copies = (
        torch.from_numpy(positions).to(samples.y.device)
        for positions in (np.sort(np.concatenate(chosen)), np.concatenate(copied))
    )
    x = samples.x[copies]
    if x.dim() == 4 and len(x) and augmentation != "none":
        x = augmented(x, augmentation, int(rng.integers(2**63 - 1)), normalize)
    x = torch.cat([samples.x[originals], x])
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return Samples(x, samples.y[torch.cat([originals, copies])])


def augmented(x: Tensor, augmentation: str, seed: int, normalize: str) -> Tensor:
    """Change each image by itself; ``x`` is as :func:`scale` made it."""
    transform = _transform(augmentation, *x.shape[1:])
    return transformed(x, transform, seed, normalize, "fedreg-augmentation", augmentation)


def _transform(augmentation: str, channels: int, height: int, width: int) -> Any:
    """Return the change of one image; the strengths of ``simple`` are this project's, as the paper gives none."""
    v2 = transforms(augmentation)
    if augmentation == "auto":
        require_grey_or_colour(augmentation, channels)
        return v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)
    bilinear = v2.InterpolationMode.BILINEAR
    steps: list[Any] = [
        v2.RandomHorizontalFlip(),
        v2.RandomCrop((height, width), padding=max(1, min(height, width) // 8)),
        v2.RandomRotation(15, interpolation=bilinear),
        v2.RandomAffine(0, translate=(0.1, 0.1), scale=(0.9, 1.1), interpolation=bilinear),
    ]
    if channels == 3:
        steps.insert(3, v2.ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.1))
    return v2.Compose(steps)


class MeanByPart(Rule):
    """w ← Σ a_i·w_i / Σ a_i for each array, over the clients that answered; a_i is the array's own kind of weight.

    ``weight_of`` returns, by an array's name, the metric in the replies that weighs it, a number of training samples.
    """

    name = "mean-by-part"
    no_server_step = ""
    no_robust_mean = ""

    def __init__(self, federation: Federation, shared: np.ndarray, weight_of: Callable[[str], str]) -> None:
        super().__init__(federation, shared)
        self._places: dict[str, list[slice]] = {}
        for name, place in self.layout.slices().items():
            self._places.setdefault(weight_of(name), []).append(place)

    def begin(self) -> None:
        """Start the sums at zero."""
        start = self._parts(rounded(self.shared, self.federation.wire_dtype))
        self._means = {metric: self.averaging(len(part), part) for metric, part in start.items()}

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Require each weight, and that it counts no more samples than the client has."""
        for metric in self._places:
            weight = reply.metrics.get(metric)
            if weight is None or not 0 <= weight <= client.train_samples:
                raise LayoutError(f"its reply lacks a proper {metric}: {weight}")

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add a_i·w_i, part by part."""
        for metric, part in self._parts(shared).items():
            self._means[metric].add(part, reply.metrics[metric] * self.damping(client))

    def finish(self) -> None:
        """Divide by the sums of the weights; a part for which no client has samples stays as it is."""
        new = self.shared.copy()
        for metric, mean in self._means.items():
            if mean.weights:
                ends = np.cumsum([place.stop - place.start for place in self._places[metric]])[:-1]
                for place, values in zip(self._places[metric], np.split(mean.value(), ends)):
                    new[place] = values
        self.shared = new

    def _parts(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the part of a vector that each metric weighs."""
        return {metric: np.concatenate([vector[place] for place in places]) for metric, places in self._places.items()}


class MeanOfRebalanced(MeanByPart):
    """The rule of FedReG (Equations 4 and 5), which tells clients the threshold for their rebalanced data."""

    name = "mean-of-rebalanced"
    no_server_step = ""
    reads = ("effective-samples",)
    no_robust_mean = ""

    def __init__(self, federation: Federation, shared: np.ndarray, threshold: str, **options: Any) -> None:
        super().__init__(federation, shared, **options)
        self.threshold = float(THRESHOLDS[threshold]([client.train_samples for client in self.participants]))

    def attachments(self, client: Client, kind: str) -> Payload:
        """Send t, in samples, with training."""
        return Payload({"rebalance-threshold": self.threshold}) if kind == "train" else Payload()


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
    shares = "base and head_G; a personal head_P stays"
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
