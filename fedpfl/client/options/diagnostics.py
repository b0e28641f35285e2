"""The movement of a client's personal part and the number of its gradients, for the setting ``diagnostics``."""

from __future__ import annotations

from typing import Mapping

import numpy as np

from ...training.loop import steps_of
from ..option_hooks import ClientPart, Training

# In front of the names of arrays as they were before the client's first round.
FIRST = "first/"


class PersonalMovement(ClientPart):
    """Has a client keep its personal part of before its first round, and measures how far it has moved since."""

    @property
    def needs_model(self) -> bool:
        """Return whether the client needs its own model: always true."""
        return True

    def begin(self, training: Training) -> Training:
        """Keep the first personal part on."""
        state, local = training.state, training.local
        # Checked before the file: a client that stores nothing has none.
        if self.engine.config.method.personal_part(self.engine.model):
            training.kept.update(self._now() if local.never_trained else self.engine.kept(state, local, FIRST))
        return training

    def end(self, training: Training) -> Mapping[str, float]:
        """Return the number of gradients and, if there is a personal part, the distance."""
        settings, count = self.engine.config.training, len(training.local.samples.y)
        gradients = sum(phase.gradients * steps_of(phase, count, phase.adjusted(settings)) for phase in training.phases)
        first = {name: array for name, array in training.kept.items() if name.startswith(FIRST)}
        if not first:
            return {"gradients": gradients}
        now = self._now()
        squares = [float(np.sum(np.square(now[name].astype(np.float64) - first[name]))) for name in now]
        return {"gradients": gradients, "personal-change": sum(squares) ** 0.5}

    def _now(self) -> dict[str, np.ndarray]:
        part = self.engine.config.method.personal_part(self.engine.model)
        return {f"{FIRST}{name}": array.detach().cpu().numpy().copy() for name, array in part.items()}
