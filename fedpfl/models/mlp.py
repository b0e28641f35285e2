"""Multi-layer perceptrons."""

from __future__ import annotations

from math import prod

from torch import nn

from .registry import BaseHeadModel, Shape, channels, named, register


@register("mlp")
def mlp(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """Two hidden layers of 200 units on the flattened input, of any shape.

    The "2NN" of McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017),
    section 3: 199,210 parameters for 1x28x28 and 10 classes.
    """
    units = channels(200, width)
    base = named(
        flatten=nn.Flatten(),
        fc1=nn.Linear(prod(input_shape), units),
        relu1=nn.ReLU(),
        fc2=nn.Linear(units, units),
        relu2=nn.ReLU(),
    )
    return BaseHeadModel(base, nn.Linear(units, num_classes))


@register("mlp-200")
def mlp_200(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """One hidden layer of 200 units on the flattened input, of any shape.

    The network of FedFac (Wang, Tang, Li), sections 1 and 4.3.1: 20,602 parameters for 100 features and 2 classes.
    """
    units = channels(200, width)
    base = named(flatten=nn.Flatten(), fc1=nn.Linear(prod(input_shape), units), relu1=nn.ReLU())
    return BaseHeadModel(base, nn.Linear(units, num_classes))
