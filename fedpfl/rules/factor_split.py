"""FedFac's rule: a factor analysis of the channels that the clients send decides which of them are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING, getLogger
from typing import Any, TypeVar

import numpy as np

from ..core.errors import LayoutError
from ..core.federation import Client, Federation
from ..core.payload import Payload
from .channel_mean import PartialMean
from .factor_analysis import Factors, Moments, eigenvector_shares, number_of_factors, principal_axis, shared_channels

logger = getLogger("flwr")
T = TypeVar("T")


class FactorSplit(PartialMean):
    """Split channels by their communality, then average the shared ones (Wang, Tang, Li: Algorithms 1 and 2).

    Parameters
    ----------
    dynamic : bool
        Whether every round has a factor analysis; otherwise the first one alone, and afterwards only the shared
        channels travel.
    kappas : sequence of float
        κ_l, one for all layers or one for each.
    taus : sequence of float or str
        Likewise τ_l, see :func:`~fedpfl.strategies.factor_analysis.shared_channels`.
    factor : str
        ``principal-axis`` or ``eigenvector``.
    tolerance : float
        See :func:`~fedpfl.rules.factor_analysis.principal_axis`.
    max_iterations : int
        As above.
    update : str
        ``weights``, or ``difference``: what the array of that name in a reply has.
    """

    name = "factor-split"
    no_robust_mean = ""

    def __init__(
        self,
        federation: Federation,
        shared: np.ndarray,
        dynamic: bool,
        kappas: Sequence[float],
        taus: Sequence[float | str],
        factor: str,
        tolerance: float,
        max_iterations: int,
        update: str,
        **options: Any,
    ) -> None:
        super().__init__(federation, shared, **options)
        self.only_shared = not dynamic
        self.kappas, self.taus = self._each(kappas), self._each(taus)
        self.factor, self.tolerance, self.max_iterations = factor, tolerance, max_iterations
        self.update = update

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
        """Average; then split anew, if that is due."""
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
        return principal_axis(correlation, count, self.tolerance, self.max_iterations)

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
                logger.log(WARNING, "round 1: the factor analysis stopped at %d iterations", self.max_iterations)
        self.keep("split", split)
        self.keep("communalities", np.concatenate([f.communalities for f in found]))

    def _each(self, values: Sequence[T]) -> list[T]:
        layers = len(self.channels.layers)
        return list(values) * layers if len(values) == 1 else list(values)
