"""The vocabulary of a schedule: what a local phase trains, on which loss, on which data, with which penalty."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Callable, ContextManager, List, Mapping, NamedTuple, Protocol, Sequence, Tuple

from torch import Tensor, nn

from ..core.samples import Samples
from .settings import TrainingSettings


class Batch(NamedTuple):
    """One mini-batch.

    Attributes
    ----------
    x : Tensor, shape (batch, …)
    y : Tensor of int64, shape (batch,); of float32, shape (batch, k), where ``loss`` is not for classes
    positions : Tensor of int64, shape (batch,)
        Positions of the samples in the phase's data.

    Examples
    --------
    The loss of a phase gets the model and a batch:

    >>> import fedpfl
    >>> from torch.nn import functional as F
    >>> def loss(model, batch):
    ...     return F.cross_entropy(model(batch.x), batch.y, label_smoothing=0.1)
    >>> phase = fedpfl.Phase(train=fedpfl.everything, epochs=1, loss=loss)
    """

    x: Tensor
    y: Tensor
    positions: Tensor


Forward = Callable[[Tensor], Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]
# (model, batch, names of the trained parameters, those) → (mean loss, one gradient for each parameter).
Gradient = Callable[[nn.Module, Batch, Sequence[str], Sequence[Tensor]], Tuple[Tensor, List[Tensor]]]
# (names of the trained parameters, those), which it changes in place.
Projection = Callable[[Sequence[str], Sequence[Tensor]], None]


PLAIN_SGD: Mapping[str, Any] = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
"""Arguments of a phase whose steps are w ← w − η·∇, whatever the run's optimiser: ``Phase(…, **PLAIN_SGD)``."""


def loss_of(settings: TrainingSettings) -> Loss:
    """Return the setting ``loss``, of what the model computes."""
    criterion = settings.criterion
    return lambda model, batch: criterion(model(batch.x), batch.y)


class Penalty(Protocol):
    """A loss term over the parameters, given by its gradient: exact, and cheaper than autograd."""

    def add_gradient(self, names: Sequence[str], params: Sequence[Tensor], grads: list[Tensor]) -> None:
        """Add the term's gradient at ``params`` to ``grads``, in place."""


@dataclass(frozen=True)
class Group:
    """Parameters of a phase whose steps differ from those of the others.

    Attributes
    ----------
    selected : callable, str → bool
        Says by name which of the trained parameters belong to it.
    learning_rate : float, optional
        Instead of the phase's.
    clip_norm : float, optional
        The gradient of the whole group is scaled down to this Euclidean norm where it is longer.
    """

    selected: Callable[[str], bool]
    learning_rate: float | None = None
    clip_norm: float | None = None


@dataclass(frozen=True)
class Phase:
    """One stretch of a client's local training.

    Parameters
    ----------
    train : callable, str → bool
        Says by name which parameters train; all others are fixed and cost no gradient.
    epochs : int
        Passes over the data, at least 0.
    loss : callable, (model, batch) → scalar Tensor, optional
        Forward pass and loss, as a mean over the batch's samples; the loop makes the sum of it where ``batch-loss``
        asks for that. Unless given the setting ``loss`` of what the model computes.
    gradient : callable, (model, batch, names, parameters) → (loss, gradients), optional
        For steps that are not the gradient of a loss at the parameters as they are (MAML); ``loss`` is not used then.
        The parameters must hold their values again when it returns; ``training/inner_gradients.py`` helps. With
        ``precision = "bf16"`` all of it runs under autocast. With ``batch-loss = "sum"`` the gradients are those of the
        sum (``TrainingSettings.loss_weight``): the loop cannot know where in the step the loss stands.
    penalty : Penalty, optional
        A term over the parameters.
    project : callable, (names, parameters) → None, optional
        Called after each step: puts parameters back to where they are allowed to be, in place.
    data : Samples, optional
        Instead of the client's own training samples.
    move_statistics : bool
        Whether BatchNorm's running statistics move.
    steps : int, optional
        Batches to train on instead of ``epochs``; the last pass over the data may be a part.
    gradients : int
        Gradients that a step computes, as many as ``local-steps`` counts it for.
    learning_rate, batch_size : optional
        Instead of the setting. With a learning rate of 0 gradients are computed and no parameter moves.
    during : callable, model → context manager
        Surrounds the phase, for example to hold fixed what the phase does not train.
    optimizer, momentum, weight_decay : optional
        Instead of the setting.
    groups : sequence of Group
        Parameters with a learning rate of their own, or whose gradient is clipped; a parameter belongs to the first
        group that selects it, and those of none train as they would without any.

    Examples
    --------
    First the head alone, for two epochs; then everything, with a smaller learning rate:

    >>> import fedpfl
    >>> class HeadFirst(fedpfl.Method):
    ...     name = "head-first"
    ...
    ...     def schedule(self, local):
    ...         return [
    ...             fedpfl.Phase(train=lambda name: name.startswith("head."), epochs=2),
    ...             fedpfl.Phase(train=fedpfl.everything, epochs=1, learning_rate=0.001),
    ...         ]
    """

    train: Callable[[str], bool]
    epochs: int
    loss: Loss | None = None
    gradient: Gradient | None = None
    penalty: Penalty | None = None
    project: Projection | None = None
    data: Samples | None = None
    move_statistics: bool = True
    learning_rate: float | None = None
    batch_size: int | None = None
    during: Callable[[nn.Module], ContextManager[Any]] = nullcontext
    optimizer: str | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    groups: Sequence[Group] = ()
    steps: int | None = None
    gradients: int = 1

    def loss_with(self, settings: TrainingSettings) -> Loss:
        """Return the phase's loss, or that of the settings where it has none."""
        return loss_of(settings) if self.loss is None else self.loss

    def adjusted(self, settings: TrainingSettings) -> TrainingSettings:
        """Return the settings with the phase's own optimiser, momentum and weight decay where it has them."""
        names = ("optimizer", "momentum", "weight_decay")
        fields = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(settings, **fields) if fields else settings
