"""Segmentation: a class for each pixel.

The model gives a number for each class and pixel, and its last convolution is the head. The cameras show lying and
standing bars, brighter than the background on half of them and darker on the others.
"""

import numpy
from torch import nn

import fedpfl

draw = numpy.random.default_rng(1)


def camera(contrast):
    masks = numpy.zeros((32, 24, 24), "uint8")
    for mask in masks:
        kind, (row, column) = draw.integers(1, 3), draw.integers(2, 16, 2)
        high, wide = (5, 11) if kind == 1 else (11, 5)
        mask[row : row + high, column : column + wide] = kind
    images = draw.normal(contrast * (masks > 0), 0.5)
    return images[:, None].astype("float32"), masks


def network(input_shape, num_classes):
    wide, deep = nn.Conv2d(1, 16, 5, padding=2), nn.Conv2d(16, 16, 5, padding=2)
    body = [wide, nn.BatchNorm2d(16), nn.ReLU(), deep, nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*body, nn.Conv2d(16, num_classes, 1))


comparison = fedpfl.compare(
    ["local", "fedavg", "ditto"], data=[camera(contrast) for contrast in (1, -1) * 4], model=network, test_fraction=0.5,
    loss="segmentation", metrics="iou,dice", choose_by="iou", num_server_rounds=10, local_epochs=2, learning_rate=0.1,
    seeds=1, workers=0, quiet=True,
)  # fmt: skip
print(comparison.table[["method", "iou", "dice"]].round(3).to_string(index=False))
comparison.plot().save("segmentation.svg")
