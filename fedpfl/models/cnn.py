"""Small convolutional networks.

ReLU stands behind max-pooling: the two commute (both are monotone), values and gradients are the same, and ReLU then
sees a quarter of the elements.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from torch import nn

from .registry import BaseHeadModel, Shape, channels, named, register


def _network(
    input_shape: Shape,
    num_classes: int,
    widths: Sequence[int],
    kernel: int,
    padding: int,
    hidden: Sequence[int],
    share: float,
    normalised: bool = False,
) -> BaseHeadModel:
    """Build convolutions of a share of these widths, each with 2x2 max-pooling, and hidden layers of these sizes.

    ``normalised``: with batch normalisation after each convolution.
    """
    widths, hidden = [channels(count, share) for count in widths], [channels(count, share) for count in hidden]
    inputs, *sides = input_shape
    layers: dict[str, nn.Module] = {}
    for number, width in enumerate(widths, 1):
        layers[f"conv{number}"] = nn.Conv2d(inputs, width, kernel, padding=padding)
        if normalised:
            layers[f"bn{number}"] = nn.BatchNorm2d(width)
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"relu{number}"] = nn.ReLU()
        inputs, sides = width, [(side + 2 * padding - kernel + 1) // 2 for side in sides]
    layers["flatten"] = nn.Flatten()
    features = inputs * prod(sides)
    for number, size in enumerate(hidden, 1):
        layers[f"fc{number}"] = nn.Linear(features, size)
        layers[f"relu{len(widths) + number}"] = nn.ReLU()
        features = size
    return BaseHeadModel(named(**layers), nn.Linear(features, num_classes))


# 16 is the smallest side that two unpadded convolutions, each with pooling, leave a pixel of.
@register("fedavg-cnn", smallest_side=16)
def fedavg_cnn(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """Two 5x5 convolutions (32, 64 channels), each with 2x2 max-pooling, and 512 hidden units; no padding.

    The CNN of McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017),
    section 3, as the personalised-learning literature runs it: without padding, 582,026 parameters for 1x28x28 and
    10 classes (the original pads, 1,663,370).
    """
    return _network(input_shape, num_classes, widths=(32, 64), kernel=5, padding=0, hidden=(512,), share=width)


@register("convnet", smallest_side=16)
def convnet(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """Two 5x5 convolutions (64, 64 channels), each with 2x2 max-pooling, and 384 and 192 hidden units; no padding.

    The network of FedReG, section 4.1, taken there from FedDyn (Acar et al., 2021) and FedRoD (Chen
    and Chao, 2022): 797,962 parameters for 3x32x32 and 10 classes.
    """
    return _network(input_shape, num_classes, widths=(64, 64), kernel=5, padding=0, hidden=(384, 192), share=width)


@register("small-cnn", smallest_side=4)
def small_cnn(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """Two padded 3x3 convolutions (16, 32 channels), each with 2x2 max-pooling, and 64 hidden units.

    This project's own, for examples and tests in seconds: 13,706 parameters for scikit-learn's 1x8x8 digits.
    """
    return _network(input_shape, num_classes, widths=(16, 32), kernel=3, padding=1, hidden=(64,), share=width)


@register("small-cnn-bn", smallest_side=4)
def small_cnn_bn(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """``small-cnn`` with batch normalisation after each convolution.

    This project's own, for FedBN and others that keep normalisation on the client: 13,802 parameters for scikit-learn's
    1x8x8 digits.
    """
    return _network(
        input_shape, num_classes, widths=(16, 32), kernel=3, padding=1, hidden=(64,), share=width, normalised=True
    )
