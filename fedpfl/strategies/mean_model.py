"""The mean of the clients' whole models, for ``evaluate-global``.

FedReG's tables (Section 4.1) test it as the global model of methods that have none: the shared arrays as the rule made
them, the personal ones averaged over the clients of the round. Clients never train with it.
"""

from __future__ import annotations

import numpy as np

from ..core.errors import LayoutError
from ..core.layout import Layout
from ..core.payload import EVALUATION_ONLY, Payload


class MeanModel:
    """Averages personal arrays, weighted by training samples.

    Parameters
    ----------
    layout : Layout
        Layout of the personal arrays.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def begin(self) -> None:
        """Start the sums at zero."""
        self._sum = np.zeros(self.layout.size, np.float64)
        self._samples = 0

    def read(self, reply: Payload) -> np.ndarray:
        """Return a client's personal arrays, shape (layout.size,).

        Raises
        ------
        LayoutError
            The reply has none.
        """
        if EVALUATION_ONLY not in reply.arrays:
            raise LayoutError(f"a reply without the array {EVALUATION_ONLY!r} arrived")
        return reply.arrays[EVALUATION_ONLY]

    def add(self, samples: int, personal: np.ndarray) -> None:
        """Add n_i·w_i."""
        self._sum += samples * personal.astype(np.float64)
        self._samples += samples

    def finish(self) -> None:
        """Make the mean of what was added, ready to be sent."""
        self.sent = {EVALUATION_ONLY: self._sum / max(1, self._samples)}
