"""The server's view of its clients, and a rule's view of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from .layout import Layout
from .rng import generator


@dataclass(frozen=True)
class Client:
    """A client as the server knows it.

    Examples
    --------
    >>> import fedpfl
    >>> fedpfl.Client(0, train_samples=80, test_samples=20)
    Client(id=0, train_samples=80, test_samples=20, absent=False)
    """

    id: int  # from 0; its partition id
    train_samples: int
    test_samples: int
    absent: bool = False  # takes no part in this run: not there at the start, or left out


@dataclass(frozen=True)
class LastTraining:
    """What the server knows of a client's last training that counted.

    Examples
    --------
    >>> import fedpfl
    >>> fedpfl.LastTraining(round=3, loss=0.7, update_norm=1.5)
    LastTraining(round=3, loss=0.7, update_norm=1.5)
    """

    round: int  # from 1
    loss: float  # mean of its last epoch; NaN where a method reports none
    update_norm: float  # L2 distance of its shared weights from what it was sent; 0 where it shares none


@dataclass(frozen=True)
class Federation:
    """The federation as a rule knows it before round 1.

    Examples
    --------
    >>> import fedpfl
    >>> from torch import nn
    >>> layout = fedpfl.Sharing(nn.Linear(2, 1), lambda name: name == "weight").layout
    >>> federation = fedpfl.Federation((fedpfl.Client(0, train_samples=80, test_samples=20),), layout)
    >>> federation.layout.entries, federation.layout.size
    ((('weight', (1, 2)),), 2)
    """

    clients: tuple[Client, ...]  # by id
    layout: Layout
    # clients that neither train nor count: those for tests as new ones, and absent ones
    held_out: frozenset[int] = frozenset()
    seed: int = 0
    wire_dtype: str = "float32"  # type in which floats travel; clients start from arrays rounded to it
    noisy: bool = False  # whether differential privacy adds noise to what clients send
    # by number, the layouts of clients that have a slice of the shared arrays
    layouts: Mapping[int, Layout] = field(default_factory=dict)


def new_clients(seed: int, share: float, num_clients: int) -> list[int]:
    """Draw the clients that are held out as new ones: a share of all, but never all; in order."""
    count = min(round(share * num_clients), num_clients - 1)
    return sorted(generator(seed, "new-clients").choice(num_clients, count, replace=False).tolist())
