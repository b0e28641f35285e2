"""The residual network of Factorized-FL."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from .registry import BaseHeadModel, Shape, named, register


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


# 11 is the smallest side that leaves the 3x3 pixels that the last, unpadded convolution needs.
@register("resnet9", smallest_side=11)
def resnet9(input_shape: Shape, num_classes: int) -> BaseHeadModel:
    """Eight convolutions, four of them in two residual pairs, and one linear layer.

    Factorized-FL, appendix C.1, table 3; strides, padding and the place of batch normalisation from the authors' code.
    2,571,338 parameters for 3 channels and 10 classes; the paper's 2.574 M also counts the 2,944 running means and
    variances.
    """
    base = named(
        **_conv(1, input_shape[0], 64),
        relu1=nn.ReLU(),
        **_conv(2, 64, 128, kernel_size=5, stride=2, padding=2),
        relu2=nn.ReLU(),
        res1=Residual(
            OrderedDict(**_conv(3, 128, 128), relu3=nn.ReLU(), **_conv(4, 128, 128), relu4=nn.ReLU()),
        ),
        **_conv(5, 128, 256),
        # ReLU behind max-pooling, here and at the end: see the note at the top of cnn.py.
        pool5=nn.MaxPool2d(2),
        relu5=nn.ReLU(),
        res2=Residual(
            OrderedDict(**_conv(6, 256, 256), relu6=nn.ReLU(), **_conv(7, 256, 256), relu7=nn.ReLU()),
        ),
        **_conv(8, 256, 256, padding=0),
        pool8=nn.AdaptiveMaxPool2d(1),
        relu8=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    return BaseHeadModel(base, nn.Linear(256, num_classes))
