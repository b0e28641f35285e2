"""Which arrays of a model travel and which stay: an object of its own, so that it can be inspected and tested."""

from __future__ import annotations

from typing import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from .errors import StateError
from .wire import Layout

# BatchNorm counts its batches in this buffer and, having a momentum, never reads it: it is neither shared nor kept.
UNUSED_BUFFER = "num_batches_tracked"
# BatchNorm's other buffers: averages over samples, which no gradient moves.
RUNNING_STATISTICS = ("running_mean", "running_var")


class Partition:
    """Splits the arrays of a model (parameters and buffers) into shared and personal ones.

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
    """

    def __init__(
        self,
        model: nn.Module,
        is_shared: Callable[[str], bool],
        sparse_from: Callable[[str], float | None] = lambda name: None,
    ) -> None:
        arrays = {name: tensor for name, tensor in _arrays(model).items() if not name.endswith(UNUSED_BUFFER)}
        self._arrays = arrays
        self.shared: list[str] = [name for name in arrays if is_shared(name)]
        self.personal: list[str] = [name for name in arrays if name not in set(self.shared)]
        sparse = {name: least for name in self.shared for least in [sparse_from(name)] if least is not None}
        self.layout = Layout.of([(name, arrays[name].shape) for name in self.shared], sparse)

    def get_shared(self) -> np.ndarray:
        """Copy the shared arrays into one flat float32 vector, shape (layout.size,)."""
        return self.layout.flatten({name: self._arrays[name].detach().cpu().numpy() for name in self.shared})

    @torch.no_grad()
    def set_shared(self, flat: np.ndarray) -> None:
        """Load a flat vector into the shared arrays.

        Raises
        ------
        LayoutError
            The vector has another length.
        """
        for name, array in self.layout.unflatten(flat).items():
            self._arrays[name].copy_(torch.from_numpy(array))

    def received(self) -> dict[str, Tensor]:
        """Return copies of the shared arrays as tensors, by name."""
        return {name: self._arrays[name].detach().clone() for name in self.shared}

    def get_personal(self) -> dict[str, np.ndarray]:
        """Copy the personal arrays, by name."""
        return {name: self._arrays[name].detach().cpu().numpy().copy() for name in self.personal}

    @torch.no_grad()
    def set_personal(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load personal arrays.

        Raises
        ------
        StateError
            A name is missing or an array has another shape.
        """
        for name in self.personal:
            target = self._arrays[name]
            if name not in arrays or tuple(arrays[name].shape) != tuple(target.shape):
                found = tuple(arrays[name].shape) if name in arrays else "nothing"
                raise StateError(f"personal array {name!r}: {found} was stored, {tuple(target.shape)} is expected")
            target.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))


def is_parameter(layout: Layout) -> np.ndarray:
    """Return which values of a flat vector are trained parameters, not running statistics: bool, (layout.size,)."""
    found = np.ones(layout.size, bool)
    for name, place in layout.slices().items():
        found[place] = not name.endswith(RUNNING_STATISTICS)
    return found


def _arrays(model: nn.Module) -> dict[str, Tensor]:
    # keep_vars gives the tensors themselves rather than detached views, so that writing to them trains no ghost.
    return dict(model.state_dict(keep_vars=True))
