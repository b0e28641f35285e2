"""Optimisers over lists of tensors.

The same arithmetic as ``torch.optim`` with ``foreach=True`` (tested: SGD to the bit, Adam to rounding). They exist
because the first ``torch.optim`` object of a process imports the compiler stack (1.5 to 3.5 s measured), and under
deployment every message is a new process.
"""

from __future__ import annotations

from typing import Sequence, Union

import torch
from torch import Tensor


class SGD:
    """Stochastic gradient descent with heavy-ball momentum, as ``torch.optim.SGD``; updates in place."""

    def __init__(self, params: Sequence[Tensor], learning_rate: float, momentum: float, weight_decay: float) -> None:
        self.params = list(params)
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._velocity: list[Tensor] = []

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """Move the parameters against ``grads``, which may be overwritten."""
        grads = list(grads)
        if self.weight_decay:
            torch._foreach_add_(grads, self.params, alpha=self.weight_decay)
        if self.momentum:
            if self._velocity:
                torch._foreach_mul_(self._velocity, self.momentum)
                torch._foreach_add_(self._velocity, grads)
            else:
                self._velocity = [g.clone() for g in grads]
            grads = self._velocity
        torch._foreach_add_(self.params, grads, alpha=-self.learning_rate)


class Adam:
    """Adam with L2 weight decay; ``momentum`` (0 is allowed) is β₁, β₂ is 0.999; updates in place."""

    beta2 = 0.999
    epsilon = 1e-8

    def __init__(self, params: Sequence[Tensor], learning_rate: float, momentum: float, weight_decay: float) -> None:
        self.params = list(params)
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._steps = 0
        self._mean = [torch.zeros_like(p) for p in self.params]
        self._square = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """Move the parameters against ``grads``, which may be overwritten."""
        grads = list(grads)
        self._steps += 1
        if self.weight_decay:
            torch._foreach_add_(grads, self.params, alpha=self.weight_decay)
        torch._foreach_mul_(self._mean, self.momentum)
        torch._foreach_add_(self._mean, grads, alpha=1 - self.momentum)
        torch._foreach_mul_(self._square, self.beta2)
        torch._foreach_addcmul_(self._square, grads, grads, 1 - self.beta2)
        correction1 = 1 - self.momentum**self._steps
        correction2 = 1 - self.beta2**self._steps
        denominator = torch._foreach_sqrt(self._square)
        torch._foreach_div_(denominator, correction2**0.5)
        torch._foreach_add_(denominator, self.epsilon)
        torch._foreach_addcdiv_(self.params, self._mean, denominator, -self.learning_rate / correction1)


Optimizer = Union[SGD, Adam]


@torch.no_grad()
def clip(grads: Sequence[Tensor], limit: float) -> None:
    """Scale gradients down, in place, so that all of them together have at most the Euclidean norm ``limit``."""
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    # The norm stays a tensor: to compare it in Python would make a GPU wait at every step.
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for grad in grads:  # torch before 2.1 cannot multiply a list by a tensor
        grad.mul_(factor)


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam}
