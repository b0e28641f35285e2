"""Limits on what peers may use of this process: bytes, places, lines of the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from .status import printable

MAX_SENDERS = 1024


class Budget:
    """A number of bytes, or of places, that accounts share.

    An account may hold at most as much as is still free: one account alone gets half, and several together always leave
    something to the others.
    """

    def __init__(self, total: int, each: int | None = None, overdraft: bool = False) -> None:
        self.free, self.each, self.overdraft = total, total if each is None else each, overdraft
        self.accounts: Counter[str] = Counter()
        self.waiting: dict[Claim, None] = {}
        self.favoured: Claim | None = None
        self.changed = threading.Condition()

    @property
    def held(self) -> int:
        """What all accounts hold together."""
        with self.changed:
            return self.accounts.total()

    def claim(self, account: str) -> Claim:
        """Return a claim of an account that holds nothing yet."""
        return Claim(self, account)


class Claim:
    """What one account holds of a budget for one purpose."""

    def __init__(self, budget: Budget, account: str) -> None:
        self._budget, self._account, self.amount = budget, account, 0

    @property
    def favoured(self) -> bool:
        """Whether this claim gets what it needs beyond the total."""
        return self._budget.favoured is self

    def take(self, amount: int, until: float | None = None) -> bool:
        """Hold more if there is room; wait for it up to a time of ``time.monotonic``. Return whether there was room."""
        budget = self._budget
        with budget.changed:
            fits = self._fits(amount)
            if not fits and until is not None:
                budget.waiting[self] = None
                fits = budget.changed.wait_for(lambda: self._fits(amount), max(0.0, until - time.monotonic()))
                del budget.waiting[self]
                budget.changed.notify_all()  # another claim is the first that waits now
            if fits:
                self.add(amount)
            return fits

    def add(self, amount: int) -> None:
        """Hold more, whether there is room or not."""
        with self._budget.changed:
            self._budget.free -= amount
            self._budget.accounts[self._account] += amount
            self.amount += amount

    def release(self) -> None:
        """Give everything back."""
        budget = self._budget
        with budget.changed:
            self.add(-self.amount)
            if not budget.accounts[self._account]:
                del budget.accounts[self._account]
            if self.favoured:
                budget.favoured = None
            budget.changed.notify_all()

    def _fits(self, amount: int) -> bool:
        budget = self._budget
        if budget.accounts[self._account] + amount <= min(budget.each, budget.free):
            return True
        if budget.overdraft and budget.favoured is None and next(iter(budget.waiting), None) is self:
            budget.favoured = self
        return self.favoured


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
