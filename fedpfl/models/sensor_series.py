"""Networks for series of measurements, channels × time, such as the signals of a phone that a person carries."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .registry import BaseHeadModel, Shape, channels, named, register


class Row(nn.Module):
    """Turns series into images one pixel high, with the channels last in memory.

    A convolution over them takes two thirds of the time of ``nn.Conv1d`` on a CPU, and methods that take convolutions
    apart know only those over images.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, channels, time) to (n, channels, 1, time)."""
        return x.unsqueeze(2).contiguous(memory_format=torch.channels_last)


def _unpadded(steps: int) -> int:
    """Length after two rounds of an unpadded convolution over 9 steps and pooling of 2."""
    return ((steps - 8) // 2 - 8) // 2


# 28 is the smallest length for which `_unpadded` leaves a step.
@register("cnn-1d", smallest_length=28)
def cnn_1d(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """Two convolutions over 9 steps (16, 32 channels), each with max-pooling of 2, and 64 hidden units; no padding.

    Maps series (n, channels, time) to logits (n, classes). Convolutions over the time of a person's sensors follow Zeng
    et al., "Convolutional Neural Networks for Human Activity Recognition using Mobile Sensors" (2014), section 3;
    kernels and pooling are those of HARCNN, with which PFLlib runs UCI HAR. This project's own are the sizes: half of
    HARCNN's channels, and 64 units in place of its 1,024 and 512, which hold 99 % of its parameters. 59,654 parameters
    for 9x128 and 6 classes.
    """
    inputs, steps = input_shape
    first, second, units = (channels(count, width) for count in (16, 32, 64))
    base = named(
        row=Row(),
        conv1=nn.Conv2d(inputs, first, (1, 9)),
        pool1=nn.MaxPool2d((1, 2)),
        # ReLU behind max-pooling: see the note at the top of cnn.py.
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(first, second, (1, 9)),
        pool2=nn.MaxPool2d((1, 2)),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(second * _unpadded(steps), units),
        relu3=nn.ReLU(),
    )
    return BaseHeadModel(base, nn.Linear(units, num_classes))


class LastState(nn.GRU):
    """A GRU (Cho et al., 2014, section 2.3) of which only the state after the last step is used."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Map series (n, channels, time) to (n, hidden_size)."""
        # In float32 on a CPU, also with precision = "bf16", as the LSTM in lstm.py.
        with torch.autocast("cpu", enabled=False):
            outputs: Tensor = super().forward(x.transpose(1, 2))[0]
        return outputs[:, -1]


@register("gru", smallest_length=1)
def gru(input_shape: Shape, num_classes: int) -> BaseHeadModel:
    """One GRU layer of 64 units, and 64 hidden units on its state after the last step.

    Maps series (n, channels, time) to logits (n, classes). This project's own, for series of any length: 18,950
    parameters for 9 channels and 6 classes. Its steps follow one after another: on series of 128 steps it takes five
    times as long as ``cnn-1d``, or more.
    """
    base = named(gru=LastState(input_shape[0], 64, batch_first=True), fc1=nn.Linear(64, 64), relu1=nn.ReLU())
    return BaseHeadModel(base, nn.Linear(64, num_classes))
