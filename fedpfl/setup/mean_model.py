"""Which personal arrays travel so that the mean of the clients' models can be tested."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..core.extra_arrays import BOTH, Extra
from ..core.layout import Layout
from ..core.payload import EVALUATION_ONLY
from ..core.sharing import Sharing
from ..methods.base import common_model
from .options.evaluate_global import EvaluateGlobalSettings


def mean_model_layout(config: Any, model: nn.Module, sharing: Sharing) -> Layout:
    """Return the layout of the personal arrays that are averaged; empty unless that is wanted and of use."""
    if not config.of(EvaluateGlobalSettings).evaluate_global or common_model(config.method, model) is not None:
        return Layout(())
    personal = sharing.get_personal().items()
    floats = [(name, array.shape) for name, array in personal if array.dtype.kind == "f"]
    return Layout.of([(name, shape) for name, shape in floats if config.method.in_mean_model(name)])


def extras(config: Any, model: nn.Module, sharing: Sharing) -> list[Extra]:
    """Return the array with which the personal ones and their mean travel, if they do."""
    mean = mean_model_layout(config, model, sharing)
    about = "a client's personal arrays, and their mean, for `evaluate-global` alone"
    return [Extra(EVALUATION_ONLY, BOTH, about, (mean.size,), required=False)] if mean.size else []
