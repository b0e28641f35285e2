"""The optimisers: SGD, Adam and AdamW over lists of tensors, those of ``torch.optim`` by their names, and the user's.

The same arithmetic as ``torch.optim`` with ``foreach=True`` (tested: SGD to the bit, Adam to rounding). They exist
because the first ``torch.optim`` object of a process imports the compiler stack (1.5 to 3.5 s measured), and under
deployment every message is a new process.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol, Sequence

import torch
from torch import Tensor

from ..core import references, user_code
from ..core.errors import ConfigError

# The default of the setting `momentum`.
USUAL_MOMENTUM = 0.9


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


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves, as ``torch.optim.AdamW``; updates in place."""

    def __init__(self, params: Sequence[Tensor], learning_rate: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, learning_rate, momentum, 0.0)
        self._decay = weight_decay

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """Move the parameters against ``grads``, which may be overwritten."""
        kept = 1 - self.learning_rate * self._decay
        if kept != 1:
            torch._foreach_mul_(self.params, kept)
        super().step(grads)


class TorchOptimizer:
    """An optimiser of ``torch.optim`` by its name; it gets momentum and weight decay if it has arguments for them.

    Momentum is β₁ where it has betas. An optimiser other than SGD keeps its own default where the setting's is not
    changed.
    """

    def __init__(
        self, name: str, params: Sequence[Tensor], learning_rate: float, momentum: float, weight_decay: float
    ) -> None:
        made = getattr(torch.optim, name)
        takes = inspect.signature(made).parameters
        offered: dict[str, Any] = {"momentum": momentum, "weight_decay": weight_decay}
        if "betas" in takes:
            offered["betas"] = (momentum, *takes["betas"].default[1:])
        if name != "SGD" and momentum == USUAL_MOMENTUM:
            del offered["momentum"]
        self.params = list(params)
        self._optimizer = made(
            self.params, lr=learning_rate, **{key: value for key, value in offered.items() if key in takes}
        )

    @property
    def learning_rate(self) -> float:
        """The learning rate, which a schedule may change between two steps."""
        return float(self._optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def step(self, grads: Sequence[Tensor]) -> None:
        """Move the parameters against ``grads``."""
        for param, grad in zip(self.params, grads):
            param.grad = grad
        self._optimizer.step()
        for param in self.params:
            param.grad = None


class OwnOptimizer(TorchOptimizer):
    """What a function of the user's makes, (params, lr) → an optimiser of torch, or a pair of one and its scheduler.

    The scheduler makes a step after each of the optimiser's.
    """

    def __init__(self, text: str, params: Sequence[Tensor], learning_rate: float) -> None:
        self.params = list(params)
        function = user_code.find("optimizer", text)
        made = user_code.call("optimizer", text, function, {"params": self.params, "lr": learning_rate})
        self._scheduler: Any
        self._optimizer, self._scheduler = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            allowed = "must return an optimiser of torch, or a pair of one and its scheduler"
            raise ConfigError("optimizer", text, f"returns {references.article(made)}; it {allowed}")
        moved = {id(param) for group in self._optimizer.param_groups for param in group["params"]}
        if moved.isdisjoint(map(id, self.params)):
            raise ConfigError(
                "optimizer", text, "moves none of the params that it is given: make one of them each time"
            )

    def step(self, grads: Sequence[Tensor]) -> None:
        """Move the parameters against ``grads``."""
        super().step(grads)
        if self._scheduler is not None:
            self._scheduler.step()


def require_working(text: str) -> None:
    """Try the user's optimiser on one matrix, so that a mistake shows before round 1."""
    with user_code.global_state_kept():
        matrix = torch.ones(2, 2, requires_grad=True)
        optimizer = OwnOptimizer(text, [matrix], 0.1)
        user_code.guarded("optimizer", text, optimizer.step)([torch.ones(2, 2)])


def used_by(name: str) -> set[str]:
    """Return which of momentum (or β₁) and weight_decay an optimiser has; one of the user's is told neither."""
    if references.is_reference(name):
        return set()
    if name == "sgd" or name in OPTIMIZERS:
        return {"momentum", "weight_decay"}
    takes = inspect.signature(getattr(torch.optim, name)).parameters
    return {"momentum" if word == "betas" else word for word in takes} & {"momentum", "weight_decay"}


OPTIMIZERS: dict[str, type[Adam]] = {"adam": Adam, "adamw": AdamW}
# Optimisers of torch.optim that need a function that computes the loss again, or sparse gradients.
NOT_STEPPED = ("LBFGS", "SparseAdam", "Optimizer")


def is_torch_optimizer(name: str) -> bool:
    """Return whether ``torch.optim`` has an optimiser of this name that takes plain gradients."""
    kind = getattr(torch.optim, name, None)
    return isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in NOT_STEPPED


def make_optimizer(
    name: str, params: Sequence[Tensor], learning_rate: float, momentum: float, weight_decay: float
) -> Optimizer:
    """Return the optimiser that the setting ``optimizer`` names."""
    if name == "sgd":
        return SGD(params, learning_rate, momentum, weight_decay)
    if name in OPTIMIZERS:
        return OPTIMIZERS[name](params, learning_rate, momentum, weight_decay)
    if references.is_reference(name):
        return OwnOptimizer(name, params, learning_rate)
    return TorchOptimizer(name, params, learning_rate, momentum, weight_decay)
