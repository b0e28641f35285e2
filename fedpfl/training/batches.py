"""How the samples of an epoch are cut into batches."""

from __future__ import annotations

# What happens to the samples that do not fill a batch.
LAST_BATCH = ("drop", "keep", "even")


def batch_sizes(samples: int, size: int, last: str) -> list[int]:
    """Return the sizes of an epoch's batches of B of n samples, in order.

    ``drop``: ⌊n / B⌋ batches of B, what is left over takes no part in this epoch; with n < B one batch of n.
    ``keep``: the same, and what is left over is one more batch.
    ``even``: max(1, n / B rounded) batches whose sizes differ by at most one; halves are rounded up.
    """
    if last == "even":
        count = max(1, (2 * samples + size) // (2 * size))
        least, larger = divmod(samples, count)
        return [least + 1] * larger + [least] * (count - larger)
    whole, rest = divmod(samples, size)
    return [size] * whole + [rest] * bool(rest and (last == "keep" or not whole))
