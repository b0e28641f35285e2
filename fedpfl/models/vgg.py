"""VGG with batch normalisation, with torchvision's names for its arrays."""

from __future__ import annotations

from torch import nn

from .registry import BaseHeadModel, Shape, channels, named, register

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def _features(inputs: int, share: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for stage in _STAGES:
        for width in (channels(count, share) for count in stage):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            inputs = width
        # ReLU behind max-pooling: see the note at the top of cnn.py. Swapping them keeps torchvision's numbering.
        layers.insert(-1, nn.MaxPool2d(2))
    return nn.Sequential(*layers)


# 32 is the smallest side that survives five halvings.
@register("vgg16", smallest_side=32)
def vgg16(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """Thirteen 3x3 convolutions with batch normalisation and two hidden layers of 4096 units.

    Simonyan and Zisserman (2015), configuration D, in torchvision's layout and with its initial weights: FedFac,
    section 5.1, runs torchvision's VGG-16-BN with ImageNet weights on CIFAR-100, so the hidden layers keep their
    ImageNet size although 32x32 images fill the 7x7 grid in front of them with copies of one pixel. 134,678,692
    parameters for 3 channels and 100 classes.
    """
    units = channels(4096, width)
    classifier = nn.Sequential(
        nn.Linear(channels(512, width) * 7 * 7, units),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(units, units),
        nn.ReLU(),
        nn.Dropout(),
    )
    model = BaseHeadModel(
        named(
            features=_features(input_shape[0], width),
            avgpool=nn.AdaptiveAvgPool2d(7),
            flatten=nn.Flatten(),
            classifier=classifier,
        ),
        nn.Linear(units, num_classes),
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
    return model
