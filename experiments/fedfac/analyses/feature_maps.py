"""What shared and personal filters see in an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpfl.core.errors import ConfigError
from fedpfl.core.settings import setting
from fedpfl.methods.fedfac.channel_sharing import ChannelSharing
from fedpfl.results.new_clients import Simulation
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Table
from fedpfl.study.analysis.figure import Images
from fedpfl.study.analysis.registry import NotRecorded, Result, analysis
from fedpfl.study.analysis.repetitions import RunGroup, grouped
from fedpfl.study.analysis.stored_models import picture


@dataclass(frozen=True)
class FeatureMapOptions:
    """Which maps are shown."""

    client: int = setting(0, "Client whose model and test images are used.", minimum=0)
    images: int = setting(2, "Number of test images, from the client's first one on.", minimum=1, maximum=100)
    filters: int = setting(6, "Maximum number of filters shown of each kind.", minimum=1)


@analysis(
    "feature-maps", "Feature maps of shared and of personal filters for images of a client (FedFac, figure 10)",
    FeatureMapOptions, computes=True,
)  # fmt: skip
def feature_maps(runs: Sequence[RunFolder], options: FeatureMapOptions) -> Result:
    """Show a client's activations in the first split convolution of a run of ``fedfac`` or ``fedsplit``.

    Other runs are shown at the same filters, as the paper does with FedAvg. Each map is scaled to 0 … 1. The table has
    how much the maps vary within a map before they are scaled: standard deviation over mean magnitude, averaged.
    """
    groups = grouped(runs)
    reference = next((layer for group in groups for layer in [_split_layer(group, options)] if layer), None)
    if reference is None:
        raise NotRecorded(
            "none of the runs splits the channels of a convolution: fedfac and fedsplit do (set the layers with "
            "fedfac-layers)"
        )
    layer, shared = reference
    figures, rows = [], []
    for group in groups:
        stored = Simulation.of(group.runs[0])
        stored.load(options.client)
        images = stored.engine.test_samples(options.client).x[: options.images]
        normalize = stored.engine.config.data.normalize
        maps = _activations(stored, layer, len(shared), images, group.label)
        row: list[Cell] = [group.label]
        for kind, chosen in (("shared", shared), ("personal", ~shared)):
            of_kind = maps[:, np.flatnonzero(chosen)]
            row.append(contrast(of_kind))
            shown = {f"image {i}": [picture(image, normalize), *(scaled(m) for m in of_kind[i, : options.filters])]
                     for i, image in enumerate(images)}  # fmt: skip
            numbers = ["image", *(f"filter {n}" for n in np.flatnonzero(chosen)[: options.filters])]
            title = f"{group.label}: {kind} filters of {layer}, client {options.client}"
            figures.append(Images(title, shown, dict.fromkeys(shown, numbers)))
        rows.append(row)
    columns = ["run", f"shared ({int(shared.sum())} filters)", f"personal ({int((~shared).sum())} filters)"]
    return Result([Table(f"Variation within the feature maps of {layer}", columns, rows)], list(figures))


def _split_layer(group: RunGroup, options: FeatureMapOptions) -> tuple[str, np.ndarray] | None:
    """Return the first split convolution of a group's first run and which of its channels are shared (bool)."""
    stored = Simulation.of(group.runs[0])
    if options.client not in stored.rule.clients:
        raise ConfigError("client", options.client, f"{group.label} has clients 0 … {len(stored.rule.clients) - 1}")
    stored.load(options.client)
    sharing = stored.engine.sharing
    if not isinstance(sharing, ChannelSharing):
        return None
    elements = sharing.personal_elements()
    for names in sharing.channels.layers:
        weight = stored.engine.model.state_dict()[names[0]]
        if weight.dim() == 4:
            personal = elements.get(names[0], torch.zeros_like(weight, dtype=torch.bool)).flatten(1).any(1)
            return names[0].rpartition(".")[0], ~personal.cpu().numpy()
    return None


@torch.no_grad()
def _activations(stored: Simulation, layer: str, filters: int, images: Tensor, label: str) -> np.ndarray:
    """Return what a layer puts out, shape (images, filters, height, width)."""
    model = stored.engine.model.eval()
    modules = dict(model.named_modules())
    if layer not in modules:
        raise ConfigError("run", label, f"its model has no layer called {layer}; compare runs with the same model")
    seen: list[Tensor] = []
    handle = modules[layer].register_forward_hook(lambda module, inputs, output: seen.append(output))
    try:
        stored.engine.config.method.personalised(model)(images)
    finally:
        handle.remove()
    maps = seen[0].cpu().numpy()
    if maps.ndim != 4 or maps.shape[1] != filters:
        raise ConfigError(
            "run", label, f"{layer} outputs {maps.shape[1:]}, not {filters} maps; compare runs with the same model"
        )
    return maps


def contrast(maps: np.ndarray) -> float | None:
    """Return the mean over the maps of std / mean magnitude; None where there are no maps."""
    if not maps.size:
        return None
    magnitude = np.abs(maps).mean(axis=(2, 3))
    return float((maps.std(axis=(2, 3)) / np.where(magnitude > 0, magnitude, 1)).mean())


def scaled(values: np.ndarray) -> np.ndarray:
    """Return a map from 0 to 1; zeros where all of it is the same."""
    low, high = values.min(), values.max()
    out: np.ndarray = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return out
