"""FedFac's rule: a factor analysis of the channels that the clients send decides which of them are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING, getLogger
from typing import Any, TypeVar

import numpy as np

from ...core.errors import LayoutError
from ...core.layout import rounded
from ...core.payload import Payload
from ...core.rng import generator
from ...core.server_view import Client, Federation
from ...core.sharing import is_parameter
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
    channels travel. κ_l and τ_l are one for all layers or one for each.

    Algorithm 2 has W^s ← W^s + mean(ΔW_k) for the channels that the new split shares; W^s of others stays. Clients
    start from W^s in the channels that were shared, whose mean of weights is the same. Of the others they started from
    values of their own: with ``turned = "difference"`` the mean of what training changed there is added to W^s.
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
        turned: str,
        **options: Any,
    ) -> None:
        super().__init__(federation, shared, **options)
        self.only_shared = not dynamic
        self.kappas, self.taus = self._each(kappas), self._each(taus)
        self.factor, self.turned = factor, turned

    @property
    def due(self) -> bool:
        """Tell whether this round ends with a factor analysis."""
        return not self.only_shared or self.split is None

    def begin(self) -> None:
        """Start the sums of the mean, of the changes and of the correlations."""
        super().begin()
        self._moments = [Moments(count) for count in self.channels.counts] if self.due else []
        self._changing = self.channels.changing(self.split)
        self._sent = rounded(self.shared, self.federation.wire_dtype)
        self._changes = self.averaging(int(self._changing.sum())) if self.reads_changes else None

    @property
    def reads_changes(self) -> bool:
        """Tell whether this round needs what training changed in the channels that clients train apart."""
        return self.due and self.turned == "difference" and self.split is not None

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Require what training changed, where that is read."""
        size = int(self._changing.sum())
        if self.reads_changes and size and reply.arrays.get("difference", np.zeros(0)).shape != (size,):
            raise LayoutError(f"a reply without the array 'difference' of {size} values arrived")

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add to the mean, to that of the changes and, channel by channel, to the correlations."""
        super().add(client, shared, reply)
        if self._changes is not None and self._changing.any():
            self._changes.add(reply.arrays["difference"], self.weight(client, reply))
        if self.due:
            for moments, block in zip(self._moments, self.channels.weights(shared)):
                moments.add(block)

    def finish(self) -> None:
        """Average; then split again, if that is due, and change what turns."""
        super().finish()
        if not self.due:
            return
        factors = [self._analyse(place) for place in range(len(self._moments))]
        sides = [shared_channels(f.communalities, tau) for f, tau in zip(factors, self.taus)]
        split = np.concatenate(sides).astype(np.uint8)
        self._report(split, factors)
        if self.turned == "difference" and self.split is not None:
            self._turn(split)
        self.apply(split)

    def _turn(self, split: np.ndarray) -> None:
        """Keep W^s of channels that are personal now; add the mean change to that of channels that were.

        Running statistics take the mean of the clients': a variance plus a change could be negative.
        """
        values = is_parameter(self.layout)
        change = np.zeros(self.layout.size)
        if self._changes is not None and self._changing.any():
            change[self._changing] = self._changes.value()
        turns = values & self.channels.elements(split) & self.channels.changing(self.split)
        stays = values & self.channels.changing(split)
        self.shared = np.where(stays, self._sent, np.where(turns, self._sent + change, self.shared)).astype(np.float32)

    def _analyse(self, layer: int) -> Factors:
        correlation = self._moments[layer].correlation()
        if self.factor == "random":
            drawn = generator(self.federation.seed, "communalities", self.round, layer).random(len(correlation))
            return Factors(drawn, 0)
        count = number_of_factors(correlation, self.kappas[layer])
        if self.factor == "eigenvector":
            return eigenvector_shares(correlation, count)
        return principal_axis(correlation, count)

    def _report(self, split: np.ndarray, factors: Sequence[Factors]) -> None:
        self.note("shared-channels", split.mean())
        if self.split is not None:
            self.note("unchanged-channels", (self.split == split).mean())
        self.note("factors", sum(f.count for f in factors))
        if self.factor == "principal-axis":
            capped = [f for f in factors if not f.converged]
            self.note("factor-iterations", max(f.iterations for f in factors))
            self.note("factor-analyses-cut-short", len(capped))
            if capped and self.round == 1:
                logger.log(WARNING, "round 1: the factor analysis stopped at %d iterations", MAX_ITERATIONS)
        self.keep("split", split)
        self.keep("communalities", np.concatenate([f.communalities for f in factors]))

    def _each(self, values: Sequence[T]) -> list[T]:
        layers = len(self.channels.layers)
        return list(values) * layers if len(values) == 1 else list(values)
