"""What the server knows of its clients, and what a rule knows of the run."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Layout
from .rng import generator


@dataclass(frozen=True)
class Client:
    """What the server knows of a client.

    Attributes
    ----------
    id : int
        Client from 0 (its partition id).
    train_samples, test_samples : int
        Sizes of its data.
    absent : bool
        Whether it takes no part in this run: it was not there at the start, or was left out.
    """

    id: int
    train_samples: int
    test_samples: int
    absent: bool = False


@dataclass(frozen=True)
class Federation:
    """What a rule knows before round 1.

    Attributes
    ----------
    clients : tuple of Client
        All clients, by id.
    layout : Layout
        Layout of the shared vector.
    held_out : frozenset of int
        Clients that neither train nor count: those that are kept for tests as new ones, and absent ones.
    seed : int
        The run's.
    wire_dtype : str
        Type in which floats travel; clients start from what is left of an array in it.
    noisy : bool
        Whether differential privacy adds noise to what clients send.
    """

    clients: tuple[Client, ...]
    layout: Layout
    held_out: frozenset[int] = frozenset()
    seed: int = 0
    wire_dtype: str = "float32"
    noisy: bool = False


def new_clients(seed: int, share: float, num_clients: int) -> list[int]:
    """Draw the clients that are held out as new ones: a share of all, but never all; in order."""
    count = min(round(share * num_clients), num_clients - 1)
    return sorted(generator(seed, "new-clients").choice(num_clients, count, replace=False).tolist())
