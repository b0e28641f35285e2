"""pFedGate: a personal gate picks, from the input, the blocks of the shared model that a client uses.

Chen, Yao, Gao, Ding, Li: Efficient Personalized Federated Learning via Sparse Model-Adaptation, ICML 2023, Section 4
and Algorithm 1.

As in the authors' code, the gate has a separate learning rate, gradients of gate and model are clipped separately, the
gate's input goes through switchable normalisation, blocks are chosen by gates in tenths, gates start at 0.5, and a
block that is left out passes no gradient to its gate. Here weights are multiplied by 2·g, so that they start unchanged.
The authors' code multiplies them by g (``pfedgate-factor = "gate"``), with which deep models learn very slowly in short
runs. Not validated: no published number has been repeated with this code.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...core.errors import ConfigError, NoPlainModel
from ...rules.mean import Mean
from ...training.inner_gradients import forward_with
from ...training.phase import Batch, Forward, Group, Phase
from ..base import Aggregation, LocalRound, Method, everything
from ..settings import PFedGateSettings
from .gate import Gate, blocks_of

FACTORS = {"gate": 1.0, "double": 2.0}  # of a gate that weights are multiplied by
LEARNING_RATE = 0.1  # of the gate
CLIP_NORM = 10.0  # of the gradients of gate and model, each
BLOCKS = 5  # into which every parameter is divided


class PFedGate(Method):
    """Share a dense model, of which a personal gate uses some blocks.

    client i:
        g ← gate_i(x): a factor for each block of w_i, at most a share s of them not 0
        train w_i, from w, and gate_i on f_i(g ⊙ w_i)
        send w_i
    server: w ← mean(w_i), absent clients counting with w
    predict: gate_i(x) ⊙ w
    """

    name = "pfedgate"
    paper = "Chen et al., Efficient Personalized Federated Learning via Sparse Model-Adaptation, ICML 2023"
    shares = "the dense model; the gate stays"
    Settings = PFedGateSettings
    aggregation = Aggregation(Mean, {"absent": "last"})  # over all clients, the absent ones with the last global model

    def build(self, model: Any) -> Any:
        """Add the gate, which computes with the input."""
        if model.vocabulary:
            raise ConfigError(
                "method", self.name, "its gate computes with the input values, but tokens are only numbers of words"
            )
        blocks, settings = blocks_of(model, BLOCKS), self.settings
        model.gate = Gate(model.input_shape, blocks, settings.share, FACTORS[settings.factor])
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Keep the gate."""
        return not in_gate(name)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train gate and model together."""

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return self.training.criterion(gated(model, batch.x), batch.y)

        groups = [Group(in_gate, LEARNING_RATE, CLIP_NORM), Group(everything, None, CLIP_NORM)]
        return [Phase(train=everything, epochs=self.training.local_epochs, loss=loss, groups=groups)]

    def personalised(self, model: nn.Module) -> Forward:
        """Return the forward pass through the blocks that the gate picks for a batch."""
        return lambda x: gated(model, x)

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Refuse: the weights depend on the input."""
        raise NoPlainModel("pfedgate uses other weights for every batch, so there is no plain model to write")


def in_gate(name: str) -> bool:
    """Tell whether an array belongs to the gate."""
    return name.startswith("gate.")


def gated(model: Any, x: Tensor) -> Tensor:
    """Return the logits for a batch through the weights that the gate makes of the dense ones."""
    dense = {name: param for name, param in model.named_parameters() if not in_gate(name)}
    return forward_with(model, model.gate.weights(dense, x), x)
