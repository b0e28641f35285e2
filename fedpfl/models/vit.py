"""A small vision Transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .registry import BaseHeadModel, Shape, named, register
from .transformer import TransformerBlock

PATCH, WIDTH, HEADS, HIDDEN, BLOCKS = 4, 128, 4, 256, 6


class Patches(nn.Module):
    """Maps images (channels, height, width) to the mean of their patches' vectors behind the blocks.

    Pixels at the right and lower edge that fill no patch are left out.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, height, width = shape
        self.embedding = nn.Conv2d(channels, WIDTH, PATCH, stride=PATCH)
        self.positions = nn.Parameter(torch.empty(1, (height // PATCH) * (width // PATCH), WIDTH))
        nn.init.normal_(self.positions, std=0.02)
        self.blocks = named(
            **{f"block{n}": TransformerBlock(WIDTH, HEADS, HIDDEN, nn.GELU()) for n in range(1, BLOCKS + 1)}
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, channels, height, width) to features (n, width)."""
        patches = self.embedding(x).flatten(2).transpose(1, 2)
        features: Tensor = self.norm(self.blocks(patches + self.positions)).mean(1)
        return features


@register("small-vit", smallest_side=2 * PATCH)
def small_vit(input_shape: Shape, num_classes: int) -> BaseHeadModel:
    """Patches of 4 x 4 pixels, six blocks (width 128, 4 heads, 256 hidden units), the mean over all patches.

    This project's own sizes (after Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021, section
    3.1, without its class token): small enough to adapt on two cores. 810,890 parameters for 32 x 32 colour images and
    10 classes.
    """
    return BaseHeadModel(Patches(input_shape), nn.Linear(WIDTH, num_classes))
