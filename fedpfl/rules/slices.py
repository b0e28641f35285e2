"""The mean of slices: each value over the clients that have it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..core.layout import Layout
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..core.slices import places
from .rule import Rule


class MeanOfSent(Rule):
    """The plain mean of each value over the clients that sent it (:meth:`add_values`); one that nobody sent stays."""

    no_robust_mean: ClassVar[str] = "averages each value over other clients"

    def begin(self) -> None:
        """Start the sums at zero."""
        self._sums, self._counts = np.zeros(self.layout.size), np.zeros(self.layout.size, np.int64)

    def add_values(self, where: np.ndarray, values: np.ndarray) -> None:
        """Add a client's values; ``where`` has their positions in the shared vector, or marks them."""
        self._sums[where] += values
        self._counts[where] += 1

    def finish(self) -> None:
        """Divide."""
        means = self._sums / np.maximum(self._counts, 1)
        self.shared = np.where(self._counts > 0, means, self.shared).astype(np.float32)

    @property
    def share_sent(self) -> float:
        """The share of the values that a client sent in this round."""
        return float((self._counts > 0).mean())


class MeanOfSlices(MeanOfSent):
    """The plain mean of each value over the clients whose slice has it; one that nobody has stays.

    If clients tell which classes they have (``classes``), only those with a class count in its row of the head.

    Parameters
    ----------
    rolls : bool
        Whether slices begin one channel further in each round; otherwise with the first channel in all.

    Examples
    --------
    Two clients have the first two of three values, and all of them:

    >>> import fedpfl
    >>> import numpy as np
    >>> layout, narrow = fedpfl.Layout.of([("bias", (3,))]), fedpfl.Layout.of([("bias", (2,))])
    >>> clients = tuple(fedpfl.Client(i, train_samples=10, test_samples=5) for i in (0, 1))
    >>> rule = MeanOfSlices(fedpfl.Federation(clients, layout, layouts={0: narrow}), np.zeros(3, np.float32))
    >>> rule.begin_round(1)
    >>> for client, sent in zip(clients, ([1, 2], [3, 4, 5])):
    ...     rule.add(client, np.array(sent, np.float32), fedpfl.Payload())
    >>> rule.finish()
    >>> rule.shared
    array([2., 3., 5.], dtype=float32)
    """

    name = "mean-of-slices"
    takes_slices = True
    remembers = ("moved",)

    def __init__(self, federation: Federation, shared: np.ndarray, rolls: bool = False) -> None:
        super().__init__(federation, shared)
        self.rolls = rolls
        self.moved = np.zeros(1, np.int64)  # the channel with which slices begin
        # By layout, the places of a slice and where it begins; and the slice, with what it was cut from.
        self._places: dict[str, tuple[int, np.ndarray]] = {}
        self._cut: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def begin(self) -> None:
        """Start the sums at zero; move the slices."""
        super().begin()
        self.moved = np.array([self.round - 1 if self.rolls else 0])
        self._cut = {}  # also of the same shared arrays

    def outgoing(self, client: Client) -> np.ndarray:
        """Return the client's slice, the same object for all that have the same one."""
        text = self.layout_of(client).to_text()
        if text == self.layout.to_text():
            return self.shared
        cut_from, vector = self._cut.get(text, (None, self.shared))
        if cut_from is not self.shared:
            vector = self.shared[self._places_of(client)]
            self._cut[text] = self.shared, vector
        return vector

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the values of the client's slice where they lie, without the head's rows of classes that it lacks."""
        where = self._places_of(client)
        if "classes" in reply.arrays:
            counted = rows_of_classes(self.layout_of(client), reply.arrays["classes"] > 0)
            where, shared = where[counted], shared[counted]
        self.add_values(where, shared)

    def finish(self) -> None:
        """Divide."""
        super().finish()
        self.note("trained-share", self.share_sent)

    def _places_of(self, client: Client) -> np.ndarray:
        layout, moved = self.layout_of(client), int(self.moved[0])
        text = layout.to_text()
        if text not in self._places or self._places[text][0] != moved:
            self._places[text] = moved, places(self.layout, layout, moved)
        return self._places[text][1]


def rows_of_classes(layout: Layout, present: np.ndarray) -> np.ndarray:
    """Mark all values but the head's rows of classes that are not ``present``: bool, shape (layout.size,).

    Examples
    --------
    >>> layout = Layout.of([("base.bias", (1,)), ("head.bias", (3,))])
    >>> rows_of_classes(layout, np.array([True, False, True])).tolist()
    [True, True, False, True]
    """
    marked = np.ones(layout.size, bool)
    for name, rows in layout.unflatten(marked).items():
        if name.startswith("head.") and len(rows) == len(present):
            rows[~present] = False
    return marked
