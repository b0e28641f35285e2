"""FFA-LoRA: the matrix A of each adapter B·A stays as it was drawn, and B is shared.

Sun, Li, Li, Ding: Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024, Section 4.

The head trains and is shared as well. Rank, α and layers are settings of all adapters.
"""

from __future__ import annotations

import torch
from torch import nn

from ..models.adapters import matrix_of
from .bases.adapters import AdapterMethod


class FFALoRA(AdapterMethod):
    """Share B of each adapter B·A; A never trains, so that the mean of B·A is the mean of B times A.

    each adapted weight is W + α/r·B·A (W, A: frozen)
    client i:
        train B_i, φ_i, from B, φ, on f_i
        send B_i, φ_i
    server: B, φ ← mean(B_i, φ_i)
    predict: W + α/r·B·A, φ

    A is drawn from the seed, alike everywhere, and has α/r as its scale as in every adapter: W is the frozen weight.
    """

    name = "ffa-lora"
    paper = "Sun et al., Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024"
    shares = "the matrix B of each adapter, and the head"

    def build(self, model: nn.Module) -> nn.Module:
        """Draw A of each adapter and freeze it."""
        # Not from torch's stream, of which the head has taken as much as it has outputs: clients with different numbers
        # of classes must have the same A, which never travels.
        generator = torch.Generator().manual_seed(torch.initial_seed())
        for name, parameter in super().build(model).named_parameters():
            if matrix_of(name) == "A":
                bound = parameter[0].numel() ** -0.5  # as `peft` draws it
                with torch.no_grad():
                    parameter.uniform_(-bound, bound, generator=generator)
                parameter.requires_grad_(False)
        return model
