"""Inputs of clients that differ (``feature-skew``), and labels that they number in their own ways."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Callable, Sequence

import numpy as np

from ..core.errors import ConfigError
from ..core.rng import generator
from .dataset import Dataset
from .settings import DataSettings

if TYPE_CHECKING:
    import torch

# Factorized-FL numbers the classes of client i with this seed + i (appendix B.1).
LABEL_SEED = 1234
# (inputs, client, ``train``, ``validation`` or ``test``) → the client's inputs.
Skewed = Callable[["torch.Tensor", int, str], "torch.Tensor"]


def skew(data: Dataset, settings: DataSettings, numbers: Sequence[int], seed: int) -> Skewed:
    """Return the change of a client's inputs: noise that grows with its number, or a rotation.

    ``ConfigError`` where the data cannot have it.
    """
    kind, _, size = settings.feature_skew.partition("=")
    rotated = kind == "rotation"
    shapes = [part.shape for part, _ in data.inputs.floats(data.x_train[:0])] if data.inputs else [data.input_shape]
    why = {
        "texts cannot have noise": bool(data.vocabulary),
        f"none of the inputs {data.inputs} holds floats": not shapes,
        "only square images can be rotated": rotated and not any(map(_is_square, shapes)),
        "masks are not rotated with their images": rotated and data.has_masks,
        "needs test-on = own: a client's tests are of its own inputs": settings.test_on != "own",
        "is for simulations, where the clients' data are divided here": not isinstance(numbers, range),
    }
    if reasons := [reason for reason, wrong in why.items() if wrong]:
        raise ConfigError("feature-skew", settings.feature_skew, reasons[0])

    def skewed(x: torch.Tensor, client: int, part: str) -> torch.Tensor:
        import torch

        rng = generator(settings.partition_seed or seed, "feature skew", client, part)
        deviation = float(size) * (client + 1) / len(numbers)

        def change(x: torch.Tensor) -> torch.Tensor:
            if rotated:
                return torch.rot90(x, (client + 1) % int(size), (2, 3)).contiguous(memory_format=torch.channels_last)
            return x + torch.from_numpy(rng.normal(scale=deviation, size=tuple(x.shape)).astype(np.float32))

        if not data.inputs:
            return change(x)
        x = x.clone()
        for declared, values in data.inputs.floats(x):
            if not rotated or _is_square(declared.shape):
                values.copy_(change(values))
        return x

    return skewed


def _is_square(shape: tuple[int, ...]) -> bool:
    """Tell whether samples of a shape are images that can be rotated."""
    return len(shape) == 3 and shape[1] == shape[2] > 1


def label_permutation(client: int, num_classes: int) -> np.ndarray:
    """Return the numbering of the classes that Factorized-FL gives to client ``client``, counted from 0.

    The list 0 … C−1 shuffled by Python's generator with seed 1234 + ``client``: y becomes ``result[y]`` (appendix B.1,
    table 4).
    """
    order = list(range(num_classes))
    random.Random(LABEL_SEED + client).shuffle(order)
    return np.array(order, np.int64)
