"""GPFL's conditional valve: features scaled and shifted by what a condition asks for (Section 3.3)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    """A layer norm that computes in the type of its weights; PyTorch 1.13 has none for bfloat16 beside float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (…, d)."""
        return super().forward(x.to(self.weight.dtype))


class ConditionalValve(nn.Module):
    """CoV(f, c) = ReLU(f ⊙ (γ(c) + 1) + β(c)), where γ and β are Linear–ReLU–LayerNorm.

    Parameters
    ----------
    width : int
        Length d of features and conditions.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(nn.Linear(width, width), nn.ReLU(), LayerNorm(width))
        self.shift = nn.Sequential(nn.Linear(width, width), nn.ReLU(), LayerNorm(width))

    def forward(self, features: Tensor, condition: Tensor) -> Tensor:
        """Map features (n, d) under a condition (d,) to features (n, d)."""
        return F.relu(features * (self.scale(condition) + 1) + self.shift(condition))
