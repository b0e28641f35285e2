"""Further tests on a client: of the mean of the clients' models, and of its own model before the server combines it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

import numpy as np

from ...core.layout import Layout
from ...core.payload import EVALUATION_ONLY, Payload
from ...core.samples import Samples
from ...methods.base import LocalRound
from ...setup.mean_model import mean_model_layout
from ..option_hooks import ClientPart, Training
from ..scores import metrics_of
from ..state import ClientState


class ClientMeanModel(ClientPart):
    """Sends a client's personal arrays, and tests the shared arrays with the mean of all clients' personal ones."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._layouts: dict[str, Layout] = {}

    def made(self) -> None:
        """Find out which arrays are averaged."""
        engine = self.engine
        self._layouts[engine.config.run.model] = mean_model_layout(engine.config, engine.model, engine.sharing)

    @property
    def layout(self) -> Layout:
        """The personal arrays of the model in use that are averaged."""
        return self._layouts[self.engine.config.run.model]

    @property
    def needs_model(self) -> bool:
        """Return whether anything is averaged."""
        return bool(self.layout.size)

    def send(self, training: Training, shared: np.ndarray, extra: Payload) -> tuple[np.ndarray, Payload]:
        """Send the personal arrays if a test follows."""
        if self.layout.size and self.engine.config.run.evaluates_after(training.local.round):
            personal = self.layout.flatten(self.engine.sharing.copies(self.layout.names))
            extra = replace(extra, arrays={**extra.arrays, EVALUATION_ONLY: personal})
        return shared, extra

    def looks_at_test(self, state: ClientState, local: LocalRound) -> bool:
        """Return whether that mean has come."""
        return local.has_received(EVALUATION_ONLY)

    def test(self, local: LocalRound, samples: Samples) -> Mapping[str, float]:
        """Test the shared arrays with the mean of the personal ones."""
        if not local.has_received(EVALUATION_ONLY):
            return {}
        sharing, engine = self.engine.sharing, self.engine
        personal, mean = sharing.get_personal(), local.received(EVALUATION_ONLY)
        sharing.set_personal({**personal, **self.layout.unflatten(mean)})
        score = engine.score(engine.config.method.personalised(engine.model), local, samples)
        sharing.set_personal(personal)
        return metrics_of("global", score)


class TrainedModelTest(ClientPart):
    """Tests a client's model as it was trained (``evaluate-trained``)."""

    @property
    def needs_model(self) -> bool:
        """Return whether the client needs its own model: always true."""
        return True

    def send(self, training: Training, shared: np.ndarray, extra: Payload) -> tuple[np.ndarray, Payload]:
        """Send the result, too; the model may adapt, because all that is sent or kept of it has been copied."""
        engine, local = self.engine, training.local
        forward = engine.adapted(local, method=training.method)
        score = engine.score(forward, local, engine.test_samples(local.client))
        return shared, replace(extra, metrics={**extra.metrics, **metrics_of("trained", score)})
