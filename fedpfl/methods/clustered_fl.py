"""Clustered federated learning: a cluster splits when its clients' updates point in different directions.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints, IEEE Transactions on Neural Networks and Learning Systems 32(8), 2021, Algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch import nn

from ..core.settings import setting
from ..rules.clusters import Clusters
from ..training.phase import Forward
from .base import Aggregation, Method


@dataclass(frozen=True)
class ClusteredFLSettings:
    """Settings of clustered federated learning; each is the rule's option of the same name."""

    epsilon1: float = setting(0.4, "A cluster may split when the norm of its mean update is below this ε1.", minimum=0)
    epsilon2: float = setting(1.6, "It then splits if a client's update has a norm above this ε2.", minimum=0)
    weights: str = setting(
        "examples",
        "Weights of a cluster's mean: each client's training samples, or all alike.",
        choices=("examples", "uniform"),
    )
    linkage: str = setting(
        "complete",
        "How a cluster is divided: as in the authors' code (complete), or as in the paper's Algorithm 1 (single).",
        choices=("complete", "single"),
    )
    first_split: int = setting(
        21, "First round after which clusters may split: in the authors' code after more than 20 rounds.", minimum=1
    )
    smallest_split: int = setting(3, "Fewest clients of a cluster that may split, as in the authors' code.", minimum=2)


class ClusteredFL(Method):
    """Federated averaging in each cluster; at first all clients are one."""

    name = "clustered-fl"
    paper = (
        "Sattler et al., Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization …, TNNLS 2021"
    )
    shares = "everything, averaged within a cluster"
    equations = (
        r"\Delta_i = w_i - w, \quad s_{ij} = \frac{\langle \Delta_i, \Delta_j \rangle}{\|\Delta_i\| "
        r"\|\Delta_j\|}"
        "\n"
        r"\left\| \sum_i a_i \Delta_i \right\| < \varepsilon_1 \quad \text{and} \quad \max_i \|\Delta_i\| "
        r"> \varepsilon_2 \quad \text{split a cluster}"
    )
    Settings = ClusteredFLSettings

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Say so where no cluster can ever split."""
        name, first, smallest = self.name, self.settings.first_split, self.settings.smallest_split
        if rounds < first:
            why = f"before round {first} ({name}-first-split), and the run has {rounds}"
        elif clients < smallest:
            why = f"of fewer than {smallest} clients ({name}-smallest-split), and the run has {clients}"
        else:
            return []
        return [f"{name}: no cluster splits {why}: all clients stay in one, and it does what fedavg does"]

    @property
    def aggregation(self) -> Aggregation:
        """The mean within each cluster."""
        return Aggregation(Clusters, asdict(self.settings))

    def global_model(self, model: nn.Module) -> Forward | None:
        """Each cluster has its own."""
        return None
