"""Terms and limits of the parameters that phases train with."""

from __future__ import annotations

from typing import Callable, Mapping, Sequence

import torch
from torch import Tensor


class Proximal:
    """µ/2·‖w − anchor‖², the term of FedProx, pFedMe, Ditto and many others: a phase's ``penalty``.

    Parameters
    ----------
    mu : float
        Its weight µ.
    anchor : mapping of str to Tensor
        Where each parameter is pulled to, by name and in its shape; those without an entry are left alone.

    Examples
    --------
    >>> import fedpfl
    >>> class Pulled(fedpfl.Method):
    ...     name = "pulled"
    ...
    ...     def schedule(self, local):
    ...         pull = fedpfl.Proximal(0.1, local.start)
    ...         return [fedpfl.Phase(fedpfl.everything, self.training.local_epochs, penalty=pull)]
    """

    def __init__(self, mu: float, anchor: Mapping[str, Tensor]) -> None:
        self.mu = mu
        self.anchor = anchor

    @torch.no_grad()
    def add_gradient(self, names: Sequence[str], params: Sequence[Tensor], grads: list[Tensor]) -> None:
        """Add µ·(w − anchor)."""
        held = [i for i, name in enumerate(names) if name in self.anchor]
        pulled = [grads[i] for i in held]
        torch._foreach_add_(pulled, [params[i] for i in held], alpha=self.mu)
        torch._foreach_sub_(pulled, [self.anchor[names[i]] for i in held], alpha=self.mu)


class L1:
    """λ·‖w‖₁, the term that makes parameters sparse: a phase's ``penalty``.

    Parameters
    ----------
    weight : float
        λ.
    selected : callable, str → bool
        Says by name which parameters it is over.

    Examples
    --------
    >>> import torch, fedpfl
    >>> gradient = torch.zeros(2)
    >>> fedpfl.L1(0.1, lambda name: name == "w").add_gradient(["w"], [torch.tensor([3.0, -2.0])], [gradient])
    >>> gradient
    tensor([ 0.1000, -0.1000])
    """

    def __init__(self, weight: float, selected: Callable[[str], bool]) -> None:
        self.weight = weight
        self.selected = selected

    @torch.no_grad()
    def add_gradient(self, names: Sequence[str], params: Sequence[Tensor], grads: list[Tensor]) -> None:
        """Add λ·sign(w), which at 0 is the subgradient 0."""
        for name, param, grad in zip(names, params, grads):
            if self.selected(name):
                grad.add_(param.sign(), alpha=self.weight)


class Correction:
    """⟨a, w⟩, a phase's ``penalty``: it adds the same arrays to the gradients of each step.

    The mean of the gradients without them is kept.

    Parameters
    ----------
    arrays : mapping of str to Tensor
        What is added to the gradient of each parameter, by name and in its shape; those without an entry are left
        alone.

    Examples
    --------
    >>> import torch, fedpfl
    >>> gradient = torch.zeros(2)
    >>> fedpfl.Correction({"w": torch.tensor([1.0, 2.0])}).add_gradient(["w"], [torch.ones(2)], [gradient])
    >>> gradient
    tensor([1., 2.])
    """

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        self.arrays = arrays
        self._sums = {name: torch.zeros_like(array) for name, array in arrays.items()}
        # A tensor, so that clients which train as one batch each have their own.
        device = next((array.device for array in arrays.values()), None)
        self._steps = torch.zeros((), device=device)

    @torch.no_grad()
    def add_gradient(self, names: Sequence[str], params: Sequence[Tensor], grads: list[Tensor]) -> None:
        """Add a."""
        self._steps.add_(1)
        for name, grad in zip(names, grads):
            if name in self.arrays:
                self._sums[name].add_(grad)
                grad.add_(self.arrays[name])

    def mean_gradient(self) -> dict[str, Tensor]:
        """Return the mean of the steps' gradients, by name; of the parameters that have an entry."""
        return {name: total / float(self._steps) for name, total in self._sums.items()}


@torch.no_grad()
def keep_in_unit(names: Sequence[str], params: Sequence[Tensor]) -> None:
    """Put parameters back between 0 and 1: a projection for weights of mixtures."""
    for param in params:
        param.clamp_(0, 1)
