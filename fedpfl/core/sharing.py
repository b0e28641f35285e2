"""Which arrays of a model travel and which stay: an object of its own, so that it can be inspected and tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .errors import LayoutError, StateError
from .frozen import frozen_hash
from .layout import Layout, Shape

# BatchNorm counts its batches in this buffer and, having a momentum, never reads it: it is neither shared nor kept.
UNUSED_BUFFER = "num_batches_tracked"
# BatchNorm's other buffers: averages over samples, which no gradient moves.
RUNNING_STATISTICS = ("running_mean", "running_var")

# The array beside the shared vector that says which channels are shared.
SPLIT = "split"
# Behind the name of an array of which only the shared channels travel.
PART = "[shared]"


class Sharing:
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
        # Frozen arrays are not among a model's arrays, see `frozen`: both sides only compare their hash.
        self.layout = Layout.of([(name, arrays[name].shape) for name in self.shared], sparse, frozen_hash(model))

    @property
    def rule_options(self) -> dict[str, Any]:
        """What an aggregation rule has to know of a split that is finer than whole arrays: its keyword arguments."""
        return {}

    def accept(self, attached: Mapping[str, np.ndarray]) -> None:
        """Take note of what came beside a shared vector, in a message or in a checkpoint, before that is loaded.

        A split that is finer than whole arrays may change with it, and with the split the layout.

        Raises
        ------
        LayoutError
            What came does not fit the model.
        """

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

    def received(self, flat: np.ndarray | None = None) -> Mapping[str, Tensor]:
        """Return copies of the shared arrays as tensors, by name.

        Given the vector from which they were loaded, each copy is made from it when somebody asks for it: most methods
        never do.
        """
        if flat is None:
            return {name: self._arrays[name].detach().clone() for name in self.shared}
        return Received(self.layout.unflatten(flat), self._arrays)

    def get_personal(self) -> dict[str, np.ndarray]:
        """Copy the personal arrays, by name."""
        return self.copies(self.personal)

    def copies(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Copy whole arrays, by name."""
        return {name: self._arrays[name].detach().cpu().numpy().copy() for name in names}

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
            target.copy_(torch.from_numpy(_stored(arrays, name, [tuple(target.shape)])))

    def personal_elements(self) -> dict[str, Tensor]:
        """Return, for each array with anything personal in it, where that is: bool, shape of the array."""
        return {name: torch.ones_like(self._arrays[name], dtype=torch.bool) for name in self.personal}


class Received(Mapping[str, Tensor]):
    """Arrays of a vector as tensors, made when they are asked for.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The arrays; nobody writes to them.
    like : mapping of str to Tensor
        Tensors of whose type, device and memory format the copies are.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], like: Mapping[str, Tensor]) -> None:
        self._arrays, self._like = arrays, like
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        """Return an array's copy, the same each time."""
        if name not in self._made:
            with torch.no_grad():
                self._made[name] = torch.empty_like(self._like[name]).copy_(torch.from_numpy(self._arrays[name]))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._arrays)

    def __len__(self) -> int:
        """Return the number of arrays."""
        return len(self._arrays)


@dataclass(frozen=True)
class Channels:
    """The output channels of some layers and where their arrays lie in the flat vector of all that can travel.

    Attributes
    ----------
    layout : Layout
        Of everything that travels while all channels do.
    layers : tuple of tuple of str
        For each layer the names of the arrays whose first axis are its channels, the weight first.
    """

    layout: Layout
    layers: tuple[tuple[str, ...], ...]

    @property
    def counts(self) -> list[int]:
        """Number of channels of each layer."""
        shapes = dict(self.layout.entries)
        return [shapes[names[0]][0] for names in self.layers]

    def of_layers(self, values: np.ndarray) -> list[np.ndarray]:
        """Cut one value for each channel, shape (sum of counts,), into the layers."""
        return np.split(values, np.cumsum(self.counts)[:-1])

    def rows(self, split: np.ndarray) -> dict[str, np.ndarray]:
        """Return which channels are shared (bool), by the name of each array that is split."""
        masks = [mask.astype(bool) for mask in self.of_layers(split)]
        return {name: mask for names, mask in zip(self.layers, masks) for name in names}

    def elements(self, split: np.ndarray) -> np.ndarray:
        """Return which elements of the vector of all that can travel are shared: bool, shape (layout.size,)."""
        out, rows = np.ones(self.layout.size, bool), self.rows(split)
        for (name, shape), place in zip(self.layout.entries, self.layout.slices().values()):
            if name in rows:
                out[place] = np.repeat(rows[name], int(np.prod(shape[1:])))
        return out

    def shared_layout(self, split: np.ndarray) -> Layout:
        """Return the layout of the shared channels alone; an array of which only a part is left says so in its name."""
        entries, rows = [], self.rows(split)
        for name, shape in self.layout.entries:
            if name not in rows or rows[name].all():
                entries.append((name, shape))
            elif rows[name].any():
                entries.append((f"{name}{PART}", (int(rows[name].sum()), *shape[1:])))
        return Layout(tuple(entries))

    def weights(self, flat: np.ndarray) -> list[np.ndarray]:
        """Return each layer's weight from a vector of all that can travel: shape (values of a channel, channels)."""
        arrays = self.layout.unflatten(flat)
        return [arrays[names[0]].reshape(len(arrays[names[0]]), -1).T for names in self.layers]

    def require(self, split: np.ndarray) -> None:
        """Raise ``LayoutError`` if an array that arrived does not say the side of each channel."""
        expected = sum(self.counts)
        if split.shape != (expected,) or split.dtype != np.uint8 or split.max(initial=0) > 1:
            found = f"a {split.dtype} array of shape {split.shape}"
            raise LayoutError(f"a split arrived as {found}, expected a 0 or 1 for each of {expected} channels")


class ChannelSharing(Sharing):
    """A sharing that is finer than whole arrays: some layers are split into their output channels.

    Which channels are shared is the server's decision; it comes beside the shared vector as the array ``split``. Until
    one has come all channels are shared.

    Parameters
    ----------
    model : nn.Module
        The model.
    is_shared : callable, str → bool
        Says by name which arrays can travel, wholly or in part; the others are wholly personal.
    layers : sequence of sequence of str
        For each layer that is split the names of the arrays whose first axis are its channels, the weight first.
    only_shared : bool
        Whether only the shared channels travel, both ways, once there is a split. Otherwise all channels travel, since
        the server wants to see them, and a client replaces what comes for its personal ones by its own.
    """

    def __init__(
        self, model: nn.Module, is_shared: Callable[[str], bool], layers: Sequence[Sequence[str]], only_shared: bool
    ) -> None:
        super().__init__(model, is_shared)
        for name in (name for names in layers for name in names if name not in self._arrays):
            raise LayoutError(f"{name} is a parameter of another layer, too (tied weights), and cannot be split")
        self.channels = Channels(self.layout, tuple(tuple(names) for names in layers))
        self.only_shared = only_shared
        self._wholly_personal = self.personal
        self.accept({})

    @property
    def rule_options(self) -> dict[str, Any]:
        """The rule needs to know where the channels lie."""
        return {"channels": self.channels}

    def accept(self, attached: Mapping[str, np.ndarray]) -> None:
        """Take over the split that came with a message; without one all channels are shared, so far."""
        known = SPLIT in attached
        split = attached[SPLIT] if known else np.ones(sum(self.channels.counts), np.uint8)
        self.channels.require(split)
        self._rows = self.channels.rows(split)
        self._final = known and self.only_shared
        self._travels = self.channels.elements(split) if self._final else slice(None)
        self.layout = self.channels.shared_layout(split) if self._final else self.channels.layout
        # As long as the split may still change, a client keeps all channels: each of them can become its own.
        kept = {name for name, shared in self._rows.items() if not (self._final and shared.all())}
        self.personal = [name for name in self._arrays if name in kept or name in self._wholly_personal]

    def get_shared(self) -> np.ndarray:
        """Copy what travels into one flat float32 vector, shape (layout.size,)."""
        return self._vector()[self._travels]

    @torch.no_grad()
    def set_shared(self, flat: np.ndarray) -> None:
        """Load a flat vector of what travels; personal channels that are not in it stand still."""
        self.layout.unflatten(flat)
        vector = self._vector()
        vector[self._travels] = flat
        for name, array in self.channels.layout.unflatten(vector).items():
            self._arrays[name].copy_(torch.from_numpy(array))

    def received(self, flat: np.ndarray | None = None) -> Mapping[str, Tensor]:
        """Return copies of the arrays as they are loaded, with the client's own channels."""
        return super().received()

    def get_personal(self) -> dict[str, np.ndarray]:
        """Copy the personal arrays; of those that are split the personal channels, or all while that can change."""
        arrays = super().get_personal()
        if self._final:
            arrays.update({name: array[~self._rows[name]] for name, array in arrays.items() if name in self._rows})
        return arrays

    def set_personal(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load personal arrays; of arrays that are split only the personal channels are touched."""
        complete = dict(arrays)
        for name in self._rows.keys() & set(self.personal):
            whole, own = self.copies([name])[name], ~self._rows[name]
            stored = _stored(arrays, name, [whole.shape, (int(own.sum()), *whole.shape[1:])])
            whole[own] = stored[own] if stored.shape == whole.shape else stored
            complete[name] = whole
        super().set_personal(complete)

    def personal_elements(self) -> dict[str, Tensor]:
        """Return where each array is personal; of arrays that are split in the rows of the personal channels."""
        elements = super().personal_elements()
        for name, shared in self._rows.items():
            if name in elements:
                elements[name][torch.from_numpy(shared).to(elements[name].device)] = False
        return elements

    def _vector(self) -> np.ndarray:
        return self.channels.layout.flatten(self.copies(self.channels.layout.names))


def _stored(arrays: Mapping[str, np.ndarray], name: str, shapes: Sequence[Shape]) -> np.ndarray:
    if name not in arrays or tuple(arrays[name].shape) not in shapes:
        found = tuple(arrays[name].shape) if name in arrays else "nothing"
        raise StateError(f"personal array {name!r}: {found} was stored, {shapes[-1]} is expected")
    # Not ascontiguousarray, which makes a vector of a number.
    return np.asarray(arrays[name], order="C")


def is_parameter(layout: Layout) -> np.ndarray:
    """Return which values of a flat vector are trained parameters, not running statistics: bool, (layout.size,)."""
    return layout.mask(lambda name: not is_running_statistic(name))


def is_running_statistic(name: str) -> bool:
    """Return whether an array of a layout is BatchNorm's running mean or variance, or a part of one."""
    return name.split(PART)[0].endswith(RUNNING_STATISTICS)


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
