"""What the rules have in common that send each client a model of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Client, PersonalisedStrategy


class PerClientStrategy(PersonalisedStrategy):
    """Base of the rules without one global model.

    Attributes
    ----------
    for_clients : ndarray of float32, shape (clients, layout.size)
        What each client gets next, by client id; the initial arrays at first. A rule writes rows of it in ``finish``.
    """

    one_model = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.for_clients = np.tile(self.shared, (len(self.clients), 1))

    def outgoing(self, client: Client) -> np.ndarray:
        """Return the client's row."""
        row: np.ndarray = self.for_clients[client.id]
        return row

    def state(self) -> dict[str, np.ndarray]:
        """Add the clients' models."""
        return {**super().state(), "for_clients": self.for_clients}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Take them back."""
        super().load_state(state)
        self.for_clients = state["for_clients"].copy()  # what safetensors loads is read-only
