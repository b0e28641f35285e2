"""FedAvg by apple/pfl-research, as its documentation has it: one of its processes, with one thread.

``peers.py`` starts as many as there are cores, with the environment that pfl reads (``PFL_WORKER_RANK``, …). Weights
are by samples. All clients are tested after each round through the same backend that trains them. pfl does not shuffle
a client's samples, and so has less to do than the others.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.algorithm_utils import run_train_eval
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from work import model, read, say


class Net(nn.Module):
    """The model with what pfl asks of one."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.steps = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        self.steps += 1
        self.train()
        return nn.functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Test a batch."""
        self.eval()
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y, reduction="sum")
        return {
            "loss": Weighted(float(loss), len(y)),
            "accuracy": Weighted(int((logits.argmax(1) == y).sum()), len(y)),
        }


class Rounds(TrainingProcessCallback):
    """Tests all clients after each round and takes the times."""

    def __init__(self, backend: SimulatedBackend, algorithm: Any, context: CentralContext, net: Net) -> None:
        self._backend, self._algorithm, self._context, self._net = backend, algorithm, context, net
        self._begun = 0.0

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Begin."""
        self._begun = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Take the time of the training, then test."""
        trained = time.perf_counter()
        [(_, metrics)] = run_train_eval(self._algorithm, self._backend, model, (self._context,))
        tested = time.perf_counter()
        steps = torch.tensor([self._net.steps])
        pytorch_ops.distributed.all_reduce([steps])
        self._net.steps = 0
        if pytorch_ops.distributed.global_rank == 0:
            accuracy = next(value for key, value in metrics.to_simple_dict().items() if "accuracy" in key.lower())
            say(trained - self._begun, tested - trained, int(steps), accuracy)
        self._begun = time.perf_counter()
        return False, Metrics()


def main() -> None:
    """Run."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    work = read(Path(sys.argv[1]))
    settings = work.settings
    # Samples lie on the device that pfl takes, as in its own benchmarks: it moves none.
    device = pytorch_ops.get_default_device()
    sets = [[PyTorchTensorDataset((x.to(device), y.to(device))) for x, y in part] for part in (work.train, work.test)]
    training, tests = (
        FederatedDataset(part.__getitem__, get_user_sampler("minimize_reuse", list(range(len(part))))) for part in sets
    )
    net = Net(model(settings["model"]))
    backend = SimulatedBackend(training_data=training, val_data=tests, postprocessors=[WeightByDatapoints()])
    algorithm = FederatedAveraging()
    train_params = NNTrainHyperParams(
        local_batch_size=settings["batch-size"],
        local_num_epochs=settings["epochs"],
        local_learning_rate=settings["learning-rate"],
    )
    eval_params = NNEvalHyperParams(local_batch_size=200)
    params = NNAlgorithmParams(
        central_num_iterations=settings["rounds"],
        # Tests within a round would test training samples, too, before and after: see Rounds.
        evaluation_frequency=10**9,
        train_cohort_size=settings["chosen"],
        val_cohort_size=None,
    )
    context = CentralContext(
        current_central_iteration=0, do_evaluation=True, cohort_size=len(work.test), population=Population.VAL,
        algorithm_params=params, model_train_params=train_params, model_eval_params=eval_params, seed=1,
    )  # fmt: skip
    algorithm.run(
        params, backend,
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0)),
        model_train_params=train_params, model_eval_params=eval_params,
        callbacks=[Rounds(backend, algorithm, context, net)], send_metrics_to_platform=False,
    )  # fmt: skip
    # pfl leaves its process group open; a thread of gloo's that still runs at the end aborts the process.
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
