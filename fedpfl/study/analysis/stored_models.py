"""What analyses of clients' stored models share: fresh arrays in the place of a client's own, and pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...core.pixels import HALF
from ...results.new_clients import Simulation
from ...setup.assembly import assemble
from ...training.augment import brightness


def fresh_arrays(stored: Simulation, seed: int) -> dict[str, Tensor]:
    """Return the arrays of the run's model, by name, as they would be initialised with another seed (at least 0)."""
    config, data = stored.engine.config, stored.engine.data
    other = replace(config, run=replace(config.run, seed=seed, initial_weights=""))
    model, _ = assemble(other, data.input_shape, data.num_classes, config.training.device, data.vocabulary)
    return {name: array.detach().clone() for name, array in model.state_dict().items()}


@torch.no_grad()
def overwrite(stored: Simulation, arrays: dict[str, Tensor], where: dict[str, Tensor]) -> None:
    """Write arrays into the loaded model where the bool arrays ``where`` are true."""
    model_arrays = stored.engine.model.state_dict(keep_vars=True)
    for name, places in where.items():
        model_arrays[name].copy_(torch.where(places, arrays[name], model_arrays[name]))


def picture(image: Tensor, normalize: str = HALF) -> np.ndarray:
    """Return an image, (channels, height, width) as models take it, as a figure has it."""
    values = brightness(image, normalize).clamp(0, 1).permute(1, 2, 0).cpu().numpy()
    return values if values.shape[2] == 3 else values.mean(axis=2)
