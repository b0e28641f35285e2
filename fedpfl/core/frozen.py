"""Frozen arrays: a third kind next to shared and personal ones, for a backbone that does not train.

A frozen array is no parameter and is not in the model's state dict: it becomes a buffer that is not persistent. So
nothing that goes over the arrays of a model (what travels, what a client keeps, a twin, a memory, a penalty, the
optimiser) has to know of it, and it costs no gradient. Every participant makes the same ones, from the seed or from
files on its own disk. The layout has a hash of them: a participant with others is refused before anything is loaded.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# The attribute of a module that lists which of its own arrays are frozen, and of a model that holds their hash.
_NAMES, _HASH = "frozen_names", "frozen_hash"


def freeze(model: nn.Module, trains: Callable[[str], bool]) -> list[str]:
    """Freeze the arrays of a model that do not train, in place; return their names in the model's order.

    ``trains`` tells by a parameter's name whether it trains. Buffers follow the parameters of their module: the running
    statistics of a BatchNorm are frozen with its weight. For a module without parameters it is asked by the buffers'
    names.
    """
    for prefix, module in list(model.named_modules()):
        path = f"{prefix}." if prefix else ""
        own = dict(module.named_parameters(recurse=False))
        still = [name for name in own if not trains(path + name)]
        kept = [name for name in module.state_dict() if "." not in name and name not in own]
        still += [name for name in kept if (len(still) == len(own) if own else not trains(path + name))]
        for name in still:
            array = getattr(module, name).detach()
            delattr(module, name)
            module.register_buffer(name, array, persistent=False)
        if still:
            setattr(module, _NAMES, (*getattr(module, _NAMES, ()), *still))
    setattr(model, _HASH, _hash(model))
    return [name for name, _ in frozen(model)]


def frozen(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, array) of the frozen arrays, in the model's order; all names of one that has several."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name in getattr(module, _NAMES, ()):
            yield (f"{prefix}.{name}" if prefix else name), getattr(module, name)


def frozen_hash(model: nn.Module) -> str:
    """Return the hash of the frozen arrays, as they were when they were frozen; empty if there are none."""
    return str(getattr(model, _HASH, ""))


def take_frozen(model: nn.Module, other: nn.Module) -> None:
    """Let a model use another one's frozen arrays of the same names, so that they are in memory once."""
    for name, array in frozen(other):
        prefix, _, short = name.rpartition(".")
        setattr(model.get_submodule(prefix), short, array)
    setattr(model, _HASH, frozen_hash(other))


def copy_trained(module: nn.Module) -> nn.Module:
    """Copy a module and its arrays, except frozen ones, which both then use."""
    return copy.deepcopy(module, {id(array): array for _, array in frozen(module)})


def has_frozen(module: nn.Module) -> bool:
    """Return whether any of a layer's own arrays is frozen, so that no method may put another layer in its place."""
    return bool(getattr(module, _NAMES, ()))


def has_frozen_statistics(module: nn.Module) -> bool:
    """Return whether a module is a BatchNorm with frozen running statistics, which it uses in training, too."""
    return isinstance(module, _BatchNorm) and "running_mean" in getattr(module, _NAMES, ())


@torch.no_grad()
def _hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, array in frozen(model):
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}\n".encode())
        # As bytes, which NumPy has for every type.
        digest.update(array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16] if any(True for _ in frozen(model)) else ""
