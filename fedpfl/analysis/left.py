"""What analyses of stored models share: fresh arrays to put in the place of a client's own."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..results.new_clients import Simulation
from ..setup.assembly import assemble


def fresh_arrays(left: Simulation, seed: int) -> dict[str, Tensor]:
    """Return the arrays of the run's model as it would be initialised with another seed, by name.

    Parameters
    ----------
    left : Simulation
        A run.
    seed : int
        At least 0; the run's own seed gives the arrays that the run began with.
    """
    config, data = left.engine.config, left.engine.data
    other = replace(config, run=replace(config.run, seed=seed, initial_weights=""))
    model, _ = assemble(other, data.input_shape, data.num_classes, config.training.device, data.vocabulary)
    return {name: array.detach().clone() for name, array in model.state_dict().items()}


@torch.no_grad()
def overwrite(left: Simulation, arrays: dict[str, Tensor], where: dict[str, Tensor]) -> None:
    """Write arrays into the loaded model at some places.

    Parameters
    ----------
    left : Simulation
        Its engine holds the model.
    arrays : dict of str to Tensor
        By name; those named in ``where`` are used.
    where : dict of str to Tensor
        Bool, of the arrays' shapes.
    """
    own = left.engine.model.state_dict(keep_vars=True)
    for name, places in where.items():
        own[name].copy_(torch.where(places, arrays[name], own[name]))
