"""Settings of local training that every method uses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Callable, Mapping

from ..core import references
from ..core.errors import ConfigError
from ..core.metric_bounds import MAX_THREADS
from ..core.metrics import CLASSES, LABELS, MASKS, NEXT_TOKEN, TARGETS, labels_of
from ..core.pixels import HALF
from ..core.settings import MOST_EPOCHS, setting

if TYPE_CHECKING:
    from torch import Tensor

# What happens to the samples that do not fill a batch.
LAST_BATCH = ("drop", "keep", "even")
# (rounds since warm-up, from 0; rounds without warm-up; settings) → factor of the learning rate.
SCHEDULES: Mapping[str, Callable[[int, int, TrainingSettings], float]] = {
    "constant": lambda number, rounds, settings: 1.0,
    "exponential": lambda number, rounds, settings: settings.learning_rate_decay**number,
    "cosine": lambda number, rounds, settings: (1 + math.cos(math.pi * min(number, rounds) / max(1, rounds))) / 2,
}
# What fedpfl/training/augment.py makes.
AUGMENTATIONS = ("none", "flip-crop", "randaugment", "flip-rotate", "crop-flip-rotate", "zoom-flip-colour")


def _is_torch_optimizer(name: str) -> bool:
    from fedpfl.training.optim import is_torch_optimizer

    return bool(is_torch_optimizer(name))


@dataclass(frozen=True)
class TrainingSettings:
    """How a client trains; a method may spend the epochs on several phases."""

    local_epochs: int = setting(10, "Local epochs E per round.", minimum=1, maximum=MOST_EPOCHS, tags="client")
    batch_size: int = setting(10, "Batch size B.", minimum=1, tags="client")
    last_batch: str = setting(
        "drop",
        "Samples of an epoch that do not fill a batch. drop: left out, if there is a full batch. keep: a smaller "
        "batch. even: all batches get nearly the same size.",
        choices=LAST_BATCH,
    )
    loss: str = setting(
        CLASSES,
        "Training loss. cross-entropy: classification. mse: regression, with R² as accuracy. multi-label: several "
        "labels per sample. segmentation: a class for each pixel. next-token: each token of a text from those before "
        "it.",
        choices=(CLASSES, TARGETS, LABELS, MASKS, NEXT_TOKEN),
        open_to={references.FORM: references.is_own},
        tags="code refusable both",
    )
    batch_loss: str = setting(
        "mean",
        "Reduction of a batch's loss over its samples. With sum the gradient is larger by their number; weight "
        "decay and penalties stay the same.",
        choices=("mean", "sum"),
    )
    class_weights: str = setting(
        "none",
        "Class weights of cross-entropy in training. balanced: n / (C · n_c) for a class with n_c of the client's n "
        "samples in C classes.",
        choices=("none", "balanced"),
    )
    augmentation: str = setting(
        "none",
        "Augmentation of training images. flip-crop: flip with probability 1/2, and shift by up to 4 pixels. "
        "randaugment: two of its operations. flip-rotate: flip, and rotate by up to 15°. crop-flip-rotate: shift "
        "before these two. zoom-flip-colour: crop, flip, change colours or make grey. All but flip-crop need "
        "torchvision.",
        choices=AUGMENTATIONS,
        open_to={references.FORM: references.is_reference},
        tags="code",
    )
    local_steps: int = setting(
        0,
        "Gradient steps per round, in place of local-epochs: as many for every method, whose phases share them in the "
        "ratio of their steps. 0: use local-epochs.",
        minimum=0,
        maximum=MOST_EPOCHS,
        tags="client",
    )
    optimizer: str = setting(
        "sgd",
        "Local optimiser, new in every phase. A function of your own gets params and lr, and returns an optimiser of "
        "torch, or a pair of one and a scheduler that makes a step after each of its steps.",
        choices=("sgd", "adam", "adamw"),
        open_to={"the name of a class in torch.optim": _is_torch_optimizer, references.FORM: references.is_reference},
        tags="code",
    )
    learning_rate: float = setting(0.02, "Learning rate η.", above=0, tags="client")
    learning_rate_schedule: str = setting(
        "constant",
        "Schedule of the learning rates over the rounds; tests adapt models at the full rate. exponential: times "
        "learning-rate-decay every round. cosine: half a cosine that would reach 0 after the last round.",
        choices=("constant", "exponential", "cosine"),
        tags="rounds",
    )
    learning_rate_decay: float = setting(
        0.99,
        "Decay factor of the schedule exponential.",
        above=0,
        maximum=1,
        only={"learning-rate-schedule": ("exponential",)},
    )
    learning_rate_warm_up: int = setting(
        0,
        "Number of warm-up rounds W: in round r of them the learning rate is r / (W + 1) of η.",
        minimum=0,
    )
    clip_norm: float = setting(
        0.0, "Maximum L2 norm of a step's gradient, penalties included. 0: no clipping.", minimum=0, tags="client"
    )
    momentum: float = setting(
        0.9,
        "Momentum of SGD; β₁ of Adam and the like. RMSprop and others have their own default unless it is changed.",
        minimum=0,
        maximum=0.999999,
        tags="client",
    )
    weight_decay: float = setting(
        0.0, "Weight decay, as an L2 penalty added to the gradient.", minimum=0, tags="client"
    )
    tune_epochs: int = setting(
        0,
        "Epochs for which each client fine-tunes a copy of its model before a test (FedAvg+). Methods that adapt "
        "models in their own way ignore it.",
        minimum=0,
        maximum=MOST_EPOCHS,
        tags="tests",
    )
    device: str = setting("cpu", "Device on which clients compute.", choices=("cpu", "cuda"), tags="repeat both")
    precision: str = setting(
        "float32",
        "Number type in training. tf32: on a GPU, products with 10 bits of the fraction, in tests as well. bf16: "
        "bfloat16 where PyTorch's autocast allows it.",
        choices=("float32", "tf32", "bf16"),
        tags="both",
    )
    clients_at_once: int = setting(
        0,
        "Number of clients that `fedpfl run` trains as one batch, in each process; results differ by rounding. 0: "
        "on a GPU as many as fit, otherwise one.",
        minimum=0,
        tags="loop whole",
    )
    threads: int = setting(
        0, "Threads per client. 0: one in `fedpfl run` and `fedpfl up`, otherwise OMP_NUM_THREADS, or one.",
        minimum=0, maximum=MAX_THREADS, tags="free repeat both",
    )  # fmt: skip

    @property
    def kind(self) -> Any:
        """The loss, and how tests are scored: a ``LossKind`` of fedpfl/training/losses.py."""
        from fedpfl.training.losses import KINDS

        return KINDS[self.labels]

    @cached_property
    def labels(self) -> str:
        """What labels are, classes (cross-entropy) or targets: the loss by which tests are scored."""
        return labels_of(self.loss)

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss of training is a function of the user's."""
        return self.loss != self.labels

    @property
    def criterion(self) -> Callable[..., Tensor]:
        """The mean loss over a batch, of the model's numbers and the labels or targets."""
        if self.has_own_loss:
            from fedpfl.training.losses import own_loss

            return own_loss(self.loss)
        from fedpfl.training.losses import weighted_cross_entropy

        return weighted_cross_entropy if self.class_weights != "none" else self.kind.criterion

    def augmentation_of(self, normalize: str = HALF) -> Callable[[Any, Any], Any] | None:
        """Return how samples of a batch are changed, (samples, generator) → samples; None where they are not."""
        if self.augmentation == AUGMENTATIONS[0]:
            return None
        from fedpfl.training.augment import find

        return find(self.augmentation, normalize)

    def rate_factor(self, number: int, rounds: int) -> float:
        """Return by what all learning rates of clients are multiplied in round ``number`` of ``rounds``, from 1.

        With W rounds of warm-up r / (W + 1) in round r ≤ W; after them the schedule, which begins with 1.
        """
        warm_up = self.learning_rate_warm_up
        if number <= warm_up:
            return number / (warm_up + 1)
        return SCHEDULES[self.learning_rate_schedule](number - warm_up - 1, rounds - warm_up, self)

    def loss_weight(self, samples: int) -> int:
        """Return the factor of the mean loss of a batch of ``samples``."""
        return samples if self.batch_loss == "sum" else 1

    def require_fitting(self, num_classes: int) -> None:
        """Raise ``ConfigError`` for a loss or an optimiser of the user's that does not work."""
        if references.is_reference(self.optimizer):
            from fedpfl.training import optim

            optim.require_working(self.optimizer)
        if self.has_own_loss:
            from fedpfl.training.losses import require_working

            require_working(self.loss, num_classes)

    def require_of_logits(self, num_classes: int) -> None:
        """Raise ``ConfigError`` for a loss of the user's that takes logarithms of probabilities and no logits."""
        if self.has_own_loss and self.labels in (CLASSES, MASKS):
            from fedpfl.training.losses import require_bound

            require_bound(self.loss, num_classes)

    def check(self, method: Any) -> None:
        """Raise ``ConfigError`` for settings that do not fit together, or not with the method."""
        if self.class_weights != "none" and self.loss != CLASSES:
            raise ConfigError("class-weights", self.class_weights, f"must be none for loss = {self.loss}")
        if references.is_reference(self.optimizer) or self.optimizer[:1].isupper():
            from fedpfl.training.optim import USUAL_MOMENTUM, used_by

            used = used_by(self.optimizer)
            if self.momentum != USUAL_MOMENTUM and "momentum" not in used:
                raise ConfigError("momentum", self.momentum, f"is not used by {self.optimizer}")
            if self.weight_decay and "weight_decay" not in used:
                raise ConfigError("weight-decay", self.weight_decay, f"is not used by {self.optimizer}")


def batch_sizes(samples: int, size: int, last: str) -> list[int]:
    """Return the sizes of an epoch's batches of B of n samples, in order.

    ``drop``: ⌊n / B⌋ batches of B, what is left over takes no part in this epoch; with n < B one batch of n.
    ``keep``: the same, and what is left over is one more batch.
    ``even``: max(1, n / B rounded) batches whose sizes differ by at most one; halves are rounded up.
    """
    if last == "even":
        count = max(1, (2 * samples + size) // (2 * size))
        least, larger = divmod(samples, count)
        return [least + 1] * larger + [least] * (count - larger)
    whole, rest = divmod(samples, size)
    return [size] * whole + [rest] * bool(rest and (last == "keep" or not whole))
