"""A client's model as it was tested: what is written of it on the client's machine."""

from __future__ import annotations

from logging import getLogger
from math import isfinite
from typing import Any, Mapping

from torch import Tensor

from ..core.errors import NoPlainModel, StateError, in_one_line, printable
from ..core.metrics import ACCURACY, LOSS, lower_is_better, value
from ..methods.base import LocalRound, export_of
from ..models.adapters import complete_arrays
from ..setup.assembly import model_name, plain_model
from ..training.loop import Score, predict
from ..training.phase import Forward
from ..version import __version__
from .device_model import BEST, FOLDER, MAX_TEXT, best_score, is_alike, plain_module, traced, write_model
from .policy import PolicyError
from .state import ClientState

logger = getLogger("fedpfl.client")

# Training samples with which the written model is compared with the tested one.
COMPARED = 64
# Models that a client keeps: the newest ones, and that of its best round.
KEPT, KEPT_BEST = 2, 1


def keep(
    engine: Any, state: ClientState, local: LocalRound, personalised: Forward, score: Score,
    validation: Score | None, due: bool,
) -> str:  # fmt: skip
    """Write a tested model if it is due, and as the best if no earlier one was as good on ``validation`` samples.

    Return why it could not be written, as on a full card; empty if it was, or was not to be.
    """
    best = None if validation is None else score_of(validation, engine.config.run.choose_by)
    if best is not None and (before := best_score(state.folder)) is not None and best <= before:
        best = None
    if not due and best is None:
        return ""
    about, content = _made(engine, local, personalised, score)
    try:
        if due:
            write_model(state.folder / FOLDER, about, content, KEPT)
        if best is not None:
            write_model(state.folder / BEST, {**about, "validation": best}, content, KEPT_BEST)
    except (OSError, PolicyError) as error:  # the round still counts
        logger.warning("client %d: its model was not written: %s", local.client, error)
        return printable(str(error), MAX_TEXT)
    return ""


def _made(
    engine: Any, local: LocalRound, personalised: Forward, score: Score
) -> tuple[dict[str, Any], Mapping[str, Tensor] | bytes | None]:
    """Return the facts of a client's model as it was tested, and the model; nothing of it is sent."""
    about, data, why = _about(engine, local), engine.data, ""
    method, model = engine.config.method, engine.model
    content: Mapping[str, Tensor] | bytes | None = None
    try:
        plain = plain_model(engine.config, data.input_shape, data.num_classes, data.vocabulary)
        content = complete_arrays(plain, export_of(method, model))
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
    return about, content


def _about(engine: Any, local: LocalRound) -> dict[str, Any]:
    data, run = engine.data, engine.config.run
    model = model_name(engine.config, data.input_shape, data.vocabulary)
    place, names = engine.place(local.client), data.client_names
    return {
        **{key: array.tolist() for key, array in data.preparation(place).items()},
        "fedpfl": __version__, "run": str(local.message.config["state-key"]), "round": local.round,
        "client": local.client, "client-name": names[place] if names else "",
        "method": run.method, "model": model, "input-shape": list(data.input_shape),
        "num-classes": data.num_classes, "class-names": list(data.class_names_of(place)),
        "feature-names": list(data.feature_names), "vocabulary": data.vocabulary, "scaling": data.inputs,
        "normalize": engine.config.data.normalize,
        "loss": engine.config.training.labels, "why": "",
    }  # fmt: skip


def score_of(score: Score, by: str) -> float | None:
    """Return the score of one client by which rounds are chosen: higher is better. None where it is not defined."""
    if by in (ACCURACY, LOSS):
        total, count = (score.correct if by == ACCURACY else score.loss_sum), float(score.samples)
    else:
        total, count = score.metrics.get(by, (0.0, 0.0))
    if not count:
        return None
    mean = value(by, total, count)
    return (-mean if lower_is_better(by) else mean) if isfinite(mean) else None
