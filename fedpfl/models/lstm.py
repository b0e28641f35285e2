"""A recurrent network for the next character."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .registry import BaseHeadModel, Shape, named, register


class LastOutput(nn.LSTM):
    """An LSTM of which only the output after the last step is used."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Map sequences (n, length, features) to (n, hidden_size)."""
        # In float32 on a CPU, also with precision = "bf16": PyTorch has no LSTM in bfloat16 for CPUs without AVX-512.
        with torch.autocast("cpu", enabled=False):
            outputs: Tensor = super().forward(x)[0]
        return outputs[:, -1]


@register("char-lstm", tokens=True)
def char_lstm(input_shape: Shape, num_classes: int, vocabulary: int) -> BaseHeadModel:
    """Embedding of 8, two LSTM layers of 256, and 512 hidden units on their output after the last character.

    FedFac, section 5.1 (Shakespeare); the appendix with the details was not available. The ReLU behind the hidden layer
    is ours. 982,404 parameters for 100 characters.
    """
    base = named(
        embedding=nn.Embedding(vocabulary, 8),
        lstm=LastOutput(8, 256, num_layers=2, batch_first=True),
        fc1=nn.Linear(256, 512),
        relu1=nn.ReLU(),
    )
    return BaseHeadModel(base, nn.Linear(512, num_classes))
