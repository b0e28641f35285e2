"""pFedGate's gating layer: which blocks of a model's weights a client uses, and how much, decided from its input."""

from __future__ import annotations

from math import prod
from typing import Mapping, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor, nn


class GatedBlock(NamedTuple):
    """A run of values of one parameter.

    Blocks of linear layers have a separate budget. The first block of a parameter is always kept, so that no layer
    is cut off.
    """

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
