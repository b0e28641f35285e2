"""Settings of local training that every method uses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..core import custom
from ..core.settings import setting
from .augment import AUGMENTATIONS
from .batches import LAST_BATCH
from .losses import CROSS_ENTROPY, KINDS, Criterion, LossKind, weighted_cross_entropy
from .optim import OPTIMIZERS, is_torch_optimizer


@dataclass(frozen=True)
class TrainingSettings:
    """How a client trains; a method may spend the epochs on several phases."""

    local_epochs: int = setting(10, "Epochs E over the client's data in a round.", minimum=1)
    batch_size: int = setting(10, "Samples B in a batch.", minimum=1)
    last_batch: str = setting(
        "drop",
        "What happens to the samples of an epoch that do not fill a batch: they are left out of this epoch, if the "
        "client has at least one whole batch (drop), they become a smaller batch (keep), or all batches of the epoch "
        "are made nearly equal, about B samples each (even). Every epoch draws another order.",
        choices=LAST_BATCH,
    )
    loss: str = setting(
        CROSS_ENTROPY,
        "What a model's numbers are for: classes (cross-entropy), targets that are numbers (mse, the mean squared "
        "error), or labels of which several can be right (multi-label, binary cross-entropy). What is called accuracy "
        "is R² with mse and the share of labels that are right with multi-label.",
        choices=tuple(KINDS),
    )
    batch_loss: str = setting(
        "mean",
        "Loss of a batch: the mean over its samples, or their sum. The sum's gradient is larger by the number of "
        "samples, while weight-decay and a method's penalties stay the same. Recorded losses are always means.",
        choices=("mean", "sum"),
    )
    label_smoothing: float = setting(
        0.0,
        "Share of a sample's label that is spread evenly over all classes, in the loss cross-entropy. Tests measure "
        "the loss without it.",
        minimum=0,
        maximum=0.999999,
    )
    class_weights: str = setting(
        "none",
        "Weights of classes in the loss cross-entropy, in training: none, or n / (C · n_c) for a class with n_c of the "
        "n samples of a client that has C classes, so that all of them count alike (balanced). The recorded training "
        "loss has these weights, tests have none.",
        choices=("none", "balanced"),
    )
    augmentation: str = setting(
        "none",
        "What happens to samples in training: each image is mirrored with probability 1/2 and shifted by up to 4 "
        "pixels, over a reflected border (flip-crop); two operations of RandAugment at magnitude 9, which need "
        "torchvision (randaugment); or a function of your own, of a batch and a random generator.",
        choices=AUGMENTATIONS,
        open_to={custom.FORM: custom.is_reference},
    )
    local_steps: int = setting(
        0,
        "Steps that take the place of the E local epochs of a round, with a part of them in each phase as of the "
        "epochs (rounded, at least 1); 0: epochs count.",
        minimum=0,
    )
    optimizer: str = setting(
        "sgd",
        "Local optimiser, fresh in every phase.",
        choices=tuple(OPTIMIZERS),
        open_to={"the name of a class in torch.optim": is_torch_optimizer},
    )
    learning_rate: float = setting(0.02, "Learning rate η.", above=0)
    learning_rate_schedule: str = setting(
        "constant",
        "How clients' learning rates, those of methods too, change over the rounds: times learning-rate-decay every "
        "learning-rate-decay-every rounds (step) or every round (exponential), or along half a cosine that would reach "
        "0 after the last round (cosine).",
        choices=("constant", "step", "exponential", "cosine"),
    )
    learning_rate_over: str = setting(
        "rounds",
        "What the schedule, its decay and its warm-up count: the rounds of the run, or the steps of each phase of a "
        "client's round, for which the schedule then starts again.",
        choices=("rounds", "steps"),
    )
    learning_rate_decay: float = setting(0.99, "Factor of the schedules step and exponential.", above=0, maximum=1)
    learning_rate_decay_every: int = setting(10, "Rounds between two steps of the schedule step.", minimum=1)
    learning_rate_warm_up: int = setting(
        0, "Rounds W before the schedule begins: in round r of them the learning rate is r / (W + 1) of η.", minimum=0
    )
    clip_norm: float = setting(
        0.0,
        "Euclidean norm to which the gradient of a step, with penalties, is scaled down where it is longer; 0: none.",
        minimum=0,
    )
    momentum: float = setting(0.9, "Momentum of SGD (first β of Adam).", minimum=0, maximum=0.999999)
    keep_momentum: bool = setting(
        False,
        "A client's momentum of SGD survives the round, in each phase by itself, among its personal arrays; otherwise "
        "it starts from 0 in every phase.",
    )
    weight_decay: float = setting(0.0, "L2 penalty added to the gradient.", minimum=0)
    tune_epochs: int = setting(
        0,
        "Epochs for which each client trains a copy of its whole model before that is tested (with FedAvg this is "
        "called FedAvg+); 0: none. What clients keep and send, exports and the global model are not tuned.",
        minimum=0,
    )
    device: str = setting("cpu", "Where clients compute.", choices=("cpu", "cuda"))
    precision: str = setting(
        "float32",
        "Number type of a training step's forward and backward pass: float32, or bfloat16 (bf16) where PyTorch's "
        "autocast allows it. Weights, gradients and the optimiser's sums are float32 either way, and so are all tests.",
        choices=("float32", "bf16"),
    )
    threads: int = setting(
        0, "Threads a client computes with; 0: one in `fedpfl run` and `up`, else OMP_NUM_THREADS or all cores.",
        minimum=0,
    )  # fmt: skip

    @property
    def kind(self) -> LossKind:
        """The loss, and how tests are scored."""
        return KINDS[self.loss]

    @property
    def criterion(self) -> Criterion:
        """The mean loss over a batch, of the model's numbers and the labels or targets."""
        criterion = weighted_cross_entropy if self.class_weights == "balanced" else self.kind.criterion
        return partial(criterion, label_smoothing=self.label_smoothing) if self.label_smoothing else criterion

    def loss_weight(self, samples: int) -> int:
        """Return what the mean loss of a batch of ``samples`` is multiplied by."""
        return samples if self.batch_loss == "sum" else 1
