"""Base of the methods whose clients keep the model that they trained last, before aggregation."""

from __future__ import annotations

from typing import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from ...core.payload import Payload
from ...layers.memory import add_twin, in_twin, refresh_twin, twin
from ...training.loop import predict
from ...training.phase import Forward, Loss, Phase
from ..base import LocalRound, Method, excluding


class HasTwin(Method):
    """A second model beside the shared one, its twin, stays with the client, which is tested with it."""

    def build(self, model: nn.Module) -> nn.Module:
        """Add the twin, which starts as a copy."""
        return add_twin(model)

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share everything but the twin."""
        return not in_twin(name)

    def personalised(self, model: nn.Module) -> Forward:
        """Return the twin."""
        return twin(model)

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the twin under the plain model's names."""
        return dict(twin(model).state_dict())


class KeepsTrained(HasTwin):
    """The client keeps what it trained last as the model's twin; until it has trained, what it receives.

    It is tested with the twin unless a method overrides this.

    Examples
    --------
    Share everything, as FedAvg does, and predict with what the client has trained itself:

    >>> import fedpfl
    >>> class Remembers(fedpfl.KeepsTrained):
    ...     name = "remembers"
    ...
    ...     def schedule(self, local):
    ...         return [fedpfl.Phase(train=fedpfl.excluding(fedpfl.in_twin), epochs=1)]
    >>> run = fedpfl.run(
    ...     method=Remembers, dataset="digits", model="mlp", num_clients=4, num_server_rounds=1, local_epochs=1,
    ...     quiet=True,
    ... )
    >>> run.summary["rounds"]
    1
    """

    def prepare(self, local: LocalRound) -> None:
        """Have a client that has never trained tested with what it received."""
        if local.never_trained:
            refresh_twin(local.model)

    def conclude(self, local: LocalRound) -> Payload:
        """Keep the trained model."""
        refresh_twin(local.model)
        return Payload()


def taught_by_twin(
    local: LocalRound, epochs: int, temperature: float, loss_under: Callable[[Tensor], Loss]
) -> list[Phase]:
    """Return a training whose ``loss_under`` takes the twin's probabilities of all samples; at first without."""
    if local.never_trained:
        return [Phase(train=excluding(in_twin), epochs=epochs)]
    # The teacher does not train: one pass over the data serves all epochs.
    taught = F.softmax(predict(twin(local.model).eval(), local.samples.x) / temperature, dim=1)
    return [Phase(train=excluding(in_twin), epochs=epochs, loss=loss_under(taught))]
