"""Momentum that lasts over rounds, for the setting ``keep-momentum``."""

from __future__ import annotations

from typing import Mapping

import torch

from ..option_hooks import ClientPart, Momentum, Training

# In front of the place of a phase and the names of its parameters.
MOMENTUM = "momentum/"


class KeptMomentum(ClientPart):
    """Has each phase begin with the momentum with which it ended in the client's last round."""

    def begin(self, training: Training) -> Training:
        """Take up the stored momentum."""
        momentum: Momentum = {}
        for key, array in self.engine.kept(training.state, training.local, MOMENTUM).items():
            place, _, name = key[len(MOMENTUM) :].partition("/")
            momentum.setdefault(int(place), {})[name] = torch.tensor(array, device=self.engine.config.training.device)
        return training._replace(momentum=momentum)

    def end(self, training: Training) -> Mapping[str, float]:
        """Have it stored."""
        for place, arrays in (training.momentum or {}).items():
            arrays_by_name = {f"{MOMENTUM}{place}/{name}": array.cpu().numpy() for name, array in arrays.items()}
            training.kept.update(arrays_by_name)
        return {}
