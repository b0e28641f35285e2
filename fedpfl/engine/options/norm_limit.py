"""A limit for the norms of what clients send, known before their replies: ``update-norm-limit``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median, median_low
from typing import TYPE_CHECKING

import numpy as np

from ...core.errors import LayoutError
from ...core.extra_arrays import Extras
from ...core.layout import Layout, rounded
from ...core.metrics import TARGETS
from ...core.payload import Payload
from ...core.server_view import Client
from ...results.round_record import Round
from ...rules import Rule
from ...rules.norms import LARGEST, PARAMETERS, STATISTICS, NormCheck, distance, fresh_norm, length, require_norm
from ...setup.config import Config
from ...setup.options.norm_limit import NormLimitSettings
from ...setup.options.privacy import PrivacySettings
from ..listener import CheckedReply, Listener

if TYPE_CHECKING:
    from torch import Tensor

# So many times the median norm of the last rounds is as usual as the norm of the shared vector itself.
SPREAD = 5.0
ROUNDS = 5
# Root mean squares that are usual of arrays whose unit is not known: in a first round, and after it. Running statistics
# are as large as the data.
FIRST_STATISTIC, FIRST_EXTRA, LATER = 1e9, 1e3, 1.0

STATE = "norms/"
MODELS = "models sent"  # the norms of the models that clients were sent, a name that no extra has


class NormLimit(Listener):
    """Refuses replies with an array whose norm is above factor × what is usual; factor 0 leaves ``LARGEST``.

    Usual is the largest of some norms:

    * for an update of the shared parameters, their difference from what was sent: the norm of what was sent, that of
      freshly drawn weights, and :data:`SPREAD` times the median of the last rounds; with ``targets``, numbers of any
      size that a model's must grow to, in the first round that of its own replies, which wait for it;
    * for an extra that is declared as long as the shared vector, or a change of weights: the same norms, but the median
      of its own;
    * for an update of running statistics: the norm of those that were sent and a root mean square together, and the
      median;
    * for any other extra: the lower median of the round's replies, which wait for it, times :data:`SPREAD` (of means,
      which clients have alike, not times anything), and the median of the last rounds times :data:`SPREAD`. What an
      untrained model gives says little of the next round's.

    A round of one reply has no median that tells anything: after the first the last rounds alone do. Root mean squares
    are larger in a first round, of which nothing is known. The lower median of each round's accepted norms counts, of
    the last :data:`ROUNDS` rounds the median. Replies may be longer by the norm of clients' noise. A client that is
    sent a model of its own may not have made that long: it counts as the median of those that were sent.
    """

    def __init__(
        self, factor: float, extras: Extras, privacy: PrivacySettings | None, wire_dtype: str, targets: bool = False
    ) -> None:
        self.factor, self.extras, self.privacy, self.wire_dtype = factor, extras, privacy, wire_dtype
        self.targets = targets
        self._medians: dict[str, list[float]] = {}
        self._least: dict[int, float] = {}
        self._measured: dict[int, dict[str, float]] = {}
        self._sent: np.ndarray | None = None

    def round_started(self, rule: Rule, done: Round, clients: Sequence[Client]) -> None:
        """Find where the parameters lie; forget the norms of the round before."""
        self._measured, self._sent = {}, None
        self._look_at(rule.layout)

    def _look_at(self, layout: Layout) -> None:
        """Find where the parameters lie."""
        self._layout = layout
        self._places: dict[str, list[slice]] = {PARAMETERS: [], STATISTICS: []}
        self._variances: dict[str, slice] = {}
        for name, place in layout.slices().items():
            places = self._places[PARAMETERS if layout.is_parameter(name) else STATISTICS]
            if places and places[-1].stop == place.start:
                places[-1] = slice(places[-1].start, place.stop)
            else:
                places.append(place)
            if "running_var" in name:
                self._variances[name] = place
        self._fresh = fresh_norm(layout, layout.is_parameter)

    def receive(self, rule: Rule, client: Client, shared: np.ndarray, reply: Payload) -> np.ndarray:
        """Refuse what is too long, and negative variances."""
        measured = self._check(rule, client)(shared, self._start)
        self._least[client.id] = self._like_weights
        if not rule.one_model:
            measured[MODELS] = self._like_weights
        declared, compared = self.extras.compared(), self._compared()
        for name, array in reply.arrays.items():
            if name not in declared and not self.privacy:
                continue
            measured[name] = distance(array.reshape(-1))
            if name in compared:
                require_norm(name, measured[name], LARGEST, self.factor)
                if self.extras.are_means(name) and array.ndim == 2:
                    # The length of a row: clients have them of as many classes as they have.
                    measured[name] /= math.sqrt(max(1, array.any(1).sum()))
            else:
                like = self.extras.is_like_shared(name)  # gradients, control variates
                least = self._like_weights if like else self._rms(name, FIRST_EXTRA) * array.size**0.5
                require_norm(name, measured[name], self._limit(name, array.size, least), self.factor)
        self._measured[client.id] = measured
        return shared

    def _compared(self) -> list[str]:
        """Return the extras whose size only the others of a round tell."""
        names = self.extras.compared() if self.factor else []
        return [name for name in names if not self.extras.is_like_shared(name)]

    def compares(self, rule: Rule) -> bool:
        """Tell whether there is an array whose size only the others of a round tell."""
        return bool(self._compared()) or self._waits

    @property
    def _waits(self) -> bool:
        """Whether only the other updates of the round tell how far models have to go."""
        return self.targets and self.factor > 0 and PARAMETERS not in self._medians

    def compare(self, replies: Sequence[CheckedReply]) -> Mapping[Client, str]:
        """Refuse what is far larger than the median of the round."""
        refused: dict[Client, str] = {}
        if self._waits:
            norms = {read.client: self._measured[read.client.id].get(PARAMETERS, 0.0) for read in replies}
            usual = SPREAD * median_low(norms.values() or [0.0])
            size = sum(place.stop - place.start for place in self._places[PARAMETERS])
            limits = {client: self._bounded(max(usual, self._least[client.id]), size) for client in norms}
            refused.update(self._longer(PARAMETERS, norms, limits))
        for name in self._compared():
            sizes = {read.client: read.reply.arrays[name].size for read in replies if name in read.reply.arrays}
            norms = {client: self._measured[client.id][name] for client in sizes}
            before = SPREAD * median(self._medians.get(name, [0.0]))
            lowest = median_low([norm for norm in norms.values() if norm] or [0.0])
            usual = max(before, lowest if self.extras.are_means(name) else SPREAD * lowest)
            if before and len(norms) == 1:
                usual = before
            limits = {client: self._bounded(usual, size) for client, size in sizes.items()}
            refused.update(self._longer(name, norms, limits))
        return refused

    def _longer(
        self, name: str, norms: Mapping[Client, float], limits: Mapping[Client, float]
    ) -> Iterator[tuple[Client, str]]:
        """Yield the clients whose array is longer than their limit, and what they are told."""
        for client, norm in norms.items():
            try:
                require_norm(name, norm, limits[client], self.factor)
            except LayoutError as error:
                yield client, str(error)

    def sees_each_reply(self) -> bool:
        """Return False: norms are measured where the vectors are."""
        return False

    def receive_rows(
        self, rule: Rule, clients: Sequence[Client], rows: Sequence[Tensor]
    ) -> Sequence[LayoutError | None]:
        """Refuse what is too long, and negative variances."""
        norms = self._check(rule, clients[0]).of_rows(rows, self._start)
        self._least.update((client.id, self._like_weights) for client in clients)
        self._measured.update(
            (client.id, of_one) for client, of_one in zip(clients, norms, strict=True) if isinstance(of_one, dict)
        )
        return [of_one if isinstance(of_one, LayoutError) else None for of_one in norms]

    def combined(self, rule: Rule, done: Round) -> None:
        """Note the norms of replies that counted, and their medians."""
        done.norms.update((client, self._measured[client].get(PARAMETERS, 0.0)) for client in done.trained)
        accepted: dict[str, list[float]] = {}
        for client in done.trained:
            for name, norm in self._measured[client].items():
                accepted.setdefault(name, []).append(norm)
        for name, norms in accepted.items():
            self._medians[name] = [*self._medians.get(name, []), median_low(norms)][-ROUNDS:]

    def state(self) -> dict[str, np.ndarray]:
        """Return the medians."""
        return {f"{STATE}{name}": np.array(medians) for name, medians in self._medians.items()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore them."""
        medians = {name[len(STATE) :]: array.tolist() for name, array in state.items() if name.startswith(STATE)}
        self._medians = medians

    def _check(self, rule: Rule, client: Client) -> NormCheck:
        """Return the check of the vector of a client, which is the same object for all that get the same arrays."""
        outgoing = rule.outgoing(client)
        if outgoing is not self._sent:
            self._sent = outgoing
            if (layout := rule.layout_of(client)) is not self._layout:
                self._look_at(layout)
            self._start = rounded(outgoing, self.wire_dtype)
            places = {name: where for name, where in self._places.items() if where}
            lengths = {name: length(self._start, where) for name, where in self._places.items()}
            weights = lengths[PARAMETERS]
            if not rule.one_model and MODELS in self._medians:
                weights = min(weights, median(self._medians[MODELS]))
            self._like_weights = max(self._fresh, weights)
            limits = {}
            for name, where in places.items():
                size = sum(place.stop - place.start for place in where)
                statistics = lengths[name] + self._rms(name, FIRST_STATISTIC) * size**0.5
                limits[name] = self._limit(name, size, self._like_weights if name == PARAMETERS else statistics)
            if self._waits:
                limits[PARAMETERS] = LARGEST
            self._vector_check = NormCheck(self.factor, places, self._variances, limits)
        return self._vector_check

    def _rms(self, name: str, first: float) -> float:
        if name not in self._medians:
            return first
        measured = name != STATISTICS and median(self._medians[name]) > 0
        return 0.0 if measured else LATER

    def _limit(self, name: str, size: int, least: float) -> float:
        if not self.factor:
            return LARGEST
        return self._bounded(max(least, SPREAD * median(self._medians.get(name, [0.0]))), size)

    def _bounded(self, usual: float, size: int) -> float:
        return min(LARGEST, self.factor * usual + self._noise(size))

    def _noise(self, size: int) -> float:
        if not self.privacy:
            return 0.0
        # The clipped update, and six deviations more than the mean of the noise's norm.
        return self.privacy.dp_clip_norm + self.privacy.deviation * (math.sqrt(size) + 6)


def limit_of(config: Config, extras: Extras) -> NormLimit:
    """Return the limit that the settings say, for the shared arrays and these others."""
    factor, privacy = config.of(NormLimitSettings).update_norm_limit, config.of(PrivacySettings)
    targets = config.training.labels == TARGETS
    return NormLimit(factor, extras, privacy if privacy.on else None, config.run.wire_dtype, targets)
