"""Has a client write its whole model on its own machine, for the setting ``device-models``."""

from __future__ import annotations

from logging import getLogger
from typing import Any, Mapping

from torch import Tensor

from ..core.errors import NoPlainModel, StateError, in_one_line
from ..methods.base import LocalRound, tests_more_than_arrays
from ..training.loop import Score, predict
from ..training.phase import Forward
from ..version import __version__
from .part import ClientPart
from .state import ClientState

logger = getLogger("fedpfl.client")

# Training samples with which the written model is compared with the tested one.
COMPARED = 64
# Models that a client keeps, the newest ones.
KEPT = 2


class KeptModels(ClientPart):
    """Writes a client's model after the tests of the last round, and of others if that is wanted."""

    def tested(self, state: ClientState, local: LocalRound, personalised: Forward, score: Score) -> None:
        """Write the model, if it is due here."""
        if self.looks_at_test(state, local):
            self._write(state, local, personalised, score)

    def looks_at_test(self, state: ClientState, local: LocalRound) -> bool:
        """Whether the model is due here."""
        run = self.engine.config.run
        due = self.engine.instead is not None or run.writes_models_after(local.round)
        anywhere = run.device_models == "always" or tests_more_than_arrays(self.engine.config.method)
        return bool(due and (anywhere or state.of_a_device))

    def _write(self, state: ClientState, local: LocalRound, personalised: Forward, score: Score) -> None:
        """Write the client's model on this machine, as it was tested; nothing of it is sent."""
        # Most rounds of most runs write none.
        from ..models.adapters import complete_arrays
        from ..setup.assembly import plain_model
        from .device_model import MAX_TEXT, is_alike, plain_module, traced, write_model
        from .policy import PolicyError

        about, engine, data, why = self._about(local), self.engine, self.engine.data, ""
        method, model = engine.config.method, engine.model
        content: Mapping[str, Tensor] | bytes | None = None
        try:
            plain = plain_model(engine.config, data.input_shape, data.num_classes, data.vocabulary)
            content = complete_arrays(plain, method.export(model))
            module, x = plain_module(about, content).to(local.samples.x.device), local.samples.x[:COMPARED]
            if not is_alike(predict(personalised, x), predict(module, x)):
                why = f"{method.name} exports another model than it predicts with"
        except NoPlainModel as error:
            why = str(error)
        except (StateError, RuntimeError) as error:  # a custom method that changes the model
            why = f"{method.name} exports no plain model: {in_one_line(error)}"
        if why:
            content, reason = traced(personalised, model, local.samples.x)
            about["why"] = "; ".join(filter(None, (why, reason)))[:MAX_TEXT]
        about["tested"] = {"correct": score.correct, "loss_sum": score.loss_sum, "samples": score.samples}
        try:
            write_model(state.folder, about, content, KEPT)
        except (OSError, PolicyError) as error:  # the round still counts
            logger.warning("client %d: its model was not written: %s", local.client, error)

    def _about(self, local: LocalRound) -> dict[str, Any]:
        engine, data, run = self.engine, self.engine.data, self.engine.config.run
        place = engine.place(local.client)
        standardized = data.scaling(place)
        numbers = {} if standardized is None else {key: of.tolist() for key, of in standardized._asdict().items()}
        return {
            **numbers,
            "fedpfl": __version__, "run": str(local.message.config["state-key"]), "round": local.round,
            "client": local.client, "method": run.method, "model": run.model, "input-shape": list(data.input_shape),
            "num-classes": data.num_classes, "class-names": list(data.class_names_of(place)),
            "feature-names": list(data.feature_names), "vocabulary": data.vocabulary, "scaling": data.inputs,
            "normalize": engine.config.data.normalize,
            "loss": engine.config.training.labels, "why": "",
        }  # fmt: skip
