"""Fresh arrays that replace a client's own, for the analyses of stored models."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...results.new_clients import Simulation
from ...setup.assembly import assemble


def fresh_arrays(stored: Simulation, seed: int) -> dict[str, Tensor]:
    """Return the arrays of the run's model, by name, as they would be initialised with another seed (at least 0)."""
    config, data = stored.engine.config, stored.engine.data
    other = replace(config, run=replace(config.run, seed=seed, initial_weights=""))
    model, _ = assemble(other, data.input_shape, data.num_classes, config.training.device, data.vocabulary)
    return {name: array.detach().clone() for name, array in model.state_dict().items()}


@torch.no_grad()
def overwrite(stored: Simulation, arrays: dict[str, Tensor], where: dict[str, Tensor]) -> None:
    """Write arrays into the loaded model where the bool arrays ``where`` are true."""
    own = stored.engine.model.state_dict(keep_vars=True)
    for name, places in where.items():
        own[name].copy_(torch.where(places, arrays[name], own[name]))
