"""FedAvg by fluke: one process, with as many threads as ``OMP_NUM_THREADS`` says.

Tests count correct predictions of the global model on each client's test samples; fluke's own evaluator computes seven
metrics, each of which takes longer than the model.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.evaluation import Evaluator
from fluke.server import Server
from fluke.utils import FederationObserver
from torch import Tensor, nn
from work import Samples, batches, model, read, say


class Loss(nn.CrossEntropyLoss):
    """The loss, which counts how often it is asked for: once a step."""

    steps = 0

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        Loss.steps += 1
        return super().forward(logits, labels)

    def __deepcopy__(self, memo: Any) -> Loss:
        """Return itself: it has no state."""
        return self


class AllClients(Evaluator):
    """Tests the global model on every client's test samples."""

    def __init__(self, clients: list[Samples]) -> None:
        super().__init__()
        self._clients = clients
        self.seconds = self.accuracy = 0.0

    @torch.no_grad()
    def evaluate(self, round: int, model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Count the correct predictions."""
        begun = time.perf_counter()
        device = next(model.parameters()).device
        model.eval().to(self._clients[0][0].device)  # the server's rests on the CPU
        correct, loss_sum = 0, 0.0
        for samples in self._clients:
            for x, y in batches(samples):
                logits = model(x)
                correct += int((logits.argmax(1) == y).sum())
                loss_sum += float(nn.functional.cross_entropy(logits, y, reduction="sum"))
        model.to(device)
        self.accuracy = correct / sum(len(y) for _, y in self._clients)
        self.seconds = time.perf_counter() - begun
        return {"accuracy": self.accuracy}


class Rounds(FederationObserver):
    """Takes the times."""

    def __init__(self, tests: AllClients) -> None:
        self._tests, self._begun = tests, 0.0

    def start_round(self, round: int, global_model: Any) -> None:
        """Begin."""
        self._begun, Loss.steps = time.perf_counter(), 0

    def end_round(self, round: int) -> None:
        """Tell of the round."""
        whole = time.perf_counter() - self._begun
        say(whole - self._tests.seconds, self._tests.seconds, Loss.steps, self._tests.accuracy)


def main() -> None:
    """Run."""
    work = read(Path(sys.argv[1]))
    settings = work.settings
    env = FlukeENV()
    env.set_seed(settings["seed"])
    env.set_device(settings.get("device", "cpu"))
    device = torch.device(settings.get("device", "cpu"))
    tests = AllClients([(x.to(device), y.to(device)) for x, y in work.test])
    env.set_evaluator(tests)
    env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)
    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=settings["learning-rate"], momentum=0.0))
    clients = [
        Client(
            index=index,
            train_set=FastDataLoader(
                *samples, num_labels=10, batch_size=settings["batch-size"], shuffle=True, skip_singleton=False
            ),
            test_set=None, optimizer_cfg=optimizer, loss_fn=Loss(), local_epochs=settings["epochs"],
        )
        for index, samples in enumerate(work.train)
    ]  # fmt: skip
    some = work.test[0]
    server = Server(model(settings["model"]), FastDataLoader(*some, num_labels=10), clients, weighted=True)
    algorithm = CentralizedFL(len(clients), None, DDict(), clients=clients, server=server)
    algorithm.set_callbacks(Rounds(tests))
    algorithm.run(settings["rounds"], settings["chosen"] / len(clients), finalize=False)


if __name__ == "__main__":
    main()
