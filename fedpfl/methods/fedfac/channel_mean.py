"""The mean of some channels: FedSplit's rule, where it is given which channels are shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

import numpy as np

from ...core.errors import ConfigError, DamagedFile, words_of
from ...core.payload import Payload
from ...core.rng import generator
from ...core.server_view import Client, Federation
from ...core.sharing import SPLIT
from ...rules.mean import Mean
from .channel_sharing import Channels


class PartialMean(Mean):
    """Base of the rules that average the shared channels of some layers, and everything of the others.

    ``split`` has a 1 for every channel that is shared, layer after layer; it is None as long as there is no split. With
    ``only_shared`` only these channels travel once there is one.
    """

    only_shared = True
    no_server_step = "averages single channels"
    no_robust_mean = ""

    def __init__(self, federation: Federation, shared: np.ndarray, channels: Channels) -> None:
        super().__init__(federation, shared)
        self.channels = channels
        self.split: np.ndarray | None = None

    def attachments(self, client: Client, kind: str) -> Payload:
        """Attach which channels are shared."""
        return Payload() if self.split is None else Payload(arrays={SPLIT: self.split})

    def state(self) -> dict[str, np.ndarray]:
        """Add the split."""
        return super().state() if self.split is None else {**super().state(), SPLIT: self.split}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore it."""
        if SPLIT in state:
            self.channels.require(state[SPLIT])
            self._adopt(state[SPLIT])
        super().load_state(state)

    def apply(self, split: np.ndarray) -> None:
        """Split the vector of all channels."""
        if self.only_shared:
            self.shared = self.shared[self.channels.elements(split)]
        self._adopt(split)

    def _adopt(self, split: np.ndarray) -> None:
        self.split = split
        if self.only_shared:
            self.layout = self.channels.shared_layout(split)


class ChannelMean(PartialMean):
    """The mean of shared channels: ``share`` of each layer's at random, or those with a 1 in a NumPy file."""

    name = "channel-mean"
    only_a_sum = True
    no_robust_mean = ""

    def __init__(self, federation: Federation, shared: np.ndarray, split: str, share: float, **options: Any) -> None:
        super().__init__(federation, shared, **options)
        self.apply(self._random(share) if split == "random" else _read(split, sum(self.channels.counts)))

    def _random(self, share: float) -> np.ndarray:
        rng = generator(self.federation.seed, "split")
        drawn = [rng.permutation(count) < round(share * count) for count in self.channels.counts]
        return np.concatenate(drawn).astype(np.uint8)


def _read(path: str, channels: int) -> np.ndarray:
    from ...data.npy import read_npy  # methods are listed without the data sets

    requirement = f"must be random or a NumPy file with a 0 or 1 for each of the {channels} channels"
    try:
        split = read_npy(Path(path).expanduser())
    except DamagedFile as error:
        raise ConfigError("fedsplit-split", path, f"{requirement} ({error.more})") from error
    except OSError as error:
        raise ConfigError("fedsplit-split", path, f"{requirement} ({words_of(error)})") from error
    if split.shape != (channels,) or not np.isin(split, (0, 1)).all():
        raise ConfigError("fedsplit-split", path, f"{requirement}; it has {split.shape}")
    return split.astype(np.uint8)
