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

from math import prod
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import ConfigError, NoPlainModel
from ..rules.mean import Mean
from ..training.inner_gradients import forward_with
from ..training.phase import Batch, Forward, Group, Phase
from .base import Aggregation, LocalRound, Method, everything
from .settings import PFedGateSettings


class GatedBlock(NamedTuple):
    """A run of a parameter's values; linear layers have a budget, and a parameter's first block is always kept."""

    name: str
    size: int
    linear: bool
    first: bool


def blocks_of(model: nn.Module, per_parameter: int) -> list[GatedBlock]:
    """Cut every parameter of a model into at most ``per_parameter`` runs of equal size; the last may be shorter."""
    linear = {f"{name}." for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    blocks = []
    for name, param in model.named_parameters():
        size = -(-param.numel() // per_parameter)
        in_linear = name.rpartition(".")[0] + "." in linear
        for start in range(0, param.numel(), size):
            blocks.append(GatedBlock(name, min(size, param.numel() - start), in_linear, start == 0))
    return blocks


class SwitchableNorm(nn.BatchNorm1d):
    """Normalises by a learned mixture of the moments over a sample's channel, over the sample and over the batch.

    Luo, Ren, Peng, Zhang, Li: Differentiable Learning-to-Normalize via Switchable Normalization, ICLR 2019. Means and
    variances have a mixture each, which start even; scale and shift of each channel follow. In evaluation the batch's
    moments are running ones, as those of BatchNorm, as which the training loop treats it. Where a sample's only axis
    are the channels, its channel is one number and has no moments: the mixture is of the other two.
    """

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__(input_shape[0])
        kinds = 3 if len(input_shape) > 1 else 2
        self.mix_means = nn.Parameter(torch.ones(kinds))
        self.mix_variances = nn.Parameter(torch.ones(kinds))

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs (n, channels, …) to normalised ones of the same shape."""
        flat = x.reshape(len(x), self.num_features, -1)
        # First and second moments, each of shape (n, channels), (n, 1) and (channels,).
        first, second = flat.mean(2), flat.square().mean(2)
        sample = first.mean(1, keepdim=True)
        means, variances = [sample], [second.mean(1, keepdim=True) - sample.square()]
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        if self.training:
            means.append(first.mean(0))
            variances.append(second.mean(0) - means[-1].square())
            with torch.no_grad():
                self.running_mean.lerp_(means[-1], self.momentum)
                self.running_var.lerp_(variances[-1], self.momentum)
        else:
            means.append(self.running_mean)
            variances.append(self.running_var)
        if len(self.mix_means) == 3:
            means.append(first)
            variances.append(second - first.square())
        mean, variance = _mixture(self.mix_means, means), _mixture(self.mix_variances, variances)
        factor = self.weight / torch.sqrt(variance + self.eps)
        normal: Tensor = (flat - mean.unsqueeze(2)) * factor.unsqueeze(2) + self.bias.unsqueeze(1)
        return normal.reshape(x.shape)


def _mixture(logits: Tensor, moments: Sequence[Tensor]) -> Tensor:
    parts: list[Tensor] = [share * moment for share, moment in zip(logits.softmax(0), moments)]
    mixed = parts[0]
    for more in parts[1:]:
        mixed = mixed + more
    return mixed


class Gate(nn.Module):
    """Maps a batch to one value in (0, 1) for every block: normalise, flatten, linear, BatchNorm, sigmoid, batch mean.

    ``share`` of the values, of linear and of other layers apart, are used. Every gate is 0.5 at first for an input in
    the middle of a batch; a block's weights are multiplied by ``factor`` times its gate.
    """

    def __init__(
        self, input_shape: tuple[int, ...], blocks: list[GatedBlock], share: float, factor: float = 1.0
    ) -> None:
        super().__init__()
        self.share, self.factor = share, factor
        self._sizes = np.array([block.size for block in blocks])
        self._first = np.array([block.first for block in blocks])
        self._groups = [np.array([block.linear is linear for block in blocks]) for linear in (True, False)]
        self._sizes_in: dict[str, list[int]] = {}
        for block in blocks:
            self._sizes_in.setdefault(block.name, []).append(block.size)
        self.normalise = SwitchableNorm(input_shape)
        self.linear = nn.Linear(prod(input_shape), len(blocks))
        self.norm = nn.BatchNorm1d(len(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs (n, …) to gate values, shape (blocks,)."""
        return torch.sigmoid(self.norm(self.linear(self.normalise(x).flatten(1)))).mean(0)

    def kept(self, values: np.ndarray) -> np.ndarray:
        """Mark the blocks that are used (bool): by falling value, in tenths, as long as they fit into the budget.

        Values are rounded as in the authors' code, and of equal ones the first counts. Otherwise a batch's chance
        decides between gates that are nearly equal, as all are at first, and each batch trains other blocks.
        """
        kept, tenths = self._first.copy(), np.around(10 * values)
        for group in self._groups:
            left = self.share * self._sizes[group].sum() - self._sizes[group & self._first].sum()
            for block in sorted(np.flatnonzero(group & ~self._first), key=lambda i: (-tenths[i], i)):
                if self._sizes[block] <= left:
                    kept[block] = True
                    left -= self._sizes[block]
        return kept

    def weights(self, params: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        """Return the parameters as the client uses them for a batch: each block times its factor, or times zero.

        As in the authors' code a block's factor is its gate times its choice, 0 or 1, and both pass the gradient on to
        the gate of a kept block: 1 + gate times what the factor alone would give. A block that is left out passes none.
        """
        values = self(x)
        # NumPy has no bfloat16, which the values are with precision = "bf16"; as doubles they keep their order.
        kept = torch.from_numpy(self.kept(values.detach().cpu().double().numpy())).to(values)
        used = self.factor * values * kept * (1 + values - values.detach())
        out, start = {}, 0
        for name, param in params.items():
            sizes = self._sizes_in[name]
            factors = used[start : start + len(sizes)]
            repeated = torch.repeat_interleave(factors, torch.tensor(sizes, device=x.device))
            out[name] = param * repeated.view(param.shape)
            start += len(sizes)
        return out


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
