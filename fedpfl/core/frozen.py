"""Frozen arrays: a third kind next to shared and personal ones, for a backbone that does not train.

A frozen array is no parameter and is not in the model's state dict: it becomes a buffer that is not persistent. So
nothing that goes over the arrays of a model (what travels, what a client keeps, a twin, a memory, a penalty, the
optimiser) has to know of it, and it costs no gradient. Every participant makes the same ones, from the seed or from
files on its own disk. The layout has a hash of them: a participant with others is refused before anything is loaded.
"""

from __future__ import annotations

import copy
from typing import Iterator

from torch import Tensor, nn

# The attribute of a module that lists which of its own arrays are frozen, and of a model that holds their hash.
NAMES, HASH = "frozen_names", "frozen_hash"


def frozen(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, array) of the frozen arrays, in the model's order; all names of one that has several."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name in getattr(module, NAMES, ()):
            yield (f"{prefix}.{name}" if prefix else name), getattr(module, name)


def frozen_hash(model: nn.Module) -> str:
    """Return the hash of the frozen arrays, as they were when they were frozen; empty if there are none."""
    return str(getattr(model, HASH, ""))


def copy_trained(module: nn.Module) -> nn.Module:
    """Copy a module and its arrays, except frozen ones, which both then use."""
    return copy.deepcopy(module, {id(array): array for _, array in frozen(module)})


def has_frozen(module: nn.Module) -> bool:
    """Tell whether any of a layer's own arrays is frozen, so that no method may put another layer in its place."""
    return bool(getattr(module, NAMES, ()))
