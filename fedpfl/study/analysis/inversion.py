"""Gradient inversion: an image from the gradient that a client's step on it gives away.

Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019 (``dlg``); Geiping, Bauermeister, Dröge, Moeller: Inverting
Gradients: How easy is it to break privacy in federated learning?, NeurIPS 2020 (``cosine``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# From a guessed image to the gradients that it would give, differentiable in the image.
Gradients = Callable[[Tensor], Sequence[Tensor]]

LOW, HIGH = -1.0, 1.0  # of pixels, as models get them
DECAYS = (3 / 8, 5 / 8, 7 / 8)  # of the iterations: there the step falls to a tenth (Geiping et al., section 4)
STEPS_OF_LBFGS = 20  # forward passes of one iteration at most


def cosine_distance(guessed: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Return 1 − cos of the angle between all gradients laid end to end; a gradient of nothing but 0 is 1 away."""
    dot = torch.stack([(a * b).sum() for a, b in zip(guessed, target, strict=True)]).sum()
    squares = [torch.stack([(a * a).sum() for a in of]).sum() for of in (guessed, target)]
    return 1 - dot / torch.sqrt(squares[0] * squares[1] + torch.finfo(dot.dtype).tiny)


def squared_distance(guessed: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Return the squared Euclidean distance between all gradients laid end to end."""
    return torch.stack([((a - b) ** 2).sum() for a, b in zip(guessed, target, strict=True)]).sum()


def total_variation(image: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, down and across, of images (n, channels, h, w)."""
    down = (image[:, :, 1:] - image[:, :, :-1]).abs().mean()
    across = (image[:, :, :, 1:] - image[:, :, :, :-1]).abs().mean()
    return down + across


def by_cosine(
    gradients: Gradients, target: Sequence[Tensor], start: Tensor, iterations: int, tv: float, step: float
) -> Tensor:
    """Match the direction of the gradients: cosine distance plus tv · total variation, Adam on the gradient's signs.

    The guess ``start`` and the result have shape (1, channels, height, width) and values from −1 to 1; ``step`` is
    Adam's first step size.
    """
    image = start.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([image], lr=step)
    milestones = [int(share * iterations) for share in DECAYS]
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    for _ in range(iterations):
        loss = cosine_distance(gradients(image), target) + tv * total_variation(image)
        (image.grad,) = (g.sign() for g in torch.autograd.grad(loss, [image]))
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            image.clamp_(LOW, HIGH)
    return image.detach()


def by_squares(
    gradients: Gradients, target: Sequence[Tensor], start: Tensor, iterations: int, tv: float, step: float
) -> Tensor:
    """Match the gradients themselves: squared distance, L-BFGS; parameters as in :func:`by_cosine`, ``tv`` as well.

    The distance is divided by that of a gradient of zeros, so that ``tv`` and tolerances mean the same for all models.
    If the search ends in values that are not finite, the last finite guess is returned.
    """
    image = start.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [image], lr=step, max_iter=STEPS_OF_LBFGS, history_size=100, line_search_fn="strong_wolfe"
    )
    scale = squared_distance([torch.zeros_like(t) for t in target], target).clamp_min(torch.finfo(start.dtype).tiny)

    def closure() -> Tensor:
        loss = squared_distance(gradients(image), target) / scale + tv * total_variation(image)
        (image.grad,) = torch.autograd.grad(loss, [image])
        return loss

    last = start
    for _ in range(max(1, iterations // STEPS_OF_LBFGS)):
        optimizer.step(closure)  # type: ignore[arg-type, no-untyped-call]
        if not torch.isfinite(image).all():
            break
        last = image.detach().clone()
    return last.clamp(LOW, HIGH)


ATTACKS = {"cosine": by_cosine, "dlg": by_squares}


def label_from_bias(gradient: Tensor) -> int:
    """Return the class of a single sample from the gradient of the classifier's bias, shape (classes,).

    Under cross-entropy that gradient is softmax − one-hot, which is negative for the true class alone (Zhao, Mopuri,
    Bilen: iDLG: Improved Deep Leakage from Gradients, 2020).
    """
    return int(gradient.argmin())
