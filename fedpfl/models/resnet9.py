"""The residual network of Factorized-FL."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from .registry import BaseHeadModel, Shape, channels, named, register


class Residual(nn.Sequential):
    """A chain of layers with a shortcut around it."""

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps of the same shape."""
        out: Tensor = x + super().forward(x)  # type: ignore[no-untyped-call]
        return out


def _conv(
    number: int, in_channels: int, out_channels: int, kernel_size: int = 3, stride: int = 1, padding: int = 1
) -> dict[str, nn.Module]:
    """Return a convolution and its batch normalisation under the number that the paper's table 3 gives it."""
    return {
        f"conv{number}": nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, bias=False),
        f"bn{number}": nn.BatchNorm2d(out_channels),
    }


# The smallest side that leaves the 3x3 pixels that the last, unpadded convolution needs.
SMALLEST_SIDE = 11


@register("resnet9", smallest_side=SMALLEST_SIDE)
def resnet9(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """Eight convolutions, four of them in two residual pairs, and one linear layer.

    Factorized-FL, appendix C.1, table 3; strides, padding and the place of batch normalisation from the authors' code.
    2,571,338 parameters for 3 channels and 10 classes; the paper's 2.574 M also counts the 2,944 running means and
    variances.
    """
    return _resnet9(input_shape, num_classes, channels(64, width))


@register("resnet9-narrow", smallest_side=SMALLEST_SIDE)
def resnet9_narrow(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """``resnet9`` with an eighth of its channels, 8 to 32.

    This project's own, for Factorized-FL at small scale.
    """
    return _resnet9(input_shape, num_classes, channels(8, width))


def _resnet9(input_shape: Shape, num_classes: int, first: int) -> BaseHeadModel:
    """Return the network with ``first`` channels behind its first convolution and four times as many in the end."""
    twice, most = 2 * first, 4 * first
    base = named(
        **_conv(1, input_shape[0], first),
        relu1=nn.ReLU(),
        **_conv(2, first, twice, kernel_size=5, stride=2, padding=2),
        relu2=nn.ReLU(),
        res1=Residual(
            OrderedDict(**_conv(3, twice, twice), relu3=nn.ReLU(), **_conv(4, twice, twice), relu4=nn.ReLU()),
        ),
        **_conv(5, twice, most),
        # ReLU behind max-pooling, here and at the end: see the note at the top of cnn.py.
        pool5=nn.MaxPool2d(2),
        relu5=nn.ReLU(),
        res2=Residual(
            OrderedDict(**_conv(6, most, most), relu6=nn.ReLU(), **_conv(7, most, most), relu7=nn.ReLU()),
        ),
        **_conv(8, most, most, padding=0),
        pool8=nn.AdaptiveMaxPool2d(1),
        relu8=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    return BaseHeadModel(base, nn.Linear(most, num_classes))
