"""The table of models and the one shape that all of them have: a base and a head."""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from typing import Callable, NamedTuple, Tuple

from torch import Tensor, nn

from fedpfl.core import references
from fedpfl.core.registry import Registry

Shape = Tuple[int, ...]


class BaseHeadModel(nn.Module):
    """A model in two parts, ``head(base(x))``: personalisation methods cut between them.

    Parameters
    ----------
    base : nn.Module
        Maps an input of shape (n, *input_shape), of int64 if it is text, to features of shape (n, d).
    head : nn.Linear
        Maps features (n, d) to logits (n, num_classes).

    Attributes
    ----------
    called : str
        The setting that names it; set by :func:`build`.
    input_shape : tuple of int
        Shape of one sample; set by :func:`build`.
    vocabulary : int
        Number of different tokens of a model of texts, 0 for others; set by :func:`build`.
    width : float
        Share of the channels that it has of the model with its name; set by :func:`build`.
    another : callable, () → BaseHeadModel
        Builds the same model with newly drawn initial weights; set by :func:`build`.
    gives_for : str
        For what it gives a number for each class: a ``sample``, (n, num_classes), a ``pixel``, (n, num_classes, height,
        width), or a ``token``, (n, length, num_classes).

    Examples
    --------
    >>> import fedpfl
    >>> import torch
    >>> from torch import nn
    >>> model = fedpfl.BaseHeadModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()), nn.Linear(16, 10))
    >>> model(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
    >>> sorted(model.state_dict())
    ['base.1.bias', 'base.1.weight', 'head.bias', 'head.weight']
    """

    called: str = ""
    input_shape: Shape
    vocabulary: int = 0
    width: float = 1.0
    another: Callable[[], BaseHeadModel]
    gives_for: str = "sample"
    head_path: str = ""  # where in a user's module the head was
    still: tuple[str, ...] = ()  # parameters that the model has frozen itself
    unkept: tuple[str, ...] = ()  # what it changes as it trains that is no array of its state dict: nobody keeps it
    in_common: tuple[str, ...] = ()  # data of a user's classes, and global variables, that it changes as it trains
    moving: tuple[str, ...] = ()  # arrays that its own code changes as it trains
    contiguous: bool = False  # it takes images in the usual order of memory alone
    hooks_gradients: bool = False  # hooks see or change gradients, of its parameters or of what it computes
    ends_in_sigmoid: bool = False  # it gives probabilities of labels, each by itself, instead of logits
    ends_in_log_softmax: bool = False  # it gives logarithms of probabilities of classes, which are logits, too

    def __init__(self, base: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs (n, *input_shape) to logits (n, num_classes)."""
        logits: Tensor = self.head(self.base(x))
        return logits


def called(model: nn.Module) -> str:
    """Return a model's name in errors: the setting that names it, or else its class."""
    return getattr(model, "called", "") or type(model).__name__


class NoHead(nn.Identity):
    """The head of a model that cannot be cut: its base gives the logits, and methods that need a head refuse it.

    ``name`` and ``reason`` are those of the refusal.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__()
        self.name, self.reason = name, reason


# (input shape, classes) → model, and for texts (input shape, classes, vocabulary) → model; with an argument ``width``
# where the model can be narrower.
Builder = Callable[..., BaseHeadModel]


class _Entry(NamedTuple):
    """The entry of a model; see :func:`register`."""

    builder: Builder
    smallest_side: int | None
    tokens: bool = False
    smallest_length: int | None = None

    @property
    def takes_width(self) -> bool:
        """Whether the model can be narrower."""
        return takes_width(self.builder)

    def complaint(self, shape: Shape, vocabulary: int) -> str | None:
        """Describe the model's need, if it cannot take an input of this shape."""
        if self.tokens:
            return None if vocabulary and len(shape) == 1 and shape[0] >= 1 else "needs texts"
        if self.smallest_length is not None:
            fits = not vocabulary and len(shape) == 2 and shape[0] >= 1 and shape[1] >= self.smallest_length
            steps = f"{self.smallest_length} step{'s' * (self.smallest_length > 1)}"
            return None if fits else f"needs series (channels x time) of at least {steps}"
        if self.smallest_side is None and vocabulary:
            return "needs numeric input"
        if self.smallest_side is None:
            return None if shape and min(shape) >= 1 else "needs an input with at least one value"
        if len(shape) == 3 and shape[0] >= 1 and min(shape[1:]) >= self.smallest_side:
            return None
        return f"needs images (channels x height x width) of at least {self.smallest_side}x{self.smallest_side} pixels"


MODELS: Registry[_Entry] = Registry(
    "model",
    files=[
        ("fedpfl.models.cnn", "convnet fedavg-cnn small-cnn small-cnn-bn"),
        ("fedpfl.models.lstm", "char-lstm"),
        ("fedpfl.models.mlp", "mlp mlp-200"),
        ("fedpfl.models.resnet", "resnet10 resnet18 resnet8"),
        ("fedpfl.models.resnet9", "resnet9 resnet9-narrow"),
        ("fedpfl.models.sensor_series", "cnn-1d gru"),
        ("fedpfl.models.transformer", "decoder transformer"),
        ("fedpfl.models.vgg", "vgg16"),
        ("fedpfl.models.vit", "small-vit"),
    ],
)


def register(
    name: str, smallest_side: int | None = None, tokens: bool = False, smallest_length: int | None = None
) -> Callable[[Builder], Builder]:
    """Register a builder of models under ``name``.

    Parameters
    ----------
    name : str
        The name that users write.
    smallest_side : int, optional
        The model takes images (channels, height, width) whose height and width are at least this. A model of which
        neither this nor one of the next two is given takes an input of any shape.
    tokens : bool
        The model takes texts, (length,) whole numbers, and nothing else; its builder gets the size of the vocabulary
        as well.
    smallest_length : int, optional
        The model takes series (channels, time) of at least so many steps.

    Raises
    ------
    ValueError
        The name is taken.
    """
    return MODELS.add(name, lambda builder: _Entry(builder, smallest_side, tokens, smallest_length))


def names() -> list[str]:
    """Return the names that users may write: those of this package and of installed packages' models."""
    return [*MODELS, *(name for name in references.entry_point_names("model") if name not in MODELS)]


def takes_width(function: Callable[..., object]) -> bool:
    """Tell whether a function that builds a model has an argument ``width``."""
    try:
        return "width" in inspect.signature(function).parameters and "width" not in getattr(function, "keywords", {})
    except (TypeError, ValueError):  # one that is not written in Python
        return False


def channels(count: int, width: float) -> int:
    """Return how many of ``count`` channels a layer has in a model of a width: at least one."""
    return math.ceil(count * width)


def named(**layers: nn.Module) -> nn.Sequential:
    """Chain layers under readable names, which become the names of their arrays."""
    return nn.Sequential(OrderedDict(layers))
