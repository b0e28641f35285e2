"""Has a client write its whole model on its own machine, for the setting ``device-models``."""

from __future__ import annotations

from ...methods.base import LocalRound, tests_more_than_arrays
from ...training.loop import Score
from ...training.phase import Forward
from ..option_hooks import ClientPart
from ..state import ClientState


class KeptModels(ClientPart):
    """Writes a client's model after the tests of the last round, of others if that is wanted, and of the best one."""

    def tested(self, state: ClientState, local: LocalRound, forward: Forward, score: Score, held: Score | None) -> str:
        """Write the model, if it is due here or if none before was as good on the validation samples."""
        due, held = self._is_due(state, local), held if self._keeps_best(state) else None
        if not due and held is None:
            return ""
        from fedpfl.client.tested_model import keep

        return keep(self.engine, state, local, forward, score, held, due)

    def looks_at_test(self, state: ClientState, local: LocalRound) -> bool:
        """Return whether the model is due here, or may be the client's best."""
        return self._is_due(state, local) or self._keeps_best(state)

    def _is_due(self, state: ClientState, local: LocalRound) -> bool:
        run = self.engine.config.run
        due = self.engine.instead is not None or run.writes_models_after(local.round)
        anywhere = run.device_models == "always" or tests_more_than_arrays(self.engine.config.method)
        return bool(due and (anywhere or state.of_a_device))

    def _keeps_best(self, state: ClientState) -> bool:
        config = self.engine.config
        if not (config.run.writes_models and config.data.validation_fraction > 0) or self.engine.instead:
            return False
        return config.run.device_models == "always" or state.of_a_device  # the last, as it looks for a file
