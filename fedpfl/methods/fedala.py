"""FedALA: a client learns, value by value, how much of the received model it takes.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI
2023, Algorithm 1.

When a client mixes for the first time, the paper learns W_i until it converges; fedpfl learns it for a fixed number of
epochs. As in the authors' code, a client also mixes before it is tested.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

import torch
from torch import Tensor, nn

from ..core.payload import Payload
from ..layers.memory import Memory, remembered
from ..training.inner_gradients import forward_with
from ..training.penalties import keep_in_unit
from ..training.phase import PLAIN_SGD, Batch, Phase
from .base import LocalRound, Method
from .settings import FedALASettings

OWN, WEIGHTS = "own", "mixing"
FIRST_EPOCHS = 10  # in which W is learned while all its entries are still 1
SAMPLES, RATE = 0.8, 1.0  # share s of the samples, and the learning rate η of W


class FedALA(Method):
    """Start local training from a learned mixture of the received and the own higher layers.

    client i:
        ŵ = w_i + (w − w_i) ⊙ W_i        # in the higher layers; below ŵ = w; at first W_i = 1
        W_i ← clip(W_i − η·∇f_i(ŵ) ⊙ (w − w_i)) to 0 … 1, on a share s of the samples
        train w_i, from ŵ, on f_i
        send w_i
    server: w ← mean(w_i)
    predict: ŵ

    s = 0.8, and η of W_i is 1.
    """

    name = "fedala"
    paper = "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023"
    shares = "everything; the weights W_i of the mixture stay"
    Settings = FedALASettings

    def build(self, model: nn.Module) -> nn.Module:
        """Add the client's own higher layers Θ_i, and W_i = 1."""
        arrays = {name: p for name, p in model.named_parameters() if self.travels(name, model)}
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in arrays))
        mixed = layers[max(0, len(layers) - self.settings.layers) :]
        higher = {name: p for name, p in arrays.items() if name.rpartition(".")[0] in mixed}
        ones = {name.replace(".", "/"): nn.Parameter(torch.ones_like(p)) for name, p in higher.items()}
        model.add_module(OWN, Memory(higher))
        model.add_module(WEIGHTS, nn.ParameterDict(ones))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share all but the client's own layers and its weights."""
        return self.in_mean_model(name)

    def in_mean_model(self, name: str) -> bool:
        """Leave out both, which do not predict."""
        return not name.startswith((OWN + ".", WEIGHTS + "."))

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Mix, then E epochs of everything."""
        return [*self.adaptation(local), Phase(train=self.in_mean_model, epochs=self.training.local_epochs)]

    @torch.no_grad()
    def conclude(self, local: LocalRound) -> Payload:
        """Keep the trained higher layers."""
        trained = dict(local.model.named_parameters())
        for name, kept in remembered(local.model, OWN).items():
            kept.copy_(trained[name])
        local.notes["trained"] = True
        return Payload()

    def adaptation(self, local: LocalRound) -> list[Phase]:
        """Learn W and mix; what has never trained, or has just trained, is used as it is."""
        weights = mixing(local.model)
        if local.never_trained or "trained" in local.notes or not weights:
            return []
        first = all(bool((weight == 1).all()) for weight in weights.values())
        count = max(1, round(SAMPLES * len(local.samples.y)))

        def mixed() -> dict[str, Tensor]:
            pairs = remembered(local.model, OWN).items()
            return {name: kept + (local.start[name] - kept) * weights[name] for name, kept in pairs}

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return self.training.criterion(forward_with(model, mixed(), batch.x), batch.y)

        @contextmanager
        def mixing_at_the_end(model: nn.Module) -> Iterator[None]:
            yield
            with torch.no_grad():
                for name, array in mixed().items():
                    model.get_parameter(name).copy_(array)

        return [
            Phase(
                train=lambda name: name.startswith(WEIGHTS + "."),
                epochs=FIRST_EPOCHS if first else 1,
                data=local.draw(count, "samples that learn to mix"),
                loss=loss, project=keep_in_unit, during=mixing_at_the_end, move_statistics=False,
                learning_rate=RATE, **PLAIN_SGD,
            )
        ]  # fmt: skip


def mixing(model: nn.Module) -> dict[str, Tensor]:
    """Return W, by the names of the arrays that it mixes."""
    return {name.replace("/", "."): weight for name, weight in model.get_submodule(WEIGHTS).named_parameters()}
