"""FedSplit: the output channels of some layers are split into shared and client-specific ones.

Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized Optimization with Heterogeneous Data, 2023,
Section 3. Here the split is given; FedFac finds it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Sequence, Union, cast

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...core.errors import ConfigError
from ...core.extra_arrays import CLIENT, Extra
from ...core.settings import require_absolute_path
from ...core.sharing import SPLIT, UNUSED_BUFFER, Sharing
from ...layers.replace import require_plain
from ...models.parts import PROJECTION
from ...training.phase import Forward
from ..base import Aggregation, Method
from ..settings import FedSplitSettings
from .channel_mean import ChannelMean
from .channel_sharing import ChannelSharing


class FedSplit(Method):
    """Share some output channels of some layers Λ; the others stay.

    client i:
        train w_i, from w, on f_i
        send w_i but for its client-specific channels of Λ
    server: w ← mean(w_i), for what arrived
    predict: (w, the client's own channels)
    """

    name = "fedsplit"
    paper = (
        "Wang, Tang, Li, Factor-Assisted Federated Learning for Personalized Optimization with Heterogeneous Data, 2023"
    )
    shares = "everything but the client-specific channels of some layers, by a given split"
    refuses = {"trainable": "splits whole layers into channels"}
    Settings: ClassVar[type[Any]] = FedSplitSettings

    @property
    def only_shared_travel(self) -> bool:
        """Tell whether no client-specific channel leaves a client once there is a split."""
        return True

    def check(self) -> None:
        """Refuse a file whose place depends on who looks for it."""
        if self.settings.split != "random":
            require_absolute_path("fedsplit-split", self.settings.split)

    def build(self, model: nn.Module) -> nn.Module:
        """Leave the model as it is; refuse one that lacks a layer of Λ."""
        self.layers(model)
        return model

    def layers(self, model: nn.Module) -> list[str]:
        """Return the names of the layers Λ, in the model's order; refuse a name or number of none of them."""
        hidden = list(hidden_layers(model))
        if not hidden:
            raise ConfigError("method", self.name, "the model has no hidden convolution or linear layer to split")
        if self.settings.layers == "auto":
            return [_required(model, default_layer(model))]
        chosen = set()
        for word in (word.strip() for word in self.settings.layers.split(",")):
            number = int(word) if word.isdecimal() else 0
            name = hidden[number - 1] if 1 <= number <= len(hidden) else word
            if name not in hidden:
                message = f"{word!r} must be a number from 1 to {len(hidden)} or one of {', '.join(hidden)}"
                raise ConfigError("fedfac-layers", self.settings.layers, message)
            chosen.add(_required(model, name))
        return [name for name in hidden if name in chosen]

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Tell whether the array called ``name`` travels, wholly or in part."""
        if not self.settings.share_buffers and name in dict(model.named_buffers()):
            return False
        follows = [array for layer in self.layers(model) for array in _channel_arrays(model, layer)[1:]]
        return self.settings.splits == "channel" or name not in follows

    def sharing(self, model: nn.Module) -> Sharing:
        """Split the layers Λ into their channels; all others are fully shared."""
        arrays = [_channel_arrays(model, layer) for layer in self.layers(model)]
        split = [[name for name in names if self.travels(name, model)] for names in arrays]
        return ChannelSharing(model, lambda name: self.travels(name, model), split, self.only_shared_travel)

    @property
    def extras(self) -> Sequence[Extra]:
        """The split, once there is one."""
        return (Extra(SPLIT, CLIENT, "1 for each channel of Λ that is shared, else 0", self._channels, exact="uint8"),)

    def _channels(self, model: nn.Module) -> tuple[int, ...]:
        return (sum(cast(ChannelSharing, self.sharing(model)).channels.counts),)

    @property
    def aggregation(self) -> Aggregation:
        """W^s ← Σ n_k·W_k^s / Σ n_k (Algorithm 1, with the step size η_g = 1)."""
        return Aggregation(ChannelMean, {"split": self.settings.split, "share": self.settings.shared})

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return none: the shared channels alone make no model."""
        return None


def _required(model: nn.Module, layer: str) -> str:
    """Return the name of a layer; refuse one whose weight is no array of the model."""
    require_plain(model.get_submodule(layer), layer, derived=True)
    return layer


def _channel_arrays(model: nn.Module, layer: str) -> list[str]:
    """Return the names of the arrays that a layer's channels have, the weight first."""
    norm = norm_of(model, layer)
    names = [*arrays_of(model, layer), *(arrays_of(model, norm) if norm else [])]
    return [name for name in names if not name.endswith(UNUSED_BUFFER)]


Layer = Union[nn.Conv1d, nn.Conv2d, nn.Linear]


def numbered_layers(model: nn.Module) -> dict[str, Layer]:
    """Return the convolutions and linear layers by name, in the model's order: the first is layer 1."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Linear)) and PROJECTION not in name.split(".")
    }


def hidden_layers(model: nn.Module) -> dict[str, Layer]:
    """Return :func:`numbered_layers` without the last, whose channels are the classes."""
    layers = numbered_layers(model)
    layers.popitem()
    return layers


def default_layer(model: nn.Module) -> str:
    """Return the name of the last convolution or, in a model without any, of the last hidden linear layer."""
    layers = hidden_layers(model)
    convolutions = [name for name, layer in layers.items() if not isinstance(layer, nn.Linear)]
    return (convolutions or list(layers))[-1]


def norm_of(model: nn.Module, name: str) -> str | None:
    """Return the name of the BatchNorm behind a layer, or None; it is the next module with arrays of its own."""
    modules = {other: module for other, module in model.named_modules() if list(module.parameters(recurse=False))}
    names = list(modules)
    following = names[names.index(name) + 1]  # there is one: the last layer is not hidden
    norm, channels = modules[following], modules[name].weight.shape[0]  # type: ignore[union-attr]
    return following if isinstance(norm, _BatchNorm) and norm.num_features == channels else None


def arrays_of(model: nn.Module, name: str) -> list[str]:
    """Return the names of a module's own arrays, buffers included, that have its channels as first axis."""
    module = model.get_submodule(name)
    arrays = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return [f"{name}.{short}" for short, array in arrays if array is not None and array.dim()]
