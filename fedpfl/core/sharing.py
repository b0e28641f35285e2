"""The division of a model's arrays into those that travel and those that stay, as an object that can be tested."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from .errors import StateError
from .frozen import frozen_hash
from .layout import PART as PART
from .layout import RUNNING_STATISTICS as RUNNING_STATISTICS
from .layout import Layout, Shape

# BatchNorm counts its batches in this buffer; with a momentum it never reads it.
UNUSED_BUFFER = "num_batches_tracked"

# The array alongside the shared vector that marks the shared channels.
SPLIT = "split"


class Sharing:
    """Splits the arrays of a model (parameters and buffers) into shared and personal ones.

    Arrays of whole numbers or booleans are personal whatever the method says: they have no mean.

    Parameters
    ----------
    model : nn.Module
        The model whose arrays are split; arrays are read from and written to it in place.
    is_shared : callable, str → bool
        Decides by state-dict name.
    sparse_from : callable, str → float or None
        The magnitude from which entries of a shared array travel; ``None`` for arrays that travel whole.

    Attributes
    ----------
    shared, personal : list of str
        Names, in the model's order.
    layout : Layout
        Layout of the flat vector that travels.

    Examples
    --------
    >>> import fedpfl
    >>> from torch import nn
    >>> model = fedpfl.BaseHeadModel(nn.Flatten(), nn.Linear(4, 2))
    >>> split = fedpfl.Sharing(model, lambda name: name == "head.weight")
    >>> split.shared, split.personal
    (['head.weight'], ['head.bias'])
    >>> split.get_shared().shape
    (8,)
    """

    def __init__(
        self,
        model: nn.Module,
        is_shared: Callable[[str], bool],
        sparse_from: Callable[[str], float | None] = lambda name: None,
    ) -> None:
        unused = unused_counters(model)  # neither shared nor stored
        arrays = {name: tensor for name, tensor in _arrays(model).items() if name not in unused}
        self._arrays = arrays
        self.shared: list[str] = [name for name in arrays if is_shared(name) and not is_whole(arrays[name])]
        self.personal: list[str] = [name for name in arrays if name not in set(self.shared)]
        sparse = {name: least for name in self.shared for least in [sparse_from(name)] if least is not None}
        # Frozen arrays are not among a model's arrays, see `frozen`: both sides only compare their hash.
        buffers = [name for name in self.shared if not isinstance(arrays[name], nn.Parameter)]
        shapes = [(name, arrays[name].shape) for name in self.shared]
        self.layout = Layout.of(shapes, sparse, frozen_hash(model), buffers)

    @property
    def rule_options(self) -> dict[str, Any]:
        """A rule's keyword arguments for a split that is finer than whole arrays."""
        return {}

    def accept(self, attached: Mapping[str, np.ndarray]) -> None:
        """Take what came with a shared vector, in a message or a checkpoint, before that vector is loaded.

        A split finer than whole arrays may change with it, and then the layout does. ``LayoutError`` if it does not
        fit.
        """

    def get_shared(self) -> np.ndarray:
        """Copy the shared arrays into one flat float32 vector, shape (layout.size,)."""
        return self.layout.flatten({name: self._arrays[name].detach().cpu().numpy() for name in self.shared})

    @torch.no_grad()
    def set_shared(self, flat: np.ndarray) -> None:
        """Load a flat vector into the shared arrays; another length raises ``LayoutError``."""
        for name, array in self.layout.unflatten(flat).items():
            self._arrays[name].copy_(torch.from_numpy(array))

    def received(self, flat: np.ndarray | None = None) -> Mapping[str, Tensor]:
        """Return copies of the shared arrays as tensors, by name.

        Given the vector from which they were loaded, each copy is made from it when it is first used: most methods
        never do.
        """
        if flat is None:
            return {name: self._arrays[name].detach().clone() for name in self.shared}
        return Received(self.layout, flat, self._arrays)

    def get_personal(self) -> dict[str, np.ndarray]:
        """Copy the personal arrays, by name."""
        return self.copies(self.personal)

    def copies(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Copy whole arrays, by name."""
        return {name: self._arrays[name].detach().cpu().numpy().copy() for name in names}

    @torch.no_grad()
    def set_personal(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load personal arrays; one that is missing or of another shape raises ``StateError``."""
        for name in self.personal:
            target = self._arrays[name]
            target.copy_(torch.from_numpy(stored_array(arrays, name, [tuple(target.shape)])))

    def personal_elements(self) -> dict[str, Tensor]:
        """Return, for each array with anything personal in it, where that is: bool, shape of the array."""
        return {name: torch.ones_like(self._arrays[name], dtype=torch.bool) for name in self.personal}


class Received(Mapping[str, Tensor]):
    """Arrays of a vector, to which nobody writes, as tensors like those of ``like``, made when they are asked for."""

    def __init__(self, layout: Layout, flat: np.ndarray, like: Mapping[str, Tensor]) -> None:
        self._layout, self._flat, self._like = layout, flat, like
        self._made: dict[str, Tensor] = {}

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        return self._layout.unflatten(self._flat)

    def __getitem__(self, name: str) -> Tensor:
        """Return an array's copy, the same each time."""
        if name not in self._made:
            with torch.no_grad():
                self._made[name] = torch.empty_like(self._like[name]).copy_(torch.from_numpy(self._arrays[name]))
        return self._made[name]

    def same_as(self, others: Sequence[Received]) -> bool:
        """Tell whether others are of the same vector, which nobody has copied on the way."""
        return all(other._flat is self._flat and other._like is self._like for other in others)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._arrays)

    def __len__(self) -> int:
        """Return the number of arrays."""
        return len(self._arrays)


class RoundStart(NamedTuple):
    """The arrays with which a client's round begins, and what loads them into the model."""

    shared: Received
    personal: Mapping[str, np.ndarray]
    load: Callable[[], None]


def stored_array(arrays: Mapping[str, np.ndarray], name: str, shapes: Sequence[Shape]) -> np.ndarray:
    """Return a stored array; raise ``StateError`` if it is missing or has none of these shapes."""
    if name not in arrays or tuple(arrays[name].shape) not in shapes:
        stored = tuple(arrays[name].shape) if name in arrays else "nothing"
        raise StateError(f"personal array {name!r}: {stored} was stored, {shapes[-1]} is expected")
    # Not ascontiguousarray, which turns a number into a vector.
    return np.asarray(arrays[name], order="C")


def is_whole(array: Tensor) -> bool:
    """Tell whether an array has whole numbers or booleans."""
    return not (array.is_floating_point() or array.is_complex())


def is_parameter(layout: Layout) -> np.ndarray:
    """Mark the values of a flat vector that are of trained parameters, not of buffers: bool, (layout.size,)."""
    return layout.mask(layout.is_parameter)


def unused_counters(model: nn.Module) -> set[str]:
    """Return the names of BatchNorm's counters that nothing reads; with ``momentum=None`` it does."""
    return {
        f"{path}.{UNUSED_BUFFER}".lstrip(".")
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, _NormBase) and module.momentum is not None
    }


def tied(model: nn.Module) -> list[list[str]]:
    """Return the names of each array of a model that has several (tied weights); the first is the one that counts."""
    names: dict[int, list[str]] = {}
    for name, array in model.state_dict(keep_vars=True).items():
        names.setdefault(id(array), []).append(name)
    return [same for same in names.values() if len(same) > 1]


def _arrays(model: nn.Module) -> dict[str, Tensor]:
    # keep_vars gives the tensors themselves rather than detached views, so that writing to them trains no ghost.
    arrays = dict(model.state_dict(keep_vars=True))
    for _, *others in tied(model):
        for name in others:
            del arrays[name]
    return arrays
