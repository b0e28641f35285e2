"""FedFac's rule: a factor analysis of the channels that the clients send decides which of them are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING, getLogger
from typing import Any, TypeVar

import numpy as np

from ...core.errors import LayoutError
from ...core.payload import Payload
from ...core.server_view import Client, Federation
from .channel_mean import PartialMean
from .factor_analysis import (
    MAX_ITERATIONS,
    Factors,
    Moments,
    eigenvector_shares,
    number_of_factors,
    principal_axis,
    shared_channels,
)

logger = getLogger("flwr")
T = TypeVar("T")


class FactorSplit(PartialMean):
    """Split channels by their communality, then average the shared ones (Wang, Tang, Li: Algorithms 1 and 2).

    With ``dynamic`` every round has a factor analysis; otherwise the first one alone, and afterwards only the shared
    channels travel. κ_l and τ_l are one for all layers or one for each. With ``update = "difference"`` the array of
    that name in a reply is analysed instead of the weights.
    """

    name = "factor-split"
    sees_personal = True
    no_robust_mean = ""

    def __init__(
        self,
        federation: Federation,
        shared: np.ndarray,
        dynamic: bool,
        kappas: Sequence[float],
        taus: Sequence[float | str],
        factor: str,
        update: str,
        **options: Any,
    ) -> None:
        super().__init__(federation, shared, **options)
        self.only_shared = not dynamic
        self.kappas, self.taus = self._each(kappas), self._each(taus)
        self.factor, self.update = factor, update

    @property
    def due(self) -> bool:
        """Whether this round ends with a factor analysis."""
        return not self.only_shared or self.split is None

    def begin(self) -> None:
        """Start the sums of the mean and of the correlations."""
        super().begin()
        self._moments = [Moments(count) for count in self.channels.counts] if self.due else []

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Require the differences where they are analysed."""
        if self.due and self.update == "difference" and "difference" not in reply.arrays:
            raise LayoutError("a reply without the array 'difference' arrived")

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add to the mean and, channel by channel, to the correlations."""
        super().add(client, shared, reply)
        if self.due:
            blocks = self.channels.weights(shared)
            if self.update == "difference":
                ends = np.cumsum([block.size for block in blocks])[:-1]
                pieces = np.split(reply.arrays["difference"], ends)
                blocks = [piece.reshape(block.shape[::-1]).T for piece, block in zip(pieces, blocks)]
            for moments, block in zip(self._moments, blocks):
                moments.add(block)

    def finish(self) -> None:
        """Average; then split again, if that is due."""
        super().finish()
        if not self.due:
            return
        found = [self._analyse(place) for place in range(len(self._moments))]
        sides = [shared_channels(f.communalities, tau) for f, tau in zip(found, self.taus)]
        split = np.concatenate(sides).astype(np.uint8)
        self._report(split, found)
        self.apply(split)

    def _analyse(self, layer: int) -> Factors:
        correlation = self._moments[layer].correlation()
        count = number_of_factors(correlation, self.kappas[layer])
        if self.factor == "eigenvector":
            return eigenvector_shares(correlation, count)
        return principal_axis(correlation, count)

    def _report(self, split: np.ndarray, found: Sequence[Factors]) -> None:
        self.note("shared-channels", split.mean())
        if self.split is not None:
            self.note("unchanged-channels", (self.split == split).mean())
        self.note("factors", sum(f.count for f in found))
        if self.factor == "principal-axis":
            capped = [f for f in found if not f.converged]
            self.note("factor-iterations", max(f.iterations for f in found))
            self.note("factor-analyses-cut-short", len(capped))
            if capped and self.round == 1:
                logger.log(WARNING, "round 1: the factor analysis stopped at %d iterations", MAX_ITERATIONS)
        self.keep("split", split)
        self.keep("communalities", np.concatenate([f.communalities for f in found]))

    def _each(self, values: Sequence[T]) -> list[T]:
        layers = len(self.channels.layers)
        return list(values) * layers if len(values) == 1 else list(values)
