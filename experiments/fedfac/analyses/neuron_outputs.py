"""What each neuron before the classifier puts out for each client, and how much it differs between them.

Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized Optimization with Heterogeneous Data, Section 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedpfl.core.errors import ConfigError
from fedpfl.core.settings import setting
from fedpfl.models.parts import cut
from fedpfl.results.new_clients import Simulation
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Spread, Table
from fedpfl.study.analysis.figure import Distributions, Figure, Heatmap
from fedpfl.study.analysis.registry import Result, analysis
from fedpfl.study.analysis.repetitions import grouped
from fedpfl.training.loop import predict


@dataclass(frozen=True)
class NeuronOptions:
    """Options of the analysis ``neuron-outputs``; the paper does not say its k."""

    neighbours: int = setting(
        3, "Number of neighbours k in the k-nearest-neighbour estimate of the entropy.", minimum=1
    )


@analysis(
    "neuron-outputs",
    "Each neuron's output by client, and its entropy over the clients (FedFac, figures 1 and 2)",
    NeuronOptions,
    computes=True,
)
def neuron_outputs(runs: Sequence[RunFolder], options: NeuronOptions) -> Result:
    """Show the mean outputs on each client's training samples, neurons with the largest first, and their entropies.

    The outputs are those of the last layer before the classifier, ahead of its activation, which makes many of them 0
    for several clients. The table counts the neurons of all seeds; the picture of outputs is that of the first.
    """
    rows: list[list[Cell]] = []
    figures: list[Figure] = []
    entropies: dict[str, list[float]] = {}
    for group in grouped(runs):
        every = [outputs_of(run) for run in group.runs]
        outputs, clients = every[0], len(every[0])
        if clients <= options.neighbours:
            raise ConfigError(
                "neighbours", options.neighbours, f"must be below {clients}, the clients of {group.label}"
            )
        order = np.argsort(-outputs.mean(axis=0), kind="stable")
        names = [str(number) for number in order]
        figures.append(
            Heatmap(f"Outputs of {group.label}", "client", "neuron", outputs[:, order].T, names,
                    [str(client) for client in range(clients)])
        )  # fmt: skip
        each = [entropy(neuron, options.neighbours) for of_run in every for neuron in of_run.T]
        numbers = [value for value in each if value is not None]
        rows.append([group.label, len(each), len(each) - len(numbers), Spread.of(numbers) if numbers else None,
                     sum(value > 1 for value in numbers)])  # fmt: skip
        if numbers:
            entropies[group.label] = numbers
    columns = ["run", "neurons", "alike for several clients", "entropy", "entropy above 1"]
    if entropies:
        figures.append(Distributions("Entropy of the neurons' outputs over the clients", "entropy, nats", entropies))
    return Result([Table(f"Outputs of neurons, k = {options.neighbours}", columns, rows)], figures)


def outputs_of(run: RunFolder) -> np.ndarray:
    """Return the mean output of each neuron before the classifier on each client's training samples."""
    stored = Simulation.of(run)
    base = cut(stored.engine.model).base
    layers = [module for module in base.modules() if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d))]
    if not layers:
        raise ConfigError("model", stored.engine.config.run.model, "has no layer with neurons ahead of its head")
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # Channels of a convolution are its neurons; a linear layer may see several positions, too.
        last = isinstance(module, nn.Linear)
        neurons = output.flatten(0, -2) if last else output.movedim(1, -1).flatten(0, -2)
        seen.append(neurons.reshape(len(output), -1, neurons.shape[-1]).mean(1))

    means = []
    with layers[-1].register_forward_hook(keep):
        for client in stored.rule.participants:
            local = stored.load(client.id)
            stored.engine.model.eval()
            seen.clear()
            predict(base, local.samples.x)
            means.append(torch.cat(seen).mean(0).cpu().numpy())
    return np.stack(means)


def entropy(values: np.ndarray, k: int) -> float | None:
    """Return the Kozachenko–Leonenko estimate ψ(n) − ψ(k) + ln 2 + mean(ln ε) of n numbers, in nats.

    ε is a number's distance to the k-th nearest other one. There is no estimate where one of them is 0: k others are
    the same number, as of a neuron that is silent for several clients.
    """
    distances = np.sort(np.abs(values[:, None] - values[None]), axis=1)[:, k].astype(np.float64)
    if not distances.all():
        return None
    psi = torch.digamma(torch.tensor([len(values), k], dtype=torch.float64)).tolist()
    return float(psi[0] - psi[1] + math.log(2) + np.log(distances).mean())
