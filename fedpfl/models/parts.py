"""The cut of a model into a feature extractor and a classifier."""

from __future__ import annotations

from typing import Callable, NamedTuple

from torch import nn

from fedpfl.core.errors import ConfigError

from .registry import BaseHeadModel, NoHead, called

# The name of a shortcut's convolution, which is not counted: ResNet-18 has 18 layers without them (He et al., 2016).
PROJECTION = "downsample"


class Parts(NamedTuple):
    """A model in two parts that share its layers: ``head(base(x))`` is ``model(x)``."""

    base: nn.Module  # maps inputs to features
    head: nn.Module  # maps features to logits
    in_head: Callable[[str], bool]  # whether a name in the model's state dict belongs to head


def cut(model: nn.Module, head_layers: int = 1, key: str = "head-layers") -> Parts:
    """Cut a model before its last ``head_layers`` (at least 1) linear layers, and what stands between them.

    Children other than ``base`` and ``head`` belong to neither part. ``ConfigError`` about the setting ``key`` if the
    model does not have that many linear layers at its end.

    Examples
    --------
    >>> import fedpfl
    >>> from torch import nn
    >>> base, head, in_head = fedpfl.cut(fedpfl.BaseHeadModel(nn.Flatten(), nn.Linear(64, 10)))
    >>> head, in_head("head.weight")
    (Linear(in_features=64, out_features=10, bias=True), True)
    """
    if not isinstance(model, BaseHeadModel):
        raise ConfigError("model", called(model), "has no head; the method needs one of base and head")
    if isinstance(model.head, NoHead):
        raise ConfigError("model", model.head.name, model.head.reason)
    if head_layers == 1:
        return Parts(model.base, model.head, lambda name: name.startswith("head."))
    layers = list(model.base.named_children()) if isinstance(model.base, nn.Sequential) else []
    linear = [index for index, (_, layer) in enumerate(layers) if isinstance(layer, nn.Linear)]
    # Only what stands behind the last layer with other weights (a convolution, say) can be a head of linear layers.
    other = [index for index, (_, layer) in enumerate(layers) if index not in linear and list(layer.parameters())]
    linear = [index for index in linear if index > max(other, default=-1)]
    if not 1 <= head_layers <= len(linear) + 1:
        raise ConfigError(key, head_layers, f"the model ends with {len(linear) + 1} linear layers")
    index = linear[-(head_layers - 1)]
    names = (*(f"base.{name}." for name, _ in layers[index:]), "head.")
    base = nn.Sequential(*(layer for _, layer in layers[:index]))
    head = nn.Sequential(*(layer for _, layer in layers[index:]), model.head)
    return Parts(base, head, lambda name: name.startswith(names))


def cut_at(module: nn.Module, layer: str) -> BaseHeadModel:
    """Cut a module, in place, before the layer with this name; without a name it is all base."""
    if not layer:
        return BaseHeadModel(module, NoHead("model", "has no nn.Linear"))  # type: ignore[arg-type]
    parent, _, short = layer.rpartition(".")
    head = module.get_submodule(layer)
    setattr(module.get_submodule(parent), short, nn.Identity())
    model = BaseHeadModel(module, head)  # type: ignore[arg-type]
    model.head_path = layer
    return model


def plain_names(model: nn.Module) -> Callable[[str], str]:
    """Return the function from the names of a model's arrays to those that they had before the model was cut.

    Names of what a method has added stay as they are; all do where two would become the same.
    """

    def plain(name: str) -> str:
        part, _, rest = name.partition(".")
        if part == "base":
            return rest
        return f"{path}.{rest}" if part == "head" and path else name

    path = getattr(model, "head_path", "")
    cut_apart = isinstance(model, BaseHeadModel) and (path or isinstance(model.head, NoHead))
    names = [plain(name) for name in model.state_dict()] if cut_apart else []
    return plain if cut_apart and len(set(names)) == len(names) else lambda name: name
