"""A sharing that is finer than whole arrays: which output channels of some layers are shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ...core.errors import LayoutError
from ...core.layout import Layout
from ...core.sharing import PART, SPLIT, Sharing, stored_array


@dataclass(frozen=True)
class Channels:
    """The output channels of some layers and where their arrays lie in the flat vector of all that can travel.

    ``layers`` has for each layer the names of the arrays whose first axis are its channels, the weight first.
    """

    layout: Layout
    layers: tuple[tuple[str, ...], ...]

    @property
    def counts(self) -> list[int]:
        """Number of channels of each layer."""
        shapes = dict(self.layout.entries)
        return [shapes[names[0]][0] for names in self.layers]

    def rows(self, split: np.ndarray) -> dict[str, np.ndarray]:
        """Mark the shared channels (bool), by the name of each array that is split."""
        masks = np.split(split.astype(bool), np.cumsum(self.counts)[:-1])
        return {name: mask for names, mask in zip(self.layers, masks) for name in names}

    def elements(self, split: np.ndarray) -> np.ndarray:
        """Mark the shared elements of the vector of all that can travel: bool, shape (layout.size,)."""
        out, rows = np.ones(self.layout.size, bool), self.rows(split)
        for (name, shape), place in zip(self.layout.entries, self.layout.slices().values()):
            if name in rows:
                out[place] = np.repeat(rows[name], int(np.prod(shape[1:])))
        return out

    def changing(self, split: np.ndarray | None) -> np.ndarray:
        """Mark the channels that clients train apart: bool, shape (layout.size,); without a split all."""
        return ~self.elements(np.zeros(sum(self.counts), np.uint8) if split is None else split)

    def shared_layout(self, split: np.ndarray) -> Layout:
        """Return the layout of the shared channels alone; the name of an array of which a part travels ends in PART."""
        entries, rows = [], self.rows(split)
        for name, shape in self.layout.entries:
            if name not in rows or rows[name].all():
                entries.append((name, shape))
            elif rows[name].any():
                entries.append((f"{name}{PART}", (int(rows[name].sum()), *shape[1:])))
        return Layout(tuple(entries), buffers=self.layout.buffers)

    def weights(self, flat: np.ndarray) -> list[np.ndarray]:
        """Return each layer's weight from a vector of all that can travel: shape (values of a channel, channels)."""
        arrays = self.layout.unflatten(flat)
        return [arrays[names[0]].reshape(len(arrays[names[0]]), -1).T for names in self.layers]

    def require(self, split: np.ndarray) -> None:
        """Raise ``LayoutError`` if an array that arrived does not say the side of each channel."""
        expected = sum(self.counts)
        if split.shape != (expected,) or split.dtype != np.uint8 or split.max(initial=0) > 1:
            arrived = f"a {split.dtype} array of shape {split.shape}"
            raise LayoutError(f"a split arrived as {arrived}, expected a 0 or 1 for each of {expected} channels")


class ChannelSharing(Sharing):
    """A sharing that is finer than whole arrays: some layers are split into their output channels.

    Which channels are shared is the server's decision; it comes alongside the shared vector as the array ``split``.
    Until one has come all channels are shared. ``is_shared`` tells by name which arrays can travel, wholly or in part.

    With ``only_shared`` only the shared channels travel, both ways, once there is a split. Otherwise all channels
    travel, since the server wants to see them, and a client replaces what comes for its personal ones by its own.
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
        has_split = SPLIT in attached
        split = attached[SPLIT] if has_split else np.ones(sum(self.channels.counts), np.uint8)
        self.channels.require(split)
        self._rows = self.channels.rows(split)
        self._final = has_split and self.only_shared
        self._travels = self.channels.elements(split) if self._final else slice(None)
        self.layout = self.channels.shared_layout(split) if self._final else self.channels.layout
        # As long as the split may still change, a client keeps all channels: each of them can become its own.
        divided = {name for name, shared in self._rows.items() if not (self._final and shared.all())}
        self.personal = [name for name in self._arrays if name in divided or name in self._wholly_personal]

    def get_shared(self) -> np.ndarray:
        """Copy what travels into one flat float32 vector, shape (layout.size,)."""
        return self._vector()[self._travels]

    @torch.no_grad()
    def set_shared(self, flat: np.ndarray) -> None:
        """Load a flat vector of what travels; personal channels that are not in it do not change."""
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
            whole, personal_rows = self.copies([name])[name], ~self._rows[name]
            stored = stored_array(arrays, name, [whole.shape, (int(personal_rows.sum()), *whole.shape[1:])])
            whole[personal_rows] = stored[personal_rows] if stored.shape == whole.shape else stored
            complete[name] = whole
        super().set_personal(complete)

    def personal_elements(self) -> dict[str, Tensor]:
        """Mark the personal elements of each array; of arrays that are split the rows of the personal channels."""
        elements = super().personal_elements()
        for name, shared in self._rows.items():
            if name in elements:
                elements[name][torch.from_numpy(shared).to(elements[name].device)] = False
        return elements

    def _vector(self) -> np.ndarray:
        return self.channels.layout.flatten(self.copies(self.channels.layout.names))
