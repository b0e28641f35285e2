"""SGD over lists of tensors; the others are in ``adaptive.py``.

The same arithmetic as ``torch.optim`` with ``foreach=True`` (tested: SGD to the bit, Adam to rounding). They exist
because the first ``torch.optim`` object of a process imports the compiler stack (1.5 to 3.5 s measured), and under
deployment every message is a new process.
"""

from __future__ import annotations

from typing import Protocol, Sequence

import torch
from torch import Tensor


class SGD:
    """Stochastic gradient descent with heavy-ball momentum, as ``torch.optim.SGD``; updates in place.

    ``velocity`` holds what the steps have gathered; given before the first step, they continue from it.
    """

    def __init__(self, params: Sequence[Tensor], learning_rate: float, momentum: float, weight_decay: float) -> None:
        self.params = list(params)
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.velocity: list[Tensor] = []

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """Move the parameters against ``grads``, which may be overwritten."""
        grads = list(grads)
        if self.weight_decay:
            torch._foreach_add_(grads, self.params, alpha=self.weight_decay)
        if self.momentum:
            if self.velocity:
                torch._foreach_mul_(self.velocity, self.momentum)
                torch._foreach_add_(self.velocity, grads)
            else:
                self.velocity = [g.clone() for g in grads]
            grads = self.velocity
        torch._foreach_add_(self.params, grads, alpha=-self.learning_rate)


class Optimizer(Protocol):
    """What moves parameters."""

    params: list[Tensor]
    learning_rate: float

    def step(self, grads: Sequence[Tensor]) -> None:
        """Move the parameters against ``grads``, which may be overwritten."""


@torch.no_grad()
def clip(grads: Sequence[Tensor], limit: float) -> None:
    """Scale gradients down, in place, so that all of them together have at most the Euclidean norm ``limit``."""
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    # The norm stays a tensor: to compare it in Python would make a GPU wait at every step.
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for grad in grads:  # torch before 2.1 cannot multiply a list by a tensor
        grad.mul_(factor)


def make_optimizer(
    name: str, params: Sequence[Tensor], learning_rate: float, momentum: float, weight_decay: float
) -> Optimizer:
    """Return the optimiser that the setting ``optimizer`` names."""
    if name == "sgd":
        return SGD(params, learning_rate, momentum, weight_decay)
    from fedpfl.training.adaptive import make

    found: Optimizer = make(name, params, learning_rate, momentum, weight_decay)
    return found
