"""Refusals of what only fedpfl's own loop can do, and Flower's loop over a strategy's hooks cannot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from logging import WARNING, getLogger
from typing import Any

from ..core import settings as s
from ..core.errors import ConfigError
from ..core.references import FORM
from ..data.settings import DataSettings
from ..engine.listener import Listener
from ..methods import Method
from ..methods.base import adapts_itself
from ..setup.all_settings import code_in, tagged
from ..setup.config import Config
from ..setup.options.privacy import PrivacySettings
from ..training.settings import TrainingSettings
from .keep import INITIAL, MARK
from .messages import EXTRAS
from .sent_settings import NOT_SENT, OF_NODES

logger = getLogger("flwr")


def require_arguments(values: Mapping[str, Any]) -> None:
    """Refuse arguments of Flower's strategies that cannot be right, by their names."""
    for name, value in values.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name.startswith("fraction") and not (is_number and 0 <= value <= 1):
            raise ConfigError(name, value, "must be at least 0 and at most 1")
        if name.startswith("min") and not (type(value) is int and value >= 0):
            raise ConfigError(name, value, "must be a whole number of at least 0")
        if name.endswith("_fn") and not (value is None or callable(value)):
            raise ConfigError(name, value, "must be a function of the replies' contents and weighted_by_key")
        if name.endswith("_key") and not (isinstance(value, str) and value):
            raise ConfigError(name, value, "must be a name")
        if name.endswith("record_key") and value in (EXTRAS, INITIAL, MARK):
            raise ConfigError(name, value, "is a record of fedpfl's own")
    if values["configrecord_key"] == values["arrayrecord_key"]:
        raise ConfigError("configrecord_key", values["configrecord_key"], "must not be arrayrecord_key as well")


def require_settings(config: Config, has_model: bool, named: Collection[str]) -> None:
    """Refuse settings that would change nothing in Flower's loop; ``named`` are those that somebody has given."""
    values, usual = config.flat(), Config.parse({"method": config.run.method}).flat()
    of_options = [
        key
        for option in config.options
        if option.at_server and option.wanted(config)
        for key, _ in s.items(option.settings)
    ]
    for key in (*sorted(tagged("loop")), *of_options):
        if values[key] != usual[key]:
            message = "has no effect in Flower's loop: use run_federation"
            if key in OF_NODES:
                message = f"{message}, or hand samples over on the nodes: data= of fit or client_app"
            raise ConfigError(key, values[key], message)
    of_nodes = {*s.keys(TrainingSettings), *s.keys(DataSettings), *tagged("built")}
    for key in (key for key in named if key in of_nodes and not has_model):
        message = "needs model=, and fit or client_app on the nodes: without it they train in their own loops"
        raise ConfigError(key, values[key], message)
    # The server itself keeps there what privacy was spent.
    places = {
        **dict.fromkeys(("client-models", "tokenizer"), "fit or client_app"),
        **({} if config.of(PrivacySettings).on else {"state-dir": "keep, fit or client_app"}),
    }
    for key, parts in places.items():
        if key in named:
            raise ConfigError(key, values[key], f"is each node's own: give it to {parts} there")
    # Nodes have data of their own, which a function hands over.
    for reason, keys in config.idle(dataset=FORM, partitioner="natural"):
        raise ConfigError(keys[0], values[keys[0]], f"has no effect in Flower's loop with {reason}")


def require_in_half(config: Config, usual: Config, named: Collection[str], trains: bool) -> None:
    """Refuse settings of a round's messages that would change nothing in its training, or in its tests.

    ``usual`` has the settings of the strategy, by which its rule was made.
    """
    method, values = type(config.method), config.flat()
    adapts = config.training.tune_epochs or adapts_itself(method) or method.prepare is not Method.prepare
    of_training = {*s.keys(TrainingSettings), *tagged("training")} - {*tagged("both"), *tagged("tests")}
    half, other = ("training", "evaluate_config") if trains else ("tests", "train_config")
    without_effect = tagged("tests") if trains else set() if adapts else of_training
    for key in (key for key in named if key in without_effect):
        message = f"has no effect in the {half} of a round: give it in {other}, or to the strategy"
        raise ConfigError(key, values[key], message)
    if config.method.aggregation != usual.method.aggregation:
        key = next(key for key in named if values[key] != usual.flat()[key])
        raise ConfigError(key, values[key], "changes how the server combines replies: give it to the strategy")


def require_private(config: Config, whole_numbers: Collection[str]) -> None:
    """Refuse noise that nodes would have to add in loops of their own, and arrays that can have none."""
    privacy = config.of(PrivacySettings)
    if not privacy.on:
        return
    if privacy.dp_where == "client":
        message = (
            "needs model=, and fit or client_app on the nodes, which add the noise: without it give dp_where='server'"
        )
        raise ConfigError("dp-where", "client", message)
    if whole_numbers:
        message = (
            f"must be 0 where {next(iter(whole_numbers))}, an array of whole numbers, is shared: it can have no noise"
        )
        raise ConfigError("dp-noise-multiplier", privacy.dp_noise_multiplier, f"{message}; keep= lets it stay")


def require_rounds(config: Config, untold: str) -> None:
    """Refuse settings that depend on the number of rounds, where it is not known."""
    values, usual = config.flat(), Config.parse({"method": config.run.method}).flat()
    for key in sorted(tagged("rounds")):
        if values[key] != usual[key]:
            message = f"needs the number of rounds, which {untold}: give num_server_rounds= as well"
            raise ConfigError(key, values[key], message)


def require_called(listeners: Iterable[Listener]) -> None:
    """Refuse listeners that wait for a run's folder or its end."""
    for listener in listeners:
        for hook in ("run_started", "run_ended"):
            if getattr(type(listener), hook) is not getattr(Listener, hook):
                message = f"has {hook}, which Flower's loop never calls: use run_federation"
                raise ConfigError("listeners", type(listener).__name__, message)


def tell_unsent(values: Mapping[str, s.Value]) -> None:
    """Warn of functions that a strategy names and does not send, since no server may run code on a client."""
    for key, reference in code_in(values):
        if key not in NOT_SENT:
            warning = "fedpfl: %s = %r is code, and is not sent: give it to fit or client_app on the clients"
            logger.log(WARNING, warning, key, reference)
