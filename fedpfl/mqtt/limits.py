"""Limits on what others may take of this process: bytes, places, lines of the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from .watch import printable

MAX_SENDERS = 1024


class Budget:
    """A number of bytes, or of places, that accounts share.

    An account may hold at most as much as is still free: one account alone gets half, and several together always leave
    something to the others.
    """

    def __init__(self, total: int, each: int | None = None, overdraft: bool = False) -> None:
        self._free = total
        self._each = total if each is None else each
        self._overdraft = overdraft
        self._held: Counter[str] = Counter()
        self._waiting: dict[Claim, None] = {}
        self._favoured: Claim | None = None
        self._changed = threading.Condition()

    @property
    def held(self) -> int:
        """What all accounts hold together."""
        with self._changed:
            return self._held.total()

    def claim(self, account: str) -> Claim:
        """Return a claim of an account that holds nothing yet."""
        return Claim(self, account)

    def take(self, claim: Claim, amount: int, until: float | None) -> bool:
        """Serve :meth:`Claim.take`."""
        with self._changed:
            fits = self._fits(claim, amount)
            if not fits and until is not None:
                self._waiting[claim] = None
                seconds = max(0.0, until - time.monotonic())
                fits = self._changed.wait_for(lambda: self._fits(claim, amount), seconds)
                del self._waiting[claim]
                self._changed.notify_all()  # another claim is the first that waits now
            if fits:
                self.add(claim, amount)
            return fits

    def add(self, claim: Claim, amount: int) -> None:
        """Serve :meth:`Claim.add`."""
        with self._changed:
            self._free -= amount
            self._held[claim.account] += amount
            claim.amount += amount

    def release(self, claim: Claim) -> None:
        """Serve :meth:`Claim.release`."""
        with self._changed:
            self.add(claim, -claim.amount)
            if not self._held[claim.account]:
                del self._held[claim.account]
            if self._favoured is claim:
                self._favoured = None
            self._changed.notify_all()

    def favours(self, claim: Claim) -> bool:
        """Serve :attr:`Claim.favoured`."""
        return self._favoured is claim

    def _fits(self, claim: Claim, amount: int) -> bool:
        if self._held[claim.account] + amount <= min(self._each, self._free):
            return True
        if self._overdraft and self._favoured is None and next(iter(self._waiting), None) is claim:
            self._favoured = claim
        return claim is self._favoured


class Claim:
    """What one account holds of a budget for one purpose."""

    def __init__(self, budget: Budget, account: str) -> None:
        self._budget = budget
        self.account = account
        self.amount = 0

    @property
    def favoured(self) -> bool:
        """Whether this claim gets what it needs beyond the total."""
        return self._budget.favours(self)

    def take(self, amount: int, until: float | None = None) -> bool:
        """Hold more if there is room; wait for it up to a time of ``time.monotonic``. Return whether there was room."""
        return self._budget.take(self, amount, until)

    def add(self, amount: int) -> None:
        """Hold more, whether there is room or not."""
        self._budget.add(self, amount)

    def release(self) -> None:
        """Give everything back."""
        self._budget.release(self)


class Complaints:
    """Warnings about what others send: at most one line a second about each sender."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._lock = threading.Lock()
        self._last: OrderedDict[str, float] = OrderedDict()

    def __call__(self, sender: str, words: str, *details: object) -> None:
        """Log a warning about a sender, without control characters, unless there was one a moment ago."""
        now, sender = self._clock(), sender[:64]
        with self._lock:
            if now - self._last.get(sender, -1e9) < 1.0:
                return
            self._last[sender] = now
            self._last.move_to_end(sender)
            if len(self._last) > MAX_SENDERS:
                self._last.popitem(last=False)
        self._logger.warning("%s", printable(words % details))
